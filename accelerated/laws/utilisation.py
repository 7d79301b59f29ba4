"""The bounded law in compute: how the loss falls with the FLOPs F of a model and its parameters per FLOP, B.

Imported from `routelaws.reference.laws.utilisation`. The search differs (`fitting.py`).
"""

from routelaws.reference.laws import utilisation as reference
from routelaws.reference.laws.utilisation import *  # noqa: F403 - what follows replaces its name

from .._calling import calling
from .fitting import _fit_table, level_table

fit_utilisation = calling(reference.fit_utilisation, check_rows=level_table, _fit_rows=_fit_table)
