"""A report in sentences, tables and figures, from the numbers of `results`; start at `engine`."""
