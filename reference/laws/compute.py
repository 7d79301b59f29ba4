"""The loss as a function of compute alone: a power law above a floor.

    L(C) = floor + A / C^α,   that is   ln(L - floor) = ln A - α ln C

where  L      loss of the best run at a budget, nats per token
       C      training FLOPs
       floor  the irreducible loss for any compute; given, not fitted (0 gives Kaplan's power law).

With a given floor the law is a straight line, so a new run has the classical interval. Let x be ln C, s² the residual
variance with n - 2 degrees of freedom, and q the quantile of Student's t. Then the interval is

    ln(L - floor) = line(x) ± q s √(1 + 1/n + (x - x̄)²/Σ(xᵢ - x̄)²)

The data determine the floor poorly. With any floor from 1.3 to 1.7, the root mean squared error over the six runs is
below 0.005 nats. Among the three floors in the example of `fit_compute`, 1.45 fits best. At 1e23 FLOPs the losses
predicted with these floors differ by 0.07. A speed-up does not depend on the budget. Let two recipes have the same
floor and α, and losses L_worse and L_better at one budget. Their compute then differs by the factor ((L_worse -
floor)/(L_better - floor))^(1/α) (`speedup`).

The registered prediction is from the repository of Marin, 2026: L = 1.6 + 95.18 C^-0.0941, from the best runs at six
budgets of 1e18 to 3e20. The losses at 1e21 and 1e23 were measured afterwards (`REGISTERED`).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ..errors import InputError
from .confidence.intervals import Predicted, Range, _both_intervals
from .confidence.uncertainty import student_quantile
from .numerics._projection import check_lengths, check_range, plural

Status = Literal["interior", "loss does not fall with compute"]

ATTESTED = "read in the source's text"
CRITERION = "mean squared difference of ln(L - floor)"


class ComputeCoefficients(NamedTuple):
    """The coefficients of the law: a given floor, and the two fitted coefficients.

    Attributes:
        floor: nats per token
        A: loss above the floor at one FLOP, nats per token
        alpha: power of C, above 0 if the loss falls with compute
    """

    floor: float
    A: float
    alpha: float


PUBLISHED = ComputeCoefficients(1.6, 95.18, 0.0941)

RUNS = ((1e18, 3.5273), (3e18, 3.3398), (1e19, 3.1494), (3e19, 3.0066), (1e20, 2.8509), (3e20, 2.7222))
"""Budget and loss of the six runs behind the prediction."""


class Registered(NamedTuple):
    """One prediction recorded before its run, and the result of the run.

    Attributes:
        flops: C, the budget of the run
        predicted: nats per token, recorded before the run
        measured: nats per token, of the run
    """

    flops: float
    predicted: float
    measured: float


REGISTERED = (Registered(1e21, 2.606, 2.599), Registered(1e23, 2.252, 2.233))


class ComputeFit(NamedTuple):
    """The best fit of the compute law to a table.

    Attributes:
        coefficients: the law; floor is the given floor
        objective: mean squared difference of ln(L - floor)
        rmsle: root mean squared difference of log10 L
        status: "interior" or "loss does not fall with compute"
        covariance: [2, 2] of the level at `centre` and α, which are uncorrelated
        rows: number of rows
        criterion: a description of the minimised quantity
        centre: mean of ln C
    """

    coefficients: ComputeCoefficients
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int
    criterion: str
    centre: float


def predict_loss(flops: np.ndarray, coefficients: ComputeCoefficients = PUBLISHED) -> np.ndarray:
    """Return the predicted loss L, nats per token. Raise ValueError unless each budget is finite and above 0.

    Example:
        >>> round(float(predict_loss(1e21)), 3)
        2.606
    """
    flops = check_range("flops", flops, above=0.0)
    return coefficients.floor + coefficients.A * flops**-coefficients.alpha


def fit_compute(flops: np.ndarray, loss: np.ndarray, floor: float = 0.0) -> ComputeFit:
    """Fit A and α at a given floor, by least squares of ln(L - floor).

    Args:
        flops: [n], C, above 0.
        loss: [n], L, nats per token, above the floor.
        floor: nats per token, at least 0.

    Raises:
        ValueError: lengths differ, an entry is out of its range, there are fewer than 3 rows, or all rows have the same
            budget.

    Example:
        >>> budgets, losses = zip(*RUNS)
        >>> fit = fit_compute(budgets, losses, floor=1.6)
        >>> round(fit.coefficients.A, 2), round(fit.coefficients.alpha, 4)
        (96.71, 0.0944)

        The errors of other floors, in nats, and their predictions at 1e23 FLOPs:

        >>> for floor in (1.3, 1.45, 1.7):
        ...     law = fit_compute(budgets, losses, floor).coefficients
        ...     misses = predict_loss(budgets, law) - losses
        ...     print(floor, round(float(np.sqrt(np.mean(misses**2))), 4), round(float(predict_loss(1e23, law)), 2))
        1.3 0.0035 2.2
        1.45 0.0031 2.22
        1.7 0.0048 2.27
    """
    floor = float(check_range("floor", floor, least=0.0))
    flops, loss = _check_rows(flops, loss, floor)
    centre, level = float(np.log(flops).mean()), float(np.log(loss - floor).mean())
    x = np.log(flops) - centre
    slope = float(x @ np.log(loss - floor)) / float(x @ x)
    residual = np.log(loss - floor) - level - slope * x
    variance = float(residual @ residual) / (flops.size - 2)
    coefficients = ComputeCoefficients(floor, math.exp(level - slope * centre), -slope)
    misses = np.log10(predict_loss(flops, coefficients) / loss)
    return ComputeFit(
        coefficients,
        float(np.mean(residual**2)),
        float(np.sqrt(np.mean(misses**2))),
        "interior" if slope < 0 else "loss does not fall with compute",
        np.diag([variance / flops.size, variance / float(x @ x)]),
        flops.size,
        CRITERION,
        centre,
    )


def _check_rows(flops: np.ndarray, loss: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return both columns as float64 [n]."""
    flops = np.atleast_1d(check_range("flops", flops, above=0.0))
    loss = np.atleast_1d(check_range("loss", loss, above=floor))
    check_lengths(flops=flops, loss=loss)
    if flops.size < 3 or np.unique(flops).size < 2:
        raise InputError(
            f"{plural(flops.size, 'row')} of {plural(np.unique(flops).size, 'budget')}; the compute law needs at "
            "least 3 rows of 2 budgets"
        )
    return flops, loss


def predict_interval(
    fit: ComputeFit, flops: np.ndarray, level: float = 0.95, observation: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of an interval at a budget: for the loss of a new run, or for the law.

    Args:
        fit: the result of `fit_compute`.
        flops: C, above 0, any shape.
        level: between 0 and 1.
        observation: True for the interval of a new run's loss, False for the interval of the law.

    Raises:
        ValueError: a budget or the level is out of its range.
    """
    line, variance = _line(fit, flops)
    if observation:
        variance = variance + float(fit.covariance[0, 0]) * fit.rows  # the residual variance
    reach = student_quantile(level, fit.rows - 2) * np.sqrt(variance)
    floor = fit.coefficients.floor
    return floor + np.exp(line - reach), floor + np.exp(line + reach)


def compute_intervals(
    fit: ComputeFit, columns: Sequence[np.ndarray], loss: np.ndarray, level: float = 0.95
) -> list[Range]:
    """Return A and α with their intervals, for `catalogue.Law`. Student's t applies to ln A and to α.

    Args:
        fit: the result of `fit_compute`.
        columns, loss: the rows of the fit; not needed here.
        level: between 0 and 1.
    """
    quantile = student_quantile(level, fit.rows - 2)
    _, A, alpha = fit.coefficients
    of_level, of_alpha = float(fit.covariance[0, 0]), float(fit.covariance[1, 1])
    reach = quantile * math.sqrt(of_level + fit.centre**2 * of_alpha)  # ln A = level + α · centre
    half = quantile * math.sqrt(of_alpha)
    with np.errstate(over="ignore"):  # an undetermined A has the interval 0 to infinity
        low, high = (A * np.exp([-reach, reach])).tolist()
    return [
        Range("A", None, A, low, high, ""),
        Range("alpha", None, alpha, alpha - half, alpha + half, ""),
    ]


def compute_prediction(
    fit: ComputeFit, columns: Sequence[np.ndarray], loss: np.ndarray, at: Sequence[float], level: float = 0.95
) -> Predicted:
    """Return the predicted loss at a budget, with two intervals (see `intervals.Predicted`), for `catalogue.Law`."""
    (flops,) = at
    return _both_intervals(predict_loss(flops, fit.coefficients), partial(predict_interval, fit, flops, level))


def speedup(worse: np.ndarray, better: np.ndarray, coefficients: ComputeCoefficients = PUBLISHED) -> np.ndarray:
    """Return how many times more compute the recipe with loss `worse` needs to reach the loss `better`.

    Args:
        worse, better: losses of two recipes at one budget, nats per token, above the floor.
        coefficients: floor and α of both.

    Raises:
        ValueError: a loss is not above the floor, or α is not above 0.

    Example:
        The worse loss is twice as far above the floor. At α = 0.1 the factor is 2^10.

        >>> round(float(speedup(3.0, 2.5, ComputeCoefficients(2.0, 100.0, 0.1))))
        1024
    """
    floor = coefficients.floor
    worse = check_range("worse", worse, above=floor) - floor
    better = check_range("better", better, above=floor) - floor
    return (worse / better) ** (1 / float(check_range("alpha", coefficients.alpha, above=0.0)))


def _line(fit: ComputeFit, flops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the law's ln(L - floor) and its variance: the level's variance at `centre`, plus x² times α's variance."""
    x = np.log(check_range("flops", flops, above=0.0)) - fit.centre
    _, A, alpha = fit.coefficients
    return math.log(A) - alpha * (x + fit.centre), fit.covariance[0, 0] + x**2 * fit.covariance[1, 1]


# What this file does not do: fit the floor, or separate parameters from tokens (the additive laws).
