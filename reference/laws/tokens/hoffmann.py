"""Two laws that predict the loss of a dense model from its size N and its training tokens D.

Hoffmann et al. 2022 (arXiv 2203.15556, their third approach), the "Chinchilla" law:

    L = a/N^α + b/D^β + c

where  L  loss at the end of training, nats per token
       N  parameters
       D  training tokens
       c  the irreducible loss, for any size and any number of tokens: the entropy of the text, if the law is right.

The paper's letters for a, b and c are A, B and E; here E is the number of experts, and B parameters per FLOP.
`additive.py` fits the law: it minimises the sum of Huber terms of ln L̂ - ln L with δ = 1e-3.

Kaplan et al. 2020 (arXiv 2001.08361, equation 1.5) give an earlier law without a floor:

    L = ((N_c/N)^(α_N/α_D) + D_c/D)^α_D

Its two limits are power laws: for D → ∞, L = (N_c/N)^α_N, the law of `dense.py`; for N → ∞, L = (D_c/D)^α_D. ln L is
α_D times a log-sum-exp of two terms, so the same descent fits it. The unknowns are the coefficients of the two limits,
θ = (α_N, u, α_D, v). Let n and d be the logarithms of N and D, minus their values in the middle of the table. Then ln L
is u - α_N n in the first limit and v - α_D d in the second. Let z be these two values divided by α_D, and p their
shares, as in step 2 of `additive.py`. Then

    ln L̂ = α_D · ln Σ exp z,   ∂ ln L̂/∂u = p₁,   ∂ ln L̂/∂α_N = -p₁ n,   ∂ ln L̂/∂v = p₂,
    ∂ ln L̂/∂α_D = ln Σ exp z - Σ p z - p₂ d = -Σ p ln p - p₂ d

The rows do not determine the two unknowns of a limit if no row is close to this limit. This happens easily if α_D is
small or the limits are far apart.

N excludes embeddings for Kaplan et al. and includes them for Hoffmann et al. (from memory; we could not check the
papers). The coefficients of a fit hold for the count of N in its table.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..numerics import _smooth
from ..numerics._columns import log_sum
from ..numerics._descent import Form
from ..numerics._projection import check_range
from . import additive
from .additive import AdditiveFit, AdditiveInterval, AdditiveLaw, Published

_COLUMNS = ("dense_parameters", "tokens")


class HoffmannCoefficients(NamedTuple):
    """Coefficients of Hoffmann's law: L = a/N^alpha + b/D^beta + c.

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
    """Coefficients of Kaplan's law: L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D.

    Attributes:
        alpha_N: power of N with infinite data
        N_c: parameters at which the loss would be 1 nat with infinite data
        alpha_D: power of D for an infinite model
        D_c: tokens at which an infinite model would have a loss of 1 nat
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
        "three digits, confirmed by a secondary source; the paper itself was not available",
    ),
    "besiroglu": Published(
        HoffmannCoefficients(482.01, 0.3478, 2085.43, 0.3658, 1.8172),
        "Besiroglu et al. 2024, arXiv 2404.10102, a refit of 240 points read from a figure of Hoffmann et al.",
        "three digits, confirmed by a secondary source; the paper itself was not available",
    ),
    "kaplan": Published(
        KaplanCoefficients(0.076, 6.4e13, 0.103, 1.8e13),
        "Kaplan et al. 2020, arXiv 2001.08361, table 2",
        "from memory; the paper was not available",
    ),
}
"""Printed coefficients. On the points of Besiroglu et al., the coefficients of Hoffmann et al. have a 21 % higher
objective.
"""


def predict_hoffmann(
    dense_parameters: np.ndarray, tokens: np.ndarray, coefficients: HoffmannCoefficients
) -> np.ndarray:
    """Return the loss that Hoffmann's law predicts, L = a/N^alpha + b/D^beta + c.

    Args:
        dense_parameters: N, above 0.
        tokens: D, above 0; broadcast against `dense_parameters`.
        coefficients: the law; a, b and c at least 0.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        100/10^1 + 1000/100^1 + 2:

        >>> float(predict_hoffmann(10.0, 100.0, HoffmannCoefficients(100.0, 1.0, 1000.0, 1.0, 2.0)))
        22.0
    """
    return additive.predict_additive(HOFFMANN, coefficients, [dense_parameters, tokens])


def fit_hoffmann(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit Hoffmann's law to a table; see `additive.fit_additive`.

    Args:
        dense_parameters, tokens, loss: [n] each: N, D and L, above 0.
        huber: δ in natural logarithms, or None for least squares.
        starts: [s, 5], starting coefficients, such as `published_starts()`; None for the default starts.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: `additive.fit_additive` raises this error. For instance, runs with a single D cannot separate b/D^β
            from c.

    Example:
        >>> law = HoffmannCoefficients(400.0, 0.34, 2000.0, 0.37, 1.8)
        >>> size, tokens = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 1e10, 5e10]))
        >>> fit = fit_hoffmann(size, tokens, predict_hoffmann(size, tokens, law))
        >>> fit.status, [round(value, 4) for value in fit.coefficients]
        ('interior', [400.0, 0.34, 2000.0, 0.37, 1.8])
    """
    return additive.fit_additive(HOFFMANN, [dense_parameters, tokens], loss, huber, starts, search=search)


def hoffmann_intervals(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
    *,
    search=_smooth.intervals,
) -> list[AdditiveInterval]:
    """Return profile intervals of the coefficients, or of L at the points `at` = (N [m], D [m]).

    See `additive.additive_intervals`.
    """
    return additive.additive_intervals(HOFFMANN, [dense_parameters, tokens], loss, huber, level, at, search=search)


def published_starts() -> np.ndarray:
    """Return the 4,500 starts of Hoffmann et al., [4500, 5], as coefficients.

    ln a and ln b are in {0, 5, ..., 25}, ln c in {-1, -1/2, ..., 1}, alpha and beta in {0, 1/2, ..., 2} (from memory of
    their appendix; we could not check it).
    """
    power, exponent = np.arange(0.0, 26.0, 5.0), np.arange(0.0, 2.1, 0.5)
    grid = itertools.product(power, exponent, power, exponent, np.arange(-1.0, 1.1, 0.5))
    return np.array([(np.exp(a), alpha, np.exp(b), beta, np.exp(c)) for a, alpha, b, beta, c in grid])


def predict_kaplan(dense_parameters: np.ndarray, tokens: np.ndarray, coefficients: KaplanCoefficients) -> np.ndarray:
    """Return the loss that Kaplan's law predicts, L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D.

    Args:
        dense_parameters, tokens: N and D, above 0, broadcast against each other.
        coefficients: the law, alpha_D not 0; N_c or D_c may be 0, and the exponent of that term then has no effect.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        >>> law = KaplanCoefficients(0.5, 400.0, 0.5, 900.0)
        >>> float(predict_kaplan(100.0, 75.0, law))  # the root of 4 + 12
        4.0
    """
    size = check_range("dense_parameters", dense_parameters, above=0.0)
    data = check_range("tokens", tokens, above=0.0)
    alpha_N, N_c, alpha_D, D_c = coefficients
    if D_c == 0:
        return (N_c / size) ** alpha_N * np.ones_like(data)
    if N_c == 0:
        return (D_c / data) ** alpha_D * np.ones_like(size)
    return ((N_c / size) ** (alpha_N / alpha_D) + D_c / data) ** alpha_D


def fit_kaplan(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    starts: np.ndarray | None = None,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit Kaplan's law to a table. `fit_hoffmann` describes the arguments, with starts [s, 4].

    Example:
        >>> law = KaplanCoefficients(0.076, 6.4e13, 0.103, 1.8e13)
        >>> size, tokens = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
        >>> fit = fit_kaplan(size, tokens, predict_kaplan(size, tokens, law))
        >>> [f"{value:.4g}" for value in fit.coefficients]
        ['0.076', '6.4e+13', '0.103', '1.8e+13']
    """
    columns = dict(zip(_COLUMNS, (dense_parameters, tokens), strict=True))
    columns, loss = _smooth.check_table("kaplan", columns, loss, 4)
    return AdditiveFit(*search(_KAPLAN, columns, loss, huber, starts))


def kaplan_intervals(
    dense_parameters: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    level: float = 0.95,
    at: Sequence | None = None,
    *,
    search=_smooth.intervals,
) -> list[AdditiveInterval]:
    """Return the intervals of Kaplan's law. `hoffmann_intervals` describes the arguments."""
    columns = dict(zip(_COLUMNS, (dense_parameters, tokens), strict=True))
    columns, loss = _smooth.check_table("kaplan", columns, loss, 4)
    points = None if at is None else _smooth.points_of(_COLUMNS, at)
    return [AdditiveInterval(*each) for each in search(_KAPLAN, columns, loss, huber, level, points)]


def _bind_kaplan(columns: tuple, centres: np.ndarray):
    """Return the function of θ = (α_N, u, α_D, v) that gives ln L̂ and J. The top of this file defines the letters."""
    n, d = (np.log(column) - centre for column, centre in zip(columns, centres, strict=True))

    def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        alpha_N, u, alpha_D, v = theta
        z = np.stack([(u - alpha_N * n) / alpha_D, v / alpha_D - d], axis=1)
        total, shares = log_sum(z)
        first, second = shares.T
        by_power = total - first * z[:, 0] - second * (z[:, 1] + d)  # ∂ ln L̂/∂alpha_D
        return alpha_D * total, np.stack([-first * n, first, by_power, second], axis=1)

    return model


def _natural_kaplan(theta: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return (α_N, N_c, α_D, D_c): u - α_N n = α_N (ln N_c - ln N) and v - α_D d = α_D (ln D_c - ln D)."""
    alpha_N, u, alpha_D, v = theta
    return np.array([alpha_N, np.exp(u / alpha_N + centres[0]), alpha_D, np.exp(v / alpha_D + centres[1])])


def _internal_kaplan(coefficients: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return θ from the coefficients, the inverse of `_natural_kaplan`."""
    alpha_N, N_c, alpha_D, D_c = coefficients
    return np.array([alpha_N, alpha_N * (np.log(N_c) - centres[0]), alpha_D, alpha_D * (np.log(D_c) - centres[1])])


def _starts_kaplan(columns: tuple, centres: np.ndarray, log_loss: np.ndarray) -> np.ndarray:
    """Return 36 starts: in the middle of the table the two terms share L^(1/α_D)."""
    starts = []
    for alpha_D, ratio in itertools.product((0.05, 0.1, 0.2, 0.4), (0.3, 0.7, 1.5)):
        for first, second in _smooth.share_out(2, False, log_loss / alpha_D):
            starts.append((ratio * alpha_D, alpha_D * first, alpha_D, alpha_D * second))
    return np.array(starts)


_KAPLAN = Form(
    kind=KaplanCoefficients,
    positive=tuple(name in ("N_c", "D_c") for name in KaplanCoefficients._fields),
    limits=(np.nan, 0.0, np.nan, 0.0),
    bind=_bind_kaplan,
    natural=_natural_kaplan,
    internal=_internal_kaplan,
    centres=lambda columns: np.array([np.log(column).mean() for column in columns]),
    starts=_starts_kaplan,
)
"""Kaplan's law in the interface of `_descent.py`."""


# What this file does not do: the best N and D for a budget (`planning.py`).
