"""The commands that train, run, convert or place a model."""
