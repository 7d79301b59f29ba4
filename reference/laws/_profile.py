"""What the data allow a law to say, for laws that are fitted by `_descent.py`: profile intervals.

Private to the reference. Let f(θ) be something that the law says: a coefficient, or ln L̂ at one point. The value v is
allowed if some θ with f(θ) = v has a sum S(θ) that is hardly above the least one,

    S(θ) <= S_min + rise,   rise = (q²/2) · variance · share

with q Student's two-sided quantile with n - p degrees of freedom, and `error_variance` and its share of rows within δ.
In least squares, where S is half the sum of squares, that is RSS <= RSS_min (1 + q²/(n - p)), as in `uncertainty.py`.
For Huber's sum: near its minimum S is a parabola with the curvature share · JᵀJ, and the errors of θ have the
covariance variance · (JᵀJ)⁻¹ (Huber 1981), so that q standard errors of f are where S has risen by this much.

How one end is found:
1. To hold f at v, one more row is added to the table, which says that f is v, with a large weight (`_held`). Where the
   descent ends f is not v to the last digit; but among all θ with the f that was attained this one has the least S, and
   that is all that is needed.
2. v goes outward in doubling steps until S is above the limit.
3. Between the last v that was allowed and the first that was not, bisection.

An end beyond `FAR` has no end: a coefficient above 0 that may be 0, or an exponent that may be anything.
"""

import math
from collections.abc import Callable

import numpy as np

from ._descent import FAR, Problem, descend, error_variance, huber_sum

HALVINGS = 30  # of the bracket of an end, which is at most as wide as the interval
STIFFNESS = 1e4  # weight of the added row: f is then off by a ten-thousandth of a standard error or so
LEAST_RISE = 1e-20  # times the rows: what rounding of exact losses may do to S


def profile(problem: Problem, theta: np.ndarray, target: Callable, quantile: float) -> tuple[float, float, float]:
    """Return the value of a target at the best fit, and the least and the greatest value that is allowed.

    Args:
        problem: the sum.
        theta: [p], where it is least.
        target: θ -> f and its derivatives [p].
        quantile: q.
    """
    value, turn = target(theta)
    variance, share = error_variance(problem, theta)
    if math.isnan(variance):
        return value, -math.inf, math.inf
    rise = max(quantile**2 / 2 * variance * share, problem.log_loss.size * LEAST_RISE)
    limit = huber_sum(problem, theta) + rise
    J = problem.model(theta)[1]
    scale = np.linalg.norm(J, axis=0) + 1e-150
    error = math.sqrt(2 * rise) * float(np.linalg.norm(np.linalg.pinv((J / scale).T) @ (turn / scale)))
    error = min(error, FAR / 8) or FAR / 8  # 0 where no row says anything about it
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        low, high = (_end(problem, theta, target, limit, sign * error, STIFFNESS * rise / error**2) for sign in (-1, 1))
    return value, low, high


def _end(problem: Problem, theta: np.ndarray, target: Callable, limit: float, reach: float, stiffness: float) -> float:
    """Return the last value that is allowed on one side; `reach` is the first step, and its sign the side."""
    best = target(theta)[0]
    inside, outside, found, last = 0.0, reach, theta, best
    while True:  # outward
        end, _ = descend(_held(problem, target, best + outside, stiffness), found)
        if huber_sum(problem, end) > limit:
            break
        inside, outside, found, last = outside, 2 * outside, end, target(end)[0]
        if abs(inside) > FAR:
            return math.copysign(math.inf, reach)
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        end, _ = descend(_held(problem, target, best + middle, stiffness), found)
        if huber_sum(problem, end) > limit:
            outside = middle
        else:
            inside, found, last = middle, end, target(end)[0]
    return float(last)


def _held(problem: Problem, target: Callable, value: float, stiffness: float) -> Problem:
    """Return the sum with one more row, which says that the target is `value`."""

    def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        predicted, J = problem.model(theta)
        says, turn = target(theta)
        return np.append(predicted, says), np.vstack([J, turn])

    return Problem(
        model,
        np.append(problem.log_loss, value),
        np.append(problem.weight, stiffness),
        np.append(problem.delta, math.inf),
    )
