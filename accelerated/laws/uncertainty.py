"""How precisely the data determine the law: profile-likelihood intervals for its predictions and coefficients.

Step by step, with sources and examples: `routelaws.reference.laws.uncertainty`.

Here the ends at one shape come from the reduced table of `kernels/law_fit.py`, and the search for each end is compiled
(`kernels/law_intervals.py`). An interval takes some milliseconds.
"""

import math
from collections.abc import Iterable

import numpy as np

from routelaws.reference.laws import uncertainty as reference
from routelaws.reference.laws._allowed import PLACE
from routelaws.reference.laws.uncertainty import Interval, Quantity, check_quantity, student_quantile

from ..kernels import law_fit, law_intervals
from ._searches import share
from .fitting import LevelTable, RoutedFit, fit_routed, level_table

_COEFFICIENTS = 6

_KINDS = {
    "a": law_intervals.SIZE_SLOPE, "b": law_intervals.SLOPE, "c": law_intervals.INTERACTION,
    "d": law_intervals.LEVEL_AT_1, "E_start": law_intervals.START, "E_max": law_intervals.LIMIT,
    "N_cutoff": law_intervals.CUTOFF, "slope": law_intervals.SLOPE, "gain": law_intervals.GAIN,
    "prediction": law_intervals.PREDICTION, "observation": law_intervals.OBSERVATION,
    "effective_parameters": law_intervals.EFFECTIVE,
}  # fmt: skip


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
    freedom = table.log_loss.size - _COEFFICIENTS
    quantile = student_quantile(level, freedom)
    fit = fit_routed(dense_parameters, num_experts, loss)
    limit = fit.objective * table.log_loss.size * (1 + quantile**2 / freedom)
    reduced = law_fit.reduce_rows(
        table.log_size, table.log_loss, table.level, np.ones(table.log_loss.size), table.extra.size
    )
    intervals = []
    for quantity in quantities:
        value, low, high = (_natural(table, quantity, end) for end in _ends(table, reduced, fit, quantity, limit))
        outside = reference._extrapolated(dense_parameters, num_experts, quantity, value)
        intervals.append(Interval(quantity, value, low, high, level, outside))
    return intervals


def _ends(table: LevelTable, reduced, fit: RoutedFit, quantity: Quantity, limit: float) -> tuple[float, float, float]:
    """Return best value, low end and high end on the scale of the kernel."""
    problem, constant = reduced
    kind = _KINDS[quantity.name]
    at = (math.log10(quantity.N) if "N" in PLACE[quantity.name] else 0.0) - table.centre
    beyond = quantity.E - 1.0 if "E" in PLACE[quantity.name] else 0.0
    if quantity.name in ("a", "d"):
        beyond = math.log10(quantity.effective)
    both = fit.curve.rise + fit.curve.bend
    rest = fit.curve.rise / both if both > 0 else 1.0
    shape = (both / rest, fit.curve.bend / both, rest) if both > 0 else (0.0, 0.0, 1.0)
    work = np.empty((6, 2 * table.extra.size))
    _, best, *ends = law_intervals.ends_at(problem, table.extra, constant, kind, at, beyond, *shape, limit, work)
    for side, sign in enumerate((1.0, -1.0)):
        end = law_intervals.interval_end(problem, table.extra, constant, kind, at, beyond, limit, sign)
        if end < law_intervals.OUTSIDE:  # else the scan has no allowed shape, such as if only the best is allowed
            ends[side] = sign * min(end, sign * ends[side])
    return float(best), float(ends[0]), float(ends[1])


def _natural(table: LevelTable, quantity: Quantity, value: float) -> float:
    name = quantity.name
    if name in ("E_start", "E_max"):
        return math.inf if value == 0 else -1.0 / value
    if name in ("prediction", "observation"):
        return _power(value)
    if name == "effective_parameters":
        return _power(math.log10(quantity.N) + value)
    if name == "N_cutoff":
        return math.inf if value >= math.pi / 2 else _power(table.centre + math.tan(value))
    return value


def _power(exponent: float) -> float:
    """Return 10 to a power; inf if the result exceeds float64."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float64(10.0) ** exponent)


share(__name__)
