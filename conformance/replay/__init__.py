"""Failing calls as small files, to be run again."""

import importlib

__all__ = ["Case", "load"]


def __getattr__(name):
    if name in __all__:
        return getattr(importlib.import_module("routelaws.conformance.replay.cases"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
