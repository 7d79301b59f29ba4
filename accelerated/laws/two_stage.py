"""Accuracy by way of a loss: the two-stage baselines that the direct law of accuracy is compared with.

Step by step, with sources and examples: `routelaws.reference.laws.two_stage`.

What differs here: all starts of a fit run in one compiled loop (`_levenberg.py`), and the logistic is scipy's.
"""

import itertools
import math
from typing import Literal, NamedTuple

import jax
import numpy as np
from scipy.special import expit

from ..wording import plural
from ._columns import check_range
from ._levenberg import power_terms, search
from .compute import fit_compute
from .downstream import check_accuracy

Link = Literal["linear", "logistic"]

_STEEPNESS = (0.5, 1.0, 2.0, 4.0, 8.0)
_PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)
_EXPONENTS = (0.1, 0.3, 0.6)


class LinearCoefficients(NamedTuple):
    """Q = a L + b.

    Attributes:
        a: change of the accuracy per nat
        b: accuracy of the line at L = 0
    """

    a: float
    b: float


class LogisticCoefficients(NamedTuple):
    """Q = a / (1 + exp(-k (L - m))) + b; k is below 0 where accuracy falls with the loss and a is above 0.

    Attributes:
        a: height of the step
        k: steepness, per nat
        m: nats per token, the middle of the step
        b: accuracy at the end where a adds nothing
    """

    a: float
    k: float
    m: float
    b: float


class LossCoefficients(NamedTuple):
    """L = A/N^α + B/D^β + E; with one column, that of compute, B and E are 0 and β is NaN.

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
    """Both stages.

    Attributes:
        stage_1: the law of the loss
        stage_2: the law of the accuracy in the loss
        rmsle: of stage 1: root mean squared difference of log10 losses
        rmse: of stage 2: root mean squared difference of accuracies, at the measured losses
        chained_rmse: of both: at the predicted losses
        rows: used, all that were given
    """

    stage_1: LossCoefficients
    stage_2: LinearCoefficients | LogisticCoefficients
    rmsle: float
    rmse: float
    chained_rmse: float
    rows: int


def fit_two_stage(flops: np.ndarray, loss: np.ndarray, accuracy: np.ndarray, link: Link = "logistic") -> TwoStageFit:
    """Fit both stages to runs of one ratio of tokens to parameters.

    Args:
        flops: [n], C, above 0.
        loss: [n], L, nats per token, above 0.
        accuracy: [n], Q, between 0 and 1.
        link: the form of stage 2.

    Raises:
        ValueError: lengths differ, an entry is out of its range, an unknown link, or fewer rows than 5 (linear: 3).

    Differs from the reference: all starts of the logistic run in one compiled loop, which takes some seconds to compile
    the first time.
    """
    line = fit_compute(flops, loss).coefficients
    stage_1 = LossCoefficients(line.A, line.alpha, 0.0, math.nan, 0.0)
    return _both(stage_1, (flops,), loss, accuracy, link)


def fit_two_stage_ratio(
    parameters: np.ndarray, tokens: np.ndarray, loss: np.ndarray, accuracy: np.ndarray, link: Link = "logistic"
) -> TwoStageFit:
    """Fit both stages to runs of several ratios; arguments as `fit_two_stage`, at least 6 rows.

    Differs from the reference: all starts run in one compiled loop, which takes some seconds to compile the first time.
    """
    given = {"parameters": parameters, "tokens": tokens, "loss": loss}
    columns = [np.atleast_1d(check_range(name, column, above=0.0)) for name, column in given.items()]
    if columns[0].ndim != 1 or len({column.shape for column in columns}) > 1 or columns[0].size < 6:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise ValueError(
            f"parameters, tokens and loss have shapes {shapes}; needed: one axis, one length, at least 6 rows"
        )
    if np.ptp(columns[0]) == 0 or np.ptp(columns[1]) == 0:
        raise ValueError("all rows have one number of parameters or of tokens; needed: two of each")
    log_size, log_tokens, target = (np.log(column) for column in columns)
    centre, level = (float(log_size.mean()), float(log_tokens.mean())), float(target.mean())
    features = np.zeros((target.size, 3, 5))
    features[:, 0, 0] = features[:, 1, 2] = features[:, 2, 4] = 1.0
    features[:, 0, 1], features[:, 1, 3] = centre[0] - log_size, centre[1] - log_tokens
    starts = []
    for alpha, beta, share in itertools.product(_EXPONENTS, _EXPONENTS, (0.1, 0.6)):
        rest = level + math.log((1 - share) / 2)
        starts.append([rest, alpha, rest, beta, level + math.log(share)])
    a, alpha, b, beta, e = search(power_terms, features, target, np.array(starts)).parameters.tolist()
    stage_1 = LossCoefficients(
        math.exp(a + alpha * centre[0]), alpha, math.exp(b + beta * centre[1]), beta, math.exp(e)
    )
    return _both(stage_1, (parameters, tokens), loss, accuracy, link)


def predict_first(stage_1: LossCoefficients, *columns: np.ndarray) -> np.ndarray:
    """Return the loss that stage 1 predicts: from flops, or from parameters and tokens.

    Raises:
        ValueError: a column is missing, or an entry is not finite or not above 0.
    """
    needed = 1 if math.isnan(stage_1.beta) else 2
    if len(columns) != needed:
        raise ValueError(f"{len(columns)} columns are given; this stage 1 needs {needed}")
    x, *more = (np.log(check_range("column", column, above=0.0)) for column in columns)
    loss = np.exp(math.log(stage_1.A) - stage_1.alpha * x) + stage_1.E
    return loss + np.exp(math.log(stage_1.B) - stage_1.beta * more[0]) if more else loss


def predict_second(stage_2: LinearCoefficients | LogisticCoefficients, loss: np.ndarray) -> np.ndarray:
    """Return the accuracy that stage 2 predicts at a loss, as it is: a line may leave 0 to 1."""
    loss = check_range("loss", loss, above=0.0)
    if isinstance(stage_2, LinearCoefficients):
        return stage_2.a * loss + stage_2.b
    return stage_2.a * expit(stage_2.k * (loss - stage_2.m)) + stage_2.b


def predict_two_stage(fit: TwoStageFit, *columns: np.ndarray) -> np.ndarray:
    """Return the accuracy of both stages chained, from flops, or from parameters and tokens."""
    return predict_second(fit.stage_2, predict_first(fit.stage_1, *columns))


def _both(stage_1: LossCoefficients, columns: tuple, loss, accuracy, link: Link) -> TwoStageFit:
    """Fit the second stage to the losses [n]; return both stages with the error of each and of the two in turn."""
    columns = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in columns]
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    accuracy = np.atleast_1d(check_accuracy(accuracy))
    if accuracy.shape != loss.shape:
        raise ValueError(f"loss and accuracy have shapes {loss.shape} and {accuracy.shape}; needed: the same length")
    if link not in ("linear", "logistic"):
        raise ValueError(f"link {link!r} is not known; allowed: linear, logistic")
    least = 3 if link == "linear" else 5
    if loss.size < least or np.ptp(loss) == 0:
        raise ValueError(
            f"{plural(loss.size, 'row')}; the {link} stage needs at least {least}, with losses that differ"
        )
    stage_2 = _line(loss, accuracy) if link == "linear" else _logistic(loss, accuracy)
    first = predict_first(stage_1, *columns)
    errors = (
        (np.log(first) - np.log(loss)) / math.log(10),
        predict_second(stage_2, loss) - accuracy,
        predict_second(stage_2, first) - accuracy,
    )
    roots = (float(np.linalg.norm(error)) / math.sqrt(loss.size) for error in errors)
    return TwoStageFit(stage_1, stage_2, *roots, loss.size)


def _line(loss: np.ndarray, accuracy: np.ndarray) -> LinearCoefficients:
    offset = loss - loss.mean()
    slope = float(offset @ (accuracy - accuracy.mean())) / float(offset @ offset)
    return LinearCoefficients(slope, float(accuracy.mean() - slope * loss.mean()))


def _model(theta, loss):
    a, k, m, b = theta
    return a * jax.nn.sigmoid(k * (loss - m)) + b


def _logistic(loss: np.ndarray, accuracy: np.ndarray) -> LogisticCoefficients:
    pairs = [
        (-steepness / loss.std(), float(np.quantile(loss, place)))
        for steepness, place in itertools.product(_STEEPNESS, _PLACES)
    ]
    starts = []
    for k, m in pairs:
        design = np.stack([expit(k * (loss - m)), np.ones_like(loss)], axis=1)
        a, b = np.linalg.lstsq(design, accuracy, rcond=None)[0]
        starts.append([a, k, m, b])
    return LogisticCoefficients(*search(_model, loss, accuracy, np.array(starts)).parameters.tolist())
