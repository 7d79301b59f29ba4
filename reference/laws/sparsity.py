"""Sparsity and size: the loss of a mixture of experts in its total size, its tokens, and the share that lies idle.

After Abnar et al. 2025 (arXiv 2501.12370),

    L(P, D, S) = a/P^α + b/D^β + c/(1 - S)^λ + d/((1 - S)^δ P^γ) + e

where  L  loss, nats per token
       P  total parameters (the paper's N)
       D  training tokens
       S  sparsity, (E - K)/E with K of E experts used, at least 0 and below 1.

λ is below 0, so that the third term falls with S while the fourth rises with it: a model of more idle parameters is
better at the same total size only as far as these two allow.

How well this is attested: form and coefficients are from two secondary copies that agree, and whose printed conclusions
come out when recomputed; the paper's own text was not at hand. Its fit (Huber's terms of log L with delta 1e-3, C of
3e19 to 1e21, S up to 0.95) explains 68 per cent of the variance at the S of 0.98 that was held out: beyond the data the
law is weak. The statement that the loss falls with S up to 0.98 rests on how active parameters are counted: with
P (1 - S) it holds, and if 5 per cent of P are always active the best S at 1e20 FLOPs is 0.94 (`sparsity_active`).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ._huber import check_delta
from ._levenberg import Minimum, covariance, determined, power_terms, search
from ._projection import check_range
from .intervals import Predicted, Range
from .uncertainty import student_quantile

Status = Literal["interior", "not determined"]

ATTESTED = "two secondary copies that agree; the source's own text was not at hand"
CRITERION = "sum of Huber terms of ln L, delta"
FLOPS_PER_PARAMETER = 6.0  # training FLOPs per active parameter and token

_SMALLEST, _LARGEST = 1e5, 1e16  # parameters; the sizes among which the best is sought
_FACTORS = ("a", "b", "c", "d", "e")
_FIRST_EXPONENTS = ((0.3, 0.6), (0.3, 0.6), (-0.2,), (0.1, 0.3), (0.1, 0.3))  # α, β, λ, δ, γ of the starts


class SparsityCoefficients(NamedTuple):
    """The ten coefficients."""

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    lam: float
    d: float
    delta: float
    gamma: float
    e: float  # nats per token


PUBLISHED = SparsityCoefficients(16612.50, 0.5962, 5455.67, 0.3954, 0.4598, -0.1666, 17.26, 0.1603, 0.1595, 0.94)


class SparsityFit(NamedTuple):
    """The best fit of the law to a table."""

    coefficients: SparsityCoefficients
    objective: float  # what the criterion says
    rmsle: float  # root mean squared difference of log10 losses
    status: Status  # "not determined": other coefficients fit these rows as well
    covariance: np.ndarray  # [10, 10] of (ln a, α, ln b, β, ln c, λ, ln d, δ, γ, ln e); NaN under Huber's criterion
    rows: int
    criterion: str


class SparsityOptimum(NamedTuple):
    """The best total size for a budget at one sparsity."""

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

    Example:
        >>> round(float(predict_loss(1e9, 2e10, 0.0)), 4), round(float(predict_loss(1e11, 1e12, 0.98)), 4)
        (2.5657, 1.8511)
    """
    size = check_range("total_parameters", total_parameters, above=0.0)
    tokens = check_range("tokens", tokens, above=0.0)
    dense = 1 - _check_sparsity(sparsity)
    k = coefficients
    by_size, by_tokens = k.a / size**k.alpha, k.b / tokens**k.beta
    return by_size + by_tokens + k.c / dense**k.lam + k.d / (dense**k.delta * size**k.gamma) + k.e


def sparsity_active(total_parameters: np.ndarray, sparsity: np.ndarray, always_active: float = 0.0) -> np.ndarray:
    """Return the active parameters: the share `always_active` of P, and of the rest the part 1 - S.

    Raises:
        ValueError: an entry is out of its range, or the share is not at least 0 and below 1.
    """
    if not 0 <= always_active < 1:
        raise ValueError(f"always_active is {always_active}; needed: at least 0 and below 1")
    size = check_range("total_parameters", total_parameters, above=0.0)
    return size * (always_active + (1 - always_active) * (1 - _check_sparsity(sparsity)))


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
) -> SparsityFit:
    """Fit the law to a table of runs, from 16 starts.

    The logarithm of each of the five terms is linear in the parameters (`_levenberg.power_terms`). A start is a choice
    of the five exponents, with every term a fifth of the loss in the middle of the table (our choice).

    Args:
        total_parameters, tokens, sparsity, loss: [n], as for `predict_loss`.
        huber: delta, in units of ln L, the paper's by default; None for least squares.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or there are fewer than 11 rows, 2 sizes, 2 numbers of
            tokens or 3 sparsities.
    """
    delta = math.inf if huber is None else check_delta(huber)
    size = np.atleast_1d(check_range("total_parameters", total_parameters, above=0.0))
    tokens = np.atleast_1d(check_range("tokens", tokens, above=0.0))
    idle = np.atleast_1d(_check_sparsity(sparsity))
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    if loss.ndim != 1 or not size.shape == tokens.shape == idle.shape == loss.shape:
        raise ValueError("total_parameters, tokens, sparsity and loss: needed: one axis, the same length")
    counts = [np.unique(column).size for column in (size, tokens, idle)]
    if loss.size < 11 or counts[0] < 2 or counts[1] < 2 or counts[2] < 3:
        raise ValueError(
            f"{loss.size} rows of {counts[0]} sizes, {counts[1]} numbers of tokens and {counts[2]} sparsities; the "
            "law has 10 coefficients and needs at least 11 rows of 2 sizes, 2 numbers of tokens and 3 sparsities"
        )
    centre = np.array([np.log(size).mean(), np.log(tokens).mean(), np.log(1 - idle).mean()])
    features = _features(np.log(size) - centre[0], np.log(tokens) - centre[1], np.log(1 - idle) - centre[2])
    found = search(power_terms(features), np.log(loss), _starts(float(np.log(loss).mean())), delta)
    return _report(found, centre, delta)


def sparsity_intervals(
    fit: SparsityFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return the ten coefficients with their intervals, for `catalogue.Law`: Student's t, to first order.

    The covariance is that of the logarithms of a, b, c, d and e and of the exponents. The valley is curved, so that
    these intervals are rough where they are wide; both ends are NaN under Huber's criterion.

    Args:
        fit: of `fit_sparsity`.
        columns, loss: the rows of the fit; not needed here.
        level: between 0 and 1.
    """
    reach = student_quantile(level, fit.rows - 10) * np.sqrt(np.diag(fit.covariance))
    ranges = []
    for (name, value), half in zip(fit.coefficients._asdict().items(), reach, strict=True):
        with np.errstate(over="ignore"):  # what the rows do not determine reaches from 0 to infinity
            ends = value + np.array([-half, half]) if name not in _FACTORS else value * np.exp([-half, half])
        ranges.append(Range(name, None, value, *ends.tolist(), ""))
    return ranges


def sparsity_prediction(
    fit: SparsityFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the loss at one point with both of its intervals, for `catalogue.Law`: to first order, in ln L.

    Args:
        fit, columns, loss, level: as `sparsity_intervals`.
        at: P, D and S of the point.
    """
    size, tokens, sparsity = (np.array([value], dtype=np.float64) for value in at)
    features = _features(np.log(size), np.log(tokens), np.log(1 - sparsity))
    logs = np.array([math.log(v) if n in _FACTORS else v for n, v in fit.coefficients._asdict().items()])
    value, gradient = power_terms(features)(logs)
    variance = float(gradient[0] @ fit.covariance @ gradient[0])
    residual = np.log(loss) - np.log(predict_loss(*columns, fit.coefficients))
    noise = float(residual @ residual) / (fit.rows - 10)
    quantile, best = student_quantile(level, fit.rows - 10), math.exp(float(value[0]))
    with np.errstate(over="ignore"):
        factors = np.exp(quantile * np.sqrt([variance, variance + noise])).tolist()
    return Predicted(best, *((best / factor, best * factor) for factor in factors))


def _check_sparsity(sparsity: np.ndarray) -> np.ndarray:
    """Return S as float64; ValueError unless every entry is at least 0 and below 1."""
    checked = check_range("sparsity", sparsity, least=0.0)
    check_range("1 - sparsity", 1 - checked, above=0.0)
    return checked


def _features(log_size: np.ndarray, log_tokens: np.ndarray, log_dense: np.ndarray) -> np.ndarray:
    """Return the features [n, 5, 10] of the five terms in (ln a, α, ln b, β, ln c, λ, ln d, δ, γ, ln e)."""
    features = np.zeros((log_size.size, 5, 10))
    for term, level in enumerate((0, 2, 4, 6, 9)):
        features[:, term, level] = 1.0
    for term, power, column in ((0, 1, log_size), (1, 3, log_tokens), (2, 5, log_dense), (3, 7, log_dense)):
        features[:, term, power] = -column
    features[:, 3, 8] = -log_size
    return features


def _starts(log_loss: float) -> np.ndarray:
    """Return the starts [16, 10]."""
    level = log_loss - math.log(5)
    rows = []
    for alpha, beta, lam, delta, gamma in itertools.product(*_FIRST_EXPONENTS):
        rows.append([level, alpha, level, beta, level, lam, level, delta, gamma, level])
    return np.array(rows)


def _report(found: Minimum, centre: np.ndarray, delta: float) -> SparsityFit:
    """Return the fit, with the levels moved from the middle of the table to P = D = 1 - S = 1."""
    move = np.eye(10)  # ln a = its level in the middle + α · mean ln P, and so on
    move[0, 1], move[2, 3], move[4, 5], move[6, 7], move[6, 8] = centre[[0, 1, 2, 2, 0]]
    values = move @ found.parameters
    values[[0, 2, 4, 6, 9]] = np.exp(values[[0, 2, 4, 6, 9]])
    rows = found.residual.size
    spread = move @ covariance(found, delta) @ move.T
    rmsle = float(np.sqrt(np.mean(found.residual**2))) / math.log(10)
    status: Status = "interior" if determined(found) else "not determined"
    criterion = "half the sum of squared differences of ln L" if math.isinf(delta) else f"{CRITERION} {delta:g}"
    return SparsityFit(
        SparsityCoefficients(*(float(v) for v in values)), found.objective, rmsle, status, spread, rows, criterion
    )
