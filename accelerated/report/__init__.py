"""Reports in sentences, tables and figures, from the numbers of `results`. The first file to read is `engine`."""
