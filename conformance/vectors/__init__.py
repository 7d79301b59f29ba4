"""Test vectors for any language: this folder has JSON files with inputs and expected outputs."""

import importlib

__all__ = ["FOLDER", "check_vectors", "read_vectors", "write_vectors"]


def __getattr__(name):
    if name in __all__:
        return getattr(importlib.import_module("routelaws.conformance.vectors.files"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
