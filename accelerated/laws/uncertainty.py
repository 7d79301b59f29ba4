"""How far the data pin the law down: profile-likelihood intervals for whatever the law says.

Step by step, with sources and examples: `routelaws.reference.laws.uncertainty`.

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
    """What an interval is asked for, from what the rows show almost directly to what they show hardly at all:

        prediction, observation   L of the law at (N, E), and of one more run there                       nats
        gain                      change of log10 L from E = 1 to E experts at size N
        slope                     s(N) = b + c log10 N, change of log10 L per decade of effective experts at size N
        effective_parameters      the dense size that is worth as much as (N, E)                          parameters
        a, b, c, d                the law's own coefficients (b is the slope at N = 1, a and d are taken at Ê = 1)
        E_start, E_max            where effective experts start and end                                   experts
        N_cutoff                  10^(-b/c), where more experts stop helping; infinite where c <= 0       parameters

    Attributes:
        name: one of these
        N: size, parameters, above 0: for all but the coefficients and N_cutoff
        E: experts, at least 1 (gain, effective_parameters: above 1): as N, but not for slope
        effective: for a and d: the Ê that they are taken at instead of 1, above 0
    """

    name: str
    N: float = math.nan
    E: float = math.nan
    effective: float = 1.0


class Interval(NamedTuple):
    """A value of the best fit and the values that the data do not reject, in the units of the quantity.

    Attributes:
        quantity: what was asked for
        value: NaN where the fit has none (E_start and E_max in the linear limit)
        low: may be -inf, or 0 for a size
        high: may be inf
        level: confidence level
        extrapolated: a statement about sizes or expert counts outside those of the table
    """

    quantity: Quantity
    value: float
    low: float
    high: float
    level: float
    extrapolated: bool


class SlopeInterval(NamedTuple):
    """s(N₀) = b + c log10 N₀ at each size asked for; all arrays [m].

    Attributes:
        at: N₀, parameters
        slope: at the optimum; -inf or inf in the linear limit
        low: may be -inf
        high: may be inf
        extrapolated: bool: N₀ lies outside the sizes of the table
    """

    at: np.ndarray
    slope: np.ndarray
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray


class GainInterval(NamedTuple):
    """g(N₀), the change of log10 L from E = 1 to E = experts at each size asked for; all arrays [m].

    Attributes:
        at: N₀, parameters
        experts: E_top
        gain: at the optimum
        low: lower ends
        high: upper ends
        extrapolated: bool: N₀ lies outside the sizes of the table
    """

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
    """Return the profile-likelihood interval of each quantity under the bounded law.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as `fit_routed`.
        quantities: what to report.
        level: confidence level, between 0 and 1.

    Returns:
        One Interval for each quantity, in their order and units (losses in nats, sizes in parameters), with
        low <= value <= high. `N_cutoff` is as `routed.cutoff`: `high` is inf where c <= 0 is not rejected, `low` is the
        least size at which b + c log10 N = 0 with c > 0 is not rejected, and in the linear limit, where b and c have no
        value but their ratio has one, it is that ratio's.

    Raises:
        ValueError: as `fit_routed`, `level` is out of its range, or a quantity has an unknown name or lacks N or E.
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
    found = []
    for quantity in quantities:
        value, low, high = (_natural(table, quantity, end) for end in _ends(table, reduced, fit, quantity, limit))
        found.append(Interval(quantity, value, low, high, level, _extrapolated(table, quantity, value)))
    return found


def verdict(interval: Interval) -> str:
    """Return in words how far the data pin a quantity down. The rules are our choice.

    An end counts as open where it is NaN, infinite, or the edge of what the quantity can be (E_start and E_max at 1, a
    size at 0). Narrow is: the ends differ by no more than half of the value; for E_start, E_max and sizes, by no more
    than a factor of 2; for losses, of 1.05.

    Returns:
        "pinned down": both ends are there and the interval is narrow;
        "soft": both ends are there, and it is not; "soft, sign open": and 0 lies inside;
        "loose": as soft, and one end is more than ten times the other;
        "bounded from above only" or "bounded from below only": one end is open;
        "not identified": both are.
        Each followed by ", extrapolated" where that is so.
    """
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
    """Return the slope b + c log10 N₀ and its profile-likelihood interval at each size.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as `fit_routed`.
        at: [m] or a number, the sizes N₀, parameters, above 0.
        level: confidence level, between 0 and 1.

    Returns:
        A SlopeInterval with low <= slope <= high.

    Raises:
        ValueError: as `fit_routed`, or `at` or `level` is out of its range.
    """
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
    """Return the predicted change of log10 L from E = 1 to `experts`, and its interval, at each size.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as `fit_routed`.
        at: [m] or a number, the sizes N₀, parameters, above 0.
        experts: E_top, above 1; the largest E of the table if None.
        level: confidence level, between 0 and 1.

    Returns:
        A GainInterval with low <= gain <= high; finite unless `experts` is.

    Raises:
        ValueError: as `slope_interval`, or `experts` is not a finite number above 1.
    """
    table, sizes = level_table(dense_parameters, num_experts, loss), _sizes(at)
    experts = float(table.extra[-1] + 1 if experts is None else experts)
    if not (math.isfinite(experts) and experts > 1):
        raise ValueError(f"experts is {experts}; needed: a finite number above 1")
    quantities = [Quantity("gain", N=float(size), E=experts) for size in sizes]
    return GainInterval(sizes, experts, *_at_sizes(dense_parameters, num_experts, loss, quantities, level))


def student_quantile(level: float, degrees: int) -> float:
    """Return q such that a Student t variable lies in [-q, q] with probability `level`.

    With t = √degrees · tan θ the density becomes cos(θ)^(degrees - 1) up to a factor, so

        P(|t| <= q) = ∫₀^arctan(q/√degrees) cos(θ)^(degrees-1) dθ / ∫₀^(π/2) cos(θ)^(degrees-1) dθ

    which is integrated by Gauss-Legendre and inverted by bisection in θ.

    Args:
        level: between 0 and 1.
        degrees: degrees of freedom, at least 1.

    Returns:
        q > 0.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; needed: a number between 0 and 1")
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; needed: at least 1")
    from scipy.stats import t  # a second of import time that only intervals need

    return float(t.ppf((1 + level) / 2, degrees))


def check_quantity(quantity: Quantity) -> Quantity:
    """Return the quantity; ValueError unless its name is known and the N and E that it needs are in range."""
    name = quantity.name
    if name not in _KINDS:
        raise ValueError(f"quantity {name!r} is not known; allowed: {', '.join(_KINDS)}")
    if name in _AT_SIZE and not (math.isfinite(quantity.N) and quantity.N > 0):
        raise ValueError(f"quantity {name}: N is {quantity.N}; needed: a finite number above 0")
    from_1 = name in ("prediction", "observation")
    if name in _AT_EXPERTS and not (math.isfinite(quantity.E) and (quantity.E > 1 or from_1 and quantity.E == 1)):
        allowed = "of at least 1" if from_1 else "above 1"
        raise ValueError(f"quantity {name}: E is {quantity.E}; needed: a finite number {allowed}")
    if not 0 < quantity.effective < math.inf:
        raise ValueError(f"quantity {name}: effective is {quantity.effective}; needed: a finite number above 0")
    return quantity


def _ends(table: LevelTable, reduced, fit: RoutedFit, quantity: Quantity, limit: float) -> tuple[float, float, float]:
    """Return best value, low end and high end on the scale of the kernel."""
    problem, constant = reduced
    kind = _KINDS[quantity.name]
    at = (math.log10(quantity.N) if quantity.name in _AT_SIZE else 0.0) - table.centre
    beyond = quantity.E - 1.0 if quantity.name in _AT_EXPERTS else 0.0
    if quantity.name in ("a", "d"):
        beyond = math.log10(quantity.effective)
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
    """Return 10 to a power; inf beyond float64."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float64(10.0) ** exponent)


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
