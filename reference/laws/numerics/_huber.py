"""Fit the bounded law at one shape by Huber's criterion, which limits the influence of bad rows.

Private to the reference. A squared residual grows without limit, so one bad row can outweigh fifty good rows. The Huber
term of a residual r is half its square up to delta and a straight line beyond delta:

    r²/2  where |r| <= delta,        delta (|r| - delta/2)  elsewhere,

Both parts have the same value and slope at delta. The derivative is r clipped at ±delta (`clipped`), so the influence
of a row is limited. The criterion is the *sum* of the terms over the rows, never their mean. So its scale does not
depend on the number of rows.

At a given shape the prediction is linear in four unknowns (`fitting.py`, step 2). The sum is convex in these unknowns.
So a point is a minimum exactly when the derivatives are 0. With the four orthonormalised columns Q (n rows, 4 columns)
and the residuals r, this condition is

    Qᵀ clipped(r) = 0

`solve` uses Newton's method, starting from least squares. A row has curvature 1 within delta and 0 beyond. Let W be the
diagonal matrix with 1 for each row within delta. Then the step is the solution of

    (Qᵀ W Q) step = Qᵀ clipped(r)

The step is exact only if no row crosses delta. So the fit tries 1, 1/2, 1/4, ... of the step and takes the share with
the smallest sum. When the right rows are within delta, one whole step reaches the minimum. QᵀWQ has no inverse if too
few rows are within delta. So W gives rows beyond delta a small weight, a millionth of delta/|r|. This weight changes
the path but not its end, where the derivatives are 0.

Several solutions may be equally good, but the minimum of the sum is unique.
"""

import math

import numpy as np

from ...errors import InputError
from ._projection import Logs, columns

ROUNDS = 200  # most Newton steps; typically 5 to 25 are taken
LENGTHS = 0.5 ** np.arange(24)  # shares of a step to try
LEVEL = 1e-7  # Qᵀ clipped(r) below this share of |clipped(r)| counts as 0; the sum is then within 1e-14 of its minimum
ROUNDING = 1e-15  # log10; a residual up to this size is rounding and counts as 0
_OUTER_SHARE = 1e-6  # factor of the weight of a row beyond delta


def check_delta(delta: float, unit: str) -> float:
    """Return delta as a float; raise ValueError, with this unit, unless it is a finite number above 0."""
    if not (isinstance(delta, int | float | np.number) and 0 < delta < math.inf):
        raise InputError(f"huber is {delta!r}; needed: a finite number above 0, {unit}, or None")
    return float(delta)


def clipped(residual: np.ndarray, delta: float) -> np.ndarray:
    """Return the derivative of the Huber term: the residual, clipped at -delta and delta."""
    return np.clip(residual, -delta, delta)


def terms(residual: np.ndarray, delta: float) -> np.ndarray:
    """Return the Huber term of each residual.

    Example:
        >>> terms(np.array([0.0, 0.5, 1.0, -3.0]), 1.0).tolist()
        [0.0, 0.125, 0.5, 2.5]
    """
    size = np.abs(residual)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def error_variance(residual: np.ndarray, delta: float | np.ndarray, unknowns: int) -> tuple[float, float]:
    """Return the error variance of a fit, and the share m of the rows within delta.

    The variance is Σ clipped²/(n - p) · (K/m)² with K = 1 + (p/n)(1 - m)/m for p unknowns (Huber 1981, Robust
    Statistics, section 7.6). In least squares (delta is infinite) m = K = 1. The formula assumes that all errors have
    one distribution, symmetric about the law. The variance is NaN if no row is within delta.
    """
    share = float(np.mean(np.abs(residual) <= delta))
    if share == 0:
        return math.nan, 0.0
    widening = (1 + unknowns / residual.size * (1 - share) / share) / share
    return float(np.sum(clipped(residual, delta) ** 2)) / (residual.size - unknowns) * widening**2, share


def solve(rows: Logs, rise: float, bend: float, delta: float) -> tuple[float, np.ndarray]:
    """Minimise the sum of Huber terms at one shape.

    Args:
        rows: the table, n rows.
        rise, bend: the shape, see step 1 of `fitting.py`.
        delta: log10 units, above 0.

    Returns:
        The smallest sum, and the residuals [n] there.

    Raises:
        ArithmeticError: the derivatives did not reach 0; this is a bug.

    Example:
        Two sizes and two E give four groups of five rows. The law can fit each group separately. Only the first row is
        wrong, by 1. Least squares would move the prediction for its group by 1/5; this fit moves it by 0.1/4.

        >>> rows = Logs(np.tile([7.0, 8.0], 10), np.repeat([0.0, 1.0], 10), np.array([1.0, *[0.0] * 19]))
        >>> least, residual = solve(rows, 1.0, 0.0, 0.1)
        >>> residual[[0, 2]].round(6).tolist(), bool(abs(residual[1]) < 1e-9)  # the second row is of another group
        ([0.975, -0.025], True)
    """
    unit, _ = np.linalg.qr(columns(rows, rise, bend))  # Q
    target = rows.log_loss - rows.log_loss.mean()
    residual = target - unit @ (unit.T @ target)  # start from least squares
    for _ in range(ROUNDS):
        pull = clipped(residual, delta)
        slopes = unit.T @ pull
        if np.linalg.norm(slopes) <= LEVEL * np.linalg.norm(pull) + ROUNDING:
            return float(terms(residual, delta).sum()), residual
        size = np.abs(residual)
        weight = np.where(size <= delta, 1.0, _OUTER_SHARE * delta / np.maximum(size, delta))
        step = np.linalg.solve((unit.T * weight) @ unit, slopes)  # (Qᵀ W Q)⁻¹ Qᵀ clipped(r)
        change = unit @ step
        trials = np.array([residual - length * change for length in LENGTHS])
        residual = trials[np.argmin(terms(trials, delta).sum(axis=1))]
    raise ArithmeticError(f"the sum of Huber terms still falls after {ROUNDS} steps at rise {rise}, bend {bend}")


# What this file does not do: choose the part of the domain to search (`fitting.py`).
