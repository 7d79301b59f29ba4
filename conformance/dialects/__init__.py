"""Functions of one name that differ from library to library, and which of them a function speaks."""

import importlib

__all__ = ["classify", "classify_backend", "describe"]


def __getattr__(name):
    if name in __all__:
        return getattr(importlib.import_module("routelaws.conformance.dialects.classifier"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
