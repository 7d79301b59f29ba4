"""The least sum of Huber terms of a smooth law, from all starts at once: one compiled program in JAX, in float64.

Private to the fast twin; `routelaws.reference.laws._descent` says what is minimised and why the steps are as they are.
What differs here: every start is a lane of one `vmap`, every resample another; derivatives come from forward mode; the
first half of the search is run for all lanes and the second one for those that lead, `LEADERS` of each table, since
one lane that is slow holds up all the others. Tables are padded with rows of weight 0 to a multiple of `BLOCK`, so that
tables of nearly the same length share a compiled program.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

STEPS = (150, 3000)  # of every lane, both halves together; and of the leaders after that
OUTER_SHARE = (1.0, 1e-3)
WORTH = (1e-6, 1e-14)
HELD = 300  # of a lane that is held at a value, both halves together
LEADERS = 32  # more than the quarter of the starts that have no floor and may end alike
LONGEST = 3.0
FAINT = 1e-12
BLOCK = 64
ROUNDING = 1e-16
REACHED = 1e-6
ABSENT = -700.0
PROMISE = 1e-6
GONE = 1e-7
FAR = 40.0
ROUNDS = 40  # of the bracket of an end
NARROW = 1e-9  # share of the first step outward at which a bracket is an end
STIFFNESS = 1e4
LEAST_RISE = 1e-20


class Form(NamedTuple):
    """What a law tells about itself, in JAX; one object for each law, since programs are compiled for it."""

    names: tuple[str, ...]
    positive: tuple[bool, ...]
    limits: tuple[float, ...]
    model: Callable  # (θ, logs [n, columns], centres) -> ln L̂ [n] and its derivatives J [n, p]
    natural: Callable  # (θ, centres) -> coefficients [p]
    internal: Callable  # (coefficients, centres) -> θ
    logs: Callable  # columns -> logs [n, columns], NumPy
    starts: Callable  # (logs, centres, ln L) -> [s, p], NumPy


class Problem(NamedTuple):
    """One table, padded."""

    form: Form
    logs: np.ndarray  # [padded, columns]
    centres: np.ndarray  # [columns]
    log_loss: np.ndarray  # [padded]
    weight: np.ndarray  # [padded], 0 beyond the table
    delta: float  # inf for least squares
    rows: int  # of the table


class Found(NamedTuple):
    """See reference."""

    theta: np.ndarray
    value: float
    starts: int
    reached: int


def problem_of(form: Form, columns: tuple, loss: np.ndarray, huber: float | None) -> Problem:
    """Return a table as the programs below take it."""
    logs, log_loss = form.logs(columns), np.log(loss)
    rows = log_loss.size
    more = -rows % BLOCK
    return Problem(
        form,
        np.concatenate([logs, np.repeat(logs[:1], more, axis=0)]),
        logs.mean(axis=0),
        np.concatenate([log_loss, np.repeat(log_loss[:1], more)]),
        np.concatenate([np.ones(rows), np.zeros(more)]),
        math.inf if huber is None else checked_delta(huber),
        rows,
    )


def checked_delta(huber: float) -> float:
    """Return delta as a float; ValueError unless it is a finite number above 0."""
    if not (isinstance(huber, int | float | np.number) and 0 < huber < math.inf):
        raise ValueError(f"huber is {huber!r}; needed: a finite number above 0, in units of ln L, or None")
    return float(huber)


def best_of(problem: Problem, starts: np.ndarray) -> Found:
    """Return the least of what all starts [s, p] end at."""
    theta, value = search(problem, starts, problem.weight[None])
    theta, value = theta[0], value[0]
    best = int(np.argmin(value))
    if not math.isfinite(value[best]):
        raise ValueError("no start leads to a finite sum of Huber terms; needed: starts nearer to the data")
    floor = value[best] * (1 + REACHED) + problem.rows * ROUNDING
    return Found(theta[best], float(value[best]), len(starts), int(np.sum(value <= floor)))


def search(problem: Problem, starts: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return θ [draws, s, p] and the sums [draws, s] at the ends of all starts, for each weighting [draws, padded]."""
    with jax.enable_x64(True):
        parts = problem.logs, problem.centres, problem.log_loss, problem.delta
        theta, value = _search(problem.form, *parts, np.asarray(weights, np.float64), np.asarray(starts, np.float64))
        return np.asarray(theta), np.asarray(value)


def look(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the residuals ln L̂ - ln L [n] and their derivatives J [n, p], without the padding."""
    with jax.enable_x64(True):
        predicted, J = map(np.asarray, _value_and_turn(problem.form, problem.logs, problem.centres, theta))
    return (predicted - problem.log_loss)[: problem.rows], J[: problem.rows]


def ended(problem: Problem, residual: np.ndarray, J: np.ndarray, value: float) -> bool:
    """See reference."""
    unit = J / (np.linalg.norm(J, axis=0) + FAINT)
    pull = np.clip(residual, -problem.delta, problem.delta) @ unit
    inner = np.sqrt(np.where(np.abs(residual) <= problem.delta, 1.0, OUTER_SHARE[1]))[:, None] * unit
    step = np.linalg.solve(inner.T @ inner + 1e-12 * np.eye(pull.size), pull)
    return bool(pull @ step <= PROMISE * value + residual.size * (10 * ROUNDING) ** 2)


def coefficients(form: Form, theta: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients [p] and what θ does to them [p, p]."""
    with jax.enable_x64(True):
        return tuple(map(np.asarray, _coefficients(form, theta, centres)))


def brought_back(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See reference; and which unknowns had left the law. The way back is a bisection."""
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
    """See reference."""
    inside = np.abs(residual) <= problem.delta
    share = np.count_nonzero(inside) / residual.size
    if share == 0:
        return math.nan, 0.0
    cut = np.where(inside, residual, problem.delta if math.isfinite(problem.delta) else 0.0)
    widening = (1 + unknowns / residual.size * (1 / share - 1)) / share
    return float(cut @ cut) / (residual.size - unknowns) * widening**2, share


def covariance(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """See reference."""
    residual, J = look(problem, theta)
    free = np.flatnonzero(np.abs(J).max(axis=0) >= GONE)
    variance, _ = error_variance(problem, residual, theta.size)
    _, turn = coefficients(problem.form, theta, problem.centres)
    scale = np.linalg.norm(J[:, free], axis=0)
    _, values, right = np.linalg.svd(J[:, free] / scale, full_matrices=False)
    kept = values > 1e-15 * values[0]
    found = np.full((theta.size, theta.size), np.nan)
    with np.errstate(over="ignore", invalid="ignore"):  # of coefficients that ran away beyond all numbers
        root = turn[np.ix_(free, free)] @ (right[kept].T / values[kept] / scale[:, None])
        found[np.ix_(free, free)] = variance * root @ root.T
    return found


def profile(problem: Problem, theta: np.ndarray, away: np.ndarray, points: np.ndarray | None, quantile: float):
    """Return value, low end and high end of each coefficient (of its ln, where it is above 0), or of ln L̂ at points.

    Both ends of everything that is asked for are sought together, each a lane; once from the best fit and once from the
    far end of each coefficient that has left the law.

    Args:
        problem: the table.
        theta: [p], the best fit, `brought_back`.
        away: [p], which unknowns had left the law.
        points: [m, columns] logs; None for the coefficients.
        quantile: of Student.

    Returns:
        [m, 3].
    """
    form = problem.form
    gone = np.flatnonzero(away & np.array(form.positive))
    begin = [theta]
    if gone.size:
        signs = np.where(np.array(form.limits)[gone] > 0, -1.0, 1.0)
        begin += list(_ends(problem, theta, np.tile(theta, (gone.size, 1)), True, gone, signs, quantile)[2])
    which = np.arange(theta.size) if points is None else points
    many, lanes = len(which), 2 * len(begin)  # of each: both sides, from each place to begin
    at = np.repeat(np.array(begin), 2 * many, axis=0)
    signs = np.tile(np.repeat([-1.0, 1.0], many), len(begin))
    value, ends, _ = _ends(problem, theta, at, points is None, np.tile(which.T, lanes).T, signs, quantile)
    ends = ends.reshape(len(begin), 2, many)
    return np.stack([value[:many], ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)], axis=1)


def _line(residual: np.ndarray, delta: float) -> np.ndarray:
    return delta * (np.abs(residual) - delta / 2) if math.isfinite(delta) else np.zeros(residual.size)


def _ends(problem: Problem, theta: np.ndarray, at: np.ndarray, of_coefficients: bool, which, sides, quantile: float):
    """Return the value at the best fit, the last allowed one and θ there, [lanes] each.

    Args:
        theta: [p], the best fit.
        at: [lanes, p], where each lane begins.
        which: [lanes], number of the coefficient; or [lanes, columns], logs of the point.
        sides: [lanes], -1.0 or 1.0.

    Outward in doubling steps, then false position (Illinois: an end that stays counts half), all lanes together.
    """
    residual, J = look(problem, theta)
    variance, share = error_variance(problem, residual, theta.size)
    with jax.enable_x64(True):
        value, turn = map(np.asarray, _targets(problem.form, of_coefficients, problem.centres, which, theta))
        best = np.asarray(_values(problem.form, of_coefficients, problem.centres, which, at))
    if math.isnan(variance):
        return value, np.copysign(np.inf, sides), at
    rise = max(quantile**2 / 2 * variance * share, problem.rows * LEAST_RISE)
    least = float(np.sum(np.where(np.abs(residual) <= problem.delta, residual**2 / 2, _line(residual, problem.delta))))
    scale = np.linalg.norm(J, axis=0) + 1e-150
    error = math.sqrt(2 * rise) * np.linalg.norm((turn / scale) @ np.linalg.pinv(J / scale), axis=1)
    error = np.where(error > 0, np.minimum(error, FAR / 8), FAR / 8)
    stiffness = STIFFNESS * rise / error**2
    inside, outside, last = np.zeros(sides.size), sides * error, best.copy()
    under, over = np.full(sides.size, -1.0), np.ones(sides.size)  # how far the sum is from its limit, at both
    open_, found, before = np.zeros((3, sides.size), dtype=bool)  # `found`: whether `outside` is outside
    parts = problem.logs, problem.centres, problem.log_loss, problem.delta, problem.weight
    rounds = 0
    with jax.enable_x64(True):
        while rounds < ROUNDS and not np.all(open_ | found & (np.abs(outside - inside) <= NARROW * error)):
            middle = np.where(found, inside + (outside - inside) * under / (under - over), outside)
            end, total, says = map(
                np.asarray,
                _held(problem.form, of_coefficients, *parts, which, best + middle, stiffness, at),
            )
            excess = np.sqrt(np.clip((total - least) / rise, 0.0, 16.0)) - 1  # nearly straight, where S is a parabola
            allowed = total <= least + rise
            at = np.where(allowed[:, None], end, at)
            last, inside = np.where(allowed, says, last), np.where(allowed, middle, inside)
            outside = np.where(allowed, np.where(found, outside, 2 * middle), middle)
            under = np.where(allowed, np.minimum(excess, -NARROW), np.where(found & ~before, under / 2, under))
            over = np.where(allowed, np.where(found & before, over / 2, over), np.maximum(excess, NARROW))
            found, before = found | ~allowed, allowed
            open_ |= ~found & (np.abs(inside) > FAR)
            found |= open_
            rounds += bool(found.all())
    return value, np.where(open_, np.copysign(np.inf, sides), last), at


@partial(jax.jit, static_argnames=("form",))
def _coefficients(form, theta, centres):
    return form.natural(theta, centres), jax.jacfwd(form.natural)(theta, centres)


@partial(jax.jit, static_argnames=("form",))
def _value_and_turn(form, logs, centres, theta):
    return form.model(theta, logs, centres)


def with_derivatives(value: Callable) -> Callable:
    """Return the model of a law, ln L̂ and J by forward mode, from what it predicts: (θ, logs, centres) -> ln L̂ [n]."""

    def model(theta, logs, centres):
        predicted, push = jax.linearize(lambda t: value(t, logs, centres), theta)
        return predicted, jax.vmap(push, out_axes=1)(jnp.eye(theta.size, dtype=theta.dtype))

    return model


def _target(form, of_coefficients: bool, centres, which, theta):
    """Return f(θ): the coefficient number `which` (its ln where it is above 0), or ln L̂ at the point `which`."""
    if not of_coefficients:
        return form.model(theta, which[None], centres)[0][0]
    value = form.natural(theta, centres)
    positive = jnp.array(form.positive)
    return jnp.where(positive, jnp.log(jnp.where(positive, value, 1.0)), value)[which]


@partial(jax.jit, static_argnames=("form", "of_coefficients"))
def _targets(form, of_coefficients, centres, which, theta):
    """Return f [m] and its derivatives [m, p]."""

    def one(each):
        return jax.value_and_grad(lambda t: _target(form, of_coefficients, centres, each, t))(theta)

    return jax.vmap(one)(which)


@partial(jax.jit, static_argnames=("form", "of_coefficients"))
def _values(form, of_coefficients, centres, which, theta):
    """Return f [lanes] at θ [lanes, p]."""
    return jax.vmap(lambda each, t: _target(form, of_coefficients, centres, each, t))(which, theta)


@partial(jax.jit, static_argnames=("form", "of_coefficients"))
def _held(form, of_coefficients, logs, centres, log_loss, delta, weight, which, wanted, stiffness, at):
    """Return θ, the sum of the table and f, [lanes] each, where f is held near what is wanted."""
    deltas = jnp.append(jnp.full(log_loss.shape, delta), jnp.inf)

    def one(each, wish, stiff, theta):
        def model(t):
            predicted, turn = form.model(t, logs, centres)
            says, by = jax.value_and_grad(lambda u: _target(form, of_coefficients, centres, each, u))(t)
            return jnp.append(predicted, says), jnp.concatenate([turn, by[None]])

        weights, losses = jnp.append(weight, stiff), jnp.append(log_loss, wish)
        state = _descend(model, losses, weights, deltas, _begin(model, losses, weights, deltas, theta, 0), HELD)
        residual = state.predicted - losses
        return state.theta, jnp.sum((weights * _terms(residual, deltas))[:-1]), state.predicted[-1]

    return jax.vmap(one)(which, wanted, stiffness, at)


class _State(NamedTuple):
    """Of one search."""

    theta: jax.Array
    value: jax.Array
    predicted: jax.Array
    turn: jax.Array
    damping: jax.Array
    half: jax.Array  # 0 or 1; 2 where the search has ended


@partial(jax.jit, static_argnames=("form",))
def _search(form, logs, centres, log_loss, delta, weights, starts):
    """Return θ [draws, s, p] and the sums [draws, s]."""
    deltas = jnp.full(log_loss.shape, delta)

    def model(theta):
        return form.model(theta, logs, centres)

    def one_table(weight):
        def ends(theta, half: int, most: int):
            state = _begin(model, log_loss, weight, deltas, theta, half)
            state = _descend(model, log_loss, weight, deltas, state, most)
            return state.theta, state.value

        theta, value = jax.vmap(lambda t: ends(t, 0, STEPS[0]))(starts)
        leaders = jnp.argsort(value)[: min(LEADERS, len(starts))]
        ahead, least = jax.vmap(lambda t: ends(t, 1, STEPS[1]))(theta[leaders])
        return theta.at[leaders].set(ahead), value.at[leaders].set(least)

    return jax.vmap(one_table)(weights)


def _begin(model, log_loss, weight, delta, theta, half: int) -> _State:
    predicted, turn = model(theta)
    return _State(
        theta, _sum(predicted, log_loss, weight, delta), predicted, turn, jnp.asarray(1e-4), jnp.asarray(half)
    )


def _descend(model, log_loss, weight, delta, state: _State, most: int) -> _State:
    """Return the state where the search ends; the steps are those of the reference."""
    line = jnp.where(jnp.isinf(delta), 1.0, delta)

    def step(counted):
        count, state = counted
        residual = state.predicted - log_loss
        size = jnp.abs(residual)
        scale = jnp.sqrt(weight @ state.turn**2) + FAINT
        unit = state.turn / scale
        pull = (weight * jnp.clip(residual, -delta, delta)) @ unit
        beyond = jnp.where(state.half == 0, *OUTER_SHARE) * line / jnp.maximum(size, 1e-300)
        inner = jnp.sqrt(weight * jnp.where(size <= delta, 1.0, beyond))[:, None] * unit
        move = jnp.linalg.solve(inner.T @ inner + state.damping * jnp.eye(scale.size), pull)
        least = jnp.where(state.half == 0, *WORTH) * state.value + ROUNDING**2
        ended = ~(pull @ move > least) & (state.damping <= 1) | (state.damping > 1e6)
        theta = state.theta - jnp.clip(move / scale, -LONGEST, LONGEST)
        predicted, turn = model(theta)
        value = _sum(predicted, log_loss, weight, delta)
        lower = ~ended & (value < state.value)
        damping = jnp.where(lower, jnp.maximum(state.damping / 10, 1e-12), state.damping * 4)
        moved = _State(theta, value, predicted, turn, damping, state.half)
        kept = state._replace(damping=jnp.where(ended, 1e-4, damping), half=state.half + ended)
        return count + 1, jax.tree.map(lambda new, old: jnp.where(lower, new, old), moved, kept)

    return jax.lax.while_loop(lambda c: (c[0] < most) & (c[1].half < 2), step, (0, state))[1]


def _terms(residual, delta):
    size = jnp.abs(residual)
    line = jnp.where(jnp.isinf(delta), 1.0, delta)
    return jnp.where(size <= delta, size**2 / 2, line * (size - line / 2))


def _sum(predicted, log_loss, weight, delta):
    total = jnp.sum(weight * _terms(predicted - log_loss, delta))
    return jnp.where(jnp.isfinite(total), total, jnp.inf)
