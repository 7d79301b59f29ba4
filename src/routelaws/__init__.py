"""Routed language models and the laws by which they scale.

`routelaws.reference` is the slow, readable NumPy oracle. `routelaws.accelerated` computes the same in JAX, trains and
fits. `routelaws.conformance` has property tests: they decide whether `accelerated`, or your own library, computes what
the reference computes. Importing this package imports none of the three.
"""

__version__ = "0.1.0"
