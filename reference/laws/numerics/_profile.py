"""Profile intervals for laws fitted by `_descent.py`.

Private to the reference. Let f(θ) be a quantity of the law: a coefficient, or ln L̂ at one point. The value v is
allowed if some θ with f(θ) = v has a sum S(θ) close to the minimum,

    S(θ) <= S_min + rise,   rise = (q²/2) · variance · share

Here q is Student's two-sided quantile with n - p degrees of freedom. `error_variance` gives the variance and the share
of the rows within δ. In least squares, S is half the sum of squares. The condition is then RSS <= RSS_min (1 + q²/(n -
p)), as in `uncertainty.py`. Near the minimum of Huber's sum, S is a parabola with the curvature share · JᵀJ, and the
covariance of θ is variance · (JᵀJ)⁻¹ (Huber 1981). So S rises by this much when f moves by q standard errors.

The search for one end:
1. To fix f at v, add a row to the table (`_held`). Its target is f = v, and its weight is large. After the descent, f
   differs slightly from v. This is harmless, because the θ reached has the least S of all θ with the same f.
2. Move v outward in doubling steps until S is above the limit.
3. Bisect between the last allowed v and the first rejected v.

An end beyond `FAR` counts as open.

If a coefficient has vanished in the best fit (for example a floor of 0), the search starts from two points: the best
fit, and the far end of the coefficient's interval (`far_end`). S may rise and fall between these points, so one start
could miss allowed values. The interval covers the results of both starts.
"""

import math
from collections.abc import Callable

import numpy as np

from ._descent import FAR, Problem, descend, huber_sum
from ._huber import error_variance

HALVINGS = 30  # bisection steps for each end
STIFFNESS = 1e4  # weight of the added row; f then differs from v by about 1e-4 standard errors
LEAST_RISE = 1e-20  # largest rounding of S per row, for exact losses


def profile(
    problem: Problem, begin: list[np.ndarray], target: Callable, quantile: float, valley: tuple | None = None
) -> tuple[float, float, float]:
    """Return the value of a target at the best fit, and its least and greatest allowed values.

    Args:
        problem: the sum.
        begin: [p] each: the minimum, and other allowed starting points.
        target: θ -> f and its derivatives [p].
        quantile: q.
        valley: from `_descent.valley`. If this law is allowed, the side to which f grows there has no end.
    """
    value, grows = target(begin[0])[0], 0.0
    if valley is not None and huber_sum(problem, valley[1]) <= _limits(problem, begin[0], target, quantile)[0]:
        grows = target(valley[1])[0] - target(valley[0])[0]
    low, high = -math.inf, math.inf
    if not grows < -1:
        low = min(_end(problem, begin[0], at, target, quantile, -1)[0] for at in begin)
    if not grows > 1:
        high = max(_end(problem, begin[0], at, target, quantile, 1)[0] for at in begin)
    return value, low, high


def far_end(problem: Problem, theta: np.ndarray, target: Callable, quantile: float, sign: int) -> np.ndarray:
    """Return θ [p] at the upper (sign 1) or lower (sign -1) end of the interval of the quantity `target`."""
    return _end(problem, theta, theta, target, quantile, sign)[1]


def _end(
    problem: Problem, theta: np.ndarray, begin: np.ndarray, target: Callable, quantile: float, sign: int
) -> tuple[float, np.ndarray]:
    """Return the last allowed value on one side of `begin`, and θ there. `theta` is the minimum of the sum."""
    limit, reach, stiffness = _limits(problem, theta, target, quantile)
    if math.isnan(limit):
        return sign * math.inf, begin
    best = last = target(begin)[0]
    allowed, outside, crossing = 0.0, sign * reach, begin
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        while True:  # outward: `allowed` and `outside` are signed distances of f from its best value
            end, _ = descend(_held(problem, target, best + outside, stiffness), crossing)
            if huber_sum(problem, end) > limit:
                break
            allowed, outside, crossing, last = outside, 2 * outside, end, target(end)[0]
            if abs(allowed) > FAR:
                return sign * math.inf, crossing
        for _ in range(HALVINGS):
            middle = (allowed + outside) / 2
            end, _ = descend(_held(problem, target, best + middle, stiffness), crossing)
            if huber_sum(problem, end) > limit:
                outside = middle
            else:
                allowed, crossing, last = middle, end, target(end)[0]
    return float(last), crossing


def _limits(problem: Problem, theta: np.ndarray, target: Callable, quantile: float) -> tuple[float, float, float]:
    """Return the limit of S, the first step outward (exact for a linear law), and the weight of the added row."""
    predicted, J = problem.model(theta)
    variance, share = error_variance(predicted - problem.log_loss, problem.delta, theta.size)
    rise = max(quantile**2 / 2 * variance * share, problem.log_loss.size * LEAST_RISE)
    turn = target(theta)[1]
    scale = np.linalg.norm(J, axis=0) + 1e-150
    # the error of the target at row variance 1, √(turn · (JᵀJ)⁻¹ turn), times √(2 rise)
    reach = math.sqrt(2 * rise) * float(np.linalg.norm(np.linalg.pinv((J / scale).T) @ (turn / scale)))
    if reach == 0 or reach > FAR / 8:  # 0 if no row depends on the target
        reach = FAR / 8
    return huber_sum(problem, theta) + rise, reach, STIFFNESS * rise / reach**2


def _held(problem: Problem, target: Callable, value: float, stiffness: float) -> Problem:
    """Return the problem with one more row: its target is `value`, its weight `stiffness`."""

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
