"""Every number of a report, as one dictionary; `report` calls `gather`."""
