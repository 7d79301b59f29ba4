"""The laws of `routelaws.reference.laws`, with faster fits and intervals.

A name that only one file defines can be imported from here, too: `from routelaws.accelerated.laws import fit_routed`.
"""

from routelaws.reference._lazy import lazy
from routelaws.reference.laws import _MODULES, _NAMES

__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES, other="routelaws.reference.laws")
