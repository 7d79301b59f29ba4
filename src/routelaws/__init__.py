"""Routed language models and the laws by which they scale.

`routelaws.reference` is the slow, readable NumPy oracle; `routelaws.accelerated` computes the same in JAX, trains and
fits; `routelaws.conformance` holds the property tests that decide whether the second, or a library of your own,
computes what the first says. Importing this package imports none of the three.
"""

__version__ = "0.1.0"
