"""Shared functions of the laws: checked columns, least squares, and the form that is bilinear in two logarithms.

Private to the reference. Everything is in log10 units. `log_linear.py`, `routed.py` and `utilisation.py` use the form

    log10 L = a n + b e + c n e + d

Here n measures the model's size (log10 N or log10 F) and e its experts (log10 E, log10 Ê or log10 B̂). The form is a
line in e, with level a n + d and slope b + c n. It is also a line in n, with level b e + d and slope a + c e.
"""

import math

import numpy as np

from ._projection import check_lengths, check_range

CRITERION = "mean squared difference of log10 losses"


def check_columns(**columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return log10 of each column, in order. Check that `num_experts` is at least 1 and the other columns are above 0.

    Raises:
        ValueError: an entry is not finite or out of its range, or the columns do not have one axis and equal lengths.
    """
    checked = {}
    for name, values in columns.items():
        allowed = {"least": 1.0} if name == "num_experts" else {"above": 0.0}
        checked[name] = np.atleast_1d(check_range(name, values, **allowed))
    check_lengths(**checked)
    return tuple(np.log10(column) for column in checked.values())


def check_accuracy(accuracy: np.ndarray) -> np.ndarray:
    """Return accuracies as float64. Raise ValueError unless each is between 0 and 1."""
    checked = check_range("accuracy", accuracy, least=0.0)
    check_range("1 - accuracy", 1 - checked, least=0.0)
    return checked


def least_squares(design: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Solve the least-squares problem and return the solution with its covariance and residual.

    Args:
        design: [n, p].
        target: [n].

    Returns:
        The solution [p], its covariance [p, p] and the mean squared residual. The covariance is the residual variance,
        with n - p degrees of freedom, times (designᵀ design)⁻¹.
    """
    inverse = np.linalg.pinv(design)
    # A second step on the residual removes the rounding of the first.
    solution = inverse @ target
    solution = solution + inverse @ (target - design @ solution)
    squares = float(np.sum((target - design @ solution) ** 2))
    rows, unknowns = design.shape
    return solution, squares / (rows - unknowns) * inverse @ inverse.T, squares / rows


def log_sum(log_terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ln Σₜ exp of [n, m], and the shares [n, m] of the terms. The largest term is subtracted before exp.

    Example:
        >>> total, shares = log_sum(np.log([[1.0, 3.0]]) + 1000.0)
        >>> (total - 1000.0).round(6).tolist() == np.log([4.0]).round(6).tolist(), shares.round(6).tolist()
        (True, [[0.25, 0.75]])
    """
    largest = log_terms.max(axis=1, keepdims=True)
    parts = np.exp(log_terms - largest)
    total = parts.sum(axis=1, keepdims=True)
    return (largest + np.log(total))[:, 0], parts / total


def effective(extra: np.ndarray, start: float, limit: float) -> np.ndarray:
    """Return Ê or B̂: it equals `start` at extra = 0, and rises with `extra` towards `limit`.

    The formula is 1 / (1 / (extra + (1/start - 1/limit)⁻¹) + 1/limit). `limit` may be math.inf.
    """
    saturation = 1.0 / limit  # 0 if the limit is infinite
    return 1.0 / (1.0 / (extra + 1.0 / (1.0 / start - saturation)) + saturation)


def bilinear(coefficients: tuple[float, float, float, float], n: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Return L = 10^(a n + b e + c n e + d), nats per token."""
    a, b, c, d = coefficients
    return 10.0 ** (a * n + b * e + c * n * e + d)


def reach(log_loss: np.ndarray, level: np.ndarray, slope: np.ndarray, never: float) -> np.ndarray:
    """Return 10^x for the x at which level + slope · x falls to `log_loss`; `never` if the slope is not below 0.

    A result outside the range of float64 becomes inf or 0.

    Example:
        A slope of -0.1 needs one decade to lower 10^0.3 to 10^0.2.

        >>> reach(np.array(0.2), np.array(0.3), np.array([-0.1, 0.1]), never=math.inf).round(6)
        array([10., inf])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        return np.where(slope < 0, 10.0 ** ((log_loss - level) / slope), never)


def worth(coefficients: tuple[float, float, float, float], n: np.ndarray, e: np.ndarray, start: float) -> np.ndarray:
    """Return 10^m, the size of the dense model (e = start) with the same loss as (n, e).

    Equal losses give (a + c start) m = (a + c e) n + b (e - start). a + c start must not be 0.
    """
    a, b, c, _ = coefficients
    with np.errstate(over="ignore", under="ignore"):
        return 10.0 ** (((a + c * e) * n + b * (e - start)) / (a + c * start))


def crossing(b: float, c: float) -> float:
    """Return the N = 10^n at which b + c n rises to 0: 10^(-b/c).

    Return inf if c <= 0 or if the result exceeds float64, and NaN if b or c is NaN.
    """
    if math.isnan(b) or math.isnan(c):
        return math.nan
    if c <= 0:
        return math.inf
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        return float(np.float64(10.0) ** (-np.float64(b) / np.float64(c)))
