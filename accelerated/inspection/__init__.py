"""Inspect routers: the choices of every routed block on a text, their statistics, and an HTML page."""
