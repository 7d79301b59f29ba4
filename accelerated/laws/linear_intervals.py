"""Intervals of the linear laws: dense, per-size, separable and bilinear.

Step by step, with sources and examples: `routelaws.reference.laws.linear_intervals`.

What differs here: the intervals of coefficients come from the covariance of the fit. The intervals of N_c and N_cutoff
come from the tangents of Fieller's theorem, with sizes relative to their mean.
"""

import math
from collections.abc import Sequence

import numpy as np

from routelaws.reference.laws.dense import DenseFit
from routelaws.reference.laws.intervals import Range
from routelaws.reference.laws.log_linear import LogLinearFit, cutoff
from routelaws.reference.laws.uncertainty import student_quantile

from ._searches import share
from .uncertainty import _power


def dense_intervals(fit: DenseFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95) -> list[Range]:
    """Return α and N_c with their intervals.

    Args:
        fit: the result of `fit_dense`.
        columns: (dense_parameters,), [n], the rows of the fit.
        loss: [n], nats per token.
        level: confidence level, between 0 and 1.

    Returns:
        Two Ranges, all NaN if the fitted loss does not fall with size. The interval of N_c contains all sizes at which
        the data allow a loss of 1 nat. This interval is 0 to inf if the data allow a slope of 0.

    Raises:
        ValueError: `level` is out of its range.
    """
    quantile = student_quantile(level, fit.rows - 2)
    alpha, N_c = fit.coefficients
    if np.isnan(alpha):
        return [Range(name, None, np.nan, np.nan, np.nan, "") for name in ("alpha", "N_c")]
    log_size, log_loss = np.log10(columns[0]), np.log10(loss)
    offset, height = log_size - log_size.mean(), float(log_loss.mean())
    spread = float(offset @ offset)
    variance = quantile**2 * fit.objective * fit.rows / (fit.rows - 2)
    steep, low, high = _tangents(height, fit.line.slope, variance / fit.rows, 0.0, variance / spread)
    low, high = (low, high) if steep else (-math.inf, math.inf)
    return [
        *_of_covariance(["alpha"], [alpha], fit.covariance, quantile),
        Range("N_c", None, float(N_c), _power(low + log_size.mean()), _power(high + log_size.mean()), ""),
    ]


def per_size_intervals(
    fit: LogLinearFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return b of each line, then d of each line, with their intervals. `at` is the size.

    The fit is by `fit_per_size`. `dense_intervals` describes the arguments.
    """
    sizes, *lines = fit.coefficients
    quantile = student_quantile(level, fit.rows - 2 * sizes.size)
    errors = np.sqrt(np.diagonal(fit.covariance, axis1=1, axis2=2))
    return [
        Range(name, float(size), float(value), float(value - quantile * error), float(value + quantile * error), "")
        for place, (name, values) in enumerate(zip(("b", "d"), lines, strict=True))
        for size, value, error in zip(sizes, values, errors[:, place], strict=True)
    ]


def separable_intervals(
    fit: LogLinearFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return a, b and d of a fit by `fit_separable` with their intervals. `dense_intervals` describes the arguments."""
    quantile = student_quantile(level, fit.rows - len(fit.coefficients))
    return _of_covariance(fit.coefficients._fields, fit.coefficients, fit.covariance, quantile)


def bilinear_intervals(
    fit: LogLinearFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return a, b, c, d and N_cutoff of a fit by `fit_bilinear`, with their intervals.

    `dense_intervals` describes the arguments. `uncertainty.profile_intervals` describes the interval of N_cutoff.
    """
    quantile, mean = student_quantile(level, fit.rows - 4), float(np.log10(columns[0]).mean())
    _, b, c, _ = fit.coefficients
    shift = np.array([[1.0, mean], [0.0, 1.0]])  # maps (b, c) to (slope at the mean size, c)
    slopes = quantile**2 * shift @ fit.covariance[1:3, 1:3] @ shift.T
    slope = b + c * mean
    steep, low, high = _tangents(slope, c, slopes[0, 0], slopes[0, 1], slopes[1, 1])
    if steep and c < 0:
        low = high = math.inf
    elif not steep:
        # With an interaction of 0 the best slope comes from the regression of the slope on c.
        low, high = (high if slope < c * slopes[0, 1] / slopes[1, 1] else -math.inf), math.inf
    ranges = _of_covariance(fit.coefficients._fields, fit.coefficients, fit.covariance, quantile)
    return [*ranges, Range("N_cutoff", None, cutoff(fit.coefficients), _power(low + mean), _power(high + mean), "")]


def _of_covariance(
    names: Sequence[str], values: Sequence[float], covariance: np.ndarray, quantile: float
) -> list[Range]:
    reaches = quantile * np.sqrt(np.diag(covariance))
    return [
        Range(name, None, float(value), float(value - reach), float(value + reach), "")
        for name, value, reach in zip(names, values, reaches, strict=False)
    ]


def _tangents(y: float, x: float, y_y: float, x_y: float, x_x: float) -> tuple[bool, float, float]:
    """Return whether the set of u with (y + x u)² <= y_y + 2 u x_y + u² x_x lies between its two ends, and the ends.

    If x² > x_x, the set lies between the ends. Otherwise the set lies outside the ends, or it contains every u; in the
    last case the ends are ∞ and -∞.
    """
    square, half = x * x - x_x, x * y - x_y
    # this is half² - `square` · (y² - y_y), multiplied out so that nothing cancels where the room is small
    inner = x * x * y_y - 2.0 * x * y * x_y + y * y * x_x - (x_x * y_y - x_y * x_y)
    if square > 0:
        inner = max(inner, 0.0)
    elif not inner >= 0 or square == 0:
        return False, math.inf, -math.inf
    low, high = sorted((-half + sign * math.sqrt(inner)) / square for sign in (-1, 1))
    return square > 0, low, high


share(__name__)
