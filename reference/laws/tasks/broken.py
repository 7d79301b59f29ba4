"""A broken power law of accuracy: a curve whose exponent may change at a break.

    Q = a + b C^(-c0) (1 + (C/d1)^(1/f1))^(-c1 f1)

The law is from Caballero et al. 2022, with one break. Krajewski et al. 2025 (arXiv 2512.08894, equation 1) compare it
with the direct law. Its six coefficients are fitted to the accuracies themselves. Far below d1 the second factor is 1
and the exponent is -c0. Far above d1 the exponent is -(c0 + c1). On the axis ln C, the width of the break is f1.

The paper minimises the mean of Huber terms (delta 1e-3) by basin hopping from 100 random starts. This file minimises
the sum of Huber terms, or of squares, from a fixed grid of 54 starts (our choice). Q is linear in a and b if the other
four coefficients are fixed. So every start has the best a and b for its other four coefficients.

Compare predictions, not coefficients: very different coefficients can fit the rows equally well. The fit therefore has
no covariance.
"""

import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..numerics import _levenberg
from ..numerics._columns import check_accuracy
from ..numerics._huber import check_delta
from ..numerics._projection import check_lengths, check_range, plural

LEAST_SQUARES = "half the sum of squared differences of accuracies"
HUBER = "sum of Huber terms of accuracies, delta"

_FIRST = ((-0.2, 0.1, 0.6), (0.1, 0.5, 0.9), (0.3, 1.5), (-0.3, 0.5, 2.0))  # c0, quantile of ln C for d1, f1, c1


class BrokenCoefficients(NamedTuple):
    """The six coefficients of the broken power law.

    Attributes:
        a: the constant term, an accuracy
        b: factor of the power law
        c0: power of C before the break
        d1: FLOPs
        f1: above 0
        c1: the change of the power of C at the break
    """

    a: float
    b: float
    c0: float
    d1: float
    f1: float
    c1: float


class BrokenFit(NamedTuple):
    """The best fit of the broken power law to a table.

    Attributes:
        coefficients: the law
        objective: the least value of `criterion`
        rmse: root mean squared difference of accuracies
        rows: number of rows
        criterion: a description of the minimised quantity
    """

    coefficients: BrokenCoefficients
    objective: float
    rmse: float
    rows: int
    criterion: str


def predict_broken(flops: np.ndarray, coefficients: BrokenCoefficients) -> np.ndarray:
    """Return the accuracy Q that the law predicts, not clipped: Q may be below 0 or above 1.

    Args:
        flops: C, above 0, any shape.
        coefficients: the law; d1 and f1 above 0.

    Raises:
        ValueError: an entry is not finite or not above 0.

    Example:
        At the break, with f1 = 1, the second factor is 2^(-c1): 1 - 0.5 · 100^-0.5 / 2 = 0.975.

        >>> float(predict_broken(100.0, BrokenCoefficients(1.0, -0.5, 0.5, 100.0, 1.0, 1.0)))
        0.975
    """
    a, b, c0, d1, f1, c1 = coefficients
    log_flops = np.log(check_range("flops", flops, above=0.0))
    beyond = log_flops - math.log(check_range("d1", d1, above=0.0))
    f1 = float(check_range("f1", f1, above=0.0))
    with np.errstate(over="ignore"):
        return a + b * np.exp(-c0 * log_flops - c1 * f1 * np.logaddexp(0.0, beyond / f1))


def fit_broken(
    flops: np.ndarray, accuracy: np.ndarray, huber: float | None = 1e-3, *, search=_levenberg.search
) -> BrokenFit:
    """Fit the broken power law to the accuracies of runs.

    Args:
        flops: [n], C, above 0.
        accuracy: [n], Q, between 0 and 1.
        huber: delta of the Huber terms, by default the paper's delta; None for least squares.
        search: how to search; the accelerated package passes its own.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or there are fewer than 7 rows or 4 budgets.
    """
    delta = math.inf if huber is None else check_delta(huber, "in units of the accuracy")
    flops = np.atleast_1d(check_range("flops", flops, above=0.0))
    accuracy = np.atleast_1d(check_accuracy(accuracy))
    check_lengths(flops=flops, accuracy=accuracy)
    if flops.size < 7 or np.unique(flops).size < 4:
        raise InputError(
            f"{plural(flops.size, 'row')} of {plural(np.unique(flops).size, 'budget')}; the broken law has 6 "
            "coefficients and needs at least 7 rows of 4 budgets"
        )
    centre = float(np.log(flops).mean())
    x = np.log(flops) - centre
    best = search(partial(_model, x), accuracy, _starts(x, accuracy), delta)
    a, b, c0, log_break, log_width, c1 = best.parameters
    # C^-c0 = e^(-c0 centre) e^(-c0 x): the level moves from the middle of the table to C = 1.
    with np.errstate(over="ignore", invalid="ignore"):  # a diverged break overflows
        level, d1, f1 = np.exp([c0 * centre, log_break + centre, log_width])
        values = a, b * level, c0, d1, f1, c1
    criterion = LEAST_SQUARES if math.isinf(delta) else f"{HUBER} {delta:g}"
    rmse = float(np.sqrt(np.mean(best.residual**2)))
    return BrokenFit(BrokenCoefficients(*(float(v) for v in values)), best.objective, rmse, flops.size, criterion)


def _curve(x: np.ndarray, c0: float, log_break: float, log_width: float, c1: float):
    """Return the curve that b multiplies, and its derivatives in the other four [n, 4]; x = ln C minus its mean."""
    width = math.exp(log_width)
    z = (x - log_break) / width
    soft = np.logaddexp(0.0, z)  # ln(1 + e^z)
    part = 1 / (1 + np.exp(-z))  # its derivative
    curve = np.exp(-c0 * x - c1 * width * soft)
    changes = -x, c1 * part, -c1 * width * (soft - z * part), -width * soft
    return curve, curve[:, None] * np.stack(changes, axis=1)


def _model(x: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the accuracies [n] and their derivatives [n, 6] at θ = (a, b, c0, ln d1, ln f1, c1)."""
    a, b, *inner = theta
    if abs(inner[2]) > 10:  # a width beyond the range of any table
        return np.full_like(x, np.nan), np.full((x.size, 6), np.nan)
    curve, changes = _curve(x, *inner)
    return a + b * curve, np.concatenate([np.ones((x.size, 1)), curve[:, None], b * changes], axis=1)


def _starts(x: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Return the starts [54, 6], each with the best a and b."""
    rows = []
    for c0, place, width, c1 in itertools.product(*_FIRST):
        inner = [c0, float(np.quantile(x, place)), math.log(width), c1]
        curve, _ = _curve(x, *inner)
        design = np.stack([np.ones_like(x), curve], axis=1)
        rows.append([*np.linalg.lstsq(design, accuracy, rcond=None)[0], *inner])
    return np.array(rows)
