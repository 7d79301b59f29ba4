"""Sweeps: a grid of runs, the processes that train it, and its folder. The commands `sweep` and `report` enter here."""
