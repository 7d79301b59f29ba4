"""The figures of a report, drawn only from its numbers; start at `draw`."""
