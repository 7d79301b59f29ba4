"""A broken power law of accuracy: a curve that may rise in another way after a break.

Step by step, with sources and examples: `routelaws.reference.laws.broken`.

    Q = a + b C^(-c0) (1 + (C/d1)^(1/f1))^(-c1 f1),   Q the accuracy, C in FLOPs

What differs here: all starts run in one compiled loop (`_levenberg.py`), with derivatives from JAX.
"""

import itertools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..wording import plural
from ._columns import check_delta, check_range
from ._levenberg import search
from .downstream import check_accuracy

LEAST_SQUARES = "half the sum of squared differences of accuracies"
HUBER = "sum of Huber terms of accuracies, delta"

_FIRST = ((-0.2, 0.1, 0.6), (0.1, 0.5, 0.9), (0.3, 1.5), (-0.3, 0.5, 2.0))


class BrokenCoefficients(NamedTuple):
    """The six coefficients.

    Attributes:
        a: accuracy that the power law is added to
        b: factor of the power law
        c0: power of C before the break
        d1: FLOPs
        f1: above 0
        c1: what the break adds to the power of C
    """

    a: float
    b: float
    c0: float
    d1: float
    f1: float
    c1: float


class BrokenFit(NamedTuple):
    """The best fit of the law to a table.

    Attributes:
        coefficients: the law
        objective: what the criterion says
        rmse: root mean squared difference of accuracies
        rows: used, all that were given
        criterion: what was minimised, in words
    """

    coefficients: BrokenCoefficients
    objective: float
    rmse: float
    rows: int
    criterion: str


def predict_broken(flops: np.ndarray, coefficients: BrokenCoefficients) -> np.ndarray:
    """Return Q, as it is: nothing holds it between 0 and 1.

    Args:
        flops: C, above 0, any shape.
        coefficients: the law; d1 and f1 above 0.

    Raises:
        ValueError: an entry is not finite or not above 0.
    """
    a, b, c0, d1, f1, c1 = coefficients
    log_flops = np.log(check_range("flops", flops, above=0.0))
    log_break = math.log(check_range("d1", d1, above=0.0))
    f1 = float(check_range("f1", f1, above=0.0))
    with np.errstate(over="ignore"):
        return a + b * np.exp(-c0 * log_flops - c1 * f1 * np.logaddexp(0.0, (log_flops - log_break) / f1))


def fit_broken(flops: np.ndarray, accuracy: np.ndarray, huber: float | None = 1e-3) -> BrokenFit:
    """Fit the law to accuracies.

    Args:
        flops: [n], C, above 0.
        accuracy: [n], Q, between 0 and 1.
        huber: delta of Huber's terms, the paper's by default; None for least squares.

    Raises:
        ValueError: lengths differ, an entry is out of its range, or there are fewer than 7 rows or 4 budgets.

    Differs from the reference: all starts run in one compiled loop, which takes some seconds to compile the first time.
    """
    delta = math.inf if huber is None else check_delta(huber, "in units of the accuracy")
    flops = np.atleast_1d(check_range("flops", flops, above=0.0))
    accuracy = np.atleast_1d(check_accuracy(accuracy))
    if flops.ndim != 1 or flops.shape != accuracy.shape:
        raise ValueError(
            f"flops and accuracy have shapes {flops.shape} and {accuracy.shape}; needed: one axis, the same length"
        )
    if flops.size < 7 or np.unique(flops).size < 4:
        raise ValueError(
            f"{plural(flops.size, 'row')} of {plural(np.unique(flops).size, 'budget')}; the broken law has 6 "
            "coefficients and needs at least 7 rows of 4 budgets"
        )
    log_flops = np.log(flops)
    centre = float(log_flops.mean())
    x = log_flops - centre
    found = search(_model, x, accuracy, _starts(x, accuracy), delta)
    a, b, c0, log_break, log_width, c1 = found.parameters.tolist()
    with np.errstate(over="ignore", invalid="ignore"):  # of a break that ran away
        level, d1, f1 = np.exp([c0 * centre, log_break + centre, log_width])
        coefficients = BrokenCoefficients(a, float(b * level), c0, float(d1), float(f1), c1)
    rmse = float(np.linalg.norm(found.residual)) / math.sqrt(flops.size)
    criterion = LEAST_SQUARES if math.isinf(delta) else f"{HUBER} {delta:g}"
    return BrokenFit(coefficients, found.objective, rmse, flops.size, criterion)


def _model(theta, x):
    """Return the accuracies of (a, b, c0, ln d1, ln f1, c1) at x = ln C less its mean; NaN for a width out of reach."""
    a, b, c0, log_break, log_width, c1 = theta
    width = jnp.exp(log_width)
    exponent = -c0 * x - c1 * width * jnp.logaddexp(0.0, (x - log_break) / width)
    return jnp.where(jnp.abs(log_width) > 10, jnp.nan, a + b * jnp.exp(exponent))


def _starts(x: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    rows = []
    for c0, place, width, c1 in itertools.product(*_FIRST):
        log_break = float(np.quantile(x, place))
        curve = np.exp(-c0 * x - c1 * width * np.logaddexp(0.0, (x - log_break) / width))
        a, b = np.linalg.lstsq(np.stack([np.ones_like(x), curve], axis=1), accuracy, rcond=None)[0]
        rows.append([a, b, c0, log_break, math.log(width), c1])
    return np.array(rows)
