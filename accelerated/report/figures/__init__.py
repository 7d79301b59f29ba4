"""The figures of a report, drawn from its numbers alone; entered by `draw`."""
