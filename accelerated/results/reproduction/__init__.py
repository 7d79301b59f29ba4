"""Every number of a report as a dictionary. `report` calls `gather`."""
