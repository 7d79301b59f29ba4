"""See `routelaws.reference.laws.hoffmann`.

What differs here: the fits, as `additive.py` says.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import _smooth, additive
from ._columns import check_range
from .additive import AdditiveFit, AdditiveInterval, AdditiveLaw, Published

_COLUMNS = ("dense_parameters", "tokens")


class HoffmannCoefficients(NamedTuple):
    """See reference."""

    a: float
    alpha: float
    b: float
    beta: float
    c: float


class KaplanCoefficients(NamedTuple):
    """See reference."""

    alpha_N: float
    N_c: float
    alpha_D: float
    D_c: float


HOFFMANN = AdditiveLaw(
    "hoffmann",
    HoffmannCoefficients,
    _COLUMNS,
    (("a", {"alpha": "dense_parameters"}), ("b", {"beta": "tokens"}), ("c", {})),
)

PUBLISHED = {
    "hoffmann": Published(
        HoffmannCoefficients(406.4, 0.3392, 410.7, 0.2849, 1.6934),
        "Hoffmann et al. 2022, arXiv 2203.15556, third approach",
        "three digits from a secondary source that agrees; the paper itself was not at hand",
    ),
    "besiroglu": Published(
        HoffmannCoefficients(482.01, 0.3478, 2085.43, 0.3658, 1.8172),
        "Besiroglu et al. 2024, arXiv 2404.10102, a refit of 240 points read from a figure of Hoffmann et al.",
        "three digits from a secondary source that agrees; the paper itself was not at hand",
    ),
    "kaplan": Published(
        KaplanCoefficients(0.076, 6.4e13, 0.103, 1.8e13),
        "Kaplan et al. 2020, arXiv 2001.08361, table 2",
        "from memory; the paper was not at hand",
    ),
}


def predict_hoffmann(
    dense_parameters: np.ndarray, tokens: np.ndarray, coefficients: HoffmannCoefficients
) -> np.ndarray:
    """See reference."""
    return additive.predict_additive(HOFFMANN, coefficients, [dense_parameters, tokens])


def fit_hoffmann(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """See reference."""
    return additive.fit_additive(HOFFMANN, [dense_parameters, tokens], loss, huber, starts)


def hoffmann_intervals(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
) -> list[AdditiveInterval]:
    """See reference."""
    return additive.additive_intervals(HOFFMANN, [dense_parameters, tokens], loss, huber, level, at)


def published_starts() -> np.ndarray:
    """See reference."""
    power, exponent = np.exp(5.0 * np.arange(6)), np.arange(5) / 2
    axes = np.meshgrid(power, exponent, power, exponent, np.exp(np.arange(-2, 3) / 2), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


def predict_kaplan(dense_parameters: np.ndarray, tokens: np.ndarray, coefficients: KaplanCoefficients) -> np.ndarray:
    """See reference."""
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    log_data = np.log(check_range("tokens", tokens, above=0.0))
    alpha_N, N_c, alpha_D, D_c = coefficients
    of_size = alpha_N / alpha_D * (math.log(N_c) - log_size)
    return np.exp(alpha_D * np.logaddexp(of_size, math.log(D_c) - log_data))


def fit_kaplan(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """See reference."""
    values = dict(zip(_COLUMNS, (dense_parameters, tokens), strict=True))
    columns, loss = _smooth.check_table("kaplan", values, loss, 4)
    return AdditiveFit(*_smooth.fitted(_kaplan(), KaplanCoefficients, columns, loss, huber, starts))


def kaplan_intervals(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
) -> list[AdditiveInterval]:
    """See reference."""
    values = dict(zip(_COLUMNS, (dense_parameters, tokens), strict=True))
    columns, loss = _smooth.check_table("kaplan", values, loss, 4)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    return [AdditiveInterval(*each) for each in _smooth.intervals(_kaplan(), columns, loss, huber, level, points)]


@functools.cache
def _kaplan():
    """Return the form of the law, with θ = (u, κ, v, α_D) as in the reference."""
    import jax.numpy as jnp

    from . import _descent

    def value(theta, logs, centres):
        u, kappa, v, alpha_D = theta
        n, d = (logs - centres).T
        return alpha_D * jnp.logaddexp(u - kappa * n, v - d)

    def natural(theta, centres):
        u, kappa, v, alpha_D = theta
        return jnp.stack([kappa * alpha_D, jnp.exp(u / kappa + centres[0]), alpha_D, jnp.exp(v + centres[1])])

    def internal(values, centres):
        alpha_N, N_c, alpha_D, D_c = values
        kappa = alpha_N / alpha_D
        return np.array([kappa * (math.log(N_c) - centres[0]), kappa, math.log(D_c) - centres[1], alpha_D])

    def starts(logs, centres, log_loss):
        return np.array(
            [
                (u, kappa, v, alpha_D)
                for alpha_D in (0.05, 0.1, 0.2, 0.4)
                for kappa in (0.3, 0.7, 1.5)
                for u, v in _smooth.share_out(2, False, log_loss / alpha_D)
            ]
        )

    return _descent.Form(
        KaplanCoefficients._fields,
        (False, True, False, True),
        (math.nan,) * 4,
        _descent.with_derivatives(value),
        natural,
        internal,
        lambda values: np.log(np.stack(values, axis=1)),
        starts,
    )
