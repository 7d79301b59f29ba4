"""A number with its interval, for every law: the two records, and a fall-back for laws without intervals of their own.

Step by step, with sources and examples: `routelaws.reference.laws.intervals`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .uncertainty import Interval, student_quantile, verdict


class Range(NamedTuple):
    """A number with its interval.

    Attributes:
        name: of the coefficient or the derived number; or "slope"
        at: where it is taken, for one of several: the size N of a slope or a line; None otherwise
        value: by the fit
        low: may be -inf; NaN where it is not known, as `high`
        high: may be inf
        words: see `uncertainty.verdict`; "" where the interval is exact
    """

    name: str
    at: float | None
    value: float
    low: float
    high: float
    words: str


class Predicted(NamedTuple):
    """The loss of a law at one point, nats per token; or the accuracy or the leverage, where the law is of these.

    Attributes:
        value: by the fit
        law: the losses of all laws that the rows do not reject, (low, high)
        run: interval of the loss of one more run, (low, high)
    """

    value: float
    law: tuple[float, float]
    run: tuple[float, float]


def range_of(interval: Interval) -> Range:
    """Return an interval by profile likelihood as a Range, with its verdict in words."""
    at = None if math.isnan(interval.quantity.N) else interval.quantity.N
    return Range(interval.quantity.name, at, interval.value, interval.low, interval.high, verdict(interval))


def jackknife_intervals(law, fit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95) -> list[Range]:
    """Return the interval of each coefficient of any law by leaving out one value of its first column at a time.

    Args:
        law: a record with `fit`, `predict` and `given`, as `catalogue.Law`.
        fit: of `law.fit`, with `coefficients`, a record; those of one number have an interval.
        columns: of the law, [n] each.
        loss: [n], nats per token.
        level: confidence level, between 0 and 1.

    Returns:
        One Range for each coefficient. Both ends are NaN with fewer than two groups, or where the law cannot be fitted
        without one of them.

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
    """Return the loss of any law at one point, with intervals by leaving out one value of its first column at a time.

    For one more run the variance of the rows about the law, with n - p degrees of freedom for p parameters, is added
    to that of the jackknife (our choice).

    Args:
        law, fit, columns, loss, level: as `jackknife_intervals`.
        at: the columns of the law at the point.

    Returns:
        A Predicted; ends are NaN where `jackknife_intervals` has none, or with too few rows for a variance.

    Raises:
        ValueError: as `law.predict`, or `level` is out of its range.
    """
    point = [np.array([value], dtype=np.float64) for value in at]

    share = law.measured == "accuracy"  # which is taken as it is, and any other number as log10

    def scaled(found) -> float:
        predicted = math.nan if found is None else float(law.predict(found, *point)[0])
        return predicted if share else float(np.log10(predicted))

    value = scaled(fit)
    low, high = jackknife_ends(value, np.array([scaled(fold) for fold in _folds(law, columns, loss)]), level)
    freedom = loss.size - len(law.parameters)
    squares = float(np.sum(law.miss(law.predict(fit, *columns), loss) ** 2))
    scatter = squares / freedom if freedom > 0 else math.nan
    groups = np.unique(columns[0]).size
    reach = math.hypot(high - value, student_quantile(level, max(groups - 1, 1)) * math.sqrt(scatter))
    with np.errstate(over="ignore", under="ignore"):
        ends = np.array([value, low, high, value - reach, value + reach])
        loss_at, *ends = (ends if share else 10.0**ends).tolist()
    return Predicted(loss_at, tuple(ends[:2]), tuple(ends[2:]))


def jackknife_ends(value: float, folds: np.ndarray, level: float) -> tuple[float, float]:
    """Return value ± q times the standard error of the jackknife.

    Args:
        value: of the whole table.
        folds: [m], without each group.
        level: confidence level, between 0 and 1.

    Returns:
        Both ends; NaN with fewer than two groups, or where a value is not finite.

    Raises:
        ValueError: `level` is out of its range.
    """
    quantile = student_quantile(level, max(folds.size - 1, 1))
    if folds.size < 2 or not np.isfinite(value + folds.sum()):
        return math.nan, math.nan
    reach = quantile * math.sqrt((folds.size - 1) * float(np.var(folds)))
    return value - reach, value + reach


def _folds(law, columns: Sequence[np.ndarray], loss: np.ndarray) -> list:
    """Return the fit without each value of the first column; None where the rest does not determine the law."""
    given, folds = law.given(*columns), []
    for value in np.unique(columns[0]):
        kept = columns[0] != value
        try:
            folds.append(law.fit(*(column[kept] for column in columns), loss[kept], **given) if kept.any() else None)
        except ValueError:
            folds.append(None)
    return folds
