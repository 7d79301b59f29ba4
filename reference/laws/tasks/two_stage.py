"""Accuracy from compute in two stages, through a loss: the baselines for the direct law of accuracy.

    stage 1    the loss from compute,            ln L = ln A - α ln C                            (`compute.py`, floor 0)
               or from parameters and tokens,    L = A/N^α + B/D^β + E                           (Hoffmann's form)
    stage 2    the accuracy from the loss,       Q = a L + b                                     "linear"
               or                                Q = a / (1 + exp(-k (L - m))) + b               "logistic"

The fit of each stage uses measured losses. A prediction chains the stages: stage 2 gets the loss that stage 1 predicts.
The baselines are from Krajewski et al. 2025 (arXiv 2512.08894). There stage 1 is the power law of compute without a
floor, and the loss is a validation loss. The second form of stage 1 is our addition, for runs with several ratios of
tokens to parameters. It is the baseline for the ratio law of accuracy.

Stage 2 is least squares of the accuracy itself, over all rows: accuracies at the guess rate show where the curve is
flat. The linear form is a line. In the logistic form, Q is linear in a and b if k and m are fixed. So every start is a
pair (k, m) with its best a and b. Then the search varies all four (`_levenberg.py`).

Compare predictions. a, k and m of a logistic are uncertain if no row reaches its upper end.
"""

import itertools
import math
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ...errors import InputError
from ..compute import fit_compute
from ..numerics import _levenberg
from ..numerics._columns import check_accuracy, least_squares
from ..numerics._levenberg import power_terms
from ..numerics._projection import check_lengths, check_range, plural

Link = Literal["linear", "logistic"]

_STEEPNESS = (0.5, 1.0, 2.0, 4.0, 8.0)  # |k| times the standard deviation of the losses, at the starts
_PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the losses, at the starts
_EXPONENTS = (0.1, 0.3, 0.6)  # exponents at the starts of stage 1


class LinearCoefficients(NamedTuple):
    """Coefficients of stage 2 as a line: Q = a L + b.

    Attributes:
        a: change of the accuracy per nat
        b: accuracy of the line at L = 0
    """

    a: float
    b: float


class LogisticCoefficients(NamedTuple):
    """Coefficients of stage 2 as a logistic: Q = a / (1 + exp(-k (L - m))) + b. Accuracy falls with loss if a k < 0.

    Attributes:
        a: height of the step
        k: steepness, per nat
        m: nats per token, the middle of the step
        b: accuracy at the end of the step at which the first term is 0
    """

    a: float
    k: float
    m: float
    b: float


class LossCoefficients(NamedTuple):
    """Coefficients of stage 1: L = A/N^α + B/D^β + E; with compute as the only column, B and E are 0 and β is NaN.

    Attributes:
        A: nats per token, the first term at N = 1 (with one column: at C = 1)
        alpha: power of N (with one column: of C)
        B: nats per token, the second term at D = 1
        beta: power of D
        E: nats per token, the floor
    """

    A: float
    alpha: float
    B: float
    beta: float
    E: float


class TwoStageFit(NamedTuple):
    """The fits of both stages.

    Attributes:
        stage_1: the law of the loss
        stage_2: the law of the accuracy as a function of the loss
        rmsle: root mean squared difference of log10 losses, for stage 1
        rmse: root mean squared difference of accuracies, for stage 2 at the measured losses
        chained_rmse: as rmse, at the losses that stage 1 predicts
        rows: number of rows
    """

    stage_1: LossCoefficients
    stage_2: LinearCoefficients | LogisticCoefficients
    rmsle: float
    rmse: float
    chained_rmse: float
    rows: int


def fit_two_stage(
    flops: np.ndarray, loss: np.ndarray, accuracy: np.ndarray, link: Link = "logistic", *, search=_levenberg.search
) -> TwoStageFit:
    """Fit both stages to runs with one ratio of tokens to parameters.

    Args:
        flops: [n], C, above 0.
        loss: [n], L, nats per token, above 0.
        accuracy: [n], Q, between 0 and 1.
        link: the form of stage 2.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: lengths differ, an entry is out of its range, `link` is unknown, or there are fewer than 5 rows (3
            for "linear").
    """
    line = fit_compute(flops, loss).coefficients
    stage_1 = LossCoefficients(line.A, line.alpha, 0.0, math.nan, 0.0)
    return _both(stage_1, (flops,), loss, accuracy, link, search)


def fit_two_stage_ratio(
    parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    accuracy: np.ndarray,
    link: Link = "logistic",
    *,
    search=_levenberg.search,
) -> TwoStageFit:
    """Fit both stages to at least 6 runs with several ratios. `fit_two_stage` describes the other arguments."""
    columns = _check_columns({"parameters": parameters, "tokens": tokens, "loss": loss})
    log_size, log_tokens, log_loss = (np.log(column) for column in columns)
    centre = log_size.mean(), log_tokens.mean()
    ones, zero = np.ones_like(log_size), np.zeros_like(log_size)
    # The factors of (ln A, α, ln B, β, ln E) in the logarithm of each term. A and B are the terms in the middle of the
    # table.
    terms = (
        [ones, centre[0] - log_size, zero, zero, zero],
        [zero, zero, ones, centre[1] - log_tokens, zero],
        [zero, zero, zero, zero, ones],
    )
    features = np.stack([np.stack(term, axis=1) for term in terms], axis=1)  # [n, 3, 5]
    level = log_loss.mean()
    starts = [
        [level + math.log((1 - share) / 2), alpha, level + math.log((1 - share) / 2), beta, level + math.log(share)]
        for alpha, beta, share in itertools.product(_EXPONENTS, _EXPONENTS, (0.1, 0.6))
    ]
    a, alpha, b, beta, e = search(partial(power_terms, features), log_loss, np.array(starts)).parameters
    values = math.exp(a + alpha * centre[0]), alpha, math.exp(b + beta * centre[1]), beta, math.exp(e)
    return _both(LossCoefficients(*(float(v) for v in values)), (parameters, tokens), loss, accuracy, link, search)


def _check_columns(named: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return parameters, tokens and loss as float64 [n]."""
    columns = [np.atleast_1d(check_range(name, column, above=0.0)) for name, column in named.items()]
    if columns[0].ndim != 1 or len({column.shape for column in columns}) > 1 or columns[0].size < 6:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise InputError(
            f"parameters, tokens and loss have shapes {shapes}; pass one-dimensional arrays of the same length, with "
            "at least 6 rows"
        )
    if np.ptp(columns[0]) == 0 or np.ptp(columns[1]) == 0:
        raise InputError("all rows have the same number of parameters or tokens; needed: two values of each")
    return columns


def predict_first(stage_1: LossCoefficients, *columns: np.ndarray) -> np.ndarray:
    """Return the loss that stage 1 predicts: from flops, or from parameters and tokens.

    Raises:
        ValueError: a column is missing, or an entry is not finite or not above 0.
    """
    needed = 1 if math.isnan(stage_1.beta) else 2
    if len(columns) != needed:
        raise InputError(f"got {len(columns)} columns; this stage 1 needs {needed}")
    columns = [check_range("column", column, above=0.0) for column in columns]
    loss = stage_1.A / columns[0] ** stage_1.alpha + stage_1.E
    return loss if needed == 1 else loss + stage_1.B / columns[1] ** stage_1.beta


def predict_second(stage_2: LinearCoefficients | LogisticCoefficients, loss: np.ndarray) -> np.ndarray:
    """Return the accuracy that stage 2 predicts at a loss, not clipped. A line may give values outside 0 to 1.

    Example:
        >>> float(predict_second(LogisticCoefficients(0.5, -2.0, 3.0, 0.25), 3.0))
        0.5
    """
    loss = check_range("loss", loss, above=0.0)
    if isinstance(stage_2, LinearCoefficients):
        return stage_2.a * loss + stage_2.b
    with np.errstate(over="ignore"):
        return stage_2.a / (1 + np.exp(-stage_2.k * (loss - stage_2.m))) + stage_2.b


def predict_two_stage(fit: TwoStageFit, *columns: np.ndarray) -> np.ndarray:
    """Return the accuracy that both stages predict, from flops, or from parameters and tokens."""
    return predict_second(fit.stage_2, predict_first(fit.stage_1, *columns))


def _both(stage_1: LossCoefficients, columns: tuple, loss, accuracy, link: Link, search) -> TwoStageFit:
    """Fit stage 2 and return the errors of each stage and of both together."""
    columns = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in columns]
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    accuracy = np.atleast_1d(check_accuracy(accuracy))
    check_lengths(loss=loss, accuracy=accuracy)
    if link not in ("linear", "logistic"):
        raise InputError(f"link {link!r} is not known; allowed: linear, logistic")
    least = 3 if link == "linear" else 5
    if loss.size < least or np.ptp(loss) == 0:
        raise InputError(f"{plural(loss.size, 'row')}; the {link} stage needs at least {least}, with different losses")
    stage_2 = _line(loss, accuracy) if link == "linear" else _logistic(loss, accuracy, search)
    first = predict_first(stage_1, *columns)
    return TwoStageFit(
        stage_1,
        stage_2,
        _root_mean_square(np.log10(first / loss)),
        _root_mean_square(predict_second(stage_2, loss) - accuracy),
        _root_mean_square(predict_second(stage_2, first) - accuracy),
        loss.size,
    )


def _line(loss: np.ndarray, accuracy: np.ndarray) -> LinearCoefficients:
    (b, a), _, _ = least_squares(np.stack([np.ones_like(loss), loss], axis=1), accuracy)
    return LinearCoefficients(float(a), float(b))


def _curve(loss: np.ndarray, k: float, m: float) -> np.ndarray:
    """Return [n], the factor of a in the logistic."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-k * (loss - m)))


def _model(loss: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the accuracies [n] and their derivatives [n, 4] at θ = (a, k, m, b)."""
    a, k, m, b = theta
    part = _curve(loss, k, m)
    slope = a * part * (1 - part)
    return a * part + b, np.stack([part, slope * (loss - m), -slope * k, np.ones_like(loss)], axis=1)


def _logistic(loss: np.ndarray, accuracy: np.ndarray, search) -> LogisticCoefficients:
    """Return the best logistic: from 25 pairs of k and m, each with the best a and b."""
    starts = []
    for steepness, place in itertools.product(_STEEPNESS, _PLACES):
        k, m = -steepness / loss.std(), float(np.quantile(loss, place))
        a, b = np.linalg.lstsq(np.stack([_curve(loss, k, m), np.ones_like(loss)], axis=1), accuracy, rcond=None)[0]
        starts.append([a, k, m, b])
    best = search(partial(_model, loss), accuracy, np.array(starts))
    return LogisticCoefficients(*best.parameters.tolist())


def _root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))
