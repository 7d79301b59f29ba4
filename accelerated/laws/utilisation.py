"""The bounded law in compute: how the loss falls with the FLOPs F of a model and with its parameters per FLOP, B.

Step by step, with sources and examples: `routelaws.reference.laws.utilisation`.

    log10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d
    1/B̂ = 1 / (B - B_min + (1/B_start - 1/B_max)⁻¹) + 1/B_max

with L the loss in nats per token.

F is in TeraFLOPs of the forward pass of one sequence of 2048 tokens (elsewhere in this project: FLOPs of one token), B
in parameters, all of them, per forward FLOP of one token.

What differs here: as in `routed.py`, everything goes through log B̂ = log B_start + log(1 + rise·x / (1 + bend·x)) with
x = B - B_min, which has no reciprocal of a reciprocal. NumPy float64, whatever the arguments are.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_SEQUENCE_LENGTH, TABLE_TOKENS_PER_STEP

from ._columns import Words, check_columns, check_range, log_growth, reach
from .fitting import STATUSES, LossCurve, _fit_table, level_table, predict_curve

Status = Literal[
    "interior", "B_start at its floor", "B_max unbounded", "B_start at its floor, B_max unbounded", "linear limit"
]

FLOOR = 0.1
"""The unit u, and so the least B_start that a fit allows, as a share of B_min."""

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
    """The two data columns of the law.

    Attributes:
        teraflops: F, 1e12 FLOPs of the forward pass of 2048 tokens
        utilisation: B, parameters per FLOP of the forward pass of one token
    """

    teraflops: np.ndarray
    utilisation: np.ndarray


class UtilisationCoefficients(NamedTuple):
    """The six coefficients of the law, and the B from which B̂ is counted.

    Attributes:
        a: d log10 L / d log10 F at B̂ = 1
        b: d log10 L / d log10 B̂ at F = 1
        c: how much the slope in log10 B̂ changes per decade of F
        d: log10 L at F = 1, B̂ = 1
        B_start: B̂ at B = B_min, 0 < B_start < B_max
        B_max: the limit of B̂ for large B; may be math.inf
        B_min: the least B, above 0; given, not fitted
    """

    a: float
    b: float
    c: float
    d: float
    B_start: float
    B_max: float
    B_min: float


class UtilisationCurve(NamedTuple):
    """The fitted law in a form that exists on every face, the linear limit included.

    Attributes:
        curve: of F and E' = 1 + (B - B_min)/unit
        B_min: the least B
        unit: u, in units of B
    """

    curve: LossCurve
    B_min: float
    unit: float


class UtilisationFit(NamedTuple):
    """The best fit of the law in (F, B) to a table.

    Attributes:
        coefficients: B_max is inf where it is unbounded; all but B_min NaN in the linear limit
        curve: the same fit, for prediction: see `predict_utilisation`
        objective: as `criterion` says
        rmsle: root of the mean squared difference of log10 losses
        status: which piece of the domain holds the optimum
        covariance: [7, 7], order of UtilisationCoefficients; 0 where a coefficient is held, as B_min is
        rows: rows used, all that were given
        criterion: what was minimised
    """

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
    """Return F and B of runs, from the columns of a results table.

    Args:
        flops_per_step: FLOPs of the forward pass of one training step, above 0.
        total_parameters: P, above 0; it broadcasts with the others.
        tokens_per_step: tokens of one training step, above 0: 524,288 in the released table, batch_size times
            sequence_length in a table of our own.

    Returns:
        F = 2048 flops_per_step / tokens_per_step / 1e12 and B = P tokens_per_step / flops_per_step.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    flops = check_range("flops_per_step", flops_per_step, above=0.0)
    tokens = check_range("tokens_per_step", tokens_per_step, above=0.0)
    total = check_range("total_parameters", total_parameters, above=0.0)
    return Compute(flops * (TABLE_SEQUENCE_LENGTH / 1e12) / tokens, total * tokens / flops)


def effective_utilisation(utilisation: np.ndarray, B_start: float, B_max: float, B_min: float) -> np.ndarray:
    """Return B̂, the effective utilisation.

    Args:
        utilisation: B, any shape, finite, at least B_min.
        B_start: B̂ at B = B_min, above 0.
        B_max: limit of B̂ for large B, above B_start; may be math.inf.
        B_min: the least B, above 0.

    Returns:
        B̂, the shape of `utilisation`, in [B_start, B_max).

    Raises:
        ValueError: an entry is not finite or below B_min, B_min is not above 0, or not 0 < B_start < B_max.
    """
    return B_start * np.exp(_log_ratio(utilisation, B_start, B_max, B_min))


def predict_loss(teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the loss L that the law predicts.

    Args:
        teraflops: F, above 0.
        utilisation: B, at least B_min; broadcast against `teraflops`.
        coefficients: the law.

    Returns:
        L, nats per token, the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.
    """
    a, b, c, d = coefficients[:4]
    log_flops = np.log(check_range("teraflops", teraflops, above=0.0)) / _LOG_10
    return np.exp(_LOG_10 * (d + a * log_flops) + (b + c * log_flops) * _log_effective(utilisation, coefficients))


def slope_in_utilisation(teraflops: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 B̂ = b + c log10 F. Negative where more parameters per FLOP help.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    log_flops = np.log(check_range("teraflops", teraflops, above=0.0))
    return coefficients.b + coefficients.c / _LOG_10 * log_flops


def slope_in_teraflops(utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return d log10 L / d log10 F = a + c log10 B̂ at a fixed B.

    Raises:
        ValueError: as `effective_utilisation`.
    """
    return coefficients.a + coefficients.c / _LOG_10 * _log_effective(utilisation, coefficients)


def effective_teraflops(
    teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationCoefficients
) -> np.ndarray:
    """Return F̄, the TeraFLOPs of the model at B = B_min that the law gives the same loss as (F, B).

    Setting L(F̄, B_min) = L(F, B) in the law leaves

        (a + c log10 B_start) log10 F̄ = (a + c log10 B̂) log10 F + b (log10 B̂ - log10 B_start).

    Args:
        teraflops: F, above 0.
        utilisation: B, at least B_min; broadcast against `teraflops`.
        coefficients: the law; a + c log10 B_start must not be 0.

    Returns:
        F̄, the broadcast shape; F itself at B = B_min. F̄/F is what routing saves in compute at equal loss.

    Raises:
        ValueError: an entry is out of its range, or a + c log10 B_start is 0 (F does not change the loss at B_min).

    Differs from the reference: computed as log F̄ = log F + log(B̂/B_start) · (b + c log10 F) / (a + c log10 B_start).
    """
    ratio = _log_ratio(utilisation, *coefficients[4:])
    dense_slope = coefficients.a + coefficients.c * math.log10(coefficients.B_start)
    if dense_slope == 0:
        raise ValueError("a + c log10 B_start is 0: no F at B_min is equivalent, since F does not change the loss")
    log_flops = np.log(check_range("teraflops", teraflops, above=0.0))
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_flops + slope_in_utilisation(teraflops, coefficients) / dense_slope * ratio)


def teraflops_for_loss(utilisation: np.ndarray, loss: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the F at which a model of utilisation B reaches a loss: a level curve. Inverse of `predict_loss`.

    Args:
        utilisation: B, at least B_min.
        loss: the target, nats per token, above 0; broadcast against `utilisation`.
        coefficients: the law.

    Returns:
        F, the broadcast shape; NaN where the loss does not fall with F (a + c log10 B̂ >= 0); inf or 0 beyond the range
        of float64.

    Raises:
        ValueError: an entry is out of its range.
    """
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
    """Fit the law to a table, globally on the domain B_min/10 <= B_start < B_max <= inf.

    Args:
        teraflops: [n], F, above 0.
        utilisation: [n], B, above 0 and at least B_min.
        loss: [n], L, nats per token, above 0.
        B_min: where B̂ begins; the least B of the rows if None.
        huber: as `fit_routed`.

    Returns:
        The fit, as good as that of `fit_routed`, through which it goes.

    Raises:
        ValueError: lengths differ, an entry is not finite or out of its range, or the rows cannot determine the law (as
            `fit_routed` says, with teraflops for size and utilisation for num_experts).
    """
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
    """Return the loss L that a fit predicts, whatever its status.

    Args:
        curve: `UtilisationFit.curve`.
        teraflops: F, above 0.
        utilisation: B, at least B_min; broadcast against `teraflops`.

    Returns:
        L, nats per token, the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.
    """
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
