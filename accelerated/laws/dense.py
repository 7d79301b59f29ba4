"""The dense power law: how the loss of a model without routing falls with its size.

Step by step, with sources and examples: `routelaws.reference.laws.dense`.

    L = (N_c / N)^α

with L the loss in nats per token and N the parameters.

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
    """The two coefficients of the law.

    Attributes:
        alpha: minus d log10 L / d log10 N, above 0
        N_c: parameters; the size of loss 1
    """

    alpha: float
    N_c: float


class DenseLine(NamedTuple):
    """The same law as log10 L = intercept + slope · log10 N, which exists whatever the slope is.

    Attributes:
        intercept: log10 L at N = 1
        slope: d log10 L / d log10 N
    """

    intercept: float
    slope: float


class DenseFit(NamedTuple):
    """The best fit of the dense law to a table.

    Attributes:
        coefficients: both NaN unless the status is "interior"
        line: the same fit, for prediction: see `predict_line`
        objective: mean squared difference of log10 losses
        rmsle: its square root
        status: "interior", or that there is no power law
        covariance: [2, 2], order of DenseCoefficients; NaN unless the status is "interior"
        rows: rows used, all that were given
        criterion: what was minimised
    """

    coefficients: DenseCoefficients
    line: DenseLine
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


def predict_loss(dense_parameters: np.ndarray, coefficients: DenseCoefficients) -> np.ndarray:
    """Return the loss L of the law.

    Args:
        dense_parameters: N, parameters, above 0, any shape.
        coefficients: the law.

    Returns:
        L, nats per token, the shape of `dense_parameters`.

    Raises:
        ValueError: a size or N_c is not finite or not above 0.
    """
    size = check_range("dense_parameters", dense_parameters, above=0.0)
    critical = check_range("N_c", coefficients.N_c, above=0.0)
    return np.exp(coefficients.alpha * (np.log(critical) - np.log(size)))


def size_for_loss(loss: np.ndarray, coefficients: DenseCoefficients) -> np.ndarray:
    """Return N = N_c · L^(-1/α), the size that reaches a loss; the inverse of `predict_loss`.

    Args:
        loss: L, nats per token, above 0, any shape.
        coefficients: the law; α above 0.

    Returns:
        N, parameters, the shape of `loss`; inf where it is beyond the largest float64, 0 below the smallest.

    Raises:
        ValueError: a loss is not finite or not above 0, or α or N_c is not above 0 (no size reaches a given loss).
    """
    log_loss = np.log(check_range("loss", loss, above=0.0))
    log_critical = np.log(check_range("N_c", coefficients.N_c, above=0.0))
    alpha = check_range("alpha", coefficients.alpha, above=0.0)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_critical - log_loss / alpha)


def fit_dense(dense_parameters: np.ndarray, loss: np.ndarray) -> DenseFit:
    """Fit the law to a table by least squares of log10 L.

    Args:
        dense_parameters: [n], N, parameters, above 0.
        loss: [n], L, nats per token, above 0.

    Returns:
        The fit, plain least squares. If the loss does not fall (by more than 1e-10 in log10 over the sizes of the
        table) there is no power law: the status says so, the coefficients are NaN, and `line` still predicts (our
        choice). If it falls so little that N_c is beyond the range of float64, N_c is inf (or 0, for losses below 1).

    Raises:
        ValueError: lengths differ, an entry is not finite or not above 0, fewer than 3 rows, or fewer than two sizes.
    """
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
    """Return the loss L that a fit predicts, whatever its status.

    Args:
        line: `DenseFit.line`.
        dense_parameters: N, parameters, above 0, any shape.

    Returns:
        L, nats per token, the shape of `dense_parameters`.

    Raises:
        ValueError: a size is not finite or not above 0.
    """
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
