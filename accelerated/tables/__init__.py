"""The results table: its schema, reading and checking, converting, and the table that the paper's authors released."""
