"""The commands of `routelaws`, one file each."""
