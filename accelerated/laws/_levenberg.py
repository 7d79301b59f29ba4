"""The Levenberg-Marquardt method: one compiled loop runs all starts of a fit at once.

See `routelaws.reference.laws._levenberg` for the method. Here the starts are a mapped axis, and the derivatives come
from JAX. The rows are padded to a multiple of 32 with rows of weight 0, so tables of similar length share one compiled
loop. All numbers are float64, even if JAX is set to float32. The reference explains why laws of accuracy use this
search and laws of the loss use `_descent.py`.
"""

import functools
import importlib
import math
from collections.abc import Callable

import numpy as np

from routelaws.reference.laws import _levenberg as reference
from routelaws.reference.laws import broken, two_stage
from routelaws.reference.laws._levenberg import LocalMinimum


class Later:
    """A module that is imported at the first use of one of its names: laws without this search do not wait for JAX."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self._module), name)


jax, jnp = Later("jax"), Later("jax.numpy")

ROUNDS = 400
_FIRST_DAMPING, _LEAST_DAMPING, _LAST_DAMPING = 1e-3, 1e-12, 1e8
_NO_LOWER = 1e-14
_PADDING = 32


def search(model: Callable, target: np.ndarray, starts: np.ndarray, delta: float = math.inf) -> LocalMinimum:
    """Return the best minimum reached from any start.

    Args:
        model: as in the reference. The search is compiled for a model `partial(function, data)` of `MODELS`, where data
            has the rows first, [n, ...]. Any other model is not worth compiling, nor is a single power.
        target: [n].
        starts: [s, p].
        delta: of the Huber terms; infinite for least squares.

    Raises:
        ArithmeticError: no start has a finite sum.
    """
    fast = MODELS.get(getattr(model, "func", None))
    if fast is None or fast is _log_sum and model.args[0].shape[1] == 1:
        return reference.search(model, target, starts, delta)
    [data] = model.args
    rows = len(target)
    filled = -(-rows // _PADDING) * _PADDING
    take = np.minimum(np.arange(filled), rows - 1)
    data = np.asarray(data, np.float64)[take]
    weight = (np.arange(filled) < rows).astype(np.float64)
    with jax.enable_x64(True):
        result = _compiled()(
            fast, data, np.asarray(target, np.float64)[take], weight, np.asarray(starts, np.float64), delta
        )
        parameters, objective, residual, jacobian = (np.asarray(value) for value in result)
    if not math.isfinite(objective):
        raise ArithmeticError(f"the search from {len(starts)} starts found no finite sum of squares or Huber terms")
    return LocalMinimum(parameters, float(objective), residual[:rows], jacobian[:rows])


def _log_sum(parameters, features):
    return jax.nn.logsumexp(features @ parameters, axis=1)


def _broken(theta, x):
    a, b, c0, log_break, log_width, c1 = theta
    width = jnp.exp(log_width)
    exponent = -c0 * x - c1 * width * jnp.logaddexp(0.0, (x - log_break) / width)
    return jnp.where(jnp.abs(log_width) > 10, jnp.nan, a + b * jnp.exp(exponent))


def _logistic(theta, loss):
    a, k, m, b = theta
    return a * jax.nn.sigmoid(k * (loss - m)) + b


MODELS = {reference.power_terms: _log_sum, broken._model: _broken, two_stage._model: _logistic}
"""The predictions of the reference's models, (θ [p], data) -> [n], from which JAX takes the derivatives."""


@functools.cache
def _compiled():
    return jax.jit(_search, static_argnums=0)


def _search(model, data, target, weight, starts, delta):
    def terms(residual):
        return _huber_sum(residual, weight, delta)

    def step(state):
        parameters, total, damping, rounds, _ = state
        residual, jacobian = _residual_and_jacobian(model, parameters, data, target)
        there = parameters + _damped_step(residual, jacobian, weight, delta, damping)
        new = terms(target - model(there, data))
        lower = new < total  # not for NaN
        return (
            jnp.where(lower, there, parameters),
            jnp.where(lower, new, total),
            jnp.where(lower, jnp.maximum(damping / 5, _LEAST_DAMPING), damping * 2),
            rounds + 1,
            lower & (total - new <= _NO_LOWER * total),
        )

    def descend(start):
        total = terms(target - model(start, data))
        total = jnp.where(jnp.isfinite(total), total, jnp.inf)
        return jax.lax.while_loop(_going, step, (start, total, jnp.asarray(_FIRST_DAMPING), 0, jnp.asarray(False)))[:2]

    parameters, totals = jax.vmap(descend)(starts)
    best = jnp.argmin(totals)
    return parameters[best], totals[best], *_residual_and_jacobian(model, parameters[best], data, target)


def _going(state):
    """Return whether a search of this state, (parameters, sum, damping, rounds, arrived), goes on."""
    _, total, damping, rounds, arrived = state
    return (rounds < ROUNDS) & ~arrived & jnp.isfinite(total) & (total > 0) & (damping <= _LAST_DAMPING)


def _huber_sum(residual, weight, delta):
    size = jnp.abs(residual)
    outer = jnp.where(jnp.isinf(delta), 0.0, delta) * (size - jnp.where(jnp.isinf(delta), 0.0, delta) / 2)
    return jnp.sum(weight * jnp.where(size <= delta, size**2 / 2, outer))


def _residual_and_jacobian(model, parameters, data, target):
    return target - model(parameters, data), jax.jacfwd(model)(parameters, data)


def _damped_step(residual, jacobian, weight, delta, damping):
    pull = weight * jnp.minimum(1.0, delta / jnp.maximum(jnp.abs(residual), 1e-300))
    curvature = jacobian.T @ (pull[:, None] * jacobian)
    scale = jnp.sqrt(jnp.maximum(jnp.diag(curvature), 1e-290))
    square = curvature / jnp.outer(scale, scale) + damping * jnp.eye(scale.size)
    # The damping makes the matrix positive definite. If rounding spoils this, the step is NaN and is not taken.
    root = jax.scipy.linalg.cho_factor(square, lower=True)
    return jax.scipy.linalg.cho_solve(root, jacobian.T @ (pull * residual) / scale) / scale
