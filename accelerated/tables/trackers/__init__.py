"""Convert tables and logs of trackers to a results table (`convert.py`), with a file for each tracker."""
