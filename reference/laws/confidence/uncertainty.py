"""How precisely the data determine the law: profile-likelihood intervals for its predictions and coefficients.

If one coefficient of `routed.py` changes, most of all E_max, the other coefficients can compensate for this change. So
an error bar on each coefficient says little. `Quantity` lists everything that can have an interval.

The interval (all kinds)
1. Assume normal errors of unknown variance. The data do not reject a value v at the confidence level if
   RSS*(v) <= limit = RSS_min · (1 + q²/(n - 6)). RSS*(v) is the least residual sum of squares among all laws of the
   domain with that value. q is Student's two-sided quantile with n - 6 degrees of freedom (`student_quantile`). For an
   observation, RSS* counts the new run as one more row.
2. At a fixed shape (rise, bend) the law is linear in the four unknowns of step 2 of `fitting.py`. The condition that
   the quantity equals v is linear too, even for a ratio: y/x = v is y - v x = 0. A formula gives the least residual sum
   under one linear condition, and bisection finds the last allowed v.
3. A value is allowed if some shape allows it. So the interval is the union over all shapes. The scan of the fit finds
   the least lower end and the greatest upper end.

Steps 2 and 3 are in `_allowed.py`. They use no quadratic approximation in E_start and E_max, and they include the edges
and limits of the domain. An infinite end means that the data allow arbitrarily large values. E_start and E_max can be
any value above 1 if the data allow the linear limit (`fitting.py`). Slopes and the other coefficients are then
unbounded. But if the rows determine the sign of a slope or of c, the interval of this coefficient has one finite end.

Source: the intervals are our choice; the paper's main text prints none (docs/choices.md).
"""

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...notation import check_finite
from ..fitting import fit_routed
from ..numerics._allowed import PLACE, union
from ..numerics._projection import check_rows

_COEFFICIENTS = 6  # the law has six: n - 6 degrees of freedom, even if the optimum lies on an edge
_LOGARITHMIC = ("E_start", "E_max", "N_cutoff", "effective_parameters")  # `verdict` uses the ratio of their ends
_TWOFOLD, _FIVE_PERCENT, _HALF = 2.0, 1.05, 0.5  # limits of a narrow interval in `verdict`
_TENFOLD = 10.0  # a loose interval has a larger ratio of its ends


class Quantity(NamedTuple):
    """A quantity whose interval you want. The list begins with the quantities that the rows determine best:

        prediction, observation   L of the law at (N, E), and of one more run there                       nats
        gain                      change of log10 L from E = 1 to E experts at size N
        slope                     s(N) = b + c log10 N, change of log10 L per decade of effective experts at size N
        effective_parameters      the dense size with the same loss as (N, E)                             parameters
        a, b, c, d                the law's coefficients (b is the slope at N = 1; a and d are values at Ê = 1)
        E_start, E_max            least and greatest effective experts                                    experts
        N_cutoff                  10^(-b/c), where more experts stop helping; infinite where c <= 0       parameters

    Attributes:
        name: one of these
        N: size, parameters, above 0; not used by the coefficients and N_cutoff
        E: experts, at least 1 (gain, effective_parameters: above 1); not used by slope, the coefficients and N_cutoff
        effective: the Ê of a and d (see the table), above 0
    """

    name: str
    N: float = math.nan
    E: float = math.nan
    effective: float = 1.0


class Interval(NamedTuple):
    """The best fit's value of a quantity, and the interval of the values that the data do not reject.

    Attributes:
        quantity: the quantity
        value: the value of the fit; NaN for E_start and E_max in the linear limit
        low: may be -inf, or 0 for a size
        high: may be inf
        level: confidence level
        extrapolated: whether the quantity depends on sizes or expert counts outside the table
    """

    quantity: Quantity
    value: float
    low: float
    high: float
    level: float
    extrapolated: bool


class SlopeInterval(NamedTuple):
    """The slope s(N₀) = b + c log10 N₀, with its interval, at each size. All fields are [m].

    Attributes:
        at: N₀, parameters
        slope: of the best fit; -inf or inf in the linear limit
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
    """The change g(N₀) of log10 L from E = 1 to E = experts, with its interval, at each size. All fields are [m].

    Attributes:
        at: N₀, parameters
        experts: E_top
        gain: of the best fit
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

    Example:
        Noise-free rows determine the slope exactly.

        >>> from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss
        >>> law = RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)
        >>> size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1, 4, 16, 64, 256]))
        >>> [found] = profile_intervals(size, experts, predict_loss(size, experts, law), [Quantity("slope", N=1e9)])
        >>> [round(number, 4) for number in (found.low, found.value, found.high)], verdict(found)
        ([-0.029, -0.029, -0.029], 'pinned down')
    """
    rows = check_rows(dense_parameters, num_experts, loss)
    quantities = [check_quantity(quantity) for quantity in quantities]
    quantile = student_quantile(level, rows.log_loss.size - _COEFFICIENTS)
    fit = fit_routed(dense_parameters, num_experts, loss)
    limit = fit.objective * rows.log_loss.size * (1 + quantile**2 / (rows.log_loss.size - _COEFFICIENTS))
    intervals = []
    for quantity in quantities:
        value, low, high = union(rows, quantity, fit, limit)
        outside = _extrapolated(dense_parameters, num_experts, quantity, value)
        intervals.append(Interval(quantity, value, low, high, level, outside))
    return intervals


def verdict(interval: Interval) -> str:
    """Return a short verdict on how precisely the data determine a quantity. The rules are our choice.

    An end is open if it is NaN, infinite, or the edge of the quantity's range (E_start and E_max at 1, a size at 0). An
    interval of E_start, E_max or a size is narrow if its ends differ by at most a factor of 2. For a loss, this factor
    is 1.05. Any other interval is narrow if its ends differ by at most half of the value.

    Returns:
        "pinned down": no end is open, and the interval is narrow;
        "soft": no end is open, but the interval is not narrow; "soft, sign open" if it contains 0;
        "loose": no end is open, and one end is more than ten times the other;
        "bounded from above only" or "bounded from below only": one end is open;
        "not identified": both ends are open;
        "infinite": so is the lower end, as that of an N_cutoff if more experts always help.
        For an extrapolated interval, ", extrapolated" follows.

    Example:
        >>> verdict(Interval(Quantity("E_max"), 300.0, 120.0, math.inf, 0.95, False))
        'bounded from below only'
        >>> verdict(Interval(Quantity("slope", N=1e9), -0.03, -0.04, -0.02, 0.95, False))
        'soft'
    """
    name, value, low, high = interval.quantity.name, interval.value, interval.low, interval.high
    floor = {"E_start": 1.0, "E_max": 1.0, "N_cutoff": 0.0, "effective_parameters": 0.0}.get(name, -math.inf)
    if name in _LOGARITHMIC:
        narrow = high <= _TWOFOLD * low
    elif name in ("prediction", "observation"):
        narrow = high <= _FIVE_PERCENT * low
    else:
        narrow = high - low <= _HALF * abs(value)
    return _words(low, high, floor, narrow) + (", extrapolated" if interval.extrapolated else "")


def _words(low: float, high: float, floor: float, narrow: bool) -> str:
    """Return the verdict on an interval. Its lower end is open at `floor` or below."""
    if low == math.inf:
        return "infinite"
    above, below = high < math.inf, low > floor  # False for NaN
    if not (above or below):
        return "not identified"
    if not (above and below):
        return "bounded from above only" if above else "bounded from below only"
    if narrow:
        return "pinned down"
    if low <= 0 <= high:
        return "soft, sign open"
    return "loose" if max(low / high, high / low) > _TENFOLD else "soft"


def slope_interval(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    at: np.ndarray,
    level: float = 0.95,
    *,
    search=profile_intervals,
) -> SlopeInterval:
    """Return the slope b + c log10 N₀ and its profile-likelihood interval at each size.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as in `fit_routed`.
        at: [m] or a number, the sizes N₀, parameters, above 0.
        level: confidence level, between 0 and 1.
        search: how to search; the accelerated package passes its own.

    Returns:
        A SlopeInterval with low <= slope <= high.

    Raises:
        ValueError: `fit_routed` raises this error, or `at` or `level` is out of its range.
    """
    sizes = _check_sizes(at)
    quantities = [Quantity("slope", N=float(size)) for size in sizes]
    return SlopeInterval(sizes, *_at_sizes(dense_parameters, num_experts, loss, quantities, level, search))


def gain_interval(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    at: np.ndarray,
    experts: float | None = None,
    level: float = 0.95,
    *,
    search=profile_intervals,
) -> GainInterval:
    """Return the predicted change of log10 L from E = 1 to `experts`, and its interval, at each size.

    Args:
        dense_parameters, num_experts, loss: [n] each, the table, as in `fit_routed`.
        at: [m] or a number, the sizes N₀, parameters, above 0.
        experts: E_top, above 1; the largest E of the table if None.
        level: confidence level, between 0 and 1.
        search: how to search; the accelerated package passes its own.

    Returns:
        A GainInterval with low <= gain <= high.

    Raises:
        ValueError: `slope_interval` raises this error, or `experts` is not a finite number above 1.
    """
    rows, sizes = check_rows(dense_parameters, num_experts, loss), _check_sizes(at)
    experts = float(rows.extra_experts.max() + 1 if experts is None else experts)
    if not (math.isfinite(experts) and experts > 1):
        raise InputError(f"experts is {experts}; needed: a finite number above 1")
    quantities = [Quantity("gain", N=float(size), E=experts) for size in sizes]
    return GainInterval(sizes, experts, *_at_sizes(dense_parameters, num_experts, loss, quantities, level, search))


@functools.cache  # callers need the same few values many times
def _check_level(level: float) -> None:
    """Raise ValueError unless a confidence level is between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"level is {level}; needed: a number between 0 and 1")


@functools.cache  # the intervals of one table share a quantile
def student_quantile(level: float, degrees: float) -> float:
    """Return q such that a Student t variable lies in [-q, q] with probability `level`.

    With t = √degrees · tan θ the density becomes cos(θ)^(degrees - 1) up to a factor, so

        P(|t| <= q) = ∫₀^arctan(q/√degrees) cos(θ)^(degrees-1) dθ / ∫₀^(π/2) cos(θ)^(degrees-1) dθ

    Gauss-Legendre quadrature gives the integrals, and bisection in θ inverts the equation.

    Args:
        level: between 0 and 1.
        degrees: degrees of freedom, at least 1.

    Returns:
        q > 0.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> round(student_quantile(0.95, 10), 6), round(student_quantile(0.5, 1), 6)
        (2.228139, 1.0)
    """
    _check_level(level)
    if degrees < 1:
        raise InputError(f"degrees is {degrees}; needed: at least 1")
    nodes, weights = _gauss_legendre()

    def area(end: float) -> float:
        """Return the integral from 0 to `end`, from nodes that lie between -1 and 1."""
        return end / 2 * float(weights @ np.cos(end / 2 * (nodes + 1)) ** (degrees - 1))

    wanted = level * area(math.pi / 2)
    low, high = 0.0, math.pi / 2
    middle = (low + high) / 2
    while low < middle < high:  # stop when no float64 number lies between low and high
        if area(middle) < wanted:
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return math.sqrt(degrees) * math.tan(middle)


@functools.cache
def _gauss_legendre() -> tuple[np.ndarray, np.ndarray]:
    """Return 200 nodes between -1 and 1 and their weights."""
    return np.polynomial.legendre.leggauss(200)


def check_quantity(quantity: Quantity) -> Quantity:
    """Return the quantity. Raise ValueError unless its name is known and the N and E that it needs are in range."""
    name = quantity.name
    if name not in PLACE:
        raise InputError(f"quantity {name!r} is not known; allowed: {', '.join(PLACE)}")
    if "N" in PLACE[name] and not 0 < quantity.N < math.inf:
        raise InputError(f"quantity {name}: N is {quantity.N}; needed: a finite number above 0")
    least = 1.0 if name in ("prediction", "observation") else np.nextafter(1.0, 2.0)
    if "E" in PLACE[name] and not least <= quantity.E < math.inf:
        allowed = "of at least 1" if least == 1 else "above 1"
        raise InputError(f"quantity {name}: E is {quantity.E}; needed: a finite number {allowed}")
    if not 0 < quantity.effective < math.inf:
        raise InputError(f"quantity {name}: effective is {quantity.effective}; needed: a finite number above 0")
    return quantity


def _extrapolated(dense_parameters: np.ndarray, num_experts: np.ndarray, quantity: Quantity, value: float) -> bool:
    """Return whether a quantity depends on sizes or expert counts outside the table. The rules are our choice.

    b and d are values at N = 1; E_start, gain and effective_parameters need E = 1. An E_max above the largest E, and an
    N_cutoff or effective_parameters outside the sizes of the table, are extrapolated too.

    Args:
        dense_parameters, num_experts: [n] each, of the table.
    """
    name, sizes, experts = quantity.name, [], []  # sizes and expert counts it depends on
    if "N" in PLACE[name]:
        sizes.append(quantity.N)
    if name in ("b", "d"):
        sizes.append(1.0)
    if name in ("N_cutoff", "effective_parameters"):
        sizes.append(value)
    if "E" in PLACE[name]:
        experts.append(quantity.E)
    if name in ("E_start", "gain", "effective_parameters"):
        experts.append(1.0)
    above = name == "E_max" and value > np.max(num_experts)
    return bool(
        above
        or any(not np.min(dense_parameters) <= size <= np.max(dense_parameters) for size in sizes)
        or any(not np.min(num_experts) <= count <= np.max(num_experts) for count in experts)
    )


def _check_sizes(at) -> np.ndarray:
    sizes = check_finite("at", np.atleast_1d(at))
    if sizes.ndim != 1 or np.any(sizes <= 0):
        raise InputError(f"at is {at}; needed: one axis of sizes, each above 0")
    return sizes


def _at_sizes(dense_parameters, num_experts, loss, quantities, level: float, search) -> list[np.ndarray]:
    """Return the values, the low ends and the high ends of quantities, and which N lies outside the table; [m] each."""
    intervals = search(dense_parameters, num_experts, loss, quantities, level)
    least, most = np.min(dense_parameters), np.max(dense_parameters)
    outside = np.array([not least <= item.quantity.N <= most for item in intervals], dtype=bool)
    ends = np.array([(item.value, item.low, item.high) for item in intervals], dtype=np.float64).reshape(-1, 3)
    return [ends[:, 0], ends[:, 1], ends[:, 2], outside]


# What this file does not do: bootstrap and jackknife (`resampling.py`), held-out errors (`held_out.py`).
