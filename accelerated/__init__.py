"""The fast twin of `routelaws.reference`: the same names and results, with the expensive parts compiled.

`routelaws.accelerated.notation` explains the letters in shapes, such as [T, E].
"""

from routelaws.reference._lazy import lazy

_MODULES = (
    'accounting', 'balance', 'configuration', 'diagnostics', 'experts', 'laws', 'notation',
    'parallel', 'recipes', 'results', 'routed_block', 'routers', 'schedules', 'transformer',
    'upcycling',
)  # fmt: skip
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, other="routelaws.reference")
