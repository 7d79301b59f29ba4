"""Laws and fits, compiled. See `routelaws.reference.laws`."""

import importlib

_MODULES = (
    'catalogue', 'dense', 'fitting', 'held_out', 'log_linear', 'resampling', 'routed', 'uncertainty', 'utilisation',
)
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_MODULES))
