"""The dense power law: how the loss of a model without routing falls with its size.

The law is from Kaplan et al. 2020. Clark et al. 2022 (arXiv 2202.01169) use this form as their baseline:

    L = (N_c / N)^α,   that is   log10 L = α (log10 N_c - log10 N)

where  L  loss of the last evaluation, nats per token, above 0
       N  parameters, above 0
       α  the exponent: ten times the parameters divide the loss by 10^α
       N_c  the size at which the line reaches a loss of 1 nat.

The law is a straight line in logarithms, so the fit is linear regression. With x = log10 N and y = log10 L,

    slope = Σ (x - x̄)(y - ȳ) / Σ (x - x̄)²,   α = -slope,   log10 N_c = x̄ - ȳ/slope.

Compare predicted losses, not N_c, which is ill-conditioned. The line reaches log10 L = 0 more than four decades beyond
the largest trained model. So a change of α by one per cent changes N_c by 13 per cent.

`size_for_loss` converts a measured loss to the size of the dense model with this loss.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ..errors import InputError
from .numerics._columns import CRITERION, check_columns
from .numerics._projection import INDEPENDENT, RESOLUTION, check_range, need_rows

Status = Literal["interior", "loss does not fall with size"]


class DenseCoefficients(NamedTuple):
    """The two coefficients of the dense law.

    Attributes:
        alpha: minus d log10 L / d log10 N, above 0
        N_c: the size, in parameters, with loss 1
    """

    alpha: float
    N_c: float


class DenseLine(NamedTuple):
    """The same law as log10 L = intercept + slope · log10 N. This form exists for every slope.

    Attributes:
        intercept: log10 L at N = 1
        slope: d log10 L / d log10 N
    """

    intercept: float
    slope: float


class DenseFit(NamedTuple):
    """The best fit of the dense law to a table.

    Attributes:
        coefficients: the law; both coefficients are NaN unless the status is "interior"
        line: the same fit, for prediction: see `predict_line`
        objective: mean squared difference of log10 losses
        rmsle: its square root
        status: "interior", or "loss does not fall with size"
        covariance: [2, 2], of (alpha, N_c); NaN unless the status is "interior"
        rows: number of rows
        criterion: the minimised quantity
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
    """Return the loss L that the law predicts.

    Args:
        dense_parameters: N, parameters, above 0, any shape.
        coefficients: the law.

    Returns:
        L in nats per token, with the shape of `dense_parameters`.

    Raises:
        ValueError: a size or N_c is not finite or not above 0.

    Example:
        At a thousandth of N_c and α = 0.1, L = 1000^0.1 = 10^0.3.

        >>> print(round(float(predict_loss(1e10, DenseCoefficients(0.1, 1e13))), 6), round(10**0.3, 6))
        1.995262 1.995262
    """
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    log_critical = np.log10(check_range("N_c", coefficients.N_c, above=0.0))
    return 10.0 ** (coefficients.alpha * (log_critical - log_size))


def size_for_loss(loss: np.ndarray, coefficients: DenseCoefficients) -> np.ndarray:
    """Return N = N_c · L^(-1/α), the size that reaches a loss; the inverse of `predict_loss`.

    Args:
        loss: L, nats per token, above 0, any shape.
        coefficients: the law; α above 0.

    Returns:
        N in parameters, with the shape of `loss`; inf or 0 where N is out of the range of float64.

    Raises:
        ValueError: a loss, α or N_c is not finite or not above 0.

    Example:
        >>> print(round(float(size_for_loss(10**0.3, DenseCoefficients(0.1, 1e13)))))
        10000000000
    """
    log_loss = np.log10(check_range("loss", loss, above=0.0))
    log_critical = np.log10(check_range("N_c", coefficients.N_c, above=0.0))
    alpha = check_range("alpha", coefficients.alpha, above=0.0)
    with np.errstate(over="ignore", under="ignore"):
        return 10.0 ** (log_critical - log_loss / alpha)


def fit_dense(dense_parameters: np.ndarray, loss: np.ndarray) -> DenseFit:
    """Fit the dense law to a table by least squares of log10 L.

    Args:
        dense_parameters: [n], N, parameters, above 0.
        loss: [n], L, nats per token, above 0.

    Returns:
        The fit. The coefficients are NaN if log10 L falls by 1e-10 or less over the sizes of the table; `line` still
        predicts (our choice). N_c is inf or 0 if the result is out of the range of float64.

    Raises:
        ValueError: lengths differ, an entry is not finite or not above 0, or there are fewer than 3 rows or 2 sizes.

    Example:
        A fit to losses of the law recovers its coefficients.

        >>> size = np.array([1e7, 1e8, 1e9])
        >>> fit = fit_dense(size, predict_loss(size, DenseCoefficients(0.08, 1e13)))
        >>> fit.status, round(fit.coefficients.alpha, 9), round(fit.coefficients.N_c / 1e13, 9)
        ('interior', 0.08, 1.0)
    """
    log_size, log_loss = check_columns(dense_parameters=dense_parameters, loss=loss)
    need_rows(log_size.size, 2, "dense")
    if np.ptp(log_size) < INDEPENDENT:
        raise InputError("all rows have one size; the slope in size needs at least two")
    x, y = log_size - log_size.mean(), log_loss - log_loss.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    squares = float(np.sum((y - slope * x) ** 2))
    line = DenseLine(float(log_loss.mean() - slope * log_size.mean()), slope)
    coefficients, covariance = DenseCoefficients(math.nan, math.nan), np.full((2, 2), np.nan)
    status: Status = "loss does not fall with size"
    if slope * np.ptp(log_size) < -RESOLUTION:
        status = "interior"
        with np.errstate(over="ignore", under="ignore"):
            coefficients = DenseCoefficients(-slope, float(10.0 ** (log_size.mean() - log_loss.mean() / slope)))
        covariance = _covariance(coefficients, log_size.size, spread, float(log_loss.mean()), squares)
    objective = squares / log_size.size
    return DenseFit(coefficients, line, objective, math.sqrt(objective), status, covariance, log_size.size, CRITERION)


def predict_line(line: DenseLine, dense_parameters: np.ndarray) -> np.ndarray:
    """Return the loss L that a fit predicts, for every status.

    Args:
        line: `DenseFit.line`.
        dense_parameters: N, parameters, above 0, any shape.

    Returns:
        L in nats per token, with the shape of `dense_parameters`.

    Raises:
        ValueError: a size is not finite or not above 0.
    """
    return 10.0 ** (line.intercept + line.slope * np.log10(check_range("dense_parameters", dense_parameters, above=0)))


def _covariance(
    coefficients: DenseCoefficients, rows: int, spread: float, mean_loss: float, squares: float
) -> np.ndarray:
    """Return the covariance of (α, N_c) by error propagation. The residual variance has n - 2 degrees of freedom.

    ȳ and the slope are uncorrelated, with variances σ²/n and σ²/Σ(x - x̄)². log10 N_c = x̄ - ȳ/slope = x̄ + ȳ/α changes
    by 1/α per unit of ȳ and by -ȳ/α² per unit of α; N_c changes by N_c ln 10 per unit of log10 N_c. This approximation
    holds for small errors only: the distribution of N_c is skewed. The entries of N_c are NaN if float64 cannot
    represent N_c.
    """
    alpha, critical = coefficients
    variance = squares / (rows - 2)
    if not 0 < critical < math.inf:
        return np.array([[variance / spread, np.nan], [np.nan, np.nan]])
    factor = critical * math.log(10)
    # Columns: derivatives of (α, N_c) by α and by ȳ.
    change = np.array([[1.0, 0.0], [-factor * mean_loss / alpha**2, factor / alpha]])
    with np.errstate(over="ignore", invalid="ignore"):  # N_c may be close to the limit of float64
        return change @ np.diag([variance / spread, variance / rows]) @ change.T


# What this file does not do: routed models (`log_linear.py`, `routed.py`).
