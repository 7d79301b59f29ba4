"""Checked columns, least squares and searches. The laws use them; skip them in a first reading."""
