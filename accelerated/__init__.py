"""The fast twin of `routelaws.reference`: same files, same names, same results, jitted."""

import importlib

_MODULES = (
    'accounting', 'balance', 'configuration', 'experts', 'laws', 'notation', 'routed_block', 'routers', 'transformer',
)  # fmt: skip
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_MODULES))
