"""Tests of the suite and of the house rules."""
