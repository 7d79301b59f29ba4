"""The commands of `routelaws`, one file each in `laws` and `models`, and what they share."""
