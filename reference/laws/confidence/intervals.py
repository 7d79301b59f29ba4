"""Two records for numbers with intervals, and the jackknife for laws without their own intervals.

A law gives coefficients, numbers derived from coefficients (the size at which more experts stop helping), and losses. A
coefficient or derived number has the interval of values that the rows do not reject (`Range`). A loss has two intervals
(`Predicted`): the interval of the law at the point, and the wider interval of one more run there. Runs scatter about
the law.

    linear laws      Student's t, exact if errors are normal                  `linear_intervals.py`
    bounded laws     the profile likelihood                                   `bounded_intervals.py`, `uncertainty.py`
    any other law    leave out one size at a time, and fit: the jackknife     here

The jackknife needs only the functions `fit` and `predict` of a law. Let v be the value from the whole table and vᵢ the
value without the rows of group i, for m groups. The interval is v ± q √((m - 1)/m · Σ (vᵢ - mean)²), with q Student's
quantile with m - 1 degrees of freedom (Tukey 1958; `resampling.py` gives its coverage). Our choice: all rows with the
same value in the law's first column are one group. Losses enter as log10, coefficients unchanged.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .uncertainty import Interval, student_quantile, verdict


class Range(NamedTuple):
    """A number with its interval.

    Attributes:
        name: the name of the coefficient or of the derived number, or "slope"
        at: size N of a slope or a line; None for other numbers
        value: the value of the fit
        low: the lower end; may be -inf, or NaN if unknown
        high: may be inf
        words: see `uncertainty.verdict`; "" for an exact interval
    """

    name: str
    at: float | None
    value: float
    low: float
    high: float
    words: str


class Predicted(NamedTuple):
    """The prediction of a law at one point, with two intervals: a loss in nats per token, an accuracy or a leverage.

    Attributes:
        value: the value of the fit
        law: interval of the law at the point, (low, high)
        run: interval of one more run at the point, (low, high)
    """

    value: float
    law: tuple[float, float]
    run: tuple[float, float]


def _both_intervals(value, interval: Callable) -> Predicted:
    """Return a prediction with the intervals interval(observation=...) of the law and of one more run, as floats."""
    law, run = (tuple(float(end) for end in interval(observation=more)) for more in (False, True))
    return Predicted(float(value), law, run)


def range_of(interval: Interval) -> Range:
    """Return a profile-likelihood interval as a Range, with its verdict.

    Example:
        >>> from routelaws.reference.laws import Quantity
        >>> range_of(Interval(Quantity("slope", N=1e9), -0.03, -0.04, -0.02, 0.95, False))
        Range(name='slope', at=1000000000.0, value=-0.03, low=-0.04, high=-0.02, words='soft')
    """
    at = None if math.isnan(interval.quantity.N) else interval.quantity.N
    return Range(interval.quantity.name, at, interval.value, interval.low, interval.high, verdict(interval))


def jackknife_intervals(law, fit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95) -> list[Range]:
    """Return the jackknife interval of each coefficient of any law.

    Args:
        law: a record with `fit`, `predict` and `given`, such as `catalogue.Law`.
        fit: the result of `law.fit`. Each scalar in its record `coefficients` gets an interval.
        columns: of the law, [n] each.
        loss: [n], nats per token.
        level: confidence level, between 0 and 1.

    Returns:
        One Range for each coefficient. Both ends are NaN with fewer than two groups, or if the law cannot be fitted
        without one of the groups.

    Raises:
        ValueError: `level` is out of its range.
    """
    folds = _folds(law, columns, loss)
    ranges = []
    for name, value in fit.coefficients._asdict().items():
        if np.ndim(value) == 0:
            values = [math.nan if fold is None else getattr(fold.coefficients, name) for fold in folds]
            ranges.append(Range(name, None, float(value), *jackknife_ends(float(value), np.array(values), level), ""))
    return ranges


def jackknife_prediction(
    law, fit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the prediction of any law at one point, with jackknife intervals.

    One more run adds the variance of the rows about the law, with n - p degrees of freedom (our choice).

    Args:
        law, fit, columns, loss, level: as in `jackknife_intervals`.
        at: the columns of the law at the point.

    Returns:
        A Predicted; ends are NaN as in `jackknife_intervals`, or with too few rows for a variance.

    Raises:
        ValueError: `law.predict` raises this error, or `level` is out of its range.
    """
    point = [np.array([value], dtype=np.float64) for value in at]

    unscaled = law.measured == "accuracy"  # any other number enters as log10

    def scaled(fold_fit) -> float:
        """Return the prediction of a fit at the point, on the scale of the jackknife; NaN if `fold_fit` is None."""
        predicted = math.nan if fold_fit is None else float(law.predict(fold_fit, *point)[0])
        return predicted if unscaled else float(np.log10(predicted))

    value = scaled(fit)
    low, high = jackknife_ends(value, np.array([scaled(fold) for fold in _folds(law, columns, loss)]), level)
    freedom = loss.size - len(law.parameters)
    squares = float(np.sum(law.miss(law.predict(fit, *columns), loss) ** 2))
    scatter = squares / freedom if freedom > 0 else math.nan
    groups = np.unique(columns[0]).size
    reach = math.hypot(high - value, student_quantile(level, max(groups - 1, 1)) * math.sqrt(scatter))
    with np.errstate(over="ignore", under="ignore"):
        ends = np.array([value, low, high, value - reach, value + reach])
        value, low, high, run_low, run_high = (ends if unscaled else 10.0**ends).tolist()
    return Predicted(value, (low, high), (run_low, run_high))


def jackknife_ends(value: float, folds: np.ndarray, level: float) -> tuple[float, float]:
    """Return both ends of a jackknife interval: value ± q times the standard error.

    Args:
        value: the value from the whole table.
        folds: [m], the values without each group.
        level: confidence level, between 0 and 1.

    Returns:
        Both ends; NaN with fewer than two groups, or if a value is not finite.

    Raises:
        ValueError: `level` is out of its range.

    Example:
        For two groups the standard error is half the difference, and q is 1 at 50 % and one degree of freedom.

        >>> print([round(end, 6) for end in jackknife_ends(2.0, np.array([1.0, 4.0]), 0.5)])
        [0.5, 3.5]
    """
    quantile = student_quantile(level, max(folds.size - 1, 1))
    if folds.size < 2 or not (math.isfinite(value) and np.all(np.isfinite(folds))):
        return math.nan, math.nan
    reach = quantile * math.sqrt((folds.size - 1) / folds.size * float(np.sum((folds - folds.mean()) ** 2)))
    return value - reach, value + reach


def _folds(law, columns: Sequence[np.ndarray], loss: np.ndarray) -> list:
    """Return one fit per value of the first column, without its rows; None if it cannot be fitted."""
    constants, folds = law.given(*columns), []
    for value in np.unique(columns[0]):
        kept = columns[0] != value
        try:
            folds.append(
                law.fit(*(column[kept] for column in columns), loss[kept], **constants) if kept.any() else None
            )
        except ValueError:
            folds.append(None)
    return folds


# What this file does not do: intervals that use the form of a law (`linear_intervals.py`, `bounded_intervals.py`).
