"""The commands that read results of runs: tables, laws, reports."""
