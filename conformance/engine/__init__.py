"""The parts that run the suite: backends, the pytest plugin, calls with a time limit, and reports."""
