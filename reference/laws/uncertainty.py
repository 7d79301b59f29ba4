"""How far the data pin the law down: profile-likelihood intervals for the slope and for the gain of routing.

The six coefficients of `routed.py` trade against each other, E_max most of all, so that an error bar on each says
little. Two combinations are worth an interval at a size N₀ that was trained:

    slope   s(N₀) = b + c log10 N₀                          change of log10 L per decade of effective experts
    gain    g(N₀) = s(N₀) · (log10 Ê(E_top) - log10 Ê(1))   change of log10 L from dense to E_top experts

The gain is close to what is measured. The slope divides it by the length of the Ê axis, which E_start and E_max set:
if the data barely tell the law from its linear limit (`fitting.py`), that length tends to 0 and the slope to -∞ or ∞.
An infinite end of an interval says exactly that.

The interval (both kinds)
1. With normal errors of unknown variance, the values v of a combination that the data do not reject at the level are
   those with RSS*(v) <= RSS_min · (1 + q²/(n - 6)), where RSS*(v) is the least residual sum of squares among all laws
   of the domain that have that value, and q is Student's two-sided quantile with n - 6 degrees of freedom
   (`student_quantile`).
2. At a fixed shape (rise, bend) the combination is linear in what is left, so RSS is a parabola in v,
   RSS(v) = RSS_shape + (v - v̂)²/variance, and the values allowed there are v̂ ± √(variance · (limit - RSS_shape)).
3. The interval is the union over all shapes: its ends are the least lower end and the greatest upper end, found by
   the same scan and zoom as the fit. Were the union in pieces, this would be the shortest interval that holds them.

No quadratic approximation is made in E_start and E_max; the edges and limits of their domain are part of the union.
"""

import math
from typing import NamedTuple

import numpy as np

from ..notation import check_finite
from ._projection import Rows, check_rows, expert_curve, minimise, project, shape
from .fitting import RoutedFit, fit_routed

_COEFFICIENTS = 6  # of the law: the degrees of freedom are n - 6, also where the optimum lies on an edge
_OUTSIDE = 1e200  # above every end of an interval: ranks the shapes that the data reject behind all others


class SlopeInterval(NamedTuple):
    """s(N₀) = b + c log10 N₀ at each size asked for; all arrays [m]."""

    at: np.ndarray  # N₀, parameters
    slope: np.ndarray  # at the optimum; -inf or inf in the linear limit
    low: np.ndarray  # may be -inf
    high: np.ndarray  # may be inf
    extrapolated: np.ndarray  # bool: N₀ lies outside the sizes of the table


class GainInterval(NamedTuple):
    """g(N₀), the change of log10 L from E = 1 to E = experts at each size asked for; all arrays [m]."""

    at: np.ndarray  # N₀, parameters
    experts: float  # E_top
    gain: np.ndarray  # at the optimum
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray  # bool: N₀ lies outside the sizes of the table


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
    rows, sizes, quantile = _checked(dense_parameters, num_experts, loss, at, level)
    fit = fit_routed(dense_parameters, num_experts, loss)
    ends = [_ends(rows, fit, log_size, quantile, None) for log_size in np.log10(sizes)]
    slope, low, high = (np.array(column) for column in zip(*ends, strict=True))
    return SlopeInterval(sizes, slope, low, high, _outside(rows, sizes))


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
    rows, sizes, quantile = _checked(dense_parameters, num_experts, loss, at, level)
    experts = float(rows.extra_experts.max() + 1 if experts is None else experts)
    if not (math.isfinite(experts) and experts > 1):
        raise ValueError(f"experts is {experts}; needed: a finite number above 1")
    fit = fit_routed(dense_parameters, num_experts, loss)
    ends = [_ends(rows, fit, log_size, quantile, experts - 1.0) for log_size in np.log10(sizes)]
    gain, low, high = (np.array(column) for column in zip(*ends, strict=True))
    return GainInterval(sizes, experts, gain, low, high, _outside(rows, sizes))


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

    Example:
        >>> round(student_quantile(0.95, 10), 6), round(student_quantile(0.5, 1), 6)
        (2.228139, 1.0)
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; needed: a number between 0 and 1")
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; needed: at least 1")
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def area(end: float) -> float:
        return end / 2 * float(weights @ np.cos(end / 2 * (nodes + 1)) ** (degrees - 1))

    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if area(middle) < level * area(math.pi / 2) else (low, middle)
    return math.sqrt(degrees) * math.tan(middle)


def _ends(
    rows: Rows, fit: RoutedFit, log_size: float, quantile: float, extra: float | None
) -> tuple[float, float, float]:
    """Return (best value, low end, high end) of the slope, or of the gain at E = 1 + extra if that is given."""
    limit = fit.objective * rows.log_loss.size * (1 + quantile**2 / (rows.log_loss.size - _COEFFICIENTS))

    def parabola(rise, bend):
        return _parabola(rows, np.asarray(rise), np.asarray(bend), log_size, limit, extra)

    _, best, *ends = parabola(fit.curve.rise, fit.curve.bend)
    # The linear limit belongs to the union; for the slope it is one point, at which an end may be infinite.
    residual, _, *limit_ends = parabola(0.0, 0.0)
    for side, sign in enumerate((1.0, -1.0)):  # the high end is minus the low end of minus the value

        def signed_end(t, w, side=side, sign=sign):
            residual, _, *both = parabola(*shape(t, w, rows.extra_experts.max()))
            # Shapes that are rejected are ranked by their residual, which leads the zoom to those that are not.
            return np.where((residual <= limit) & np.isfinite(both[side]), sign * both[side], _OUTSIDE * (1 + residual))

        if residual <= limit and sign * limit_ends[side] == -math.inf:
            ends[side] = limit_ends[side]
        else:
            ends[side] = sign * min(sign * ends[side], minimise(signed_end, (0.0, 1.0), (0.0, 1.0))[2])
    return float(best), float(ends[0]), float(ends[1])


def _parabola(
    rows: Rows, rise: np.ndarray, bend: np.ndarray, log_size: float, limit: float, extra: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each shape: its residual sum, the best value, the low end and the high end (step 2)."""
    residual, gain, variance = project(rows, rise, bend, log_size)
    reach = np.sqrt(variance * np.maximum(limit - residual, 0.0))
    top = rows.extra_experts.max()
    with np.errstate(divide="ignore", invalid="ignore"):
        if extra is None:  # gain per decade of Ê; the factor is infinite in the linear limit
            factor = math.log(10) / np.log1p(rise * top / (1 + bend * top))
        else:
            factor = expert_curve(np.asarray(extra), rise, bend, top)
        return residual, gain * factor, (gain - reach) * factor, (gain + reach) * factor


def _checked(dense_parameters, num_experts, loss, at, level) -> tuple[Rows, np.ndarray, float]:
    """Return the checked table, the checked sizes [m] and Student's quantile."""
    rows = check_rows(dense_parameters, num_experts, loss)
    sizes = check_finite("at", np.atleast_1d(at))
    if sizes.ndim != 1 or np.any(sizes <= 0):
        raise ValueError(f"at is {at}; needed: one axis of sizes, each above 0")
    return rows, sizes, student_quantile(level, rows.log_loss.size - _COEFFICIENTS)


def _outside(rows: Rows, sizes: np.ndarray) -> np.ndarray:
    """Return which sizes lie outside those of the table."""
    log_sizes = np.log10(sizes)
    return (log_sizes < rows.log_size.min()) | (log_sizes > rows.log_size.max())


# What this file does not do: bootstrap, leave-one-size-out errors, intervals of predictions.
