"""See `routelaws.reference.laws.uncertainty`.

What differs here: the ends at one shape come from the reduced table of `kernels/law_fit.py`, the search for each end
runs compiled (`kernels/law_intervals.py`), and Student's quantile is SciPy's. An interval takes some milliseconds.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..kernels import law_fit, law_intervals
from ..notation import check_finite
from .fitting import LevelTable, RoutedFit, fit_routed, level_table

_COEFFICIENTS = 6
_LOGARITHMIC = ("E_start", "E_max", "N_cutoff", "effective_parameters")
_TWOFOLD, _PERCENT, _HALF, _TENFOLD = 2.0, 1.05, 0.5, 10.0

_KINDS = {
    "a": law_intervals.SIZE_SLOPE, "b": law_intervals.SLOPE, "c": law_intervals.INTERACTION,
    "d": law_intervals.LEVEL_AT_1, "E_start": law_intervals.START, "E_max": law_intervals.LIMIT,
    "N_cutoff": law_intervals.CUTOFF, "slope": law_intervals.SLOPE, "gain": law_intervals.GAIN,
    "prediction": law_intervals.PREDICTION, "observation": law_intervals.OBSERVATION,
    "effective_parameters": law_intervals.EFFECTIVE,
}  # fmt: skip
_AT_SIZE = ("slope", "gain", "prediction", "observation", "effective_parameters")
_AT_EXPERTS = ("gain", "prediction", "observation", "effective_parameters")


class Quantity(NamedTuple):
    """See reference."""

    name: str
    N: float = math.nan
    E: float = math.nan


class Interval(NamedTuple):
    """See reference."""

    quantity: Quantity
    value: float
    low: float
    high: float
    level: float
    extrapolated: bool


class SlopeInterval(NamedTuple):
    """See reference."""

    at: np.ndarray
    slope: np.ndarray
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray


class GainInterval(NamedTuple):
    """See reference."""

    at: np.ndarray
    experts: float
    gain: np.ndarray
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray


def profile_intervals(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    quantities: Iterable[Quantity],
    level: float = 0.95,
) -> list[Interval]:
    """See reference."""
    table = level_table(dense_parameters, num_experts, loss)
    quantities = [check_quantity(quantity) for quantity in quantities]
    freedom = table.log_loss.size - _COEFFICIENTS
    quantile = student_quantile(level, freedom)
    fit = fit_routed(dense_parameters, num_experts, loss)
    limit = fit.objective * table.log_loss.size * (1 + quantile**2 / freedom)
    reduced = law_fit.reduce_rows(
        table.log_size, table.log_loss, table.level, np.ones(table.log_loss.size), table.extra.size
    )
    found = []
    for quantity in quantities:
        value, low, high = (_natural(table, quantity, end) for end in _ends(table, reduced, fit, quantity, limit))
        found.append(Interval(quantity, value, low, high, level, _extrapolated(table, quantity, value)))
    return found


def verdict(interval: Interval) -> str:
    """See reference."""
    name, value, low, high = interval.quantity.name, interval.value, interval.low, interval.high
    least = 1.0 if name in ("E_start", "E_max") else 0.0 if name in _LOGARITHMIC else -math.inf
    closed = (low > least, high < math.inf)  # False for NaN
    if closed == (False, False):
        words = "not identified"
    elif closed != (True, True):
        words = "bounded from below only" if closed[0] else "bounded from above only"
    elif _narrow(name, value, low, high):
        words = "pinned down"
    elif low * high <= 0:
        words = "soft, sign open"
    else:
        words = "loose" if max(abs(low), abs(high)) > _TENFOLD * min(abs(low), abs(high)) else "soft"
    return words + (", extrapolated" if interval.extrapolated else "")


def _narrow(name: str, value: float, low: float, high: float) -> bool:
    if name in ("prediction", "observation"):
        return high <= _PERCENT * low
    return high <= _TWOFOLD * low if name in _LOGARITHMIC else high - low <= _HALF * abs(value)


def slope_interval(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, at: np.ndarray, level: float = 0.95
) -> SlopeInterval:
    """See reference."""
    sizes = _sizes(at)
    quantities = [Quantity("slope", N=float(size)) for size in sizes]
    return SlopeInterval(sizes, *_at_sizes(dense_parameters, num_experts, loss, quantities, level))


def gain_interval(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    at: np.ndarray,
    experts: float | None = None,
    level: float = 0.95,
) -> GainInterval:
    """See reference."""
    table, sizes = level_table(dense_parameters, num_experts, loss), _sizes(at)
    experts = float(table.extra[-1] + 1 if experts is None else experts)
    if not (math.isfinite(experts) and experts > 1):
        raise ValueError(f"experts is {experts}; needed: a finite number above 1")
    quantities = [Quantity("gain", N=float(size), E=experts) for size in sizes]
    return GainInterval(sizes, experts, *_at_sizes(dense_parameters, num_experts, loss, quantities, level))


def student_quantile(level: float, degrees: int) -> float:
    """See reference."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; needed: a number between 0 and 1")
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; needed: at least 1")
    from scipy.stats import t  # a second of import time that only intervals need

    return float(t.ppf((1 + level) / 2, degrees))


def check_quantity(quantity: Quantity) -> Quantity:
    """See reference."""
    name = quantity.name
    if name not in _KINDS:
        raise ValueError(f"quantity {name!r} is not known; allowed: {', '.join(_KINDS)}")
    if name in _AT_SIZE and not (math.isfinite(quantity.N) and quantity.N > 0):
        raise ValueError(f"quantity {name}: N is {quantity.N}; needed: a finite number above 0")
    from_1 = name in ("prediction", "observation")
    if name in _AT_EXPERTS and not (math.isfinite(quantity.E) and (quantity.E > 1 or from_1 and quantity.E == 1)):
        allowed = "of at least 1" if from_1 else "above 1"
        raise ValueError(f"quantity {name}: E is {quantity.E}; needed: a finite number {allowed}")
    return quantity


def _ends(table: LevelTable, reduced, fit: RoutedFit, quantity: Quantity, limit: float) -> tuple[float, float, float]:
    """Return best value, low end and high end on the scale of the kernel."""
    problem, constant = reduced
    kind = _KINDS[quantity.name]
    at = (math.log10(quantity.N) if quantity.name in _AT_SIZE else 0.0) - table.centre
    beyond = quantity.E - 1.0 if quantity.name in _AT_EXPERTS else 0.0
    both = fit.curve.rise + fit.curve.bend
    rest = fit.curve.rise / both if both > 0 else 1.0
    shape = (both / rest, fit.curve.bend / both, rest) if both > 0 else (0.0, 0.0, 1.0)
    work = np.empty((6, 2 * table.extra.size))
    _, best, *ends = law_intervals.ends_at(problem, table.extra, constant, kind, at, beyond, *shape, limit, work)
    for side, sign in enumerate((1.0, -1.0)):
        found = law_intervals.interval_end(problem, table.extra, constant, kind, at, beyond, limit, sign)
        if found < law_intervals.OUTSIDE:  # else no shape of the scan is allowed, as where only the best one is
            ends[side] = sign * min(found, sign * ends[side])
    return float(best), float(ends[0]), float(ends[1])


def _natural(table: LevelTable, quantity: Quantity, value: float) -> float:
    """Return a value of the kernel in the units of the quantity."""
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
    try:
        return 10.0**exponent
    except OverflowError:
        return math.inf


def _extrapolated(table: LevelTable, quantity: Quantity, value: float) -> bool:
    """See reference: whether the law is asked about sizes or expert counts that the table does not reach."""
    name = quantity.name
    lowest, highest = table.log_size.min() + table.centre, table.log_size.max() + table.centre
    sizes = {"b": [1.0], "d": [1.0], "N_cutoff": [value]}.get(name, [])
    sizes = sizes + [quantity.N] * (name in _AT_SIZE) + [value] * (name == "effective_parameters")
    with np.errstate(divide="ignore"):
        outside = any(not lowest <= np.log10(size) <= highest for size in sizes if not math.isnan(size))
    needs_dense = name in ("E_start", "gain", "effective_parameters")
    if needs_dense and table.extra[0] > 0:
        return True
    if name in _AT_EXPERTS and not table.extra[0] <= quantity.E - 1 <= table.extra[-1]:
        return True
    return bool(outside or (name == "E_max" and value - 1 > table.extra[-1]))


def _sizes(at) -> np.ndarray:
    sizes = check_finite("at", np.atleast_1d(np.asarray(at, dtype=np.float64)))
    if sizes.ndim != 1 or np.any(sizes <= 0):
        raise ValueError(f"at is {at}; needed: one axis of sizes, each above 0")
    return sizes


def _at_sizes(dense_parameters, num_experts, loss, quantities: list[Quantity], level: float) -> tuple[np.ndarray, ...]:
    """See reference."""
    found = profile_intervals(dense_parameters, num_experts, loss, quantities, level)
    sizes = np.array([quantity.N for quantity in quantities])
    outside = (sizes < np.min(dense_parameters)) | (sizes > np.max(dense_parameters))
    return *np.array([item[1:4] for item in found]).reshape(-1, 3).T, outside
