"""Fits and intervals of the additive laws for the catalogue, in log10 units.

`additive.py`, `hoffmann.py` and `joint.py` use natural logarithms and the sum of Huber terms, as in the papers. In the
catalogue (`fit_in_log10`)

    a fit minimises squares of log10 residuals, like every other law, unless you set huber
    huber is in log10 units: the residual in natural logarithms is r ln 10, and the sum of Huber terms with delta ln 10
    is (ln 10)² times the sum with delta in log10 units

So both sums have their minimum at the same law. The δ = 1e-3 of Hoffmann et al. is 4.3e-4 here.

The intervals (`smooth_ranges`, `smooth_predictions`) are profile intervals of the least-squares fit (`_profile.py`).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..numerics._columns import CRITERION
from ..tokens.additive import AdditiveFit
from .intervals import Predicted, Range
from .uncertainty import _HALF, _TWOFOLD, _words, student_quantile

_LOG_10 = math.log(10)


def fit_in_log10(fit: Callable, *columns_and_loss: np.ndarray, huber: float | None = None, **given) -> AdditiveFit:
    """Return the fit of a law with its objective and delta in log10 units, like the fits of other laws.

    Args:
        fit: such as `hoffmann.fit_hoffmann`, (*columns, loss, huber).
        columns_and_loss: the columns of the law and the loss, [n] each.
        huber: delta in log10 units for the sum of Huber terms; None for least squares.
        given: further arguments of `fit`.

    Raises:
        ValueError: `fit` raises this error.
    """
    if huber is None:
        best = fit(*columns_and_loss, None, **given)
        return best._replace(objective=best.rmsle**2, criterion=CRITERION)
    best = fit(*columns_and_loss, huber * _LOG_10, **given)
    criterion = f"sum of Huber terms of log10 losses, delta = {huber:g}"
    return best._replace(objective=best.objective / _LOG_10**2, criterion=criterion)


def smooth_ranges(
    intervals: Callable, positive: tuple[str, ...], fit: AdditiveFit, columns: Sequence, loss: np.ndarray, level: float
) -> list[Range]:
    """Return the profile interval of each coefficient, with its verdict.

    Args:
        intervals: such as `hoffmann.hoffmann_intervals`.
        positive: the coefficients above 0; the ratio of the interval's ends decides their verdict.
        fit: a least-squares fit, which gives the values of the ranges.
        columns, loss: the table of the fit.
        level: confidence level, between 0 and 1.
    """
    rows = intervals(*columns, loss, None, level)
    return [
        Range(each.name, None, value, each.low, each.high, words(each.name in positive, value, each.low, each.high))
        for value, each in zip(fit.coefficients, rows, strict=True)
    ]


def smooth_predictions(
    intervals: Callable, fit: AdditiveFit, columns: Sequence, loss: np.ndarray, points: Sequence, level: float
) -> list[Predicted]:
    """Return the loss at each point with two intervals.

    The interval of the law is the profile interval. For one more run, both halves of the interval are wider. They
    include the variance of the log losses about the law, with n - p degrees of freedom (our choice).

    Args:
        intervals, fit, columns, loss, level: as in `smooth_ranges`.
        points: for each point, the columns of the law.
    """
    rows, unknowns = np.size(loss), len(fit.coefficients)
    scatter = fit.rmsle * _LOG_10 * math.sqrt(rows / (rows - unknowns))
    more, predicted = student_quantile(level, rows - unknowns) * scatter, []
    for row in intervals(*columns, loss, None, level, np.array(points, dtype=np.float64).T):
        low = math.exp(-math.hypot(math.log(row.value / row.low), more)) if row.low > 0 else 0.0
        high = math.exp(math.hypot(math.log(row.high / row.value), more)) if row.high < math.inf else math.inf
        predicted.append(Predicted(row.value, (row.low, row.high), (row.value * low, row.value * high)))
    return predicted


def _student_ranges(fit, factors: Sequence[str], quantile: float) -> list[Range]:
    """Return the value ± `quantile` standard errors of each fitted coefficient; for `factors`, of its logarithm.

    Given coefficients come last and have no variance. A variance that is NaN gives ends that are NaN.
    """
    ranges = []
    for name, value, variance in zip(fit.coefficients._fields, fit.coefficients, np.diag(fit.covariance), strict=False):
        half = quantile * math.sqrt(variance) if variance >= 0 else math.nan
        with np.errstate(over="ignore"):  # a factor that the rows leave open has no upper end
            low, high = value * np.exp([-half, half]) if name in factors else (value - half, value + half)
        verdict = "" if math.isnan(half) else words(name in factors, value, low, high)
        ranges.append(Range(name, None, value, float(low), float(high), verdict))
    return ranges


def words(positive: bool, value: float, low: float, high: float) -> str:
    """Return the verdict on a coefficient, in the words of `uncertainty.verdict`.

    Example:
        >>> words(True, 1.8, 1.7, 1.9), words(True, 400.0, 100.0, 2000.0), words(False, 0.3, -0.1, 0.7)
        ('pinned down', 'loose', 'soft, sign open')
        >>> words(True, 0.5, 0.0, 1.2)
        'bounded from above only'
    """
    narrow = high <= _TWOFOLD * low if positive else high - low <= _HALF * abs(value)
    return _words(low, high, 0.0 if positive else -math.inf, narrow)


# What this file does not do: find the ends of an interval (`_profile.py`).
