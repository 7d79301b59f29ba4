"""A broken power law of accuracy: a curve whose exponent may change at a break.

Imported from `routelaws.reference.laws.broken`. The search differs: one compiled loop runs all starts, with
derivatives from JAX (`_levenberg.py`). Its first call takes some seconds to compile.
"""

import numpy as np

from routelaws.reference.laws import broken as reference
from routelaws.reference.laws.broken import *  # noqa: F403 - what follows replaces its name

from .._calling import Later, calling
from ._levenberg import search

jnp = Later("jax.numpy")


def _accuracies(theta, x):
    a, b, c0, log_break, log_width, c1 = theta
    width = jnp.exp(log_width)
    exponent = -c0 * x - c1 * width * jnp.logaddexp(0.0, (x - log_break) / width)
    return jnp.where(jnp.abs(log_width) > 10, jnp.nan, a + b * jnp.exp(exponent))


def _model(x: np.ndarray) -> tuple:
    return _accuracies, x


fit_broken = calling(reference.fit_broken, search=search, _model=_model)
