"""Minimise the sum of Huber terms of a smooth law, from all starts at once.

Private to the accelerated package. `reference.laws.numerics._descent` explains the objective and the steps. Here, each
step of NumPy moves all starts (*lanes*) that have not ended. A lane with a rejected step keeps its linear system. One
search finds both ends of all intervals together.

An unknown that is a logarithm, such as ln L0, falls as the step of its multiplier would take it: by ln(1 - step). The
other unknowns of the step count on a multiplier that changes in proportion, and a floor of 0 takes 20 steps, not 400.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.numerics._descent import (
    ABSENT,
    FAINT,
    FAR,
    GONE,
    LONGEST,
    OUTER_SHARE,
    PROMISE,
    REACHED,
    ROUNDING,
    STEEP,
    STEPS,
    WORTH,
    Form,
    Found,
    edges,
)
from routelaws.reference.laws.numerics._huber import check_delta, terms

HELD = (60, 100)  # `STEPS` of a search with one value held
HELD_WORTH = 1e-11  # its end: an error in the sum by this share moves the end of an interval by less than NARROW
ROUNDS = 40  # most rounds to bracket an end
NARROW = 1e-8  # a bracket below this share of the first step is an end
STIFFNESS = 1e4
LEAST_RISE = 1e-20
LEAST_FACTOR = -0.95  # largest relative fall of a multiplier in one step


class Fast(NamedTuple):
    """The functions of a law that run many times in a search, for all lanes at once."""

    predict: Callable  # (θ [s, p], logs [columns, n] or [s, columns, n]) -> ln L̂ [s, n] and its derivatives [s, p, n]
    coefficients: Callable  # (θ [s, p], centres) -> coefficients [s, p], ln of positive ones; derivatives [s, p, p]
    logs: Callable = lambda columns: np.log(np.stack(columns))  # columns -> logs [columns, n]
    far_minima: bool = False  # whether the best minima of two tables that are alike may lie far apart


class Problem(NamedTuple):
    """One table, or a loss and weights for each lane; then these fields have the lanes as their first axis."""

    form: Form
    fast: Fast
    logs: np.ndarray  # [columns, n], centred
    centres: np.ndarray  # [columns], 0 for a column that is not centred
    log_loss: np.ndarray  # [n]
    delta: float  # inf for least squares
    weight: np.ndarray | float = 1.0  # [lanes, n], how often the table of the lane has each row

    def of(self, lanes: np.ndarray | slice) -> "Problem":
        """Return the tables of some lanes."""
        if self.log_loss.ndim == 1:
            return self
        return self._replace(log_loss=self.log_loss[lanes], weight=self.weight[lanes])


def problem_of(form: Form, fast: Fast, columns: tuple, loss: np.ndarray, huber: float | None) -> Problem:
    """Return a table in the format of the search."""
    logs, centres = fast.logs(columns), form.centres(columns)
    centres = np.append(centres, np.zeros(len(logs) - centres.size))
    delta = math.inf if huber is None else check_delta(huber, "in units of ln L")
    return Problem(form, fast, logs - centres[:, None], centres, np.log(loss), delta)


def best_of(problem: Problem, starts: np.ndarray) -> Found:
    """Return the best end of the searches from all starts [s, p]."""
    return best_end(problem, *ends_of(problem, starts))


def ends_of(problem: Problem, starts: np.ndarray, most: tuple[int, int] = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends θ [s, p] of the searches from all starts [s, p], and their sums [s]."""
    return _follow(problem, np.asarray(starts, dtype=np.float64), most)[:2]


def sums_at(problem: Problem, theta: np.ndarray, every: bool = False) -> np.ndarray:
    """Return the sum [s] of each lane at its θ [s, p]; or, with `every`, the sums [s, lanes] of all lanes at each θ."""
    with np.errstate(all="ignore"):
        predicted = problem.fast.predict(theta, problem.logs)[0]
        residual = (predicted[:, None] if every else predicted) - problem.log_loss
        return _sums(residual, problem.weight, problem.delta)


def best_end(problem: Problem, theta: np.ndarray, value: np.ndarray) -> Found:
    """Return the best of the ends of all starts, θ [s, p] and their sums [s]."""
    best = int(np.argmin(value))
    if not math.isfinite(value[best]):
        raise ValueError(
            "the sum of Huber terms is infinite for all starts; pass other `starts`, whose predictions are near the "
            "losses"
        )
    floor = value[best] * (1 + REACHED) + problem.log_loss.size * ROUNDING
    return Found(theta[best], float(value[best]), len(theta), int(np.sum(value <= floor)))


class Held(NamedTuple):
    """A value that each lane holds, by one more row of the table."""

    which: np.ndarray  # [s] number of a coefficient, or [s, columns] a point as centred logs
    wanted: np.ndarray  # [s]
    stiffness: np.ndarray  # [s] weight of the row


def _follow(problem: Problem, starts: np.ndarray, most: tuple[int, int], held: Held | None = None) -> tuple:
    """Return the final θ [s, p] of all starts, and there the sums of the table [s] and the held values [s].

    Args:
        most: steps of each half.
    """
    theta = np.array(starts)
    with np.errstate(all="ignore"):
        halves = list(zip(OUTER_SHARE, WORTH if held is None else (WORTH[0], HELD_WORTH), most, strict=True))
        for half in halves if math.isfinite(problem.delta) else halves[1:]:  # least squares need no first half
            theta = _half(problem, theta, held, *half)
    return theta, sums_at(problem, theta), None if held is None else _targets(problem, held.which, theta)[0]


def _half(problem: Problem, starts: np.ndarray, held: Held | None, outer: float, worth: float, most: int) -> np.ndarray:
    """Return the final θ [s, p] of one half of a search. The lanes from `at` on are those that have not ended."""
    ends, lanes, at = np.array(starts), np.arange(len(starts)), np.array(starts)
    least, damping, more, promise = (np.full(len(starts), value) for value in (math.inf, 1e-4, 2.0, 1.0))
    system, pull, scale = np.empty((*starts.shape, starts.shape[1])), np.empty(starts.shape), np.empty(starts.shape)
    positive = np.array(problem.form.positive)
    trial, noise = at, problem.log_loss.shape[-1] * (10 * ROUNDING) ** 2
    for count in range(most + 1):
        residual, J, weight, delta = _rows(problem, trial, lanes, held)
        total = _sums(residual, weight, delta)
        lower = (total < least) | (count == 0)
        if count:
            eased = damping * np.maximum(1 / 3, 1 - (4 * (least - total) / promise - 1) ** 3)
            damping = np.where(lower, np.maximum(eased, 1e-12), damping * more)
            more = np.where(lower, 2.0, 2 * more)
        at[lower], least[lower] = trial[lower], total[lower]
        some = _system(residual[lower], J[lower], np.broadcast_to(weight, residual.shape)[lower], delta, outer)
        system[lower], pull[lower], scale[lower] = some
        step = np.linalg.solve(system + damping[:, None, None] * np.eye(at.shape[1]), pull[:, :, None])[:, :, 0]
        promise = (pull * step).sum(axis=1)
        # Stop here, also for NaN, because NaN is not greater.
        ended = (damping <= 1) & ~(promise > worth * least + noise) | (damping > 1e6) | (count == most)
        ends[lanes[ended]] = at[ended]
        if ended.all():
            break
        state = lanes, at, least, damping, more, promise, system, pull, scale, step
        lanes, at, least, damping, more, promise, system, pull, scale, step = (each[~ended] for each in state)
        change = -np.clip(step / scale, -LONGEST, LONGEST)
        shrinks = positive & (change < 0)
        trial = at + np.where(shrinks, np.log1p(np.maximum(change, LEAST_FACTOR)), change)
    return ends


def _rows(problem: Problem, theta: np.ndarray, lanes: np.ndarray, held: Held | None) -> tuple:
    """Return residuals [s, n], J [s, p, n], weights and delta of the rows, with the held value as the last row."""
    some = problem.of(lanes)
    predicted, J = problem.fast.predict(theta, some.logs)
    residual = predicted - some.log_loss
    if held is None:
        return residual, J, some.weight, problem.delta
    value, turn = _targets(problem, held.which[lanes], theta)
    residual = np.column_stack([residual, value - held.wanted[lanes]])
    weight = np.column_stack([np.ones(predicted.shape), held.stiffness[lanes]])
    delta = np.append(np.full(predicted.shape[1], problem.delta), math.inf)
    return residual, np.concatenate([J, turn[:, :, None]], axis=2), weight, delta


def _sums(residual: np.ndarray, weight, delta) -> np.ndarray:
    """Return the sums of Huber terms over the last axis; infinite instead of NaN."""
    total = (weight * terms(residual, delta)).sum(axis=-1)
    return np.where(np.isfinite(total), total, np.inf)


def _system(residual: np.ndarray, J: np.ndarray, weight: np.ndarray, delta, outer: float) -> tuple[np.ndarray, ...]:
    """Return Jᵀ diag(v) J [s, p, p] and Jᵀ(w h') [s, p] with columns of length 1, and these lengths [s, p]."""
    size = np.abs(residual)
    v = weight * np.where(size <= delta, 1.0, outer * delta / np.maximum(size, 1e-300))
    scale = np.sqrt((weight[:, None] * J**2).sum(axis=2)) + FAINT
    unit = J / scale[:, :, None]
    pull = (unit * (weight * np.clip(residual, -delta, delta))[:, None]).sum(axis=2)
    return (unit * v[:, None]) @ unit.transpose(0, 2, 1), pull, scale


def look(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the residuals ln L̂ - ln L [n] and their derivatives J [n, p]."""
    predicted, J = problem.fast.predict(theta[None], problem.logs)
    return predicted[0] - problem.log_loss, J[0].T


def ended(problem: Problem, residual: np.ndarray, J: np.ndarray, value: float) -> bool:
    """Return whether the search has converged at θ: one more step, without damping, would hardly lower S.

    Unknowns that have vanished are left out: the step would move them by many orders of magnitude, to no effect.
    """
    J = J[:, np.abs(J).max(axis=0) >= GONE]
    unit = J / np.linalg.norm(J, axis=0)
    pull = np.clip(residual, -problem.delta, problem.delta) @ unit
    inner = np.sqrt(np.where(np.abs(residual) <= problem.delta, 1.0, OUTER_SHARE[1]))[:, None] * unit
    step = np.linalg.solve(inner.T @ inner + 1e-12 * np.eye(pull.size), pull)
    return bool(pull @ step <= PROMISE * value + residual.size * (10 * ROUNDING) ** 2)


def coefficients(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients [p] and their derivatives with respect to θ [p, p]."""
    positive = np.array(problem.form.positive)
    with np.errstate(all="ignore"):  # of diverged coefficients
        [values], [turn] = problem.fast.coefficients(theta[None], problem.centres)
        values = np.where(positive, np.exp(np.where(positive, values, 0.0)), values)
        return values, np.where(positive[:, None], values[:, None] * turn, turn)


def brought_back(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring θ back by bisection: return it with vanished multipliers just above 0, and which unknowns had vanished."""
    away = np.abs(look(problem, theta)[1]).max(axis=0) < GONE
    theta = np.array(theta)
    for j in np.flatnonzero(away & np.array(problem.form.positive)):
        low, high = min(theta[j], ABSENT), 0.0
        while high - low > 1.0:
            theta[j] = (low + high) / 2
            inside = np.abs(look(problem, theta)[1][:, j]).max() >= GONE
            low, high = (low, theta[j]) if inside else (theta[j], high)
        theta[j] = high
    return theta, away


def error_variance(problem: Problem, residual: np.ndarray, unknowns: int) -> tuple[float, float]:
    """Return the error variance, and the share m of the rows within δ."""
    inside = np.abs(residual) <= problem.delta
    share = np.count_nonzero(inside) / residual.size
    if share == 0:
        return math.nan, 0.0
    cut = np.where(inside, residual, problem.delta if math.isfinite(problem.delta) else 0.0)
    widening = (1 + unknowns / residual.size * (1 / share - 1)) / share
    return float(cut @ cut) / (residual.size - unknowns) * widening**2, share


def covariance(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return the Gauss-Newton covariance [p, p] of the coefficients; NaN for vanished coefficients."""
    residual, J = look(problem, theta)
    free = np.flatnonzero(np.abs(J).max(axis=0) >= GONE)
    variance, _ = error_variance(problem, residual, theta.size)
    _, turn = coefficients(problem, theta)
    scale = np.linalg.norm(J[:, free], axis=0)
    _, values, right = np.linalg.svd(J[:, free] / scale, full_matrices=False)
    kept = values > 1e-15 * values[0]
    matrix = np.full((theta.size, theta.size), np.nan)
    with np.errstate(over="ignore", invalid="ignore"):  # of diverged coefficients
        root = turn[np.ix_(free, free)] @ (right[kept].T / values[kept] / scale[:, None])
        matrix[np.ix_(free, free)] = variance * root @ root.T
    return matrix


def far_ends(problem: Problem, theta, away, quantile: float) -> list[np.ndarray]:
    """Return θ [p] at the far end of the interval of each coefficient that has vanished; arguments as in `profile`.

    Args:
        away: [p], which unknowns had vanished.
    """
    gone = edges(problem.form, away)
    if not gone.size:
        return []
    signs = np.where(np.array(problem.form.limits, float)[gone] > 0, -1.0, 1.0)
    return list(_ends(_in_scale(problem), theta, np.tile(theta, (gone.size, 1)), gone, signs, quantile)[2])


def profile(
    problem: Problem, begin: Sequence[np.ndarray], points, quantile: float, derived: Sequence = (), valley=None
) -> np.ndarray:
    """Return value, low end and high end of each coefficient, of ln L̂ at points, or of each of `derived`.

    A coefficient above 0 is given by its ln, any other by arsinh(STEEP v).

    One search finds both ends of all quantities. A lane is one end from one start.

    Args:
        problem: the table.
        begin: the starts θ [p]: the best fit, `brought_back`, and then its `far_ends`.
        points: [columns, m], logs; None for the coefficients.
        quantile: Student's quantile.
        derived: functions of θ [..., p] whose numbers replace the coefficients.
        valley: from `valley` of the reference. If this law is allowed, a side to which a number grows there has no end.

    Returns:
        [m, 3].
    """
    problem = _in_scale(problem)
    which = np.arange(begin[0].size) if points is None else (points - problem.centres[:, None]).T
    if derived:
        problem = problem._replace(fast=problem.fast._replace(coefficients=partial(_derived, derived)))
        which = np.arange(len(derived))
    many, lanes = len(which), 2 * len(begin)  # searches for each: both sides, from each start
    at = np.repeat(np.array(begin), 2 * many, axis=0)
    signs = np.tile(np.repeat([-1.0, 1.0], many), len(begin))
    value, ends, _ = _ends(problem, begin[0], at, np.tile(which.T, lanes).T, signs, quantile, valley)
    ends = ends.reshape(len(begin), 2, many)
    return np.stack([value[:many], ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)], axis=1)


def _in_scale(problem: Problem) -> Problem:
    scaled = partial(_scaled, problem.fast.coefficients, problem.form.positive)
    return problem._replace(fast=problem.fast._replace(coefficients=scaled))


def _scaled(coefficients: Callable, positive, theta: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients, as ln or arsinh, and their derivatives."""
    values, turns = coefficients(theta, centres)
    slope = np.where(positive, 1.0, STEEP / np.hypot(1.0, STEEP * values))
    return np.where(positive, values, np.arcsinh(STEEP * values)), slope[:, :, None] * turns


def _derived(functions: Sequence, theta: np.ndarray, _) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers derived from θ, [s, m], and their derivatives by differences, [s, m, p]."""
    size = theta.shape[1]
    around = theta[:, None] + 1e-5 * np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size)])
    numbers = np.stack([function(around) for function in functions], axis=1)
    return numbers[..., 0], (numbers[..., 1 : size + 1] - numbers[..., size + 1 :]) / 2e-5


def _ends(problem: Problem, theta, at: np.ndarray, which: np.ndarray, sides: np.ndarray, quantile: float, valley=None):
    """Return the value at the best fit, the last allowed value and θ there, [lanes] each.

    Args:
        theta: [p], the best fit.
        at: [lanes, p], the starts.
        which: [lanes], number of the coefficient; or [lanes, columns], logs of the point, centred.
        sides: [lanes], -1.0 or 1.0.
        valley: as in `profile`.
    """
    value, turn = _targets(problem, which, np.broadcast_to(theta, at.shape))
    least, rise, error = _limits(problem, theta, turn, quantile)
    if math.isnan(rise):
        return value, np.copysign(np.inf, sides), at
    ends, closed = np.copysign(np.inf, sides), np.ones(len(at), dtype=bool)
    if valley is not None and _sums(look(problem, valley[1])[0][None], 1.0, problem.delta)[0] <= least + rise:
        near, nearer = (_targets(problem, which, np.broadcast_to(each, at.shape))[0] for each in valley)
        closed = sides * (nearer - near) <= 1
    best, first = _targets(problem, which, at)[0], sides * error
    last, some, open_ = _brackets(problem, at[closed], which[closed], best[closed], first[closed], least, rise)
    ends[closed] = np.where(open_, ends[closed], last)
    at = np.array(at)
    at[closed] = some
    return value, ends, at


def _limits(problem: Problem, theta: np.ndarray, turn: np.ndarray, quantile: float) -> tuple[float, float, np.ndarray]:
    """Return the best objective, its allowed rise (or NaN), and the half widths of the intervals of a linear law."""
    residual, J = look(problem, theta)
    variance, share = error_variance(problem, residual, theta.size)
    rise = variance if math.isnan(variance) else max(quantile**2 / 2 * variance * share, residual.size * LEAST_RISE)
    [least] = _sums(residual[None], 1.0, problem.delta)
    scale = np.linalg.norm(J, axis=0) + 1e-150
    error = math.sqrt(2 * rise) * np.linalg.norm((turn / scale) @ np.linalg.pinv(J / scale), axis=1)
    return least, rise, np.where(error > 0, np.minimum(error, FAR / 8), FAR / 8)


def _brackets(problem: Problem, at, which, best, first, least: float, rise: float) -> tuple[np.ndarray, ...]:
    """Return the last allowed value, θ there, and whether the end is open, [lanes] each.

    The steps double from `first` until a value is rejected. Then false position (Illinois method) narrows the bracket.
    """
    error, lanes = np.abs(first), first.size
    stiffness = STIFFNESS * rise / error**2
    inside, outside, last = np.zeros(lanes), first, best.copy()
    under, over = np.full(lanes, -1.0), np.ones(lanes)  # distance of the sum from its limit, at both points
    open_, found, before = np.zeros((3, lanes), dtype=bool)  # `found`: whether `outside` is outside
    rounds, beyond = 0, at
    while rounds < ROUNDS and not np.all(open_ | found & (np.abs(outside - inside) <= NARROW * error)):
        middle = np.where(found, inside + (outside - inside) * under / (under - over), outside)
        between = (under / (under - over) * found)[:, None]
        end, total, says = _follow(problem, at + between * (beyond - at), HELD, Held(which, best + middle, stiffness))
        excess = np.sqrt(np.clip((total - least) / rise, 0.0, 16.0)) - 1  # nearly straight, where S is a parabola
        here = np.abs(excess) <= NARROW  # the end
        allowed = here | (total <= least + rise)
        at, beyond = np.where(allowed[:, None], end, at), np.where(allowed[:, None], beyond, end)
        last, inside = np.where(allowed, says, last), np.where(allowed, middle, inside)
        outside = np.where(allowed & ~here, np.where(found, outside, 2 * middle), middle)
        found |= here
        under = np.where(allowed, np.minimum(excess, -NARROW), np.where(found & ~before, under / 2, under))
        over = np.where(allowed, np.where(found & before, over / 2, over), np.maximum(excess, NARROW))
        found, before = found | ~allowed, allowed
        open_ |= ~found & (np.abs(inside) > FAR)
        found |= open_
        rounds += bool(found.all())
    return last, at, open_


def _targets(problem: Problem, which: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the target of each lane, [lanes], at θ [lanes, p], and its derivatives [lanes, p].

    A coefficient is given as in `profile`.
    """
    if which.ndim == 1:
        values, turns = problem.fast.coefficients(theta, problem.centres)
        return values[np.arange(len(which)), which], turns[np.arange(len(which)), which]
    predicted, turns = problem.fast.predict(theta, which[:, :, None])
    return predicted[:, 0], turns[:, :, 0]
