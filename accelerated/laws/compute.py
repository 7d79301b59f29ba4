"""See `routelaws.reference.laws.compute`.

What differs here: the line by a unit vector of the centred ln C. A table of best runs is small.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ._columns import check_range
from .intervals import Predicted, Range
from .uncertainty import student_quantile

Status = Literal["interior", "loss does not fall with compute"]

ATTESTED = "read in the source's text"
CRITERION = "mean squared difference of ln(L - floor)"


class ComputeCoefficients(NamedTuple):
    """See reference."""

    floor: float
    A: float
    alpha: float


PUBLISHED = ComputeCoefficients(1.6, 95.18, 0.0941)

RUNS = ((1e18, 3.5273), (3e18, 3.3398), (1e19, 3.1494), (3e19, 3.0066), (1e20, 2.8509), (3e20, 2.7222))


class Registered(NamedTuple):
    """See reference."""

    flops: float
    predicted: float
    measured: float


REGISTERED = (Registered(1e21, 2.606, 2.599), Registered(1e23, 2.252, 2.233))


class ComputeFit(NamedTuple):
    """See reference."""

    coefficients: ComputeCoefficients
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str
    centre: float


def predict_loss(flops: np.ndarray, coefficients: ComputeCoefficients = PUBLISHED) -> np.ndarray:
    """See reference."""
    log_flops = np.log(check_range("flops", flops, above=0.0))
    return coefficients.floor + np.exp(math.log(coefficients.A) - coefficients.alpha * log_flops)


def fit_compute(flops: np.ndarray, loss: np.ndarray, floor: float = 0.0) -> ComputeFit:
    """See reference."""
    floor = float(check_range("floor", floor, least=0.0))
    flops = np.atleast_1d(check_range("flops", flops, above=0.0))
    loss = np.atleast_1d(check_range("loss", loss, above=floor))
    if flops.ndim != 1 or flops.shape != loss.shape:
        raise ValueError(
            f"flops and loss have shapes {flops.shape} and {loss.shape}; needed: one axis, the same length"
        )
    if flops.size < 3 or np.unique(flops).size < 2:
        raise ValueError(
            f"{flops.size} rows of {np.unique(flops).size} budgets; the compute law needs at least 3 rows of 2 budgets"
        )
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


def predict_interval(
    fit: ComputeFit, flops: np.ndarray, level: float = 0.95, observation: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """See reference."""
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
    """See reference."""
    quantile = student_quantile(level, fit.rows - 2)
    (of_level, _), (_, of_alpha) = fit.covariance
    _, A, alpha = fit.coefficients
    factor = math.exp(quantile * math.sqrt(of_level + fit.centre**2 * of_alpha))
    half = quantile * math.sqrt(of_alpha)
    return [
        Range("A", None, A, A / factor, A * factor, ""),
        Range("alpha", None, alpha, alpha - half, alpha + half, ""),
    ]


def compute_prediction(
    fit: ComputeFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """See reference."""
    (flops,) = at
    law, run = (tuple(map(float, predict_interval(fit, flops, level, each))) for each in (False, True))
    return Predicted(float(predict_loss(flops, fit.coefficients)), law, run)


def speedup(worse: np.ndarray, better: np.ndarray, coefficients: ComputeCoefficients = PUBLISHED) -> np.ndarray:
    """See reference."""
    floor, _, alpha = coefficients
    worse, better = check_range("worse", worse, above=floor), check_range("better", better, above=floor)
    alpha = float(check_range("alpha", alpha, above=0.0))
    return np.exp((np.log(worse - floor) - np.log(better - floor)) / alpha)
