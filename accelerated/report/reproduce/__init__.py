"""The report of a table of runs beside the paper: every law, table and figure that the runs can support."""
