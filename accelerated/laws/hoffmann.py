"""Two laws of a dense model's loss in its size N and the tokens D that it was trained on.

Step by step, with sources and examples: `routelaws.reference.laws.hoffmann`.

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
    """L = a/N^alpha + b/D^beta + c.

    Attributes:
        a: nats at N = 1, above 0
        alpha: power of N
        b: nats at D = 1, above 0
        beta: power of D
        c: nats, the floor
    """

    a: float
    alpha: float
    b: float
    beta: float
    c: float


class KaplanCoefficients(NamedTuple):
    """L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D.

    Attributes:
        alpha_N: power of N with endless data
        N_c: parameters at which the loss would be 1 nat with endless data
        alpha_D: power of D of an endless model
        D_c: tokens at which an endless model would have a loss of 1 nat
    """

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
"""The law, for the functions of `additive.py`."""

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
"""Printed coefficients. Those of Hoffmann et al. miss the points that the second fit is of by 21 % in the objective."""


def predict_hoffmann(
    dense_parameters: np.ndarray, tokens: np.ndarray, coefficients: HoffmannCoefficients
) -> np.ndarray:
    """Return L = a/N^alpha + b/D^beta + c.

    Args:
        dense_parameters: N, above 0.
        tokens: D, above 0; broadcast against `dense_parameters`.
        coefficients: the law; a, b and c at least 0.

    Returns:
        L, nats per token, the broadcast shape.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    return additive.predict_additive(HOFFMANN, coefficients, [dense_parameters, tokens])


def fit_hoffmann(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """Fit the law to a table; see `additive.fit_additive`.

    Args:
        dense_parameters, tokens, loss: [n] each: N, D and L, above 0.
        huber: δ in natural logarithms, or None for least squares.
        starts: [s, 5], coefficients to begin from, such as `published_starts()`; None for our own.

    Raises:
        ValueError: as `additive.fit_additive`; runs that all have one D, for instance, cannot tell b/D^β from c.

    Differs from the reference: compiled loops, which threads share out; the first fit on a machine compiles them.
    """
    return additive.fit_additive(HOFFMANN, [dense_parameters, tokens], loss, huber, starts)


def hoffmann_intervals(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
) -> list[AdditiveInterval]:
    """Return profile intervals of the coefficients, or of L at the points `at` = (N [m], D [m]).

    See `additive.additive_intervals`.

    Differs from the reference: compiled loops look for both ends of all intervals together, by false position.
    """
    return additive.additive_intervals(HOFFMANN, [dense_parameters, tokens], loss, huber, level, at)


def published_starts() -> np.ndarray:
    """Return the 4,500 starts of Hoffmann et al., [4500, 5], as coefficients.

    ln a and ln b in {0, 5, ..., 25}, ln c in {-1, -1/2, ..., 1}, alpha and beta in {0, 1/2, ..., 2}; from memory of
    their appendix, which was not at hand.
    """
    power, exponent = np.exp(5.0 * np.arange(6)), np.arange(5) / 2
    axes = np.meshgrid(power, exponent, power, exponent, np.exp(np.arange(-2, 3) / 2), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


def predict_kaplan(dense_parameters: np.ndarray, tokens: np.ndarray, coefficients: KaplanCoefficients) -> np.ndarray:
    """Return L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D.

    Args:
        dense_parameters, tokens: N and D, above 0, broadcast against each other.
        coefficients: the law, alpha_D not 0; N_c or D_c may be 0, and the exponent of that term is then not looked at.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    log_size = np.log(check_range("dense_parameters", dense_parameters, above=0.0))
    log_data = np.log(check_range("tokens", tokens, above=0.0))
    alpha_N, N_c, alpha_D, D_c = coefficients
    if D_c == 0:
        return np.exp(alpha_N * (math.log(N_c) - log_size) + 0.0 * log_data)
    if N_c == 0:
        return np.exp(alpha_D * (math.log(D_c) - log_data) + 0.0 * log_size)
    of_size = alpha_N / alpha_D * (math.log(N_c) - log_size)
    return np.exp(alpha_D * np.logaddexp(of_size, math.log(D_c) - log_data))


def fit_kaplan(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
) -> AdditiveFit:
    """Fit Kaplan's law to a table, as `fit_hoffmann` does the other one; starts: [s, 4].

    Differs from the reference: compiled loops, which threads share out; the first fit on a machine compiles them.
    """
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
    """Return what `hoffmann_intervals` does, of Kaplan's law.

    Differs from the reference: compiled loops look for both ends of all intervals together, by false position.
    """
    values = dict(zip(_COLUMNS, (dense_parameters, tokens), strict=True))
    columns, loss = _smooth.check_table("kaplan", values, loss, 4)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    return [AdditiveInterval(*each) for each in _smooth.intervals(_kaplan(), columns, loss, huber, level, points)]


@functools.cache
def _kaplan():
    """Return the form of the law, with θ = (α_N, u, α_D, v) as in the reference."""
    from ..kernels.law_terms import KAPLAN
    from . import _descent

    return _descent.Form(
        KaplanCoefficients._fields,
        (False, True, False, True),
        (math.nan, 0.0, math.nan, 0.0),
        _descent.law_of(KAPLAN),
        _internal_kaplan,
        lambda values: np.log(np.stack(values)),
        lambda logs: logs.mean(axis=1),
        _starts_kaplan,
    )


def _internal_kaplan(values, centres: np.ndarray) -> np.ndarray:
    """Return θ of coefficients."""
    alpha_N, N_c, alpha_D, D_c = values
    return np.array([alpha_N, alpha_N * (math.log(N_c) - centres[0]), alpha_D, alpha_D * (math.log(D_c) - centres[1])])


def _starts_kaplan(logs: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return the 36 starts of the reference, [36, 4]."""
    return np.array(
        [
            (ratio * alpha_D, alpha_D * first, alpha_D, alpha_D * second)
            for alpha_D in (0.05, 0.1, 0.2, 0.4)
            for ratio in (0.3, 0.7, 1.5)
            for first, second in _smooth.share_out(2, False, log_loss / alpha_D)
        ]
    )
