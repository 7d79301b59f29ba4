"""Numbers only: what a results table or a sweep says. `report` puts these numbers into words and figures."""
