"""The laws of `routelaws.reference.laws`, with faster fits and intervals.

A name that only one file defines can be imported from here, too: `from routelaws.accelerated.laws import fit_routed`.
"""

from pathlib import Path

from routelaws.reference._lazy import lazy
from routelaws.reference.laws import _MODULES, _NAMES

from ._searches import share

for _name in _MODULES:
    if not Path(__file__).with_name(f"{_name}.py").exists():
        share(f"{__name__}.{_name}")

__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES)
