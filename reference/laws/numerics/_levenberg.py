"""Fit a nonlinear law from several starts by the Levenberg-Marquardt method.

Private to the reference. A law with p parameters θ predicts the n rows of a table. J is the matrix [n, p] of the
derivatives of these predictions. The fit minimises a sum over the rows. A row with the residual r = target - prediction
adds r²/2 (least squares) or its Huber term (`_huber.py`). Near θ the law is nearly linear, prediction(θ + step) =
prediction(θ) + J step. The best step for a linear law solves

    (JᵀWJ + damping · diagonal of JᵀWJ) step = JᵀW r,       W = diagonal of min(1, delta/|r|)

with a damping of 0. Far from the minimum this step is too long, and the damping shortens it. If a step lowers the sum,
the damping is divided by five. If not, the damping is doubled and the fit tries again from the same θ. The method may
end in a local minimum, so the fit uses many starts.

`_descent.py` has another search, for laws of the loss. Their unknowns are powers and logarithms, so it can limit each
step to 3. The unknowns of the broken power law and of the logistic stage can have any size. Such a limit would depend
on their units.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._columns import log_sum
from ._huber import terms

ROUNDS = 400  # most steps, including rejected ones
_FIRST_DAMPING, _LEAST_DAMPING, _LAST_DAMPING = 1e-3, 1e-12, 1e8
_NO_LOWER = 1e-14  # the search ends if a step lowers the sum by a smaller share


class LocalMinimum(NamedTuple):
    """A minimum of the sum; from `search`, the lowest over all starts."""

    parameters: np.ndarray  # [p]
    objective: float  # sum of the terms
    residual: np.ndarray  # [n] target - prediction
    jacobian: np.ndarray  # [n, p], derivatives of the prediction


def search(model: Callable, target: np.ndarray, starts: np.ndarray, delta: float = math.inf) -> LocalMinimum:
    """Return the best minimum reached from any start.

    Args:
        model: θ [p] -> prediction [n] and its derivatives [n, p], such as `partial(power_terms, features)`. The search
            rejects steps to NaN or infinite values.
        target: [n].
        starts: [s, p].
        delta: of the Huber terms; infinite for least squares.

    Raises:
        ArithmeticError: no start has a finite sum.
    """
    minima = [descend(model, target, start, delta) for start in starts]
    minima = [item for item in minima if math.isfinite(item.objective)]
    if not minima:
        raise ArithmeticError(f"the search from {len(starts)} starts found no finite sum of squares or Huber terms")
    return min(minima, key=lambda item: item.objective)


def descend(model: Callable, target: np.ndarray, start: np.ndarray, delta: float) -> LocalMinimum:
    """Return the minimum reached from one start.

    Example:
        Fit a line through the origin, from a distant start. The slope is Σxy/Σx² = 14/14.

        >>> x = np.array([1.0, 2.0, 3.0])
        >>> found = descend(lambda theta: (theta[0] * x, x[:, None]), x, np.array([50.0]), math.inf)
        >>> round(float(found.parameters[0]), 9)
        1.0
    """
    here, damping = _at(model, target, start, delta), _FIRST_DAMPING
    for _ in range(ROUNDS):
        if not math.isfinite(here.objective) or here.objective == 0 or damping > _LAST_DAMPING:
            break
        weight = delta / np.maximum(np.abs(here.residual), delta) if math.isfinite(delta) else np.ones_like(target)
        curvature = here.jacobian.T @ (weight[:, None] * here.jacobian)
        size = np.maximum(np.diag(curvature), np.finfo(float).tiny)  # a parameter without effect does not move
        pull = here.jacobian.T @ (weight * here.residual)
        # Scale the diagonal to 1, so that parameters of any size are solved equally well.
        scale = np.sqrt(size)
        damped = curvature / np.outer(scale, scale) + damping * np.eye(scale.size)
        step = np.linalg.solve(damped, pull / scale) / scale
        there = _at(model, target, here.parameters + step, delta)
        if there.objective < here.objective:
            arrived = here.objective - there.objective <= _NO_LOWER * here.objective
            here, damping = there, max(damping / 5, _LEAST_DAMPING)
            if arrived:
                break
        else:
            damping *= 2
    return here


def power_terms(features: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ln Σⱼ exp(features[:, j] · θ), the logarithm of a sum of power laws, [n], and its derivatives [n, p].

    The logarithm of a term such as A/N^α is linear in θ: ln A has the feature 1, α has -ln N, and other entries of θ
    have 0. The derivatives of the logarithm of the sum are the features, weighted by each term's share of the sum.

    Args:
        features: [n, terms, p].
        theta: [p].

    Example:
        ln(2/x + 3) at x = 4, with θ = (ln 2, 1, ln 3).

        >>> features = np.array([[[1.0, -np.log(4.0), 0.0], [0.0, 0.0, 1.0]]])
        >>> prediction, _ = power_terms(features, np.array([np.log(2.0), 1.0, np.log(3.0)]))
        >>> bool(abs(prediction[0] - np.log(3.5)) < 1e-12)
        True
    """
    total, shares = log_sum(features @ theta)
    return total, np.einsum("nj,njp->np", shares, features)


def covariance(minimum: LocalMinimum, delta: float = math.inf) -> np.ndarray:
    """Return the covariance of the parameters, s² (JᵀJ)⁻¹. Here s² is the sum of squared residuals divided by n - p.

    The covariance is NaN for a Huber fit, if n <= p, or if the derivatives are linearly dependent.
    """
    rows, unknowns = minimum.jacobian.shape
    length = np.linalg.norm(minimum.jacobian, axis=0)
    unknown = np.full((unknowns, unknowns), np.nan)
    if math.isfinite(delta) or rows <= unknowns or not np.all(length > 0):
        return unknown
    unit = minimum.jacobian / length
    if np.linalg.matrix_rank(unit) < unknowns:
        return unknown
    inverse = np.linalg.pinv(unit)
    variance = float(np.sum(minimum.residual**2)) / (rows - unknowns)
    return variance * (inverse @ inverse.T) / np.outer(length, length)


def _at(model: Callable, target: np.ndarray, parameters: np.ndarray, delta: float) -> LocalMinimum:
    """Return the state of the search at these parameters. The sum is infinite where the law is NaN."""
    with np.errstate(all="ignore"):  # the sum reveals a step that is too long
        prediction, jacobian = model(parameters)
        residual = target - prediction
        total = float(np.sum(residual**2)) / 2 if math.isinf(delta) else float(np.sum(terms(residual, delta)))
    if not (math.isfinite(total) and np.all(np.isfinite(jacobian))):
        total = math.inf
    return LocalMinimum(np.asarray(parameters, dtype=np.float64), total, residual, jacobian)
