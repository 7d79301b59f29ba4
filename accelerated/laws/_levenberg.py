"""The Levenberg-Marquardt method from all starts of a fit at once.

Shared with `reference.laws.numerics._levenberg`. A model here gives the predictions and derivatives of all searches
that have not ended. A table of 24 rows and 54 starts takes a tenth of the time.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from routelaws.reference.laws import broken, two_stage
from routelaws.reference.laws.numerics import _levenberg as reference
from routelaws.reference.laws.numerics._huber import terms
from routelaws.reference.laws.numerics._levenberg import (
    _FIRST_DAMPING,
    _LAST_DAMPING,
    _LEAST_DAMPING,
    _NO_LOWER,
    ROUNDS,
    LocalMinimum,
)


def search(model: Callable, target: np.ndarray, starts: np.ndarray, delta: float = math.inf) -> LocalMinimum:
    """Return the best minimum reached from any start.

    Args:
        model: as in the reference; a model that is not in `MODELS` is searched there.
        target: [n].
        starts: [s, p].
        delta: of the Huber terms; infinite for least squares.

    Raises:
        ArithmeticError: no start has a finite sum.
    """
    of_all = MODELS.get(getattr(model, "func", None))
    if of_all is None:
        return reference.search(model, target, starts, delta)
    with np.errstate(all="ignore"):
        ends, least = _descend(partial(of_all, *model.args), target, np.asarray(starts, np.float64), delta)
        best = reference._at(model, target, ends[np.argmin(least)], delta)
    if not math.isfinite(least.min()):
        raise ArithmeticError(f"the search from {len(starts)} starts found no finite sum of squares or Huber terms")
    return best


def _descend(model: Callable, target: np.ndarray, starts: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the parameters [s, p] and the sums [s] at the ends; the lanes from `at` on have not ended."""
    ends, least, lanes = np.array(starts), np.full(len(starts), np.inf), np.arange(len(starts))
    at, trial, total, damping = starts, starts, least, np.full(len(starts), _FIRST_DAMPING)
    curvature, pull = np.zeros((*starts.shape, starts.shape[1])), np.zeros(starts.shape)
    for count in range(ROUNDS + 1):
        prediction, jacobian = model(trial)
        residual = target - prediction
        new = terms(residual, delta).sum(axis=1)
        lower = new < total  # False for NaN
        arrived = lower & (total - new <= _NO_LOWER * total) & (count > 0)
        weight = np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))[..., None]
        curvature[lower] = (jacobian.mT @ (weight * jacobian))[lower]
        pull[lower] = (jacobian.mT @ (weight * residual[..., None]))[lower, :, 0]
        at, total = np.where(lower[:, None], trial, at), np.where(lower, new, total)
        damping = np.where(lower, np.maximum(damping / 5, _LEAST_DAMPING), 2 * damping) if count else damping
        ended = arrived | ~np.isfinite(total) | (total == 0) | (damping > _LAST_DAMPING) | (count == ROUNDS)
        ends[lanes], least[lanes] = at, total
        if ended.all():
            break
        state = lanes, at, total, damping, curvature, pull
        lanes, at, total, damping, curvature, pull = (each[~ended] for each in state)
        scale = np.sqrt(np.maximum(np.einsum("spp->sp", curvature), np.finfo(float).tiny))
        square = curvature / (scale[:, :, None] * scale[:, None]) + damping[:, None, None] * np.eye(scale.shape[1])
        trial = at + np.linalg.solve(square, (pull / scale)[..., None])[..., 0] / scale
    return ends, least


def _power_terms(features: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictions [s, n] and derivatives [s, n, p] of `reference.power_terms` at θ [s, p]."""
    log_terms = np.einsum("njp,sp->snj", features, theta)
    top = log_terms.max(axis=2, keepdims=True)
    shares = np.exp(log_terms - top)
    total = shares.sum(axis=2, keepdims=True)
    return (top + np.log(total))[..., 0], np.einsum("snj,njp->snp", shares / total, features)


def _broken(x: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b, c0, log_break, log_width, c1 = theta.T[..., None]
    width = np.where(np.abs(log_width) > 10, np.nan, np.exp(log_width))
    z = (x - log_break) / width
    soft, part = np.logaddexp(0.0, z), 1 / (1 + np.exp(-z))
    curve = np.exp(-c0 * x - c1 * width * soft)
    fall = b * curve
    changes = -x * fall, c1 * part * fall, -c1 * width * (soft - z * part) * fall, -width * soft * fall
    return a + fall, np.stack([np.ones_like(curve), curve, *changes], axis=-1)


def _logistic(loss: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, k, m, b = theta.T[..., None]
    part = 1 / (1 + np.exp(-k * (loss - m)))
    slope = a * part * (1 - part)
    return a * part + b, np.stack([part, slope * (loss - m), -slope * k, np.ones_like(part)], axis=-1)


MODELS = {reference.power_terms: _power_terms, broken._model: _broken, two_stage._model: _logistic}
"""The models of the reference at many θ: (data, θ [s, p]) -> predictions [s, n] and derivatives [s, n, p]."""
