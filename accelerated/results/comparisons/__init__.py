"""Runs that differ in one thing, and laws on runs that they did not see; entered by reports and commands."""
