"""The folder of a run: checkpoints, log, table, export, and how a run starts from another.

Training, sweeps, commands and results enter here.
"""
