"""How precisely the data determine the law: profile-likelihood intervals for its predictions and coefficients.

Step by step, with sources and examples: `routelaws.reference.laws.uncertainty`.

Here one search in NumPy finds the ends of all quantities (`_ends.py`).
"""

import math
from collections.abc import Iterable

import numpy as np

from routelaws.reference.laws import Interval, Quantity, check_quantity, student_quantile
from routelaws.reference.laws import uncertainty as reference

from ._ends import extreme_ends, interval_ends
from ._searches import share
from ._shapes import chosen, searched
from .fitting import level_table

_COEFFICIENTS = 6


def profile_intervals(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    quantities: Iterable[Quantity],
    level: float = 0.95,
) -> list[Interval]:
    """Return the profile-likelihood interval of each quantity under the bounded law.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as in `fit_routed`.
        quantities: the quantities to report.
        level: confidence level, between 0 and 1.

    Returns:
        One Interval for each quantity, in their order and units (losses in nats, sizes in parameters), with
        low <= value <= high. For `N_cutoff` (see `routed.cutoff`), `high` is inf if the data allow c <= 0. `low` is the
        least size at which an allowed law with c > 0 has b + c log10 N = 0. In the linear limit b and c have no finite
        value, but N_cutoff = 10^(-b/c) has a value.

    Raises:
        ValueError: the table is invalid (see `fit_routed`), `level` is out of its range, or a quantity has an unknown
            name or lacks N or E.
    """
    table = level_table(dense_parameters, num_experts, loss)
    quantities = [check_quantity(quantity) for quantity in quantities]
    rows = table.log_loss.size
    quantile = student_quantile(level, rows - _COEFFICIENTS)
    if not quantities:
        return []
    found = searched(table, np.ones((1, rows)))
    piece = int(chosen(found.least, rows)[0])
    limit = found.least[piece, 0] * (1 + quantile**2 / (rows - _COEFFICIENTS))
    own, ends = (
        np.array([quantity.name in ("E_start", "E_max") for quantity in quantities]),
        np.empty((len(quantities), 3)),
    )
    if own.any():
        names = [quantity.name for quantity, each in zip(quantities, own, strict=True) if each]
        ends[own] = extreme_ends(found, names, limit, piece)
    if not own.all():
        others = [quantity for quantity, each in zip(quantities, own, strict=True) if not each]
        ends[~own] = interval_ends(found, others, table.centre, limit, piece)
    intervals = []
    for quantity, three in zip(quantities, ends.tolist(), strict=True):
        value, low, high = (_natural(table.centre, quantity, end) for end in three)
        outside = reference._extrapolated(dense_parameters, num_experts, quantity, value)
        intervals.append(Interval(quantity, value, low, high, level, outside))
    return intervals


def _natural(centre: float, quantity: Quantity, value: float) -> float:
    name = quantity.name
    if name in ("E_start", "E_max"):
        return math.inf if value == 0 else -1.0 / value
    if name in ("prediction", "observation"):
        return _power(value)
    if name == "effective_parameters":
        return _power(math.log10(quantity.N) + _slope(value))
    if name == "N_cutoff":
        return _power(centre + _slope(value))
    return value


def _slope(angle: float) -> float:
    """Return the slope of a line; infinite at a right angle and beyond."""
    return math.copysign(math.inf, angle) if abs(angle) >= math.pi / 2 else math.tan(angle)


def _power(exponent: float) -> float:
    """Return 10 to a power; inf if the result exceeds float64."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float64(10.0) ** exponent)


share(__name__)
