"""The Levenberg-Marquardt method: one compiled loop runs all starts of a fit at once.

See `routelaws.reference.laws._levenberg` for the method. Here the starts are a mapped axis, and the derivatives come
from JAX. The rows are padded to a multiple of 32 with rows of weight 0, so tables of similar length share one compiled
loop. All numbers are float64, even if JAX is set to float32. The reference explains why laws of accuracy use this
search and laws of the loss use `_descent.py`.
"""

import functools
import math

import numpy as np

from routelaws.reference.laws import _levenberg as reference
from routelaws.reference.laws._levenberg import Minimum

from .._calling import Later

jax, jnp = Later("jax"), Later("jax.numpy")  # no other law has to wait for it

ROUNDS = 400
_FIRST_DAMPING, _LEAST_DAMPING, _LAST_DAMPING = 1e-3, 1e-12, 1e8
_NO_LOWER = 1e-14
_PADDING = 32


def search(law: tuple, target: np.ndarray, starts: np.ndarray, delta: float = math.inf) -> Minimum:
    """Return the best minimum reached from any start.

    Args:
        law: (model, data), or a model of the reference. A model is a function of this package's files, (θ [p], data)
            -> prediction [n], compiled once; data are arrays with the rows first, [n, ...], or a tuple of these.
        target: [n].
        starts: [s, p].
        delta: of the Huber terms; infinite for least squares.

    Raises:
        ArithmeticError: no start has a finite sum.
    """
    if callable(law):  # a law of the reference that is not worth compiling
        return reference.search(law, target, starts, delta)
    model, data = law
    rows = len(target)
    filled = -(-rows // _PADDING) * _PADDING
    take = np.minimum(np.arange(filled), rows - 1)
    data = jax.tree.map(lambda column: np.asarray(column, np.float64)[take], data)
    weight = (np.arange(filled) < rows).astype(np.float64)
    with jax.enable_x64(True):
        result = _compiled()(
            model, data, np.asarray(target, np.float64)[take], weight, np.asarray(starts, np.float64), delta
        )
        parameters, objective, residual, jacobian = (np.asarray(value) for value in result)
    if not math.isfinite(objective):
        raise ArithmeticError(f"the search from {len(starts)} starts found no finite sum of squares or Huber terms")
    return Minimum(parameters, float(objective), residual[:rows], jacobian[:rows])


def power_terms(features: np.ndarray) -> tuple:
    """Return the law ln Σⱼ exp(features[:, j] · θ), [n], for `search`; features [n, terms, p]."""
    return (_log_sum, features) if features.shape[1] > 1 else reference.power_terms(features)


def _log_sum(parameters, features):
    return jax.nn.logsumexp(features @ parameters, axis=1)


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
