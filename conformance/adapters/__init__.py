"""Adapters: turn another library's router, fused gate or whole layer into a backend of the suite.

    blocks               convert (gates, ids), [T, E], [T, E, C] or y to the suite's records; needs only NumPy
    torch_modules        set weights of torch modules, and make expert e return unit vector e
    transformers_modules every router and every routed layer of transformers, by its class name

`--backend transformers:Qwen3MoeTopKRouter` needs no file, because `find` builds this backend. The README of the suite
has an example with `blocks` for another library.

An adapter converts weight layouts, argument orders and records, and fixes no bugs. If the library lacks an option, the
adapter raises NotImplementedError with the reason. The suite counts these calls.
"""

import importlib

SCHEMES = {"transformers": "transformers_modules"}
"""Libraries whose class names are names of backends: {prefix before the colon: module of this folder with `find`}."""

_MODULES = ("blocks", "torch_modules", *SCHEMES.values())
__all__ = ["SCHEMES", "find", *sorted(_MODULES)]


def find(name: str):
    """Return the backend "transformers:Class" or "transformers:Class,option=value"; None for another library.

    Raises:
        ImportError: the library is missing.
        LookupError: the library has no class of this name, or the suite cannot test the class.
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
