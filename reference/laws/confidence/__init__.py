"""How precisely a table determines a law: intervals, resampling, and rows that are far from the law."""
