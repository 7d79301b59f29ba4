"""Routers, jitted. See `routelaws.reference.routers`."""

import importlib

_MODULES = ('base', 'expert_choice', 'hash_layer', 'mixture_of_tokens', 'quantile', 'reinforce', 'sinkhorn', 'top_k')
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_MODULES))
