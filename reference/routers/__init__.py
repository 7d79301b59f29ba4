"""Routers: functions that assign experts to tokens. One file per router, and `records` with the facts about each.

A name that only one file defines can be imported from here, too: `from routelaws.reference.routers import
sinkhorn_router`.
"""

from .._lazy import lazy
from .records import RECORDS

_NAMES = {record.file or record.name: record.functions for record in RECORDS if record.functions}
_NAMES |= {"records": ("Router", "record_of", "router_counts", "routers_with"), "sparsemixer": ("sparsemixer_router",)}
_MODULES = tuple(_NAMES)
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES)
