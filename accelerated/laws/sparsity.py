"""See `routelaws.reference.laws.sparsity`.

What differs here: the best size as the root of the slope of the loss in ln P, and the fit from all starts in one
compiled loop.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq

from ._columns import check_range
from ._levenberg import covariance, determined, power_terms, search
from .intervals import Predicted, Range
from .uncertainty import student_quantile

Status = Literal["interior", "not determined"]

ATTESTED = "two secondary copies that agree; the source's own text was not at hand"
CRITERION = "sum of Huber terms of ln L, delta"
FLOPS_PER_PARAMETER = 6.0

_SMALLEST, _LARGEST = 1e5, 1e16
_FIRST_EXPONENTS = ((0.3, 0.6), (0.3, 0.6), (-0.2,), (0.1, 0.3), (0.1, 0.3))
_LEVELS, _CENTRED = [0, 2, 4, 6, 9], ([0, 2, 4, 6, 6], [1, 3, 5, 7, 8], [0, 1, 2, 2, 0])


class SparsityCoefficients(NamedTuple):
    """See reference."""

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


class SparsityFit(NamedTuple):
    """See reference."""

    coefficients: SparsityCoefficients
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


class SparsityOptimum(NamedTuple):
    """See reference."""

    total_parameters: float
    tokens: float
    loss: float


def predict_loss(
    total_parameters: np.ndarray,
    tokens: np.ndarray,
    sparsity: np.ndarray,
    coefficients: SparsityCoefficients = PUBLISHED,
) -> np.ndarray:
    """See reference."""
    size = np.log(check_range("total_parameters", total_parameters, above=0.0))
    tokens = np.log(check_range("tokens", tokens, above=0.0))
    dense = np.log1p(-_check_sparsity(sparsity))
    a, alpha, b, beta, c, lam, d, delta, gamma, e = coefficients
    by_sparsity = c * np.exp(-lam * dense) + d * np.exp(-delta * dense - gamma * size)
    return a * np.exp(-alpha * size) + b * np.exp(-beta * tokens) + by_sparsity + e


def sparsity_active(total_parameters: np.ndarray, sparsity: np.ndarray, always_active: float = 0.0) -> np.ndarray:
    """See reference."""
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
    """See reference."""
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
) -> SparsityFit:
    """See reference."""
    if huber is not None and not (isinstance(huber, int | float | np.number) and 0 < huber < math.inf):
        raise ValueError(f"huber is {huber!r}; needed: a finite number above 0, in units of ln L, or None")
    delta = math.inf if huber is None else float(huber)
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
    logs = np.stack([np.log(size), np.log(tokens), np.log1p(-idle)])
    centre = logs.mean(axis=1)
    target = np.log(loss)
    level = float(target.mean()) - math.log(5)
    starts = [
        [level, p, level, q, level, r, level, s, t, level] for p, q, r, s, t in itertools.product(*_FIRST_EXPONENTS)
    ]
    found = search(power_terms, _features(*(logs - centre[:, None])), target, np.array(starts), delta)
    move = np.eye(10)
    levels, powers, columns = _CENTRED
    move[levels, powers] = centre[columns]
    values = move @ found.parameters
    values[_LEVELS] = np.exp(values[_LEVELS])
    return SparsityFit(
        SparsityCoefficients(*values.tolist()),
        found.objective,
        float(np.linalg.norm(found.residual)) / math.sqrt(loss.size) / math.log(10),
        "interior" if determined(found) else "not determined",
        move @ covariance(found, delta) @ move.T,
        loss.size,
        "half the sum of squared differences of ln L" if math.isinf(delta) else f"{CRITERION} {delta:g}",
    )


def sparsity_intervals(
    fit: SparsityFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """See reference."""
    values = np.array(fit.coefficients)
    reach = student_quantile(level, fit.rows - 10) * np.sqrt(np.diag(fit.covariance))
    low, high = values - reach, values + reach
    with np.errstate(over="ignore"):
        factor = np.exp(reach[_LEVELS])
    low[_LEVELS], high[_LEVELS] = values[_LEVELS] / factor, values[_LEVELS] * factor
    columns = values.tolist(), low.tolist(), high.tolist()
    return [Range(name, None, *row, "") for name, *row in zip(fit.coefficients._fields, *columns, strict=True)]


def sparsity_prediction(
    fit: SparsityFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """See reference."""
    size, tokens, sparsity = at
    features = _features(*(np.log([value]) for value in (size, tokens, 1 - sparsity)))[0]
    logs = np.array(fit.coefficients)
    logs[_LEVELS] = np.log(logs[_LEVELS])
    terms = features @ logs
    log_loss = float(np.logaddexp.reduce(terms))
    gradient = np.exp(terms - log_loss) @ features
    variance = float(gradient @ fit.covariance @ gradient)
    misses = np.log(predict_loss(*columns, fit.coefficients)) - np.log(loss)
    spread = np.sqrt([variance, variance + float(misses @ misses) / (fit.rows - 10)])
    reach = student_quantile(level, fit.rows - 10) * spread
    with np.errstate(over="ignore"):
        law, run = zip(np.exp(log_loss - reach).tolist(), np.exp(log_loss + reach).tolist(), strict=True)
    return Predicted(math.exp(log_loss), law, run)


def _check_sparsity(sparsity: np.ndarray) -> np.ndarray:
    checked = check_range("sparsity", sparsity, least=0.0)
    check_range("1 - sparsity", 1 - checked, above=0.0)
    return checked


def _features(log_size: np.ndarray, log_tokens: np.ndarray, log_dense: np.ndarray) -> np.ndarray:
    """Return the features [n, 5, 10] of the five terms."""
    features = np.zeros((log_size.size, 5, 10))
    features[:, range(5), _LEVELS] = 1.0
    powers = -np.stack([log_size, log_tokens, log_dense, log_dense, log_size], axis=1)
    features[:, [0, 1, 2, 3, 3], [1, 3, 5, 7, 8]] = powers
    return features
