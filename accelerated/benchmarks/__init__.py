"""Measurements that anyone can repeat: each module is a command that prints a small table."""
