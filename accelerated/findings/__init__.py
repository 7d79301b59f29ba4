"""The report: its findings (`laws`, `routers`, `sweeps`), one question a file, and what they share.

The first file to read is `report`.
"""
