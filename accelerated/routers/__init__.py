"""Routers, jitted. See `routelaws.reference.routers`.

You can import a name that is unique among the files from here: `from routelaws.accelerated.routers import
sinkhorn_router`.
"""

from routelaws.reference._lazy import lazy
from routelaws.reference.routers import _MODULES, _NAMES

__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES, other="routelaws.reference.routers")
