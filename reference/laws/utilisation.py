"""The bounded law of compute: how the loss falls with the FLOPs F of a model and its parameters per FLOP, B.

This is the law of `routed.py` with F instead of N and B instead of E (Clark et al. 2022, arXiv 2202.01169). One law
describes models with different numbers of experts per token, routing frequencies or dense widths, because these change
F and B. Logarithms are decimal.

    log10 L = a log10 F + b log10 B̂ + c log10 F log10 B̂ + d

    1/B̂ = 1 / (B - B_min + (1/B_start - 1/B_max)⁻¹) + 1/B_max

where  L  loss of the last evaluation, nats per token, above 0
       F  TeraFLOPs (1e12) of the forward pass of one sequence of 2048 tokens. Elsewhere in this project F is the
          FLOPs of one token; here F is 2048/1e12 times as large
       B  parameter utilisation ratio: total parameters P per FLOP of the forward pass of one *token*, as in the whole
       project.
          So B is not P divided by the F of this law
       B_min  the B of a dense model, where B̂ = B_start; B is never below B_min
       B̂  effective utilisation; it rises with B from B_start and stays below B_max, which may be infinite.

The units of F and B are our choice; we could not check them against the paper's text. B_min is also our choice: by
default the least B of the rows. Dense models differ in B by a factor of two: 0.19 for the smallest released model, 0.39
for the largest. Attention scores and the output layer add to F but not to P, most of all in small models. Only the
smallest dense model has B = B_min, so the law treats larger dense models like models with experts.

`fitting.py` does the fit, on the table (F, E') with E' = 1 + (B - B_min)/u for a unit u. The equation of Ê in
`routed.py`, multiplied by u, is the equation of B̂ above, with the *change of unit*

    B̂ = u Ê',  B_start = u E_start',  B_max = u E_max',    and from log10 Ê' = log10 B̂ - log10 u
    a = a' - c' log10 u,   b = b',   c = c',   d = d' - b' log10 u.

So E_start' >= 1 in `fitting.py` means B_start >= u here; u = B_min/10 is our choice. The fit needs this bound: for
B_start → 0 the law only separates the model with the lowest B from all other models. The optima of the released runs
lie at 6 to 38 times the bound. They do not change with bounds of B_min/2 and B_min/10,000.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..accounting import TABLE_SEQUENCE_LENGTH, TABLE_TOKENS_PER_STEP
from ..errors import InputError
from . import fitting, floored
from .confidence.intervals import Predicted, Range
from .confidence.smooth_intervals import smooth_predictions
from .fitting import LossCurve, RoutedFit, predict_curve
from .numerics._columns import bilinear, check_columns, effective, reach, worth
from .numerics._projection import Words, check_range
from .tokens.additive import AdditiveFit

Status = Literal[
    "interior", "B_start at its floor", "B_max unbounded", "B_start at its floor, B_max unbounded", "linear limit"
]

FLOOR = 0.1
"""The unit u as a share of B_min. It is also the least B_start that a fit allows."""

_WORDS = Words(
    size="teraflops",
    sizes="values of teraflops",
    experts="utilisation",
    expert_count="value of utilisation",
    expert_counts="values of utilisation",
    searched="B_start and B_max",
    instead="",
)

_STATUSES: dict[str, Status] = {
    "interior": "interior", "E_start at 1": "B_start at its floor", "E_max unbounded": "B_max unbounded",
    "E_start at 1, E_max unbounded": "B_start at its floor, B_max unbounded", "linear limit": "linear limit",
}  # fmt: skip
"""The status of this law for each status of the fit in (F, E')."""


class Compute(NamedTuple):
    """F and B, the two data columns of the law.

    Attributes:
        teraflops: F, 1e12 FLOPs of the forward pass of 2048 tokens
        utilisation: B, parameters per FLOP of the forward pass of one token
    """

    teraflops: np.ndarray
    utilisation: np.ndarray


class UtilisationCoefficients(NamedTuple):
    """The six coefficients of the (F, B) law, and B_min.

    Attributes:
        a: d log10 L / d log10 F at B̂ = 1
        b: d log10 L / d log10 B̂ at F = 1
        c: change of the slope against log10 B̂ per decade of F
        d: log10 L at F = 1, B̂ = 1
        B_start: B̂ at B = B_min, 0 < B_start < B_max
        B_max: the limit of B̂ for large B; may be math.inf
        B_min: the least B, above 0; not fitted
    """

    a: float
    b: float
    c: float
    d: float
    B_start: float
    B_max: float
    B_min: float


class UtilisationFloorCoefficients(NamedTuple):
    """The seven coefficients of the (F, B) law with a floor L0, nats per token, and B_min.

    The first six are as in `UtilisationCoefficients`, for log10(L - L0). B_start is above 0.
    """

    a: float
    b: float
    c: float
    d: float
    B_start: float
    B_max: float
    L0: float
    B_min: float


class UtilisationCurve(NamedTuple):
    """The fitted law in a form that always exists, even in the linear limit.

    Attributes:
        curve: the curve with F for N, and E' = 1 + (B - B_min)/unit for E
        B_min: the least B
        unit: u, in units of B
    """

    curve: LossCurve
    B_min: float
    unit: float


class UtilisationFit(NamedTuple):
    """The best fit of the (F, B) law to a table.

    Attributes:
        coefficients: the law; B_max may be inf, and all except B_min are NaN in the linear limit
        curve: the same fit, for prediction: see `predict_utilisation`
        objective: the least value of `criterion`
        rmsle: root of the mean squared difference of log10 losses
        status: "interior", or the edge of the domain that contains the optimum
        covariance: [7, 7], of the coefficients in their order; 0 for fixed coefficients such as B_min
        rows: number of rows
        criterion: a description of the minimised quantity
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
        total_parameters: P, above 0; broadcasts with the other arguments.
        tokens_per_step: tokens of one training step, above 0: 524,288 in the released table, batch_size times
            sequence_length in our own tables.

    Returns:
        F = 2048 flops_per_step / tokens_per_step / 1e12 and B = P tokens_per_step / flops_per_step.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        The smallest dense model of the released table.

        >>> F, B = compute_columns(4.4563477266432e13, 16_527_360)
        >>> print(round(float(F), 4), round(float(B), 4))
        0.1741 0.1944
    """
    flops = check_range("flops_per_step", flops_per_step, above=0.0)
    tokens = check_range("tokens_per_step", tokens_per_step, above=0.0)
    per_token = flops / tokens
    total = check_range("total_parameters", total_parameters, above=0.0)
    return Compute(per_token * TABLE_SEQUENCE_LENGTH / 1e12, total / per_token)


def effective_utilisation(utilisation: np.ndarray, B_start: float, B_max: float, B_min: float) -> np.ndarray:
    """Return B̂, the effective utilisation.

    Args:
        utilisation: B, any shape, finite, at least B_min.
        B_start: B̂ at B = B_min, above 0.
        B_max: limit of B̂ for large B, above B_start; may be math.inf.
        B_min: the least B, above 0.

    Returns:
        B̂ with the shape of `utilisation`, at least B_start and below B_max.

    Raises:
        ValueError: an entry is not finite or below B_min, B_min is not above 0, or not 0 < B_start < B_max.

    Example:
        With B_start = 0.2 and B_max = 0.4, the inner term is 1 / (5 - 2.5) = 0.4. Then B̂ is 1 / (2.5 + 2.5) = 0.2 =
        B_start at B = B_min, and 1 / (1/1.2 + 2.5) = 0.3 at B - B_min = 0.8.

        >>> effective_utilisation(np.array([0.25, 1.05]), 0.2, 0.4, 0.25).round(6)
        array([0.2, 0.3])
    """
    least = float(check_range("B_min", B_min, above=0.0))
    if not (0 < B_start < B_max):
        raise InputError(f"B_start is {B_start} and B_max is {B_max}; needed: 0 < B_start < B_max")
    return effective(check_range("utilisation", utilisation, least=least) - least, B_start, B_max)


def predict_loss(teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the loss L that the law predicts.

    Args:
        teraflops: F, above 0.
        utilisation: B, at least B_min; broadcast against `teraflops`.
        coefficients: the law.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.

    Example:
        At F = 10 and B̂ = 1: log10 L = -0.1 * 1 + 0.4 = 0.3.

        >>> law = UtilisationCoefficients(-0.1, -0.05, 0.01, 0.4, 0.2, math.inf, 0.25)
        >>> print(round(float(predict_loss(10.0, 1.05, law)), 6), round(10**0.3, 6))
        1.995262 1.995262
    """
    log_flops = np.log10(check_range("teraflops", teraflops, above=0.0))
    log_utilisation = np.log10(effective_utilisation(utilisation, *coefficients[4:]))
    return bilinear(coefficients[:4], log_flops, log_utilisation)


def slope_in_utilisation(teraflops: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the slope of log10 L against log10 B̂, b + c log10 F. It is negative where more parameters per FLOP help.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        >>> law = UtilisationCoefficients(-0.1, -0.05, 0.01, 0.4, 0.2, math.inf, 0.25)
        >>> print(round(float(slope_in_utilisation(100.0, law)), 6))
        -0.03
    """
    return coefficients.b + coefficients.c * np.log10(check_range("teraflops", teraflops, above=0.0))


def slope_in_teraflops(utilisation: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the slope of log10 L against log10 F at a fixed B, a + c log10 B̂.

    Raises:
        ValueError: `effective_utilisation` raises this error.

    Example:
        >>> law = UtilisationCoefficients(-0.1, -0.05, 0.01, 0.4, 0.1, math.inf, 0.25)
        >>> print(round(float(slope_in_teraflops(0.25, law)), 6))
        -0.11
    """
    return coefficients.a + coefficients.c * np.log10(effective_utilisation(utilisation, *coefficients[4:]))


def effective_teraflops(
    teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationCoefficients
) -> np.ndarray:
    """Return F̄, the TeraFLOPs of the model at B = B_min that has the predicted loss of (F, B).

    L(F̄, B_min) = L(F, B) gives

        (a + c log10 B_start) log10 F̄ = (a + c log10 B̂) log10 F + b (log10 B̂ - log10 B_start).

    Args:
        teraflops: F, above 0.
        utilisation: B, at least B_min; broadcast against `teraflops`.
        coefficients: the law; a + c log10 B_start must not be 0.

    Returns:
        F̄ with the broadcast shape; F itself at B = B_min. F̄/F is the factor by which routing saves compute at equal
        loss.

    Raises:
        ValueError: an entry is out of its range, or a + c log10 B_start is 0 (F does not change the loss at B_min).

    Example:
        With c = 0, a = -0.1 and b = -0.05, four times the B̂ is worth 4^0.5 times the FLOPs.

        >>> law = UtilisationCoefficients(-0.1, -0.05, 0.0, 0.4, 0.2, math.inf, 0.25)
        >>> print(round(float(effective_teraflops(3.0, 0.85, law)), 6))
        6.0
    """
    log_flops = np.log10(check_range("teraflops", teraflops, above=0.0))
    log_utilisation = np.log10(effective_utilisation(utilisation, *coefficients[4:]))
    log_start = math.log10(coefficients.B_start)
    if coefficients.a + coefficients.c * log_start == 0:
        raise InputError(
            "a + c log10 B_start is 0: F does not change the loss at B_min, so no model there has the loss of (F, B)"
        )
    return worth(coefficients[:4], log_flops, log_utilisation, log_start)


def teraflops_for_loss(utilisation: np.ndarray, loss: np.ndarray, coefficients: UtilisationCoefficients) -> np.ndarray:
    """Return the F at which a model of utilisation B reaches a loss.

    Args:
        utilisation: B, at least B_min.
        loss: the target, nats per token, above 0; broadcast against `utilisation`.
        coefficients: the law.

    Returns:
        F with the broadcast shape; NaN where a + c log10 B̂ >= 0 (the loss does not fall with F); inf or 0 where F is
        out of the range of float64.

    Raises:
        ValueError: an entry is out of its range.

    Example:
        The example of `predict_loss`, inverted.

        >>> law = UtilisationCoefficients(-0.1, -0.05, 0.01, 0.4, 0.2, math.inf, 0.25)
        >>> print(round(float(teraflops_for_loss(1.05, 10**0.3, law)), 6))
        10.0
    """
    log_utilisation = np.log10(effective_utilisation(utilisation, *coefficients[4:]))
    log_loss = np.log10(check_range("loss", loss, above=0.0))
    level, slope = coefficients.b * log_utilisation + coefficients.d, coefficients.a + coefficients.c * log_utilisation
    return reach(log_loss, level, slope, never=math.nan)


def fit_utilisation(
    teraflops: np.ndarray,
    utilisation: np.ndarray,
    loss: np.ndarray,
    B_min: float | None = None,
    huber: float | None = None,
    *,
    search=fitting._fit_columns,
) -> UtilisationFit:
    """Fit the law to a table, globally on the domain B_min/10 <= B_start < B_max <= inf.

    Args:
        teraflops: [n], F, above 0.
        utilisation: [n], B, above 0 and at least B_min.
        loss: [n], L, nats per token, above 0.
        B_min: the B at which B̂ = B_start; the least B of the rows if None.
        huber: as in `fit_routed`.
        search: how to search; the accelerated package passes its own.

    Returns:
        The fit. `fit_routed` describes its precision.

    Raises:
        ValueError: lengths differ, an entry is not finite or out of its range, or the rows cannot determine the law.
            `fit_routed` lists the requirements; replace N by F, and E by B.

    Example:
        A fit to losses of the law recovers its coefficients.

        >>> law = UtilisationCoefficients(-0.08, -0.04, 0.01, 0.4, 0.14, 18.0, 0.2)
        >>> F, B = (v.ravel() for v in np.meshgrid([0.2, 1.0, 5.0], [0.2, 0.5, 2.0, 8.0, 30.0]))
        >>> fit = fit_utilisation(F, B, predict_loss(F, B, law))
        >>> fit.status, [round(value, 3) for value in fit.coefficients]
        ('interior', [-0.08, -0.04, 0.01, 0.4, 0.14, 18.0, 0.2])
    """
    check_columns(teraflops=teraflops, utilisation=utilisation, loss=loss)
    least = float(np.min(utilisation) if B_min is None else check_range("B_min", B_min, above=0.0))
    extra = np.atleast_1d(check_range("utilisation", utilisation, least=least)) - least
    unit = FLOOR * least
    fit = search(teraflops, 1.0 + extra / unit, loss, huber, _WORDS)
    covariance = np.zeros((7, 7))
    change = _change_of_unit(unit)
    covariance[:6, :6] = change @ fit.covariance @ change.T
    curve = UtilisationCurve(fit.curve, least, unit)
    return UtilisationFit(
        _coefficients(fit, unit, least),
        curve,
        fit.objective,
        fit.rmsle,
        _STATUSES[fit.status],
        covariance,
        fit.rows,
        fit.criterion,
    )


def predict_utilisation(curve: UtilisationCurve, teraflops: np.ndarray, utilisation: np.ndarray) -> np.ndarray:
    """Return the loss L that a fit predicts, also at an edge of the domain (`UtilisationFit.status`).

    Args:
        curve: `UtilisationFit.curve`.
        teraflops: F, above 0.
        utilisation: B, at least B_min; broadcast against `teraflops`.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.
    """
    flops = check_range("teraflops", teraflops, above=0.0)
    extra = check_range("utilisation", utilisation, least=curve.B_min) - curve.B_min
    return predict_curve(curve.curve, flops, 1.0 + extra / curve.unit)


def _change_of_unit(unit: float) -> np.ndarray:
    """Return the matrix [6, 6] of the change of unit, from coefficients in (F, E') to coefficients in (F, B)."""
    log_unit = math.log10(unit)
    change = np.diag([1.0, 1.0, 1.0, 1.0, unit, unit])
    change[0, 2] = change[3, 1] = -log_unit
    return change


def _coefficients(fit: RoutedFit, unit: float, least: float) -> UtilisationCoefficients:
    """Return the coefficients after the change of unit. A matrix product would give NaN for an infinite B_max."""
    a, b, c, d, E_start, E_max = fit.coefficients
    log_unit = math.log10(unit)
    return UtilisationCoefficients(a - c * log_unit, b, c, d - b * log_unit, E_start * unit, E_max * unit, least)


def fit_utilisation_floor(
    fit: Callable, teraflops: np.ndarray, utilisation: np.ndarray, loss: np.ndarray, huber=None, B_min=None
) -> AdditiveFit:
    """Fit the law with a floor: it is the bounded law with a floor in (F, E'), with E' = 1 + B - B_min.

    Args:
        fit: `floored.fit_floored` of the bounded law.
        teraflops, utilisation, loss, B_min: as in `fit_utilisation`.
        huber: as in `floored.fit_floored`.

    Raises:
        ValueError: `fit` raises this error, or a B is below B_min.

    Example:
        A fit to losses of the law recovers its coefficients.

        >>> from functools import partial
        >>> from routelaws.reference.laws.floored import BoundedFloorCoefficients, fit_floored
        >>> law = UtilisationFloorCoefficients(-0.1, -0.1, 0.01, 0.2, 0.14, 18.0, 1.5, 0.2)
        >>> F, B = (v.ravel() for v in np.meshgrid([0.2, 1.0, 5.0, 20.0], [0.2, 0.5, 2.0, 8.0, 30.0]))
        >>> loss = predict_utilisation_floor(F, B, law)
        >>> best = fit_utilisation_floor(partial(fit_floored, BoundedFloorCoefficients), F, B, loss)
        >>> best.status, [round(value, 3) for value in best.coefficients]
        ('interior', [-0.1, -0.1, 0.01, 0.2, 0.14, 18.0, 1.5, 0.2])
    """
    least = float(np.min(utilisation) if B_min is None else B_min)
    best = fit(*_as_experts(least, teraflops, utilisation), loss, huber)
    coefficients = UtilisationFloorCoefficients(*best.coefficients, least)
    status = best.status.replace("E_", "B_")
    return best._replace(coefficients=coefficients, status=status, covariance=np.pad(best.covariance, (0, 1)))


def predict_utilisation_floor(
    teraflops: np.ndarray, utilisation: np.ndarray, coefficients: UtilisationFloorCoefficients
) -> np.ndarray:
    """Return the loss L of the law with a floor; arguments as in `predict_loss`."""
    *above, L0, least = coefficients
    return L0 + predict_loss(teraflops, utilisation, UtilisationCoefficients(*above, least))


def utilisation_floor_ranges(
    intervals: Callable, fit: AdditiveFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return the seven coefficients and F_cutoff with their intervals (`floored.floored_ranges`)."""
    *values, least = fit.coefficients
    fit = fit._replace(coefficients=floored.BoundedFloorCoefficients(*values))
    names = {"E_start": "B_start", "E_max": "B_max", "N_cutoff": "F_cutoff"}
    ranges = floored.floored_ranges(intervals, fit, _as_experts(least, *columns), loss, level)
    return [each._replace(name=names.get(each.name, each.name)) for each in ranges]


def utilisation_floor_predictions(
    intervals: Callable, fit: AdditiveFit, columns: Sequence[np.ndarray], loss, points: Sequence, level: float = 0.95
) -> list[Predicted]:
    """Return the predicted loss at each point (F, B) with two intervals (`smooth_intervals.smooth_predictions`)."""
    *values, least = fit.coefficients
    points = np.stack(_as_experts(least, *np.transpose(points)), axis=1)
    return smooth_predictions(
        intervals, fit._replace(coefficients=tuple(values)), _as_experts(least, *columns), loss, points, level
    )


def _as_experts(least: float, teraflops: np.ndarray, utilisation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return F and E' = 1 + B - B_min."""
    return np.asarray(teraflops), 1.0 + check_range("utilisation", utilisation, least=least) - least


# What this file does not do: choose the rows of a table of runs, or give the uncertainty of a fit
# (`bounded_intervals.py`).
