"""Compare runs that differ in one setting, and laws on held-out runs. Reports and commands use these functions."""
