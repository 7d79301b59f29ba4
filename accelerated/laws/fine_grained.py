"""The law of fine-grained experts: how the loss of a routed model depends on size, tokens and granularity.

Imported from `routelaws.reference.laws.fine_grained`. The search differs
(`additive.py`).
"""

from routelaws.reference.laws import fine_grained as reference
from routelaws.reference.laws.fine_grained import *  # noqa: F403 - what follows replaces its name

from .._calling import calling
from . import additive

fit_fine_grained = calling(reference.fit_fine_grained, additive=additive)
fine_grained_intervals = calling(reference.fine_grained_intervals, additive=additive)
