"""Efficiency leverage: how many times more compute a dense model needs than a mixture of experts of equal loss.

After Tian et al. 2025 (arXiv 2507.17702):

    EL = C_dense / C_moe,  both at the same loss,
    EL(A, G, C) = Â^(α + β log2 G + γ (log2 G)²),      α = a + d log10 C
    1/Â = 1/(A + (1/A_start - 1/A_max)⁻¹) + 1/A_max

where  A  activation ratio, the share of the experts that a token uses, between 0 and 1
       G  granularity, 2 d_model / d_expert (half of the G of the fine-grained law, so its name here is
          `tian_granularity`)
       C  training FLOPs of the mixture.

The last line is Clark's saturation (`routed.py`) with A instead of E - 1.

Reliability. Coefficients and forms are from the paper's text, which does not print the bases of the two logarithms. We
inferred them from the paper's two conclusions: a leverage "over 7" at (A, G, C) = (3.1 %, 12, 1e22) and a best
granularity "around 12". Only log10 of C with log2 of G gives both. The text has two errata. It calls d positive, but d
is negative. The text claims a leverage of 1 at A = 1, but the law gives 0.990 at (A, G, C) = (1, 12, 1e22).

The paper counts A in three ways (`activation_ratio`), and the claim "over 7" depends on the count. For example, take 8
of 256 experts, one shared expert, G = 12 and C = 1e22. The leverage is 7.22 if A is E_a/E, and 6.87 by the paper's own
definition of A.

The fit is our choice: least squares of log10 EL. The law is linear in (a, d, γ, β) at a given A_start, and a search
finds A_start. A_max is not fitted: the paper's 5.28e16 is practically infinite, so no row determines it.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ..errors import InputError
from .confidence.intervals import Predicted, Range, _both_intervals
from .confidence.smooth_intervals import _student_ranges
from .confidence.uncertainty import student_quantile
from .numerics._columns import effective, least_squares
from .numerics._projection import check_lengths, check_range, independent, need_rows

Counting = Literal["definition", "routed", "mixed"]
Status = Literal["interior", "A_start at its lower end", "A_start at its upper end"]

ATTESTED = "read in the source's text; the bases of its logarithms are inferred from its conclusions"
CRITERION = "mean squared difference of log10 leverages"

_LEAST_START, _LARGEST_START = 1e-6, 1.0  # the search range of A_start
_GRID = 121  # values of A_start in one round of the search
_ROUNDS = 12  # rounds of the search; after the last, only rounding is left


class LeverageCoefficients(NamedTuple):
    """The six coefficients of the leverage law, in the paper's order.

    Attributes:
        a: α at log10 C = 0
        d: change of α per tenfold C
        gamma: factor of (log2 G)² in the power of Â
        beta: factor of log2 G in the power of Â
        A_start: Â at A = 0
        A_max: may be math.inf
    """

    a: float
    d: float
    gamma: float
    beta: float
    A_start: float
    A_max: float


PUBLISHED = LeverageCoefficients(1.23, -7.61e-2, 1.67e-2, -1.17e-1, 1.63e-2, 5.28e16)
"""Printed coefficients. The paper's runs have C from 1e18 to 3e20, A from 0.8 to 100 % and G from 2 to 16."""


class LeverageFit(NamedTuple):
    """The best fit of the leverage law to a table.

    Attributes:
        coefficients: the law; A_max is the argument of the fit
        objective: mean squared difference of log10 leverages
        rmsle: its square root
        status: "interior", or the end of the search range at which A_start lies
        covariance: [5, 5] of (a, d, γ, β, ln A_start), to first order; NaN if A_start is at an end
        rows: number of rows
        criterion: a description of the minimised quantity
    """

    coefficients: LeverageCoefficients
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


class LeverageAllocation(NamedTuple):
    """A split of a budget: C = M D.

    Attributes:
        flops_per_token: M, training FLOPs per token without the embedding
        tokens: D
    """

    flops_per_token: np.ndarray
    tokens: np.ndarray


_SPLIT = {"dense": (0.0655, 0.5422, 15.2582, 0.4578), "moe": (0.1915, 0.5095, 5.2232, 0.4905)}


def activation_ratio(experts: float, active: float, shared: float, counting: Counting = "definition") -> float:
    """Return the activation ratio A, the share of experts that a token uses, by one of the paper's three counts.

    Args:
        experts: E, routed experts.
        active: E_a, routed experts that a token uses.
        shared: E_s, experts that every token uses.
        counting: "definition" (E_a + E_s)/(E + E_s), "routed" E_a/E, "mixed" (E_a + E_s)/E.

    Raises:
        ValueError: not 0 < active <= experts, a negative number of shared experts, or an unknown count.

    Example:
        >>> [round(activation_ratio(256, 8, 1, way), 4) for way in ("definition", "routed", "mixed")]
        [0.035, 0.0312, 0.0352]
    """
    if not (0 < active <= experts and shared >= 0):
        raise InputError(
            f"{active} active of {experts} experts, {shared} shared; needed: 0 < active <= experts, shared >= 0"
        )
    ways = {
        "definition": (active + shared) / (experts + shared),
        "routed": active / experts,
        "mixed": (active + shared) / experts,
    }
    if counting not in ways:
        raise InputError(f"counting {counting!r} is not known; allowed: {', '.join(ways)}")
    return ways[counting]


def effective_activation(activation: np.ndarray, coefficients: LeverageCoefficients = PUBLISHED) -> np.ndarray:
    """Return the effective activation ratio Â, with the shape of `activation`; it rises from A_start towards A_max."""
    activation = check_range("activation", activation, above=0.0)
    return effective(activation, coefficients.A_start, coefficients.A_max)


def leverage(
    activation: np.ndarray,
    tian_granularity: np.ndarray,
    flops: np.ndarray,
    coefficients: LeverageCoefficients = PUBLISHED,
) -> np.ndarray:
    """Return the leverage EL: the compute of a dense model divided by the compute of a mixture with the same loss.

    Args:
        activation: A, above 0.
        tian_granularity: G = 2 d_model / d_expert, above 0.
        flops: C, training FLOPs, above 0.
        coefficients: the law.

    Returns:
        EL with the broadcast shape.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        >>> round(float(leverage(1 / 32, 12, 1e22)), 3), round(float(leverage(0.031, 12, 1e22)), 2)
        (7.22, 7.24)
    """
    log_effective = np.log10(effective_activation(activation, coefficients))
    log_granularity = np.log2(check_range("tian_granularity", tian_granularity, above=0.0))
    log_flops = np.log10(check_range("flops", flops, above=0.0))
    a, d, gamma, beta, *_ = coefficients
    exponent = a + d * log_flops + beta * log_granularity + gamma * log_granularity**2
    return 10.0 ** (exponent * log_effective)


def best_granularity(coefficients: LeverageCoefficients = PUBLISHED) -> float:
    """Return the granularity G with the greatest leverage if Â is below 1, 2^(-β/2γ); inf if γ is not above 0.

    Example:
        >>> round(best_granularity(), 1)
        11.3
    """
    return 2.0 ** (-coefficients.beta / (2 * coefficients.gamma)) if coefficients.gamma > 0 else math.inf


def leverage_allocation(flops: np.ndarray, model: Literal["dense", "moe"] = "moe") -> LeverageAllocation:
    """Return the paper's compute-optimal M and D for a budget; M D equals the budget to 0.1 per cent.

    Raises:
        ValueError: a budget is not finite or not above 0, or `model` is neither "dense" nor "moe".
    """
    if model not in _SPLIT:
        raise InputError(f"model {model!r} is not known; allowed: {', '.join(_SPLIT)}")
    flops = check_range("flops", flops, above=0.0)
    factor, power, token_factor, token_power = _SPLIT[model]
    return LeverageAllocation(factor * flops**power, token_factor * flops**token_power)


def _best_start(columns: list[np.ndarray], limit: float) -> tuple[float, Status]:
    """Return the least-squares A_start: scan its range, then scan more finely around the best."""
    low, high = np.log10((_LEAST_START, _LARGEST_START))
    for _ in range(_ROUNDS):
        scanned = np.linspace(low, high, _GRID)
        best = int(np.argmin([_squares(columns, 10.0**t, limit) for t in scanned]))
        low, high = scanned[max(best - 1, 0)], scanned[min(best + 1, _GRID - 1)]
    start = 10.0 ** scanned[best]
    if start <= _LEAST_START * 1.01:
        return start, "A_start at its lower end"
    return start, "A_start at its upper end" if start >= _LARGEST_START / 1.01 else "interior"


def _squares(columns: list[np.ndarray], start: float, limit: float) -> float:
    """Return the least mean square of the residuals at one A_start."""
    *run, leverage = columns
    _, _, mean_square = least_squares(_design(*run, start, limit), np.log10(leverage))
    return mean_square


def fit_leverage(
    activation: np.ndarray,
    tian_granularity: np.ndarray,
    flops: np.ndarray,
    leverage: np.ndarray,
    A_max: float = math.inf,
) -> LeverageFit:
    """Fit the leverage law to measured leverages.

    Args:
        activation, tian_granularity, flops: [n], as for `leverage`.
        leverage: [n], EL, above 0.
        A_max: given, not fitted; at least 10 (our choice).

    Raises:
        ValueError: lengths differ, an entry is not finite or not above 0, there are fewer than 7 rows, or the rows
            cannot separate the coefficients. The rows need two different C, three different G and three different A.
    """
    named = {"activation": activation, "tian_granularity": tian_granularity, "flops": flops, "leverage": leverage}
    columns = [check_range(name, np.atleast_1d(column), above=0.0) for name, column in named.items()]
    check_lengths(**dict(zip(named, columns, strict=True)))
    if not A_max >= 10:
        raise InputError(f"A_max is {A_max}; needed: at least 10")
    need_rows(columns[0].size, 6, "leverage")
    activation, tian_granularity, flops, leverage = columns
    if np.unique(activation).size < 3 or not independent(_design(*columns[:3], _LARGEST_START, A_max)):
        raise InputError(
            "these rows do not determine the coefficients; needed: two flops, three granularities, three A"
        )
    start, status = _best_start(columns, A_max)
    solution, _, objective = least_squares(_design(*columns[:3], start, A_max), np.log10(leverage))
    coefficients = LeverageCoefficients(*(float(v) for v in solution), float(start), A_max)
    covariance = np.full((5, 5), np.nan)
    if status == "interior":
        inverse = np.linalg.pinv(_gradient(coefficients, *columns[:3]))
        covariance = objective * leverage.size / (leverage.size - 5) * inverse @ inverse.T
    return LeverageFit(coefficients, objective, math.sqrt(objective), status, covariance, activation.size, CRITERION)


def predict_interval(
    fit: LeverageFit,
    activation: np.ndarray,
    tian_granularity: np.ndarray,
    flops: np.ndarray,
    level: float = 0.95,
    observation: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the interval of a predicted leverage, to first order in log10 EL.

    Args:
        fit: the result of `fit_leverage`. Both ends are NaN if A_start is at an end of its range.
        activation, tian_granularity, flops: [m] or numbers, as for `leverage`.
        level: between 0 and 1.
        observation: True for the interval of one more measured leverage, False for the interval of the law.

    Raises:
        ValueError: `leverage` raises this error, or the level is out of its range.
    """
    value = leverage(activation, tian_granularity, flops, fit.coefficients)
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (activation, tian_granularity, flops)))
    gradient = _gradient(fit.coefficients, *(column.ravel() for column in columns))
    variance = np.einsum("np,pq,nq->n", gradient, fit.covariance, gradient).reshape(value.shape)  # gᵀ covariance g
    if observation:
        variance = variance + fit.objective * fit.rows / (fit.rows - 5)  # of a row
    factor = 10.0 ** (student_quantile(level, fit.rows - 5) * np.sqrt(variance))
    return value / factor, value * factor


def leverage_intervals(
    fit: LeverageFit, columns: Sequence[np.ndarray], measured: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return the five fitted coefficients with Student's t intervals, for `catalogue.Law`.

    The interval of A_start comes from ln A_start.

    Args:
        fit: the result of `fit_leverage`. Both ends are NaN if A_start is at an end of its range.
        columns, measured: the rows of the fit; not needed here.
        level: between 0 and 1.
    """
    return _student_ranges(fit, ("A_start",), student_quantile(level, fit.rows - 5))


def leverage_prediction(
    fit: LeverageFit, columns: Sequence[np.ndarray], measured: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the predicted leverage at one point, with two intervals (see `intervals.Predicted`), for `catalogue.Law`.

    Args:
        fit, columns, measured, level: as in `leverage_intervals`.
        at: A, G and C.

    Raises:
        ValueError: `predict_interval` raises this error.
    """
    return _both_intervals(leverage(*at, fit.coefficients), partial(predict_interval, fit, *at, level))


def _gradient(coefficients: LeverageCoefficients, activation, tian_granularity, flops) -> np.ndarray:
    """Return the derivatives [n, 5] of log10 EL in (a, d, γ, β, ln A_start).

    With x = A + s and s = (1/A_start - 1/A_max)⁻¹, 1/Â = 1/x + 1/A_max. Then ln Â changes by Â s²/(x² A_start) per
    unit of ln A_start.
    """
    start, limit = coefficients[4:]
    design = _design(activation, tian_granularity, flops, start, limit)
    s = 1 / (1 / start - 1 / limit)
    change = effective(activation, start, limit) * s**2 / ((activation + s) ** 2 * start)
    exponent = _powers(tian_granularity, flops) @ np.array(coefficients[:4])
    return np.concatenate([design, (exponent * change / math.log(10))[:, None]], axis=1)


def _design(activation, tian_granularity, flops, start: float, limit: float) -> np.ndarray:
    """Return the columns [n, 4] in which log10 EL is linear at one A_start: log10 Â times (1, log C, log² G, log G)."""
    return _powers(tian_granularity, flops) * np.log10(effective(activation, start, limit))[:, None]


def _powers(tian_granularity: np.ndarray, flops: np.ndarray) -> np.ndarray:
    """Return (1, log10 C, (log2 G)², log2 G) in the order of the coefficients, [n, 4]."""
    log_granularity = np.log2(tian_granularity)
    return np.stack([np.ones_like(flops), np.log10(flops), log_granularity**2, log_granularity], axis=1)
