"""See `routelaws.reference.laws.dense`.

What differs here: natural logarithms inside, and the line by a QR step of the centred sizes. NumPy float64: a table of
dense runs is small.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ._columns import CRITERION, INDEPENDENT, RESOLUTION, check_columns, check_range, need_rows

Status = Literal["interior", "loss does not fall with size"]

_LOG_10 = math.log(10)


class DenseCoefficients(NamedTuple):
    """See reference."""

    alpha: float
    N_c: float


class DenseLine(NamedTuple):
    """See reference."""

    intercept: float
    slope: float


class DenseFit(NamedTuple):
    """See reference."""

    coefficients: DenseCoefficients
    line: DenseLine
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


def predict_loss(dense_parameters: np.ndarray, coefficients: DenseCoefficients) -> np.ndarray:
    """See reference."""
    size = check_range("dense_parameters", dense_parameters, above=0.0)
    critical = check_range("N_c", coefficients.N_c, above=0.0)
    return np.exp(coefficients.alpha * (np.log(critical) - np.log(size)))


def size_for_loss(loss: np.ndarray, coefficients: DenseCoefficients) -> np.ndarray:
    """See reference."""
    log_loss = np.log(check_range("loss", loss, above=0.0))
    log_critical = np.log(check_range("N_c", coefficients.N_c, above=0.0))
    alpha = check_range("alpha", coefficients.alpha, above=0.0)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_critical - log_loss / alpha)


def fit_dense(dense_parameters: np.ndarray, loss: np.ndarray) -> DenseFit:
    """See reference."""
    size, loss = check_columns(dense_parameters=dense_parameters, loss=loss)
    need_rows(size.size, 2, "dense")
    x, y = np.log(size) / _LOG_10, np.log(loss) / _LOG_10
    if x.max() - x.min() < INDEPENDENT:
        raise ValueError("all rows have one size; the slope in size needs at least two")
    centre, level = float(x.mean()), float(y.mean())
    length = float(np.linalg.norm(x - centre))
    unit = (x - centre) / length
    amount = float(unit @ (y - level))
    slope = amount / length
    residual = y - level - amount * unit
    squares = float(residual @ residual)
    coefficients, covariance = DenseCoefficients(math.nan, math.nan), np.full((2, 2), np.nan)
    status: Status = "loss does not fall with size"
    if slope * (x.max() - x.min()) < -RESOLUTION:
        status = "interior"
        with np.errstate(over="ignore", under="ignore"):
            coefficients = DenseCoefficients(-slope, float(np.exp(_LOG_10 * (centre - level / slope))))
        covariance = _covariance(coefficients, level, 1 / length**2, 1 / x.size) * (squares / (x.size - 2))
    objective = squares / x.size
    line = DenseLine(level - slope * centre, slope)
    return DenseFit(coefficients, line, objective, math.sqrt(objective), status, covariance, x.size, CRITERION)


def predict_line(line: DenseLine, dense_parameters: np.ndarray) -> np.ndarray:
    """See reference."""
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    return np.exp(_LOG_10 * line.intercept + line.slope * log_size)


def _covariance(
    coefficients: DenseCoefficients, level: float, variance_slope: float, variance_level: float
) -> np.ndarray:
    """Return the covariance of (alpha, N_c) per unit of residual variance, the reference's product written out."""
    alpha, critical = coefficients.alpha, np.float64(coefficients.N_c)
    if not 0 < critical < math.inf:
        return np.array([[variance_slope, np.nan], [np.nan, np.nan]])
    by_alpha, by_level = -_LOG_10 * critical * level / alpha**2, _LOG_10 * critical / alpha
    both = by_alpha * variance_slope
    with np.errstate(over="ignore"):
        return np.array([[variance_slope, both], [both, by_alpha * both + by_level**2 * variance_level]])
