"""Minimise the sum of Huber terms of a nonlinear law, and estimate the errors of the fit.

Private to the reference. `additive.py`, `hoffmann.py` and `joint.py` define the prediction of their law, ln L̂(θ), and
its derivative with respect to each unknown (`Form.bind`). They share this search.

The search varies the unknowns θ to minimise a sum over the rows i:

    S(θ) = Σᵢ wᵢ h(rᵢ),   rᵢ = ln L̂ᵢ(θ) - ln Lᵢ,   h(r) = r²/2 up to δ and δ(|r| - δ/2) beyond

with the Huber term h of `_huber.py`. The weights w are 1, except for the row that `_profile.py` adds to a table. S is a
sum, not a mean, so tolerances do not depend on the number of rows. J holds the derivatives of ln L̂, and h'(r) is r
clipped at ±δ. The chain rule gives the slopes of S:

    ∂S/∂θⱼ = Σᵢ wᵢ h'(rᵢ) Jᵢⱼ                                                                            (`slopes`)

One step (`descend`). In each row, a parabola replaces h. The parabola is symmetric about 0, touches h at r and is
nowhere below h. The sum of the parabolas is a weighted least-squares problem with the weights v = w·min(1, δ/|r|). With
ln L̂ linear in θ and a damping of 0, its solution is this step:

    step = -(Jᵀ diag(v) J + damping·diag(JᵀJ))⁻¹ · slopes

The damping (Marquardt 1963) shortens the step where ln L̂ is not linear. The damping depends on the gain: the decrease
of S divided by the decrease of the sum of parabolas (Nielsen 1999, Damping parameter in Marquardt's method). A gain of
1 divides the damping by 3, a gain of 1/2 keeps it, and a gain near 0 doubles it. The search rejects a step that does
not lower S. After the first rejection it multiplies the damping by 2, after the next by 4, then by 8.

These steps are safe far from the minimum. Near the minimum they are slow, because beyond δ the parabola is curved and h
is straight. So the second half of the search gives rows beyond δ a thousandth of their weight. It reaches the minimum
to the last digits. Either half ends when the predicted decrease of S (half of slopes·step) is nearly 0, or when no step
lowers S.

No step changes an unknown by more than `LONGEST`. Without this limit, a nearly vanished term would cause steps of
several thousand.

The search is slow, because it processes the starts one after the other.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ._huber import check_delta, clipped, error_variance, terms

STEPS = (200, 3000)  # most steps in the first and in the second half of the search
OUTER_SHARE = (1.0, 1e-3)  # factor of the weight of a row beyond delta, in each half
WORTH = (1e-6, 1e-14)  # each half ends if a step would lower the sum by a smaller share
ROUNDING = 1e-16  # largest rounding of a residual
REACHED = 1e-6  # a start has reached the best objective if its relative excess is at most this
ABSENT = -700.0  # ln of an absent multiplier: its exp is negligible relative to every other term
PROMISE = 1e-6  # after convergence one more step may lower the sum by at most this share
GONE = 1e-7  # an unknown has vanished if it changes no ln L̂ by this much
FAINT = 1e-12  # a step does not move an unknown with less effect on all rows together
LONGEST = 3.0  # largest change of one unknown in one step
NEAR = -14.0  # ln of a multiplier near its limit: it changes a prediction, if at all, by much less than an error
STEEP = 100.0  # the interval of a number v with a sign is that of arsinh(STEEP v), since v may grow without end
ENDLESS = 1e3  # a number with a sign beyond it counts as infinite
FAR = 40.0  # limit of an interval, in units of ln: an end beyond it counts as open


class Form(NamedTuple):
    """The interface of a law. Unknowns are relative to the middle of the table (`centres`)."""

    kind: type  # the NamedTuple of the coefficients, [p]
    positive: tuple[bool, ...]  # [p] above 0, so the interval is of its logarithm
    limits: tuple[float | None, ...]  # [p] the value of a coefficient that has vanished; None if its last value stays
    bind: Callable  # (columns, centres) -> the model, θ [p] -> ln L̂ [n] and J [n, p]
    natural: Callable  # (θ [p], centres) -> coefficients [p]
    internal: Callable  # (coefficients [p], centres) -> θ [p], the inverse of `natural`
    centres: Callable  # columns -> centres, of the table of the fit
    starts: Callable  # (columns, centres, ln L) -> [s, p], θ of the starts
    law: tuple | None = None  # the record of an additive law


class Problem(NamedTuple):
    """One sum to minimise."""

    model: Callable  # θ -> ln L̂ [n] and J [n, p]
    log_loss: np.ndarray  # [n] ln L
    weight: np.ndarray  # [n] w
    delta: np.ndarray  # [n] δ of each row; inf where the row counts as in least squares


class Found(NamedTuple):
    """The result of the best start."""

    theta: np.ndarray  # [p]
    value: float  # S
    starts: int  # number of starts
    reached: int  # number of starts that ended within REACHED of the least S


def problem_of(form: Form, columns: tuple, loss: np.ndarray, huber: float | None, centres: np.ndarray) -> Problem:
    """Return the sum to minimise for a table."""
    delta = math.inf if huber is None else check_delta(huber, "in units of ln L")
    ones = np.ones(len(loss))
    return Problem(form.bind(columns, centres), np.log(loss), ones, delta * ones)


def huber_sum(problem: Problem, theta: np.ndarray) -> float:
    """Return S(θ); infinite if the law is not a finite float64."""
    residual = problem.model(theta)[0] - problem.log_loss
    total = float(np.sum(problem.weight * terms(residual, problem.delta)))
    return total if math.isfinite(total) else math.inf


def slopes(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return ∂S/∂θ [p]."""
    predicted, J = problem.model(theta)
    return J.T @ (problem.weight * clipped(predicted - problem.log_loss, problem.delta))


def descend(problem: Problem, start: np.ndarray) -> tuple[np.ndarray, float]:
    """Return θ and S at the end of the search from `start` (see the top of this file)."""
    theta, value = start, huber_sum(problem, start)
    for most, outer, worth in zip(STEPS, OUTER_SHARE, WORTH, strict=True):  # the first half, and the second
        damping, more = 1e-4, 2.0
        for _ in range(most):
            predicted, J = problem.model(theta)
            residual = predicted - problem.log_loss
            scale = np.sqrt(np.sum(problem.weight[:, None] * J**2, axis=0)) + FAINT
            unit = J / scale  # columns of length 1, so the diagonal of JᵀJ is 1
            pull = unit.T @ (problem.weight * clipped(residual, problem.delta))
            beyond = outer * problem.delta / np.maximum(np.abs(residual), 1e-300)
            v = problem.weight * np.where(np.abs(residual) <= problem.delta, 1.0, beyond)
            step = np.linalg.solve((unit.T * v) @ unit + damping * np.eye(theta.size), pull)
            # Stop here, also for NaN, because NaN is not greater. With more damping every step is short and hardly
            # lowers S.
            least = worth * value + residual.size * (10 * ROUNDING) ** 2
            if (damping <= 1 and not pull @ step > least) or damping > 1e6:
                break
            trial = theta - np.clip(step / scale, -LONGEST, LONGEST)
            lower = huber_sum(problem, trial)
            if lower < value:
                gain = 2 * (value - lower) / (pull @ step)
                damping, more = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 1e-12), 2.0
                theta, value = trial, lower
            else:
                damping, more = damping * more, 2 * more
    return theta, value


def best_of(problem: Problem, starts: np.ndarray) -> Found:
    """Return the best end of the searches from all starts [s, p]."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        ends = [descend(problem, start) for start in np.asarray(starts, dtype=np.float64)]
    theta, value = min(ends, key=lambda end: end[1])
    if not math.isfinite(value):
        raise InputError(
            "the sum of Huber terms is infinite for all starts; pass other `starts`, whose predictions are near the "
            "losses"
        )
    floor = value * (1 + REACHED) + problem.log_loss.size * ROUNDING
    return Found(theta, value, len(ends), sum(end <= floor for _, end in ends))


def ended(problem: Problem, theta: np.ndarray) -> bool:
    """Return whether the search has converged at θ: one more step, without damping, would hardly lower S.

    Residuals that are only rounding count as converged. Unknowns that have vanished are left out: the step would move
    them by many orders of magnitude, to no effect.
    """
    predicted, J = problem.model(theta)
    residual, J = predicted - problem.log_loss, J[:, ~gone(problem, theta)]
    unit = J / np.linalg.norm(J, axis=0)
    pull = unit.T @ (problem.weight * clipped(residual, problem.delta))
    v = problem.weight * np.where(np.abs(residual) <= problem.delta, 1.0, OUTER_SHARE[1])
    step = np.linalg.solve((unit.T * v) @ unit + 1e-12 * np.eye(pull.size), pull)
    return bool(pull @ step <= PROMISE * huber_sum(problem, theta) + problem.log_loss.size * (10 * ROUNDING) ** 2)


def gone(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return [p] bool: True for each unknown that changes no prediction."""
    return np.abs(problem.model(theta)[1]).max(axis=0) < GONE


def signed(ends) -> np.ndarray:
    """Return numbers with a sign from their arsinh(STEEP v); infinite beyond ENDLESS.

    Example:
        >>> signed(np.arcsinh([-20.0, 1e7])).round(9).tolist()
        [-0.2, inf]
    """
    with np.errstate(over="ignore"):
        values = np.sinh(ends) / STEEP
    return np.where(np.abs(values) > ENDLESS, np.copysign(np.inf, values), values)


def at_limits(form: Form, values: np.ndarray, away: np.ndarray) -> np.ndarray:
    """Return the coefficients [p], with the limits of those that have vanished (`away` [p])."""
    limits = [value if limit is None else limit for value, limit in zip(values, form.limits, strict=True)]
    return np.where(away, limits, values)


def edges(form: Form, away: np.ndarray) -> np.ndarray:
    """Return the numbers of the coefficients that have vanished at an edge, infinity or 0."""
    at_edge = [above and limit is not None for above, limit in zip(form.positive, form.limits, strict=True)]
    return np.flatnonzero(away & at_edge)


def valley(form: Form, theta: np.ndarray, best_of: Callable) -> tuple[np.ndarray, np.ndarray] | None:
    """Return θ of the best law in a limit where coefficients grow without end, near the limit and nearer.

    None if the law has no such limit. `best_of` finds the best end of searches from θ [s, p]; one starts from the best
    law `theta`.
    """
    if None not in form.limits:
        return None
    start, place = np.array(theta), form.limits.index(None)
    start[place] = ABSENT
    nearer = best_of(start[None]).theta
    near = np.array(nearer)
    near[place] = NEAR
    return near, nearer


def brought_back(problem: Problem, form: Form, theta: np.ndarray) -> np.ndarray:
    """Return θ with vanished multipliers set just above 0, too small to change a prediction.

    No step can move a multiplier of 0 (ln = `ABSENT` or less), so the search for its interval starts from this θ.
    """
    theta = np.array(theta)
    for j in np.flatnonzero(gone(problem, theta) & np.array(form.positive)):
        theta[j] = max(theta[j], ABSENT)
        while theta[j] < 0 and gone(problem, theta)[j]:
            theta[j] += 1.0
    return theta


def covariance(problem: Problem, form: Form, theta: np.ndarray, centres) -> np.ndarray:
    """Return the Gauss-Newton covariance [p, p] of the coefficients; NaN for vanished coefficients.

    The covariance of θ is the error variance (`_huber.py`) times (JᵀJ)⁻¹. Central differences give the derivatives of
    the coefficients with respect to θ (`turns`). The covariance is valid for small errors. The intervals of
    `_profile.py` do not use it.
    """
    free = ~gone(problem, theta)
    predicted, J = problem.model(theta)
    variance, _ = error_variance(predicted - problem.log_loss, problem.delta, theta.size)
    J = J[:, free]
    scale = np.linalg.norm(J, axis=0)
    inverse = np.linalg.pinv(J / scale) / scale[:, None]
    with np.errstate(invalid="ignore"):  # inf - inf, of vanished coefficients
        change = turns(lambda t: form.natural(t, centres), theta)[np.ix_(free, free)]
    matrix = np.full((theta.size, theta.size), np.nan)
    matrix[np.ix_(free, free)] = variance * (change @ inverse) @ (change @ inverse).T
    return matrix


def turns(function: Callable, theta: np.ndarray) -> np.ndarray:
    """Return the derivatives [q, p] of a function of θ [p] with q values, by central differences.

    Example:
        >>> turns(lambda t: np.array([t[0] * t[1], np.exp(t[0])]), np.array([0.0, 2.0])).round(6).tolist()
        [[2.0, 0.0], [1.0, 0.0]]
    """
    step = 1e-5
    sides = [(function(theta + step * unit), function(theta - step * unit)) for unit in np.eye(theta.size)]
    return np.stack([(above - below) / (2 * step) for above, below in sides], axis=1)


# What this file does not do: intervals (`_profile.py`); the prediction of a law (`additive.py`, `hoffmann.py`,
# `joint.py`).
