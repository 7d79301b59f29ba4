"""Adapters: turn another library's router, fused gate or whole layer into a backend of the suite.

    blocks               building blocks, NumPy alone: from (gates, ids), [T, E], [T, E, C] or y to what the suite asks
    torch_modules        weights of torch modules, and experts that return their own number
    transformers_modules every router and every routed layer of transformers, by its class name

`--backend transformers:Qwen3MoeTopKRouter` needs no file; `find` builds that backend. The README of the
suite has an example with `blocks` for another library.

An adapter converts weight layouts, argument orders and records, and fixes no bugs. The adapter raises
NotImplementedError with the reason if the library lacks an option; the suite counts these calls.
"""

import importlib

SCHEMES = {"transformers": "transformers_modules"}
"""Libraries whose classes can be named as backends: {prefix before the colon: module here with `find`}."""

_MODULES = ("blocks", "torch_modules", *SCHEMES.values())
__all__ = ["SCHEMES", "find", *sorted(_MODULES)]


def find(name: str):
    """Return the backend called "transformers:Class" or "transformers:Class,option=value"; None for another library.

    Raises:
        ImportError: the library is missing.
        LookupError: it has no such class, or the class cannot be tested; the message explains.
    """
    scheme, _, rest = name.partition(":")
    if scheme not in SCHEMES or not rest:
        return None
    return importlib.import_module(f"{__name__}.{SCHEMES[scheme]}").find(rest)


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_MODULES))
