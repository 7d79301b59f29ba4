"""See `routelaws.reference.laws.utilisation`.

F is in TeraFLOPs of the forward pass of one sequence of 2048 tokens (elsewhere in this project: FLOPs of one token), B
in parameters, all of them, per forward FLOP of one token.

What differs here: as in `routed.py`, everything goes through log B̂ = log B_start + log(1 + rise·x / (1 + bend·x)) with
x = B - B_min, which has no reciprocal of a reciprocal. NumPy float64, whatever the arguments are.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ..accounting import TABLE_SEQUENCE_LENGTH, TABLE_TOKENS_PER_STEP
from ._columns import Words, check_columns, check_range, log_growth, reach
from .fitting import STATUSES, LossCurve, _fit_table, level_table, predict_curve

Status = Literal[
    "interior", "B_start at its floor", "B_max unbounded", "B_start at its floor, B_max unbounded", "linear limit"
]

FLOOR = 0.1

_WORDS = Words(
    "teraflops",
    "values of teraflops",
    "utilisation",
    "value of utilisation",
    "values of utilisation",
    "B_start and B_max",
)
_STATUSES: dict[str, Status] = dict(
    zip(
        STATUSES,
        (
            "linear limit",
            "B_start at its floor, B_max unbounded",
            "B_start at its floor",
            "B_max unbounded",
            "interior",
        ),
        strict=True,
    )
)

_LOG_10 = math.log(10)


class Compute(NamedTuple):
    """See reference."""

    teraflops: np.ndarray
    utilisation: np.ndarray


class UtilisationCoefficients(NamedTuple):
    """See reference."""

    a: float
    b: float
    c: float
    d: float
    B_start: float
    B_max: float
    B_min: float


class UtilisationCurve(NamedTuple):
    """See reference."""

    curve: LossCurve
    B_min: float
    unit: float


class UtilisationFit(NamedTuple):
    """See reference."""

    coefficients: UtilisationCoefficients
    curve: UtilisationCurve
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


def compute_columns(
    flops_per_step: np.ndarray, total_parameters: np.ndarray, tokens_per_step: np.ndarray = TABLE_TOKENS_PER_STEP
) -> Compute:
    """See reference."""
    flops = check_range("flops_per_step", flops_per_step, above=0.0)
    tokens = check_range("tokens_per_step", tokens_per_step, above=0.0)
    total = check_range("total_parameters", total_parameters, above=0.0)
    return Compute(flops * (TABLE_SEQUENCE_LENGTH / 1e12) / tokens, total * tokens / flops)


def effective_utilisation(utilisation: np.ndarray, B_start: float, B_max: float, B_min: float) -> np.ndarray:
    """See reference."""
    return B_start * np.exp(_log_ratio(utilisation, B_start, B_max, B_min))


def predict_loss(teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """See reference."""
    a, b, c, d = coefficients[:4]
    log_flops = np.log(check_range("teraflops", teraflops, above=0.0)) / _LOG_10
    return np.exp(_LOG_10 * (d + a * log_flops) + (b + c * log_flops) * _log_effective(utilisation, coefficients))


def slope_in_utilisation(teraflops: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """See reference."""
    log_flops = np.log(check_range("teraflops", teraflops, above=0.0))
    return coefficients.b + coefficients.c / _LOG_10 * log_flops


def slope_in_teraflops(utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """See reference."""
    return coefficients.a + coefficients.c / _LOG_10 * _log_effective(utilisation, coefficients)


def effective_teraflops(
    teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationCoefficients
) -> np.ndarray:
    """See reference. log F̄ = log F + log(B̂/B_start) · (b + c log10 F) / (a + c log10 B_start)."""
    ratio = _log_ratio(utilisation, *coefficients[4:])
    dense_slope = coefficients.a + coefficients.c * math.log10(coefficients.B_start)
    if dense_slope == 0:
        raise ValueError("a + c log10 B_start is 0: no F at B_min is equivalent, since F does not change the loss")
    log_flops = np.log(check_range("teraflops", teraflops, above=0.0))
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_flops + slope_in_utilisation(teraflops, coefficients) / dense_slope * ratio)


def teraflops_for_loss(utilisation: np.ndarray, loss: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """See reference."""
    slope = slope_in_teraflops(utilisation, coefficients)
    log_loss = np.log(check_range("loss", loss, above=0.0))
    short = log_loss - (_LOG_10 * coefficients.d + coefficients.b * _log_effective(utilisation, coefficients))
    return reach(short, slope, never=math.nan)


def fit_utilisation(
    teraflops: np.ndarray,
    utilisation: np.ndarray,
    loss: np.ndarray,
    B_min: float | None = None,
    huber: float | None = None,
) -> UtilisationFit:
    """See reference."""
    flops, used, loss = check_columns(teraflops=teraflops, utilisation=utilisation, loss=loss)
    least = float(used.min() if B_min is None else check_range("B_min", B_min, above=0.0))
    unit = FLOOR * least
    experts = 1.0 + (check_range("utilisation", used, least=least) - least) / unit
    fit = _fit_table(level_table(flops, experts, loss, _WORDS), huber)
    a, b, c, d, E_start, E_max = fit.coefficients
    log_unit = math.log10(unit)
    a, d = a - c * log_unit, d - b * log_unit
    coefficients = UtilisationCoefficients(a, b, c, d, unit * E_start, unit * E_max, least)
    curve, covariance = UtilisationCurve(fit.curve, least, unit), _covariance(fit.covariance, unit)
    return UtilisationFit(
        coefficients, curve, fit.objective, fit.rmsle, _STATUSES[fit.status], covariance, fit.rows, fit.criterion
    )


def experts_of(utilisation: np.ndarray) -> np.ndarray:
    """Return what stands in the place of num_experts, 1 + (B - B_min)/u. The fast twin's own: no reference."""
    least = float(np.min(utilisation))
    return 1.0 + (utilisation - least) / (FLOOR * least)


def predict_utilisation(curve: UtilisationCurve, teraflops: np.ndarray, utilisation: np.ndarray) -> np.ndarray:
    """See reference."""
    flops = check_range("teraflops", teraflops, above=0.0)
    extra = check_range("utilisation", utilisation, least=curve.B_min) - curve.B_min
    return predict_curve(curve.curve, flops, 1.0 + extra / curve.unit)


def _covariance(covariance: np.ndarray, unit: float) -> np.ndarray:
    """Return the covariance in units of B: rows and then columns of the one in (F, E') are changed in place."""
    found = np.zeros((7, 7))
    found[:6, :6] = covariance
    for view in (found, found.T):
        view[4:6] *= unit
        view[0] -= math.log10(unit) * view[2]
        view[3] -= math.log10(unit) * view[1]
    return found


def _log_effective(utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the natural log of B̂."""
    return _log_ratio(utilisation, *coefficients[4:]) + math.log(coefficients.B_start)


def _log_ratio(utilisation: np.ndarray, B_start: float, B_max: float, B_min: float) -> np.ndarray:
    """Return the natural log of B̂/B_start."""
    least = float(check_range("B_min", B_min, above=0.0))
    if not (0 < B_start < B_max):
        raise ValueError(f"B_start is {B_start} and B_max is {B_max}; needed: 0 < B_start < B_max")
    return log_growth(check_range("utilisation", utilisation, least=least) - least, B_start, B_max)
