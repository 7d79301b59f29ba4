"""The fast twin of `routelaws.reference`: the same names and results, compiled where it is hot.

Letters in shapes, such as [T, E], are explained in `routelaws.accelerated.notation`.
"""

from routelaws.reference._lazy import lazy

_MODULES = (
    'accounting', 'balance', 'configuration', 'diagnostics', 'experts', 'laws', 'layer_variants', 'notation',
    'parallel', 'results', 'routed_block', 'routers', 'transformer',
)  # fmt: skip
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, other="routelaws.reference")
