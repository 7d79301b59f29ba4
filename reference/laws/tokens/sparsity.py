"""Sparsity and size: how the loss of a mixture depends on total size, tokens and the share of unused experts.

After Abnar et al. 2025 (arXiv 2501.12370):

    L(P, D, S) = a/P^α + b/D^β + c/(1 - S)^λ + d/((1 - S)^δ P^γ) + e

where  L  loss, nats per token
       P  total parameters (the paper's N)
       D  training tokens
       S  sparsity, (E - K)/E if a token uses K of E experts; at least 0 and below 1.

λ is below 0, so the third term falls with S, and the fourth rises with S. These two terms decide whether more unused
parameters help at the same total size.

Reliability. The formula and the coefficients are from two secondary copies that agree and reproduce the printed
conclusions. We could not check the paper itself. The paper's fit (Huber terms of log L with delta 1e-3) uses C from
3e19 to 1e21 and S up to 0.95. It explains 68 per cent of the variance at the held-out S = 0.98, so the law extrapolates
poorly. The paper states that the loss falls with S up to 0.98. This holds for P (1 - S) active parameters. But the best
S at 1e20 FLOPs is 0.94 if 5 per cent of P are always active (`sparsity_active`).
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..confidence.intervals import Predicted, Range
from ..confidence.smooth_intervals import smooth_predictions, smooth_ranges
from ..numerics import _smooth
from ..numerics._descent import Form
from ..numerics._projection import check_lengths, check_range, plural
from . import additive
from .additive import AdditiveFit, AdditiveInterval, AdditiveLaw

ATTESTED = "two secondary copies that agree; the source itself was not available"
FLOPS_PER_PARAMETER = 6.0  # training FLOPs per active parameter and token

_SMALLEST, _LARGEST = 1e5, 1e16  # parameters; the range of sizes of the search
_FACTORS = ("a", "b", "c", "d", "e")
_FIRST_EXPONENTS = ((0.3, 0.6), (0.3, 0.6), (-0.2,), (0.1, 0.3, -0.3), (0.1, 0.3))  # α, β, λ, δ, γ of the starts


class SparsityCoefficients(NamedTuple):
    """The ten coefficients of the sparsity law.

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
"""The law as a sum of terms, for the functions of `additive.py`. Its third column is 1 - S."""


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
    """Return the loss L that the sparsity law predicts.

    Args:
        total_parameters: P, above 0.
        tokens: D, above 0.
        sparsity: S, at least 0 and below 1.
        coefficients: the law.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is not finite or out of its range.

    Example:
        >>> round(float(predict_loss(1e9, 2e10, 0.0)), 4), round(float(predict_loss(1e11, 1e12, 0.98)), 4)
        (2.5657, 1.8511)
    """
    return additive.predict_additive(SPARSITY, coefficients, [total_parameters, tokens, 1 - _check_sparsity(sparsity)])


def sparsity_active(total_parameters: np.ndarray, sparsity: np.ndarray, always_active: float = 0.0) -> np.ndarray:
    """Return the active parameters: the share `always_active` of P, plus the share 1 - S of the other parameters.

    Raises:
        ValueError: an entry is out of its range, or the share is outside [0, 1).
    """
    if not 0 <= always_active < 1:
        raise InputError(f"always_active is {always_active}; needed: at least 0 and below 1")
    size = check_range("total_parameters", total_parameters, above=0.0)
    return size * (always_active + (1 - always_active) * (1 - _check_sparsity(sparsity)))


def sparsity_optimum(
    flops: float,
    sparsity: float,
    coefficients: SparsityCoefficients = PUBLISHED,
    always_active: float = 0.0,
) -> SparsityOptimum:
    """Return the best total size for a budget at one sparsity, with C = 6 D times active parameters.

    The search scans the whole range of ln P, then more finely around the best P.

    Args:
        flops: C, training FLOPs, above 0.
        sparsity: S.
        coefficients: the law.
        always_active: see `sparsity_active`.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> best = sparsity_optimum(1e20, 0.9)
        >>> round(best.total_parameters / 1e9, 2), round(best.loss, 4)
        (3.97, 2.3638)
    """
    flops = float(check_range("flops", flops, above=0.0))

    def at(log_size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.exp(log_size)
        tokens = flops / (FLOPS_PER_PARAMETER * sparsity_active(size, sparsity, always_active))
        return tokens, predict_loss(size, tokens, sparsity, coefficients)

    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    for _ in range(8):
        scanned = np.linspace(low, high, 101)
        best = int(np.argmin(at(scanned)[1]))
        low, high = scanned[max(best - 1, 0)], scanned[min(best + 1, 100)]
    tokens, loss = at(scanned[best])
    return SparsityOptimum(float(np.exp(scanned[best])), float(tokens), float(loss))


def fit_sparsity(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    sparsity: np.ndarray,
    loss: np.ndarray,
    huber: float | None = 1e-3,
    *,
    search=_smooth.fitted,
) -> AdditiveFit:
    """Fit the sparsity law to a table of runs, from 24 starts.

    `additive.py` fits the law. The starts differ in the five exponents. Every term starts as a fifth of the loss in the
    middle of the table (our choice).

    Args:
        total_parameters, tokens, sparsity, loss: [n], as for `predict_loss`.
        huber: delta, in units of ln L, by default the paper's delta; None for least squares.
        search: how to search; the accelerated package passes its own.

    Returns:
        The fit. Its status is "not determined" if other coefficients fit the rows equally well. The status names the
        floor e if e has vanished, since the rows did not separate e from the third term.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or the rows are too few. At least 11 rows, 2 sizes, 2
            numbers of tokens and 3 sparsities are needed.
    """
    size = np.atleast_1d(check_range("total_parameters", total_parameters, above=0.0))
    tokens = np.atleast_1d(check_range("tokens", tokens, above=0.0))
    idle = np.atleast_1d(_check_sparsity(sparsity))
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    check_lengths(total_parameters=size, tokens=tokens, sparsity=idle, loss=loss)
    counts = [np.unique(column).size for column in (size, tokens, idle)]
    if loss.size < 11 or counts[0] < 2 or counts[1] < 2 or counts[2] < 3:
        raise InputError(
            f"{plural(loss.size, 'row')} of {plural(counts[0], 'size')}, {plural(counts[1], 'number')} of tokens and "
            f"{counts[2]} different sparsities; the law has 10 coefficients and needs at least 11 rows of 2 sizes, 2 "
            "numbers of tokens and 3 sparsities"
        )
    return AdditiveFit(*search(_form(), (size, tokens, 1 - idle), loss, huber, None))


def sparsity_intervals(
    fit: AdditiveFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95, *, search=_smooth.intervals
) -> list[Range]:
    """Return the ten coefficients with their profile intervals and verdicts, for `catalogue.Law`.

    The rows hardly separate the floor e from the third term, since (1 - S)^-λ is nearly 1 - λ ln(1 - S) for a small λ.
    In six of seven tables of 60 runs with errors of 0.2 per cent, the interval of e begins at 0.

    Args:
        fit: a least-squares fit by `fit_sparsity`. It gives the values of the ranges.
        columns, loss: the rows of the fit.
        level: between 0 and 1.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: `level` is out of its range.
    """
    return smooth_ranges(partial(_profiles, search), _FACTORS, fit, columns, loss, level)


def sparsity_predictions(
    fit: AdditiveFit,
    columns: Sequence[np.ndarray],
    loss: np.ndarray,
    points: Sequence,
    level: float = 0.95,
    *,
    search=_smooth.intervals,
) -> list[Predicted]:
    """Return the predicted loss at each point, with two intervals, for `catalogue.Law`; see `smooth_predictions`.

    Args:
        fit, columns, loss, level, search: as in `sparsity_intervals`.
        points: for each point, P, D and S.
    """
    return smooth_predictions(partial(_profiles, search), fit, columns, loss, points, level)


def _profiles(
    search, total_parameters, tokens, sparsity, loss, huber, level: float, at: Sequence | None = None
) -> list:
    """Return profile intervals of the coefficients, or of L at the points `at` = (P [m], D [m], S [m])."""
    columns = tuple(np.asarray(v, dtype=np.float64) for v in (total_parameters, tokens, 1 - _check_sparsity(sparsity)))
    points = None if at is None else _smooth.points_of(SPARSITY.columns, (*at[:2], 1 - _check_sparsity(at[2])))
    rows = search(_form(), columns, np.asarray(loss, dtype=np.float64), huber, level, points)
    return [AdditiveInterval(*each) for each in rows]


def _form() -> Form:
    """Return the law in the interface of `_descent.py`, with our own starts."""
    return additive._form(SPARSITY)._replace(starts=lambda columns, centres, log_loss: _starts(float(log_loss.mean())))


def _check_sparsity(sparsity: np.ndarray) -> np.ndarray:
    checked = check_range("sparsity", sparsity, least=0.0)
    check_range("1 - sparsity", 1 - checked, above=0.0)
    return checked


def _starts(log_loss: float) -> np.ndarray:
    """Return the starts [24, 10]."""
    level = log_loss - math.log(5)
    rows = []
    for alpha, beta, lam, delta, gamma in itertools.product(*_FIRST_EXPONENTS):
        rows.append([level, alpha, level, beta, level, lam, level, delta, gamma, level])
    return np.array(rows)
