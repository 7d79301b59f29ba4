"""How the suite runs: backends, the pytest plugin, calls under a time limit, reports."""
