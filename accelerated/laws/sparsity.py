"""Sparsity and size: the loss of a mixture of experts in its total size, its tokens, and the share that lies idle.

Step by step, with sources and examples: `routelaws.reference.laws.sparsity`.

    L = a/P^α + b/D^β + c/(1-S)^λ + d/((1-S)^δ P^γ) + e

with P the total parameters, D the tokens, and S the sparsity, which is the share of the experts that lies idle.

What differs here: the best size as the root of the slope of the loss in ln P, and the fit, as `additive.py` says.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from ..wording import plural
from . import _smooth, additive
from ._columns import check_range
from .additive import AdditiveFit, AdditiveInterval, AdditiveLaw
from .intervals import Predicted, Range
from .smooth_intervals import smooth_prediction, smooth_ranges

ATTESTED = "two secondary copies that agree; the source's own text was not at hand"
FLOPS_PER_PARAMETER = 6.0

_SMALLEST, _LARGEST = 1e5, 1e16
_FIRST_EXPONENTS = ((0.3, 0.6), (0.3, 0.6), (-0.2,), (0.1, 0.3), (0.1, 0.3))


class SparsityCoefficients(NamedTuple):
    """The ten coefficients.

    Attributes:
        a: nats per token, the first term at P = 1
        alpha: power of P in the first term
        b: nats per token, the second term at D = 1
        beta: power of D
        c: nats per token, the third term at S = 0
        lam: λ, power of 1 - S in the third term
        d: nats per token, the fourth term at S = 0 and P = 1
        delta: power of 1 - S in the fourth term
        gamma: power of P in the fourth term
        e: nats per token
    """

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    lam: float
    d: float
    delta: float
    gamma: float
    e: float


PUBLISHED = SparsityCoefficients(16612.50, 0.5962, 5455.67, 0.3954, 0.4598, -0.1666, 17.26, 0.1603, 0.1595, 0.94)


SPARSITY = AdditiveLaw(
    "sparsity",
    SparsityCoefficients,
    ("total_parameters", "tokens", "used share"),
    (
        ("a", {"alpha": "total_parameters"}),
        ("b", {"beta": "tokens"}),
        ("c", {"lam": "used share"}),
        ("d", {"delta": "used share", "gamma": "total_parameters"}),
        ("e", {}),
    ),
)
"""The law as a sum of terms, for the functions of `additive.py`: its third column is 1 - S."""


class SparsityOptimum(NamedTuple):
    """The best total size for a budget at one sparsity.

    Attributes:
        total_parameters: P
        tokens: D
        loss: nats per token
    """

    total_parameters: float
    tokens: float
    loss: float


def predict_loss(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    sparsity: np.ndarray,
    coefficients: SparsityCoefficients = PUBLISHED,
) -> np.ndarray:
    """Return L.

    Args:
        total_parameters: P, above 0.
        tokens: D, above 0.
        sparsity: S, at least 0 and below 1.
        coefficients: the law.

    Returns:
        L, nats per token, of the shape that the three arguments broadcast to.

    Raises:
        ValueError: an entry is not finite or out of its range.
    """
    size = np.log(check_range("total_parameters", total_parameters, above=0.0))
    tokens = np.log(check_range("tokens", tokens, above=0.0))
    dense = np.log1p(-_check_sparsity(sparsity))
    a, alpha, b, beta, c, lam, d, delta, gamma, e = coefficients
    by_sparsity = c * np.exp(-lam * dense) + d * np.exp(-delta * dense - gamma * size)
    return a * np.exp(-alpha * size) + b * np.exp(-beta * tokens) + by_sparsity + e


def sparsity_active(total_parameters: np.ndarray, sparsity: np.ndarray, always_active: float = 0.0) -> np.ndarray:
    """Return the active parameters: the share `always_active` of P, and of the rest the part 1 - S.

    Raises:
        ValueError: an entry is out of its range, or the share is not at least 0 and below 1.
    """
    if not 0 <= always_active < 1:
        raise ValueError(f"always_active is {always_active}; needed: at least 0 and below 1")
    idle = (1 - always_active) * _check_sparsity(sparsity)
    return check_range("total_parameters", total_parameters, above=0.0) * (1 - idle)


def sparsity_optimum(
    flops: float,
    sparsity: float,
    coefficients: SparsityCoefficients = PUBLISHED,
    always_active: float = 0.0,
) -> SparsityOptimum:
    """Return the total size that is best for a budget at one sparsity, with C = 6 D times active parameters.

    Found by scans of ln P: one over the whole range, then ever finer ones about the best.

    Args:
        flops: C, training FLOPs, above 0.
        sparsity: S.
        coefficients: the law.
        always_active: see `sparsity_active`.

    Raises:
        ValueError: an argument is out of its range.

    Differs from the reference: no scan; the best ln P is the root of the slope of the loss, by Brent's method.
    """
    flops = float(check_range("flops", flops, above=0.0))
    per_size = FLOPS_PER_PARAMETER * float(sparsity_active(1.0, sparsity, always_active))
    a, alpha, b, beta, _, _, d, delta, gamma, _ = coefficients
    by_tokens = math.log(b * beta) + beta * math.log(per_size / flops)
    with_experts = math.log(d * gamma) - delta * math.log1p(-sparsity)

    def slope(x: float) -> float:
        """Return the logarithm of what still falls with ln P, over what already rises; it falls with x = ln P."""
        return float(np.logaddexp(math.log(a * alpha) - alpha * x, with_experts - gamma * x) - by_tokens - beta * x)

    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    if slope(low) <= 0 or slope(high) >= 0:
        size = math.exp(low if slope(low) <= 0 else high)
    else:
        size = math.exp(brentq(slope, low, high, xtol=1e-14))
    tokens = flops / (per_size * size)
    return SparsityOptimum(size, tokens, float(predict_loss(size, tokens, sparsity, coefficients)))


def fit_sparsity(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    sparsity: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
) -> AdditiveFit:
    """Fit the law to a table of runs, from 16 starts.

    The law adds terms and is fitted as `additive.py` says. A start is a choice of the five exponents, with every term a
    fifth of the loss in the middle of the table (our choice).

    Args:
        total_parameters, tokens, sparsity, loss: [n], as for `predict_loss`.
        huber: delta, in units of ln L, the paper's by default; None for least squares.

    Returns:
        The fit. Its status is "not determined" where other coefficients fit these rows as well, and names what has left
        the law: the floor e, where rows cannot tell it from the third term.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or there are fewer than 11 rows, 2 sizes, 2 numbers of
            tokens or 3 sparsities.

    Differs from the reference: compiled loops, which threads share out; the first fit on a machine compiles them.
    """
    size = np.atleast_1d(check_range("total_parameters", total_parameters, above=0.0))
    tokens = np.atleast_1d(check_range("tokens", tokens, above=0.0))
    idle = np.atleast_1d(_check_sparsity(sparsity))
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    if loss.ndim != 1 or not size.shape == tokens.shape == idle.shape == loss.shape:
        raise ValueError("total_parameters, tokens, sparsity and loss: needed: one axis, the same length")
    counts = [np.unique(column).size for column in (size, tokens, idle)]
    if loss.size < 11 or counts[0] < 2 or counts[1] < 2 or counts[2] < 3:
        raise ValueError(
            f"{plural(loss.size, 'row')} of {plural(counts[0], 'size')}, {plural(counts[1], 'number')} of tokens and "
            f"{counts[2]} different sparsities; the law has 10 coefficients and needs at least 11 rows of 2 sizes, 2 "
            "numbers of tokens and 3 sparsities"
        )
    return AdditiveFit(*_smooth.fitted(_form(), SparsityCoefficients, (size, tokens, 1 - idle), loss, huber, None))


def sparsity_intervals(
    fit: AdditiveFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return the ten coefficients with their profile intervals and in words how far the rows pin them down.

    For `catalogue.Law`. The floor e is nearly one thing with the third term, since (1 - S)^-λ is nearly 1 - λ ln(1 - S)
    for a small λ. 60 runs with errors of 0.2 per cent leave e open downward, as far as 0, in six tables of seven.

    Args:
        fit: of `fit_sparsity` by least squares; its values stand in the ranges.
        columns, loss: the rows of the fit.
        level: between 0 and 1.

    Raises:
        ValueError: `level` is out of its range.

    Differs from the reference: compiled loops look for both ends of all intervals together, by false position.
    """
    return smooth_ranges(_profiles, ("a", "b", "c", "d", "e"), fit, columns, loss, level)


def sparsity_prediction(
    fit: AdditiveFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the loss at one point with both of its intervals, for `catalogue.Law`; see `smooth_prediction`.

    Args:
        fit, columns, loss, level: as `sparsity_intervals`.
        at: P, D and S of the point.
    """
    return smooth_prediction(_profiles, fit, columns, loss, at, level)


def _profiles(total_parameters, tokens, sparsity, loss, huber, level: float, at: Sequence | None = None) -> list:
    """See reference."""
    columns = tuple(np.asarray(v, np.float64) for v in (total_parameters, tokens, 1 - _check_sparsity(sparsity)))
    points = None if at is None else _smooth.points_of(SPARSITY.columns, (*at[:2], 1 - _check_sparsity(at[2])))
    found = _smooth.intervals(_form(), columns, np.asarray(loss, np.float64), huber, level, points)
    return [AdditiveInterval(*each) for each in found]


def _form():
    """Return the form of the law, with the starts of `fit_sparsity`."""
    return additive._form(SPARSITY)._replace(starts=lambda logs, losses: _starts(float(losses.mean())))


def _starts(log_loss: float) -> np.ndarray:
    """Return the starts [16, 10]."""
    level = log_loss - math.log(5)
    grid = itertools.product(*_FIRST_EXPONENTS)
    return np.array([[level, p, level, q, level, r, level, s, t, level] for p, q, r, s, t in grid])


def _check_sparsity(sparsity: np.ndarray) -> np.ndarray:
    checked = check_range("sparsity", sparsity, least=0.0)
    check_range("1 - sparsity", 1 - checked, above=0.0)
    return checked
