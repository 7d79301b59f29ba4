"""Loss from compute alone: a power law above a floor, and a prediction that was written down before it was measured.

Step by step, with sources and examples: `routelaws.reference.laws.compute`.

    L = floor + A / C^α,   C in training FLOPs

What differs here: the line by a unit vector of the centred ln C. A table of best runs is small.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..wording import plural
from ._columns import check_range
from .intervals import Predicted, Range
from .uncertainty import student_quantile

Status = Literal["interior", "loss does not fall with compute"]

ATTESTED = "read in the source's text"
CRITERION = "mean squared difference of ln(L - floor)"


class ComputeCoefficients(NamedTuple):
    """The law: a given floor and the two coefficients of the line.

    Attributes:
        floor: nats per token
        A: nats per token at one FLOP above the floor
        alpha: power of C, above 0 where the loss falls with compute
    """

    floor: float
    A: float
    alpha: float


PUBLISHED = ComputeCoefficients(1.6, 95.18, 0.0941)

RUNS = ((1e18, 3.5273), (3e18, 3.3398), (1e19, 3.1494), (3e19, 3.0066), (1e20, 2.8509), (3e20, 2.7222))
"""Budget and loss of the six runs that the prediction was made from."""


class Registered(NamedTuple):
    """One prediction that was written down before the run, and the run.

    Attributes:
        flops: C, the budget of the run
        predicted: nats per token, written down before the run
        measured: nats per token, of the run
    """

    flops: float
    predicted: float
    measured: float


REGISTERED = (Registered(1e21, 2.606, 2.599), Registered(1e23, 2.252, 2.233))


class ComputeFit(NamedTuple):
    """The best fit of the law to a table.

    Attributes:
        coefficients: the law; the floor is the one that was given
        objective: mean squared difference of ln(L - floor)
        rmsle: root mean squared difference of log10 L
        status: "interior" or "loss does not fall with compute"
        covariance: [2, 2] of the level at `centre` and α, which are uncorrelated
        rows: used, all that were given
        criterion: what was minimised, in words
        centre: mean of ln C
    """

    coefficients: ComputeCoefficients
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str
    centre: float


def predict_loss(flops: np.ndarray, coefficients: ComputeCoefficients = PUBLISHED) -> np.ndarray:
    """Return L, nats per token, of the shape of `flops`; ValueError for a budget that is not finite or not above 0."""
    log_flops = np.log(check_range("flops", flops, above=0.0))
    return coefficients.floor + np.exp(math.log(coefficients.A) - coefficients.alpha * log_flops)


def fit_compute(flops: np.ndarray, loss: np.ndarray, floor: float = 0.0) -> ComputeFit:
    """Fit the law at a given floor by least squares of ln(L - floor).

    Args:
        flops: [n], C, above 0.
        loss: [n], L, nats per token, above the floor.
        floor: nats per token, at least 0.

    Raises:
        ValueError: lengths differ, an entry is out of its range, fewer than 3 rows, or all rows have one budget.

    Differs from the reference: the line is found by a unit vector of the centred ln C.
    """
    flops, loss, floor = _checked(flops, loss, floor)
    log_flops, target = np.log(flops), np.log(loss - floor)
    centre = float(log_flops.mean())
    length = float(np.linalg.norm(log_flops - centre))
    unit = (log_flops - centre) / length
    level = float(target.mean())
    amount = float(unit @ (target - level))
    residual = target - level - amount * unit
    squares, slope = float(residual @ residual), amount / length
    coefficients = ComputeCoefficients(floor, math.exp(level - slope * centre), -slope)
    log_misses = (np.log(floor + np.exp(target - residual)) - np.log(loss)) / math.log(10)
    variance = squares / (flops.size - 2)
    return ComputeFit(
        coefficients,
        squares / flops.size,
        math.sqrt(float(np.mean(log_misses**2))),
        "interior" if slope < 0 else "loss does not fall with compute",
        np.diag([variance / flops.size, variance / length**2]),
        flops.size,
        CRITERION,
        centre,
    )


def _checked(flops: np.ndarray, loss: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a table, [n] each, and the floor as float64; raises ValueError as `fit_compute` says."""
    floor = float(check_range("floor", floor, least=0.0))
    flops = np.atleast_1d(check_range("flops", flops, above=0.0))
    loss = np.atleast_1d(check_range("loss", loss, above=floor))
    if flops.ndim != 1 or flops.shape != loss.shape:
        raise ValueError(
            f"flops and loss have shapes {flops.shape} and {loss.shape}; needed: one axis, the same length"
        )
    if flops.size < 3 or np.unique(flops).size < 2:
        raise ValueError(
            f"{plural(flops.size, 'row')} of {plural(np.unique(flops).size, 'budget')}; the compute law needs at "
            "least 3 rows of 2 budgets"
        )
    return flops, loss, floor


def predict_interval(
    fit: ComputeFit, flops: np.ndarray, level: float = 0.95, observation: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the interval of a new run's loss, or of the law itself.

    Args:
        fit: of `fit_compute`.
        flops: C, above 0, any shape.
        level: between 0 and 1.
        observation: True for the loss of one new run, False for the law.

    Raises:
        ValueError: a budget or the level is out of its range.
    """
    log_flops = np.log(check_range("flops", flops, above=0.0))
    floor, A, alpha = fit.coefficients
    (variance_level, _), (_, variance_slope) = fit.covariance
    variance = variance_level * (1 + fit.rows * observation) + (log_flops - fit.centre) ** 2 * variance_slope
    factor = np.exp(student_quantile(level, fit.rows - 2) * np.sqrt(variance))
    above = A * np.exp(-alpha * log_flops)
    return floor + above / factor, floor + above * factor


def compute_intervals(
    fit: ComputeFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return A and α with their intervals, for `catalogue.Law`: Student's t of ln A and α; the floor is given.

    Args:
        fit: of `fit_compute`.
        columns, loss: the rows of the fit; not needed here.
        level: between 0 and 1.
    """
    quantile = student_quantile(level, fit.rows - 2)
    (of_level, _), (_, of_alpha) = fit.covariance
    _, A, alpha = fit.coefficients
    with np.errstate(over="ignore"):  # A is not determined: from 0 to infinity
        factor = float(np.exp(quantile * math.sqrt(of_level + fit.centre**2 * of_alpha)))
    half = quantile * math.sqrt(of_alpha)
    return [
        Range("A", None, A, A / factor, A * factor, ""),
        Range("alpha", None, alpha, alpha - half, alpha + half, ""),
    ]


def compute_prediction(
    fit: ComputeFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the loss at a budget with both of its intervals, for `catalogue.Law`; arguments as `compute_intervals`."""
    (flops,) = at
    law, run = (tuple(map(float, predict_interval(fit, flops, level, each))) for each in (False, True))
    return Predicted(float(predict_loss(flops, fit.coefficients)), law, run)


def speedup(worse: np.ndarray, better: np.ndarray, coefficients: ComputeCoefficients = PUBLISHED) -> np.ndarray:
    """Return how many times the compute the recipe of loss `worse` needs to reach the loss `better`.

    Args:
        worse, better: losses of two recipes at one budget, nats per token, above the floor.
        coefficients: floor and α of both.

    Raises:
        ValueError: a loss is not above the floor, or α is not above 0.
    """
    floor, _, alpha = coefficients
    worse, better = check_range("worse", worse, above=floor), check_range("better", better, above=floor)
    alpha = float(check_range("alpha", alpha, above=0.0))
    return np.exp((np.log(worse - floor) - np.log(better - floor)) / alpha)
