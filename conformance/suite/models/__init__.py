"""Whole models, their parts and their size."""
