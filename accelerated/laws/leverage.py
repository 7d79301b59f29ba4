"""Efficiency leverage: how much less compute a mixture of experts needs than a dense model of the same loss.

Step by step, with sources and examples: `routelaws.reference.laws.leverage`.

    EL(A, G, C) = Â^(α + β log2 G + γ (log2 G)²),      α = a + d log10 C
    1/Â = 1/(A + (1/A_start - 1/A_max)⁻¹) + 1/A_max

with A the activation ratio, G the granularity 2 d_model / d_expert, and C the training FLOPs of the mixture.

What differs here: natural logarithms inside, and A_start by Brent's method about the best of a coarse scan.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from ._columns import check_range, need_rows, triangle
from .intervals import Predicted, Range
from .smooth_intervals import words
from .uncertainty import student_quantile

Counting = Literal["definition", "routed", "mixed"]
Status = Literal["interior", "A_start at its lower end", "A_start at its upper end"]

ATTESTED = "read in the source's text; the bases of its logarithms are inferred from its conclusions"
CRITERION = "mean squared difference of log10 leverages"

_STARTS = (1e-6, 1.0)
_GRID = 49
_LOG_2, _LOG_10 = math.log(2), math.log(10)


class LeverageCoefficients(NamedTuple):
    """The six coefficients, in the paper's order.

    Attributes:
        a: α at log10 C = 0
        d: per tenfold C
        gamma: of (log2 G)² in the power of Â
        beta: of log2 G in the power of Â
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
"""As printed; fitted by the paper to C of 1e18 to 3e20, A of 0.8 to 100 per cent and G of 2 to 16."""


class LeverageFit(NamedTuple):
    """The best fit of the law to a table.

    Attributes:
        coefficients: the law; A_max is the one that was given
        objective: mean squared difference of log10 leverages
        rmsle: its square root
        status: "interior", or the end of its range that A_start is at
        covariance: [5, 5] of (a, d, γ, β, ln A_start), to first order; NaN where A_start is at an end
        rows: used, all that were given
        criterion: what was minimised, in words
    """

    coefficients: LeverageCoefficients
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


class LeverageAllocation(NamedTuple):
    """How a budget is split: C = M D.

    Attributes:
        flops_per_token: M, training FLOPs per token without the embedding
        tokens: D
    """

    flops_per_token: np.ndarray
    tokens: np.ndarray


_SPLIT = {"dense": (0.0655, 0.5422, 15.2582, 0.4578), "moe": (0.1915, 0.5095, 5.2232, 0.4905)}


def activation_ratio(experts: float, active: float, shared: float, counting: Counting = "definition") -> float:
    """Return A, counted in one of the paper's three ways.

    Args:
        experts: E, routed experts.
        active: E_a, routed experts that a token uses.
        shared: E_s, experts that every token uses.
        counting: "definition" (E_a + E_s)/(E + E_s), "routed" E_a/E, "mixed" (E_a + E_s)/E.

    Raises:
        ValueError: not 0 < active <= experts, a negative number of shared experts, or another way of counting.
    """
    if not (0 < active <= experts and shared >= 0):
        raise ValueError(f"{active} of {experts} experts and {shared} shared ones; needed: 0 < active <= experts")
    above, below = {"definition": (shared, shared), "routed": (0, 0), "mixed": (shared, 0)}.get(counting, (None, None))
    if above is None:
        raise ValueError(f"counting {counting!r} is not known; allowed: definition, routed, mixed")
    return (active + above) / (experts + below)


def effective_activation(activation: np.ndarray, coefficients: LeverageCoefficients = PUBLISHED) -> np.ndarray:
    """Return Â, which saturates at A_start from below and at A_max from above; the shape of `activation`."""
    return np.exp(_log_effective(check_range("activation", activation, above=0.0), *coefficients[4:]))


def leverage(
    activation: np.ndarray,
    tian_granularity: np.ndarray,
    flops: np.ndarray,
    coefficients: LeverageCoefficients = PUBLISHED,
) -> np.ndarray:
    """Return EL, the factor in compute that a dense model would need.

    Args:
        activation: A, above 0.
        tian_granularity: G = 2 d_model / d_expert, above 0.
        flops: C, training FLOPs, above 0.
        coefficients: the law.

    Returns:
        EL, of the shape that the three arguments broadcast to.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    log_effective = _log_effective(check_range("activation", activation, above=0.0), *coefficients[4:])
    log_granularity = np.log(check_range("tian_granularity", tian_granularity, above=0.0)) / _LOG_2
    log_flops = np.log(check_range("flops", flops, above=0.0)) / _LOG_10
    a, d, gamma, beta, *_ = coefficients
    return np.exp((a + d * log_flops + (beta + gamma * log_granularity) * log_granularity) * log_effective)


def best_granularity(coefficients: LeverageCoefficients = PUBLISHED) -> float:
    """Return the G with the greatest leverage at any A with Â below 1, 2^(-β/2γ): inf if γ is not above 0."""
    return math.exp(-coefficients.beta * _LOG_2 / (2 * coefficients.gamma)) if coefficients.gamma > 0 else math.inf


def leverage_allocation(flops: np.ndarray, model: Literal["dense", "moe"] = "moe") -> LeverageAllocation:
    """Return the paper's compute-optimal split of a budget; the product of both is the budget to 0.1 per cent.

    Raises:
        ValueError: a budget is not finite or not above 0, or `model` is neither.
    """
    if model not in _SPLIT:
        raise ValueError(f"model {model!r} is not known; allowed: {', '.join(_SPLIT)}")
    log_flops = np.log(check_range("flops", flops, above=0.0))
    factor, power, token_factor, token_power = _SPLIT[model]
    return LeverageAllocation(factor * np.exp(power * log_flops), token_factor * np.exp(token_power * log_flops))


def fit_leverage(
    activation: np.ndarray,
    tian_granularity: np.ndarray,
    flops: np.ndarray,
    leverage: np.ndarray,
    A_max: float = math.inf,
) -> LeverageFit:
    """Fit the law to measured leverages.

    Args:
        activation, tian_granularity, flops: [n], as for `leverage`.
        leverage: [n], EL, above 0.
        A_max: given, not fitted; at least 10 (our choice: a limit among the A of a table is another law).

    Raises:
        ValueError: lengths differ, an entry is not finite or not above 0, fewer than 7 rows, or the rows cannot tell
            the coefficients apart (needed: two C, three G, three A).

    Differs from the reference: A_start is found by Brent's method about the best of a coarse scan.
    """
    given = {"activation": activation, "tian_granularity": tian_granularity, "flops": flops, "leverage": leverage}
    activation, tian_granularity, flops, measured = _checked(given, A_max)
    powers, target = _powers(tian_granularity, flops), np.log(measured)

    def design(log_start: float) -> np.ndarray:
        return powers * _log_effective(activation, math.exp(log_start), A_max)[:, None]

    if np.unique(activation).size < 3 or triangle(design(math.log(_STARTS[1]))) is None:
        raise ValueError(
            "these rows cannot tell the coefficients apart; needed: two flops, three granularities, three A"
        )
    at, status = _best_log_start(design, target)
    unit, upper = triangle(design(at))
    scores = unit.T @ target
    residual = target - unit @ scores
    values = np.linalg.solve(upper, scores)
    # Both sides of the line are in natural logarithms here; the coefficients are ratios, the same in any base.
    squares = float(residual @ residual) / _LOG_10**2
    coefficients = LeverageCoefficients(*values.tolist(), math.exp(at), A_max)
    spread = np.full((5, 5), np.nan)
    if status == "interior":
        spread = _covariance(coefficients, squares, activation, tian_granularity, flops)
    objective = squares / measured.size
    return LeverageFit(coefficients, objective, math.sqrt(objective), status, spread, measured.size, CRITERION)


def _checked(given: dict[str, np.ndarray], A_max: float) -> list[np.ndarray]:
    """Return the columns of a table as float64 [n] each; raises ValueError as `fit_leverage` says."""
    columns = [np.atleast_1d(check_range(name, np.atleast_1d(column), above=0.0)) for name, column in given.items()]
    if columns[0].ndim != 1 or len({column.shape for column in columns}) > 1:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise ValueError(f"{', '.join(given)} have shapes {shapes}; needed: one axis, the same length")
    if not A_max >= 10:
        raise ValueError(f"A_max is {A_max}; needed: at least 10")
    need_rows(columns[0].size, 6, "leverage")
    return columns


def _powers(tian_granularity: np.ndarray, flops: np.ndarray) -> np.ndarray:
    """Return what a, d, gamma and beta multiply in the power of Â, [n, 4]."""
    log_granularity = np.log(tian_granularity) / _LOG_2
    return np.stack([np.ones_like(flops), np.log(flops) / _LOG_10, log_granularity**2, log_granularity], axis=1)


def _best_log_start(design: Callable[[float], np.ndarray], target: np.ndarray) -> tuple[float, Status]:
    """Return ln A_start with the least sum of squares, and whether it is at an end of its range.

    Args:
        design: from ln A_start to what the four other coefficients multiply, [n, 4].
        target: [n] ln EL.
    """

    def squares(log_start: float) -> float:
        factors = triangle(design(log_start))
        if factors is None:
            return math.inf
        residual = target - factors[0] @ (factors[0].T @ target)
        return float(residual @ residual)

    low, high = math.log(_STARTS[0]), math.log(_STARTS[1])
    grid = np.linspace(low, high, _GRID)
    best = int(np.argmin([squares(t) for t in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    at = float(minimize_scalar(squares, bounds=ends, method="bounded", options={"xatol": 1e-10}).x)
    if at <= low + 0.01:
        return at, "A_start at its lower end"
    return at, "A_start at its upper end" if at >= high - 0.01 else "interior"


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
        fit: of `fit_leverage`; both ends are NaN where A_start is at an end of its range.
        activation, tian_granularity, flops: [m] or numbers, as for `leverage`.
        level: between 0 and 1.
        observation: True for one more measured leverage, False for the law.

    Raises:
        ValueError: as `leverage`, or the level is out of its range.
    """
    value = leverage(activation, tian_granularity, flops, fit.coefficients)
    gradient = _gradient(fit.coefficients, *np.broadcast_arrays(activation, tian_granularity, flops))
    variance = ((gradient @ fit.covariance) * gradient).sum(axis=-1)
    variance = variance + observation * fit.objective * fit.rows / (fit.rows - 5)
    factor = np.exp(_LOG_10 * student_quantile(level, fit.rows - 5) * np.sqrt(variance))
    return value / factor, value * factor


def leverage_intervals(
    fit: LeverageFit, columns: Sequence[np.ndarray], measured: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return the five fitted coefficients with their intervals, for `catalogue.Law`: Student's t, of ln A_start.

    Args:
        fit: of `fit_leverage`; both ends are NaN where A_start is at an end of its range.
        columns, measured: the rows of the fit; not needed here.
        level: between 0 and 1.
    """
    quantile, ranges = student_quantile(level, fit.rows - 5), []
    for name, value, variance in zip(fit.coefficients._fields, fit.coefficients, np.diag(fit.covariance), strict=False):
        half = quantile * math.sqrt(variance) if variance >= 0 else math.nan
        with np.errstate(over="ignore"):  # not determined: no end
            low, high = value * np.exp([-half, half]) if name == "A_start" else (value - half, value + half)
        known = "" if math.isnan(half) else words(name == "A_start", value, low, high)
        ranges.append(Range(name, None, value, float(low), float(high), known))
    return ranges


def leverage_prediction(
    fit: LeverageFit, columns: Sequence[np.ndarray], measured: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the leverage at one point with both of its intervals, for `catalogue.Law`.

    Args:
        fit, columns, measured, level: as `leverage_intervals`.
        at: A, G and C.

    Raises:
        ValueError: as `predict_interval`.
    """
    law, run = (tuple(map(float, predict_interval(fit, *at, level, each))) for each in (False, True))
    return Predicted(float(leverage(*at, fit.coefficients)), law, run)


def _gradient(coefficients: LeverageCoefficients, activation, tian_granularity, flops) -> np.ndarray:
    """Return the derivatives [..., 5] of log10 EL in (a, d, gamma, beta, ln A_start)."""
    a, d, gamma, beta, start, limit = coefficients
    log_granularity, log_flops = np.log(tian_granularity) / _LOG_2, np.log(flops) / _LOG_10
    log_effective = _log_effective(activation, start, limit)
    shift = 1 / (1 / start - 1 / limit)
    change = np.exp(log_effective) * (shift / (activation + shift)) ** 2 / start
    exponent = a + d * log_flops + gamma * log_granularity**2 + beta * log_granularity
    columns = (np.ones_like(log_flops), log_flops, log_granularity**2, log_granularity)
    columns = [column * log_effective / _LOG_10 for column in columns] + [exponent * change / _LOG_10]
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def _covariance(coefficients: LeverageCoefficients, squares: float, *columns: np.ndarray) -> np.ndarray:
    """Return the covariance [5, 5] of (a, d, gamma, beta, ln A_start) to first order; columns are A, G and C, [n]."""
    root = np.linalg.inv(np.linalg.qr(_gradient(coefficients, *columns), mode="r"))
    return squares / (columns[0].size - 5) * (root @ root.T)


def _log_effective(activation: np.ndarray, start: float, limit: float) -> np.ndarray:
    """Return ln Â."""
    return -np.log(1 / (activation + 1 / (1 / start - 1 / limit)) + 1 / limit)
