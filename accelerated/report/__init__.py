"""Reports: the pages of the findings in sentences, tables and figures. The first file to read is `engine`."""
