"""Fit the bounded law of `routed.py` to its global optimum by variable projection.

The fit minimises the mean squared difference between predicted and measured log10 loss (Clark et al. 2022, arXiv
2202.01169; its root is their RMSLE). The authors' notebook minimises over all six coefficients from 500 random starts.
In five such runs for each of the three routers, the best start ended 0.04 to 4.5 % above the least known value (`make
bench BENCH="--only law-fits"` runs such starts). This file splits the problem instead:

1. Two coefficients are not linear, E_start and E_max. Write x = E - 1. The law's Ê is exactly

       Ê = E_start · (1 + rise·x / (1 + bend·x)),   rise = (1/E_start)(1 - E_start/E_max)²,
                                                   bend = (1/E_max)(1 - E_start/E_max).

2. Given rise and bend, log10 L is linear in four unknowns:

       log10 L = intercept + size·log10 N + (gain + interaction·log10 N)·ψ(x)

   Here ψ(x) is log(1 + rise·x/(1 + bend·x)), divided by its value at the largest E of the table. So it runs from 0 (E =
   1) to 1. Least squares with four columns gives the unknowns (`residual_sum`). log10 Ê is a linear function of ψ, so
   both give the same laws.
3. The residual sum is now a function of two variables. `shape` maps the unit square onto all allowed pairs, limits
   included. `minimise` scans the square line by line and refines its local minima. `residual_sum`, `shape` and
   `minimise` are in `_projection.py`.

The scan does not prove that the optimum is global: it would miss a minimum that lies wholly between its points. Tests
compare the fit with much denser scans in other coordinates.

The domain is 1 <= E_start < E_max <= ∞. The bound E_start >= 1 is our choice. The search covers each edge of the domain
separately (`_FACES`): E_start = 1 (the smallest allowed); E_max = ∞ (bend = 0, ψ = log(1 + x/E_start)); both at once;
and the *linear limit*, where E_start → E_max or E_start → ∞ and ψ → x/x_top. In the linear limit the law has no finite
coefficients, but its predictions exist. The status of a fit reports an optimum on an edge.

A few bad rows can move a least-squares fit arbitrarily far. With `huber` the fit minimises the sum of Huber terms
instead, over the same domain. Step 2 is then a convex problem with its own method (`_huber.py`). Step 3 is unchanged.

A fit is slow: it solves ten to thirty thousand small least-squares problems, one after the other.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from .numerics import _huber
from .numerics._projection import (
    RESOLUTION,
    Logs,
    check_range,
    check_rows,
    columns,
    expert_curve,
    minimise,
    residual_sum,
    shape,
)
from .routed import RoutedCoefficients

Status = Literal["interior", "E_start at 1", "E_max unbounded", "E_start at 1, E_max unbounded", "linear limit"]

_FACES: tuple[tuple[Status, tuple[float, float], tuple[float, float]], ...] = (
    ("linear limit", (0.0, 0.0), (0.0, 0.0)),
    ("E_start at 1, E_max unbounded", (1.0, 1.0), (0.0, 0.0)),
    ("E_start at 1", (1.0, 1.0), (0.0, 1.0)),
    ("E_max unbounded", (0.0, 1.0), (0.0, 0.0)),
    ("interior", (0.0, 1.0), (0.0, 1.0)),
)
"""Pieces of the unit square (t, w) of `shape`, from the smallest set to the largest, each as (status, t range, w
range). A larger piece contains the smaller pieces, so the fit takes it only if it is better by more than rounding."""

_TIE = 1e-13  # if objectives differ by less (relative), the smaller piece of _FACES wins


class LossCurve(NamedTuple):
    """The fitted law in a form that always exists, even in the linear limit. With x = E - 1:

        log10 L = intercept + size·log10 N + (gain + interaction·log10 N)·ψ(x)

    where ψ(x) = log(1 + rise·x/(1 + bend·x)), divided by its value at x = top.

    Attributes:
        intercept: log10 L at N = 1, E = 1
        size: d log10 L / d log10 N at E = 1
        gain: change of log10 L from E = 1 to E = 1 + top, at N = 1
        interaction: change of the gain per decade of N
        rise: 1/experts; 0 in the linear limit, where ψ(x) = x/top
        bend: 1/experts; 0 where E_max is infinite
        top: largest E - 1 of the table, where ψ = 1
    """

    intercept: float
    size: float
    gain: float
    interaction: float
    rise: float
    bend: float
    top: float


class RoutedFit(NamedTuple):
    """The best fit of the bounded law to a table.

    Attributes:
        coefficients: the law; E_max may be inf, and all are NaN in the linear limit
        curve: the same fit, for prediction: see `predict_curve`
        objective: the least value of `criterion`
        rmsle: root mean squared difference of log10 losses, for every criterion
        status: "interior", or the edge of the domain that contains the optimum
        covariance: [6, 6], of the coefficients in their order; 0 for a coefficient on an edge, NaN in the linear limit
        rows: number of rows
        criterion: a description of the minimised quantity
    """

    coefficients: RoutedCoefficients
    curve: LossCurve
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str


def fit_routed(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, huber: float | None = None
) -> RoutedFit:
    """Fit log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d to a table, globally.

    Args:
        dense_parameters: [n], N, parameters, above 0.
        num_experts: [n], E, at least 1; a dense model is E = 1.
        loss: [n], L, nats per token, above 0.
        huber: None for least squares (Clark et al. 2022), or the delta of Huber terms, in log10 units, above 0 (our
            choice). A Huber term is r²/2 up to delta and delta (|r| - delta/2) beyond.

    Returns:
        The fit. `objective` is within a relative 1e-12 of the global minimum if the scan separates all local minima.
        Several minima may be close together if `huber` is far below the residuals.

    Raises:
        ValueError: lengths differ, an entry or `huber` is out of its range, or the rows cannot determine the law. They
            need 7 rows, 4 different E, 6 different pairs (N, E), and independent columns.

    Example:
        A fit to losses of the law recovers its coefficients.

        >>> from routelaws.reference.laws.routed import predict_loss
        >>> law = RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)
        >>> size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1, 4, 16, 64, 256]))
        >>> fit = fit_routed(size, experts, predict_loss(size, experts, law))
        >>> fit.status, [round(value, 3) for value in fit.coefficients]
        ('interior', [-0.08, -0.11, 0.009, 1.1, 2.0, 300.0])

        One loss is 10 % too high. The least-squares fit fails; the Huber fit changes little.

        >>> wrong = predict_loss(size, experts, law) * np.where(np.arange(15) == 7, 1.1, 1.0)
        >>> for huber in (None, 1e-2):
        ...     fit = fit_routed(size, experts, wrong, huber)
        ...     print(f"{fit.criterion}:", [round(value, 2) for value in fit.coefficients])
        mean squared difference of log10 losses: [-0.08, -18.44, 1.49, 1.05, 1.0, 1.03]
        sum of Huber terms of log10 losses, delta = 0.01: [-0.08, -0.11, 0.01, 1.11, 2.61, 357.18]
    """
    return _fit_columns(dense_parameters, num_experts, loss, huber)


def predict_curve(curve: LossCurve, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return the loss L that a fit predicts, for every status.

    Args:
        curve: `RoutedFit.curve`.
        dense_parameters: N, parameters, above 0.
        num_experts: E, at least 1; broadcast against `dense_parameters`.

    Returns:
        L in nats per token, with the broadcast shape.

    Raises:
        ValueError: an entry is out of its range.
    """
    log_size = np.log10(check_range("dense_parameters", dense_parameters, above=0.0))
    extra = check_range("num_experts", num_experts, least=1.0) - 1.0
    psi = expert_curve(extra, curve.rise, curve.bend, curve.top)
    with np.errstate(over="ignore"):  # a fit to very wrong losses may predict inf
        return 10.0 ** (curve.intercept + curve.size * log_size + (curve.gain + curve.interaction * log_size) * psi)


def _fit_columns(dense_parameters, num_experts, loss, huber: float | None, *words) -> RoutedFit:
    """Return the best fit to a table (step 3): the best over the pieces of the domain. See `check_rows` for `words`."""
    rows = check_rows(dense_parameters, num_experts, loss, *words)
    huber = None if huber is None else _huber.check_delta(huber, "in log10 units")

    def least_sum(t: float, w: float) -> float:
        rise, bend = shape(t, w, rows.extra_experts.max())
        if huber is None:
            return residual_sum(rows, rise, bend)
        return _huber.solve(rows, rise, bend, huber)[0]

    minima = [(status, *minimise(least_sum, t_range, w_range)) for status, t_range, w_range in _FACES]  # t, w, value
    floor = rows.log_loss.size * RESOLUTION**2  # rounding of the criterion; it matters only for noise-free tables
    if huber is not None:
        floor = rows.log_loss.size * float(_huber.terms(np.array(RESOLUTION), huber))
    lowest = min(value for _, _, _, value in minima)
    status, t, w, _ = next(piece for piece in minima if piece[3] <= lowest * (1 + _TIE) + floor)  # the smallest piece
    return _describe(rows, status, *shape(t, w, rows.extra_experts.max()), huber)


def _describe(rows: Logs, status: Status, rise: float, bend: float, huber: float | None) -> RoutedFit:
    rise, bend, top = float(rise), float(bend), float(rows.extra_experts.max())
    centre = float(rows.log_size.mean())
    design, target = columns(rows, rise, bend), rows.log_loss
    if huber is not None:  # predictions at this shape; the columns fit them exactly
        target = target - _huber.solve(rows, rise, bend, huber)[1]
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    residual = rows.log_loss - design @ solution
    square = float(np.mean(residual**2))
    objective = square if huber is None else float(_huber.terms(residual, huber).sum())
    criterion = "mean squared difference of log10 losses"
    if huber is not None:
        criterion = f"sum of Huber terms of log10 losses, delta = {huber:g}"
    intercept, size, gain, interaction = (float(value) for value in solution)
    curve = LossCurve(intercept - size * centre, size, gain - interaction * centre, interaction, rise, bend, top)
    coefficients = _coefficients(curve, status)
    # The search covers all six coefficients, so there are n - 6 degrees of freedom even on an edge.
    variance, _ = _huber.error_variance(residual, math.inf if huber is None else huber, 6)
    covariance = _covariance(rows, coefficients, status, variance)
    return RoutedFit(coefficients, curve, objective, math.sqrt(square), status, covariance, residual.size, criterion)


def _coefficients(curve: LossCurve, status: Status) -> RoutedCoefficients:
    """Return the coefficients of the law: insert log10 Ê = log10 E_start + span·ψ into step 2."""
    if status == "linear limit":
        return RoutedCoefficients(*[math.nan] * 6)
    both = curve.rise + curve.bend  # 1/E_start - 1/E_max
    E_start = 1.0 if status.startswith("E_start at 1") else curve.rise / both**2
    E_max = math.inf if curve.bend == 0 else curve.rise / (both * curve.bend)
    span = math.log1p(curve.rise * curve.top / (1 + curve.bend * curve.top)) / math.log(10)
    b, c = curve.gain / span, curve.interaction / span
    a, d = curve.size - c * math.log10(E_start), curve.intercept - b * math.log10(E_start)
    return RoutedCoefficients(a, b, c, d, E_start, E_max)


def _covariance(rows: Logs, coefficients: RoutedCoefficients, status: Status, error_variance: float) -> np.ndarray:
    """Return the Gauss-Newton covariance of the six coefficients, `error_variance` times (JᵀJ)⁻¹.

    J comes from `_derivatives`. A coefficient on an edge (E_start = 1, E_max = ∞) is fixed: its row and column are 0.
    In the linear limit every entry is NaN. The covariance is a quadratic approximation, but the valley of E_start and
    E_max is not quadratic. `uncertainty.py` does not use it.
    """
    if status == "linear limit":
        return np.full((6, 6), np.nan)
    free = [0, 1, 2, 3]
    if not status.startswith("E_start at 1"):
        free.append(4)
    if not math.isinf(coefficients.E_max):
        free.append(5)
    derivatives = _derivatives(rows, coefficients)[:, free]
    scale = np.linalg.norm(derivatives, axis=0)  # columns differ by many orders of magnitude
    inverse = np.linalg.pinv(derivatives / scale) / scale[:, None]
    covariance = np.zeros((6, 6))
    covariance[np.ix_(free, free)] = error_variance * inverse @ inverse.T
    return covariance


def _derivatives(rows: Logs, coefficients: RoutedCoefficients) -> np.ndarray:
    """Return the derivatives [n, 6] of the predicted log10 L by a, b, c, d, E_start and E_max."""
    _, b, c, _, E_start, E_max = coefficients
    saturation = 0.0 if math.isinf(E_max) else 1 / E_max
    offset = 1 / (1 / E_start - saturation)
    experts = 1 / (1 / (rows.extra_experts + offset) + saturation)
    decay = (offset / (rows.extra_experts + offset)) ** 2
    slope = (b + c * rows.log_size) * experts / math.log(10)
    log_experts = np.log10(experts)
    by_a_to_d = [rows.log_size, log_experts, rows.log_size * log_experts, np.ones_like(slope)]
    by_start, by_max = slope * decay / E_start**2, slope * (1 - decay) * saturation**2
    return np.stack([*by_a_to_d, by_start, by_max], axis=1)


# What this file does not do: intervals (`uncertainty.py`); selection of rows from a table of runs.
