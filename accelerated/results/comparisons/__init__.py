"""Compare runs that differ in one setting, and laws on held-out runs; used by reports and commands."""
