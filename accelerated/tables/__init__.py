"""The results table: schema, reading and checking, converting, and the paper's released table."""
