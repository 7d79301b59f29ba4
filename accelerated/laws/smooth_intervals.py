"""The laws of the sum of terms as records of the catalogue: fits in its units, intervals in its words.

Step by step: `routelaws.reference.laws.smooth_intervals`.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ._columns import CRITERION
from .additive import AdditiveFit
from .intervals import Predicted, Range
from .uncertainty import student_quantile

_LOG_10 = math.log(10)


def fit_in_log10(fit: Callable, *columns_and_loss: np.ndarray, huber: float | None = None) -> AdditiveFit:
    """Return a fit in log10 units; see reference."""
    found = fit(*columns_and_loss, None if huber is None else huber * _LOG_10)
    if huber is None:
        return found._replace(objective=found.rmsle**2, criterion=CRITERION)
    criterion = f"sum of Huber terms of log10 losses, delta = {huber:g}"
    return found._replace(objective=found.objective / _LOG_10**2, criterion=criterion)


def smooth_ranges(
    intervals: Callable, positive: tuple[str, ...], fit: AdditiveFit, columns: Sequence, loss: np.ndarray, level: float
) -> list[Range]:
    """Return the profile interval of each coefficient, with its verdict in words; see reference."""
    ranges = []
    for value, (name, _, low, high, _) in zip(fit.coefficients, intervals(*columns, loss, None, level), strict=True):
        ranges.append(Range(name, None, value, low, high, words(name in positive, value, low, high)))
    return ranges


def smooth_prediction(
    intervals: Callable, fit: AdditiveFit, columns: Sequence, loss: np.ndarray, at: Sequence[float], level: float
) -> Predicted:
    """Return the loss at one point with two intervals; see reference."""
    [found] = intervals(*columns, loss, None, level, [np.array([float(value)]) for value in at])
    freedom = np.size(loss) - len(fit.coefficients)
    more = student_quantile(level, freedom) * fit.rmsle * _LOG_10 * math.sqrt(np.size(loss) / freedom)
    with np.errstate(divide="ignore"):
        ends = np.log(np.array([found.low, found.high]) / found.value)
    low, high = found.value * np.exp(np.hypot(ends, more) * [-1, 1])
    return Predicted(found.value, (found.low, found.high), (float(low), float(high)))


def words(positive: bool, value: float, low: float, high: float) -> str:
    """Return in words how far the data pin a coefficient down; see reference."""
    closed = low > (0.0 if positive else -math.inf), high < math.inf
    if closed != (True, True):
        return {(True, False): "bounded from below only", (False, True): "bounded from above only"}.get(
            closed, "not identified"
        )
    if positive:
        return "pinned down" if high <= 2 * low else "loose" if high > 10 * low else "soft"
    if high - low <= abs(value) / 2:
        return "pinned down"
    if low * high <= 0:
        return "soft, sign open"
    return "loose" if max(abs(low), abs(high)) > 10 * min(abs(low), abs(high)) else "soft"
