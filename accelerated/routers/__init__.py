"""Routers, jitted. See `routelaws.reference.routers`.

A name that only one file defines can be imported from here, too: `from routelaws.accelerated.routers import
sinkhorn_router`.
"""

from routelaws.reference._lazy import lazy
from routelaws.reference.routers import _MODULES, _NAMES

__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES, other="routelaws.reference.routers")
