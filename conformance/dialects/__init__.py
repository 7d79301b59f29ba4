"""The variants that one function has in different libraries, and a classifier that identifies the variant."""

import importlib

__all__ = ["classify", "classify_backend", "describe"]


def __getattr__(name):
    if name in __all__:
        return getattr(importlib.import_module("routelaws.conformance.dialects.classifier"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
