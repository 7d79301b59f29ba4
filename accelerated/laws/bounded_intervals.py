"""Intervals of both bounded laws, the (N, E) law and the (F, B) law, in the format of `catalogue.py`.

Imported from `routelaws.reference.laws.bounded_intervals`. The search for the ends of an interval
is compiled (`uncertainty.py`).
"""

from routelaws.reference.laws import bounded_intervals as reference
from routelaws.reference.laws.bounded_intervals import *  # noqa: F403 - what follows replaces its name

from .._calling import calling
from .uncertainty import profile_intervals

routed_intervals = calling(reference.routed_intervals, profile_intervals=profile_intervals)
routed_slopes = calling(reference.routed_slopes, profile_intervals=profile_intervals)
routed_prediction = calling(reference.routed_prediction, profile_intervals=profile_intervals)
routed_dense_equivalent = calling(reference.routed_dense_equivalent, profile_intervals=profile_intervals)
utilisation_intervals = calling(reference.utilisation_intervals, profile_intervals=profile_intervals)
utilisation_slopes = calling(reference.utilisation_slopes, profile_intervals=profile_intervals)
utilisation_prediction = calling(reference.utilisation_prediction, routed_prediction=routed_prediction)
