"""Every number that a report states, as one dictionary; `report` enters by `gather`."""
