"""Readers of the logs of trackers, one file for each."""
