"""The reference: readable NumPy code, in float64, for every router, the transformer and the laws."""

from ._lazy import lazy

_MODULES = (
    'accounting', 'balance', 'configuration', 'diagnostics', 'experts', 'laws', 'notation',
    'parallel', 'recipes', 'routed_block', 'routers', 'schedules', 'transformer',
    'upcycling',
)  # fmt: skip
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES)
