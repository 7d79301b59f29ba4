"""Inspect routers: the choices of every routed block on a text, statistics of them, and an HTML page."""
