"""Routed language models and the laws by which they scale.

Three rooms: `routelaws.reference` is the slow, readable NumPy oracle; `routelaws.accelerated` is the jitted JAX twin
that trains and fits; `routelaws.conformance` holds the property tests that decide whether the second computes what
the first says. Importing this package imports none of them.
"""

__version__ = "0.1.0"
