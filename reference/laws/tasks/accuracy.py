"""The laws of downstream accuracy as records of the catalogue: their fits, predictions and intervals.

A law of accuracy predicts Q, the share of correct answers, instead of the loss. The catalogue needs the same functions
for every law:

    direct, ceiling, ratio, repeated    fits of ln(-ln Q') (`downstream.py`, `downstream_sums.py`); intervals by the
                                        covariance and Student's t, exact where the law is a line in the coefficients
    broken, two stages                  fits of Q itself (`broken.py`, `two_stage.py`); intervals by leaving out one
                                        value of the first column at a time (`intervals.py`)

One record has the coefficients of both stages, first the coefficients of the loss. A fit of two stages needs a measured
loss besides the columns of the law. A prediction does not. `rmse` is the error of accuracies. `rmsle` is the error of
log10(-ln Q'). It is NaN for a law fitted to Q.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..confidence.intervals import Predicted, Range, _both_intervals
from ..confidence.smooth_intervals import _student_ranges
from ..confidence.uncertainty import student_quantile
from ..numerics import _levenberg
from . import broken, downstream, two_stage
from .downstream import AccuracyFit

_FACTORS = ("A", "B", "E")  # the covariance uses their logarithms


class StagesLinearCoefficients(NamedTuple):
    """Coefficients of two stages: L = A/C^alpha, then Q = a L + b. `two_stage.py` defines the letters."""

    A: float
    alpha: float
    a: float
    b: float


class StagesLogisticCoefficients(NamedTuple):
    """Coefficients of two stages: L = A/C^alpha, then Q = a/(1 + exp(-k (L - m))) + b."""

    A: float
    alpha: float
    a: float
    k: float
    m: float
    b: float


class StagesRatioCoefficients(NamedTuple):
    """Coefficients of two stages: L = A/N^alpha + B/D^beta + E, then Q = a/(1 + exp(-k (L - m))) + b."""

    A: float
    alpha: float
    B: float
    beta: float
    E: float
    a: float
    k: float
    m: float
    b: float


def predict_fitted(fit: AccuracyFit, *columns: np.ndarray) -> np.ndarray:
    """Return the accuracies that a fit of ln(-ln Q') predicts, at its guess rate; see `downstream.predict_accuracy`."""
    return downstream.predict_accuracy(fit.coefficients, *columns, guess_rate=fit.guess_rate)


def fit_broken_record(
    flops: np.ndarray, accuracy: np.ndarray, huber: float | None = 1e-3, *, search=_levenberg.search
) -> AccuracyFit:
    """Return the fit of `broken.fit_broken` as an `AccuracyFit`."""
    fit = broken.fit_broken(flops, accuracy, huber, search=search)
    predicted = broken.predict_broken(flops, fit.coefficients)
    return _record(fit.coefficients, fit.objective, fit.rmse, fit.criterion, predicted, flops)


def fit_stages_linear(flops: np.ndarray, loss: np.ndarray, accuracy: np.ndarray) -> AccuracyFit:
    """Return the fit of two stages with a line (`two_stage.fit_two_stage`) as an `AccuracyFit`."""
    fit = two_stage.fit_two_stage(flops, loss, accuracy, "linear", search=None)  # least squares give the line
    return _stages(StagesLinearCoefficients, fit, flops)


def fit_stages_logistic(
    flops: np.ndarray, loss: np.ndarray, accuracy: np.ndarray, *, search=_levenberg.search
) -> AccuracyFit:
    """Return the fit of two stages with a logistic (`two_stage.fit_two_stage`) as an `AccuracyFit`."""
    fit = two_stage.fit_two_stage(flops, loss, accuracy, search=search)
    return _stages(StagesLogisticCoefficients, fit, flops)


def fit_stages_ratio(
    parameters: np.ndarray, tokens: np.ndarray, loss: np.ndarray, accuracy: np.ndarray, *, search=_levenberg.search
) -> AccuracyFit:
    """Return the fit of two stages with the columns N and D (`two_stage.fit_two_stage_ratio`) as an `AccuracyFit`."""
    fit = two_stage.fit_two_stage_ratio(parameters, tokens, loss, accuracy, search=search)
    return _stages(StagesRatioCoefficients, fit, parameters, tokens)


def predict_stages(coefficients: NamedTuple, *columns: np.ndarray) -> np.ndarray:
    """Return the accuracy: stage 1 predicts a loss, and stage 2 predicts the accuracy at this loss.

    Args:
        coefficients: one of the records of this file.
        columns: flops, or parameters and tokens; above 0. The function ignores an additional column, the measured loss.

    Returns:
        Q, not clipped; a line may give values outside 0 to 1.

    Raises:
        ValueError: a column is missing, or an entry is not finite or not above 0.

    Example:
        The loss at 100 FLOPs is 8/100^0.5 = 0.8, and the accuracy 1 - 0.8/2.

        >>> float(predict_stages(StagesLinearCoefficients(8.0, 0.5, -0.5, 1.0), 100.0))
        0.6
    """
    if isinstance(coefficients, StagesRatioCoefficients):
        first, second, needed = coefficients[:5], coefficients[5:], 2
    else:
        first, second, needed = (*coefficients[:2], 0.0, math.nan, 0.0), coefficients[2:], 1
    form = two_stage.LinearCoefficients if len(second) == 2 else two_stage.LogisticCoefficients
    loss = two_stage.predict_first(two_stage.LossCoefficients(*first), *columns[:needed])
    return two_stage.predict_second(form(*second), loss)


def accuracy_ranges(
    fit: AccuracyFit, columns: Sequence[np.ndarray], accuracy: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return the coefficients of a fit of ln(-ln Q') with their intervals, for `catalogue.Law`.

    Args:
        fit: a fit by `downstream.py` or `downstream_sums.py`. A Huber fit has no intervals. Its ends are NaN.
        columns, accuracy: the rows of the fit; not needed here.
        level: confidence level, between 0 and 1.

    Returns:
        One Range for each coefficient. Student's t applies to ln A, ln B and ln E, and directly to the other
        coefficients.

    Raises:
        ValueError: `level` is out of its range, or the fit has no more rows than coefficients.
    """
    unknowns = len(fit.coefficients) - (fit.status == "no ceiling is seen")
    return _student_ranges(fit, _FACTORS, student_quantile(level, fit.rows - unknowns))


def accuracy_prediction(
    fit: AccuracyFit, columns: Sequence[np.ndarray], accuracy: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the predicted accuracy at one point, with two intervals (see `intervals.Predicted`), for `catalogue.Law`.

    Args:
        fit, columns, accuracy, level: as in `accuracy_ranges`.
        at: the columns of the law at the point.

    Raises:
        ValueError: `downstream.predict_interval` raises this error.
    """
    return _both_intervals(predict_fitted(fit, *at), partial(downstream.predict_interval, fit, *at, level=level))


def _stages(form: type, fit: two_stage.TwoStageFit, *columns: np.ndarray) -> AccuracyFit:
    """Return the fit of both stages as one record. Its `rmse` is the error of both stages chained."""
    first = fit.stage_1 if form is StagesRatioCoefficients else fit.stage_1[:2]
    coefficients = form(*first, *fit.stage_2)
    criterion = "mean squared differences of the accuracies at the measured losses, and of the log10 losses"
    budget = columns[0] if len(columns) == 1 else np.asarray(columns[0], float) * columns[1]  # C, or N D
    predicted = predict_stages(coefficients, *columns)
    return _record(coefficients, fit.rmse**2, fit.chained_rmse, criterion, predicted, budget)


def _record(
    coefficients: NamedTuple, objective: float, rmse: float, criterion: str, predicted: np.ndarray, budget: np.ndarray
) -> AccuracyFit:
    """Return a fit in Q as an `AccuracyFit`. `predicted` and `budget` are [n]."""
    unknowns, rows = len(coefficients), np.size(predicted)
    rises = predicted[np.argmax(budget)] > predicted[np.argmin(budget)]
    return AccuracyFit(
        coefficients=coefficients,
        objective=objective,
        rmsle=math.nan,
        rmse=rmse,
        status="interior" if rises else "accuracy does not rise",
        covariance=np.full((unknowns, unknowns), np.nan),
        rows=rows,
        used=np.ones(rows, dtype=bool),
        criterion=criterion,
        guess_rate=0.0,
    )
