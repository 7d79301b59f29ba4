"""See `routelaws.reference.laws.uncertainty`.

What differs here: the residual sum and the parabola come from the reduced table of `kernels/law_fit.py`, where the
search for each end runs, and Student's quantile from SciPy.
"""

import math
from typing import NamedTuple

import numpy as np

from ..kernels import law_fit
from ..notation import check_finite
from .fitting import LevelTable, RoutedFit, fit_routed, level_table

_COEFFICIENTS = 6


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


def slope_interval(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, at: np.ndarray, level: float = 0.95
) -> SlopeInterval:
    """See reference."""
    table = level_table(dense_parameters, num_experts, loss)
    sizes = _sizes(at)
    slope, low, high = _ends(table, fit_routed(dense_parameters, num_experts, loss), sizes, level, -1.0)
    return SlopeInterval(sizes, slope, low, high, _outside(table, sizes))


def gain_interval(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    at: np.ndarray,
    experts: float | None = None,
    level: float = 0.95,
) -> GainInterval:
    """See reference."""
    table = level_table(dense_parameters, num_experts, loss)
    sizes = _sizes(at)
    experts = float(table.extra[-1] + 1 if experts is None else experts)
    if not (math.isfinite(experts) and experts > 1):
        raise ValueError(f"experts is {experts}; needed: a finite number above 1")
    gain, low, high = _ends(table, fit_routed(dense_parameters, num_experts, loss), sizes, level, experts - 1)
    return GainInterval(sizes, experts, gain, low, high, _outside(table, sizes))


def student_quantile(level: float, degrees: int) -> float:
    """See reference."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; needed: a number between 0 and 1")
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; needed: at least 1")
    from scipy.stats import t  # a second of import time that only intervals need

    return float(t.ppf((1 + level) / 2, degrees))


def _ends(
    table: LevelTable, fit: RoutedFit, sizes: np.ndarray, level: float, beyond: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return best value, low end and high end at each size, of the slope if beyond < 0, else of the gain up to it."""
    count = table.log_loss.size
    limit = fit.objective * count * (1 + student_quantile(level, count - _COEFFICIENTS) ** 2 / (count - _COEFFICIENTS))
    reduced = law_fit.reduce_rows(table.log_size, table.log_loss, table.level, np.ones(count), table.extra.size)
    result = np.empty((3, sizes.size))
    for i, at in enumerate(np.log10(sizes) - table.centre):
        result[:, i] = _at_shape(reduced, table.extra, fit.curve.rise, fit.curve.bend, at, limit, beyond)[1:]
        residual, _, *linear = _at_shape(reduced, table.extra, 0.0, 0.0, at, limit, beyond)
        for line, sign in ((1, 1.0), (2, -1.0)):
            if residual <= limit and sign * linear[line - 1] == -math.inf:
                result[line, i] = linear[line - 1]
            else:
                found = law_fit.interval_end(reduced[0], table.extra, reduced[1], at, limit, beyond, sign)
                result[line, i] = sign * min(found, sign * result[line, i])
    return result[0], result[1], result[2]


def _at_shape(reduced, extra: np.ndarray, rise: float, bend: float, at: float, limit: float, beyond: float):
    """Return the residual sum at one shape, and the best value, low end and high end there."""
    problem, constant = reduced
    work = np.empty((6, 2 * extra.size))
    top = extra[-1]
    span = math.log1p(rise * top / (1 + bend * top))
    psi = np.log1p(rise * extra / (1 + bend * extra)) / span if rise > 0 else extra / top
    work[law_fit.PSI] = np.repeat(psi, 2)
    residual, gain, variance = law_fit.evaluate(problem, at, work)
    reach = math.sqrt(variance * max(limit - residual - constant, 0.0))
    if beyond < 0:
        factor = math.log(10) / span if span > 0 else math.inf
    else:
        factor = math.log1p(rise * beyond / (1 + bend * beyond)) / span if rise > 0 else beyond / top
    values = np.array([gain, gain - reach, gain + reach])
    with np.errstate(invalid="ignore"):
        return residual + constant, *(values * factor)


def _sizes(at) -> np.ndarray:
    sizes = check_finite("at", np.atleast_1d(np.asarray(at, dtype=np.float64)))
    if sizes.ndim != 1 or np.any(sizes <= 0):
        raise ValueError(f"at is {at}; needed: one axis of sizes, each above 0")
    return sizes


def _outside(table: LevelTable, sizes: np.ndarray) -> np.ndarray:
    log_sizes = np.log10(sizes) - table.centre
    return (log_sizes < table.log_size.min()) | (log_sizes > table.log_size.max())
