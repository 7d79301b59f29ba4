"""A report in sentences, tables and figures, from numbers that `results` has worked out; entered by `engine`."""
