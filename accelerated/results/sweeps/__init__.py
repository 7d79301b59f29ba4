"""Folders that training wrote: a sweep for its report, its registered predictions, runs held against each other."""
