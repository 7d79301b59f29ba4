"""The questions of a report, one file each: its numbers, its answer in words, and how both are shown."""
