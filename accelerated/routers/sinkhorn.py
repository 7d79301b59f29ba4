"""S-BASE: tokens are shared out among the experts by an entropy-regularised transport plan.

Step by step, with sources and examples: `routelaws.reference.routers.sinkhorn`.

What differs: sweeps and Newton steps are `while_loop`s (fixed sweeps a `fori_loop`), and the logits enter the plan
through `stop_gradient`. A logit that is not finite does not raise: it is carried into the residual and the gates. In a
padded row it is left out, as everything else there.

Where the sweeps suffice, nothing of Newton's method runs. Under vmap the loops go on until the last group is done: a
group that is done keeps what it has, but waits; and if no group needs Newton's method, it does not run either.

`axis_name`: the tokens of the group are spread over the devices along that axis of a `shard_map` (or a `vmap`). T is
the number of all of them, and each device returns its own rows. A sweep costs one `psum` of E numbers (and, where the
mass of an expert underflows, a `pmax` and a second one), a Newton step another of E² numbers. What the loops stop on is
the same on all devices, so all of them take the same path.

The size of the output: the softmax gate makes a fresh routed FFN the smaller the more experts there are (0.5, 0.23, 0.1
and 0.04 of a dense FFN for E = 4, 16, 64 and 256 at k = 1; 0.6, 0.31, 0.13 and 0.05 at k = 4), the sigmoid hardly (0.71
to 0.92; 1.07 to 1.79). Why, how these numbers are computed, and our choices: see the reference.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..errors import InputError, _check_k
from ..notation import (
    Routing,
    _at_least_float32,
    _check_group,
    _masked_rows,
    _padded_experts,
    _total,
    one_hot,
    softmax,
    top_k_indices,
)

GATES = ("softmax", "sigmoid")
"""Names of the functions that turn the logit of a chosen expert into its gate."""

_WARM = 16.0  # these three: see `_newton` in the reference
_CLOSE = 1.0
_GROUND = 16.0


class SinkhornPlan(NamedTuple):
    """The plan and how good it is.

    Attributes:
        plan: [T, E], rows sum to 1/T exactly (padded ones to 0), columns to 1/E within residual / E
        column_potential: [E], the potentials g; only their differences mean anything
        residual: max over e of |E * (column sum) - 1|
        sweeps: column steps taken
        converged: residual <= tolerance
        newton_steps: steps taken after the sweeps
    """

    plan: jax.Array
    column_potential: jax.Array
    residual: jax.Array
    sweeps: jax.Array
    converged: jax.Array
    newton_steps: jax.Array


class _Group(NamedTuple):
    """The tokens of a group that are on this device, and what ties them to the others."""

    logits: jax.Array  # [T, E], the largest of each row is 0
    real: jax.Array | None  # [T] bool; None: all of them
    count: jax.Array | int  # [], real tokens on all devices
    axis_name: str | None


def sinkhorn_plan(
    logits: jax.Array,
    *,
    tolerance: float = 1e-3,
    max_sweeps: int = 100,
    max_newton: int = 200,
    num_sweeps: int | None = None,
    mask: jax.Array | None = None,
    axis_name: str | None = None,
) -> SinkhornPlan:
    """Share T tokens out among E experts, each token with mass 1/T and each expert with mass 1/E.

    Args:
        logits: [T, E], finite; the raw router logits z.
        tolerance: stop when every expert's mass is within this factor of 1/E.
        max_sweeps: leave it to Newton's method after this many column steps.
        max_newton: give up after this many of its steps; 0 for sweeps alone.
        num_sweeps: take exactly this many column steps, whatever the residual (overrides the three above).
        mask: [T] bool, True for a real token; T is then the number of real ones.
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are spread; None if
            all are here. T is then the number of all of them, and each member returns its own rows.

    Returns:
        `SinkhornPlan`. Rows sum to 1/T up to rounding, at any scale of the logits, because a token's row is shifted by
        its maximum and divided by its sum last; exp(z + a + g) as it stands keeps the rounding error of terms as large
        as the logits in each row.

    Raises:
        ValueError: the logits are not [T, E], or the mask has another shape.

    Differs from the reference: logits below float32 are raised to float32 and carry no gradient into the plan. A NaN
    does not raise: it reaches the residual, and `converged` is False then.
    """
    _check_group("logits", logits)
    group = _group(logits, mask, axis_name)
    num_experts, dtype = group.logits.shape[1], group.logits.dtype

    def sweep(state):
        g, _, mass, _, sweeps = state
        g = g - jnp.log(num_experts) - _log_mass(group, g, mass)
        return g, *_row_step(group, g), sweeps + 1

    def unfinished(state):
        return (state[4] < max_sweeps) & ~(state[3] <= tolerance)

    g = jnp.zeros(num_experts, dtype)
    state = (g, *_row_step(group, g), jnp.int32(0))
    if num_sweeps is None:
        state = jax.lax.while_loop(unfinished, sweep, state)
    else:
        state = jax.lax.fori_loop(0, num_sweeps, lambda _, s: sweep(s), state)
    g, plan, _, residual, sweeps = state
    steps = jnp.int32(0)
    if num_sweeps is None and max_newton > 0:
        # A loop of at most one round, which vmap, unlike a cond, does not run for groups that do not need it.
        state = jax.lax.while_loop(
            lambda s: (s[2] > tolerance) & (s[3] == 0),
            lambda s: _newton(group, *s[:3], tolerance, max_newton),
            (g, plan, residual, steps),
        )
        g, plan, residual, steps = state
    return SinkhornPlan(plan, g, residual, sweeps, residual <= tolerance, steps)


def sinkhorn_router(
    logits: jax.Array,
    k: int = 1,
    *,
    training: bool = True,
    gate: str = "softmax",
    num_sweeps: int | None = None,
    mask: jax.Array | None = None,
    held: Routing | None = None,
    axis_name: str | None = None,
) -> Routing:
    """Route a group of tokens by S-BASE.

    Args:
        logits: [T, E], finite; the raw router logits z.
        k: experts per token, 1 <= k <= E.
        training: select from the balanced plan (not causal); otherwise from the logits (causal, any group).
        gate: "softmax" or "sigmoid" of the logits.
        num_sweeps: see `sinkhorn_plan`.
        mask: [T] bool, True for a real token. The others get experts 0 … k−1 with gate 0, and count for nothing.
        held: a routing of the same group whose selection is used instead of a new one.
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are spread; None if
            all are here. T, load and residual are then those of all; each member returns its own rows.

    Returns:
        `Routing`; in evaluation `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: the logits are not [T, E], k is out of range, the gate is unknown, or the mask has another shape.

    Discontinuity: the selection jumps where two entries of a row of the plan (training) or of the logits (evaluation)
    are equal; ties go to the lower index.

    Differs from the reference: logits below float32 are raised to float32. A NaN does not raise: it reaches the
    residual in training, and the gates where they are softmax or its expert is chosen.
    """
    _check_group("logits", logits)
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    logits = _masked_rows(logits, mask)
    # SELECT
    if held is None:
        group = _group(logits, mask, axis_name)
        solved = None
        if training:
            solved = sinkhorn_plan(logits, num_sweeps=num_sweeps, mask=mask, axis_name=axis_name)
        expert = top_k_indices(group.logits + (solved.column_potential if training else 0), k)  # [T, k]
        chosen = _masked_rows(one_hot(expert, num_experts).sum(axis=1) / (group.count * k), mask)  # [T, E]
        expert = _padded_experts(expert, mask)
        load = _total(chosen.sum(axis=0), axis_name)  # [E]
        if training:
            held = Routing(expert, expert, load, solved.plan, solved.residual)
        else:
            held = Routing(expert, expert, load, chosen, jnp.abs(num_experts * load - 1).max())
    # COMBINE
    return held._replace(gate=_masked_rows(gate_values(logits, held.expert, gate), mask))


def gate_values(logits: jax.Array, expert: jax.Array, gate: str) -> jax.Array:
    """Return the gate of each chosen expert, [T, k], from logits [T, E] and expert [T, k].

    Raises:
        ValueError: the gate is neither "softmax" nor "sigmoid".
    """
    if gate not in GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(GATES)}")
    logits = _at_least_float32(logits)
    activated = softmax(logits) if gate == "softmax" else jax.nn.sigmoid(logits)
    return jnp.take_along_axis(activated, expert, axis=1)


def _count_real(num_tokens: int, mask: jax.Array | None, axis_name: str | None = None):
    """Return how many tokens are real: a plain number where the shapes say it."""
    if mask is not None:
        return _total(mask.sum(), axis_name)
    return num_tokens if axis_name is None else num_tokens * jax.lax.axis_size(axis_name)


def _group(logits: jax.Array, mask: jax.Array | None, axis_name: str | None) -> _Group:
    """Return the group without gradients and without what its rows have in common, which no plan depends on."""
    logits = _masked_rows(_at_least_float32(jax.lax.stop_gradient(logits)), mask)
    count = _count_real(len(logits), mask, axis_name)
    return _Group(logits - logits.max(axis=1, keepdims=True), mask, count, axis_name)


def _row_step(group: _Group, g: jax.Array, temperature: jax.Array | None = None):
    """Return the plan [T, E] of the potentials after a row step, the mass of each expert [E], and the residual."""
    values = group.logits + g
    if temperature is not None:
        values = values / temperature
    # What overflows or gets lost in exp is taken off first; it is the same for a whole row and cancels.
    plan = jnp.exp(values - values.max(axis=1, keepdims=True))
    plan = _masked_rows(plan / (plan.sum(axis=1, keepdims=True) * group.count), group.real)
    mass = _total(plan.sum(axis=0), group.axis_name)
    return plan, mass, jnp.abs(len(g) * mass - 1).max()


def _log_mass(group: _Group, g: jax.Array, mass: jax.Array) -> jax.Array:
    """Return log of the mass of each expert. Where that underflows, the sum is taken once more, shifted."""

    def shifted():
        values = group.logits + g
        values = values - values.max(axis=1, keepdims=True)
        log_plan = values - jnp.log(jnp.exp(values).sum(axis=1, keepdims=True) * group.count)
        if group.real is not None:
            log_plan = jnp.where(group.real[:, None], log_plan, -jnp.inf)
        top = log_plan.max(axis=0)
        if group.axis_name is not None:
            top = jax.lax.pmax(top, group.axis_name)
        below = jnp.log(_total(jnp.exp(log_plan - top).sum(axis=0), group.axis_name))
        return jnp.where(mass >= jnp.finfo(mass.dtype).tiny, jnp.log(mass), top + below)

    return jax.lax.cond((mass < jnp.finfo(mass.dtype).tiny).any(), shifted, lambda: jnp.log(mass))


def _newton(group: _Group, g, plan, residual, tolerance: float, max_newton: int):
    """Return potentials, plan, residual and number of steps of Newton's method. See the reference's `_newton`."""
    values = _masked_rows(group.logits + g, group.real)
    spread = (values.max(axis=1) - values.min(axis=1)).max()
    if group.axis_name is not None:
        spread = jax.lax.pmax(spread, group.axis_name)
    temperature = jnp.maximum(spread / _WARM, 1).astype(g.dtype)

    def step(state):
        x, temperature, _, steps = state
        plan, mass, residual = _row_step(group, x, temperature)
        weights = _total(jnp.matmul(plan.T, plan, precision="highest"), group.axis_name) * group.count
        v = _solve_graph(weights, 1 / len(g) - mass, jnp.full_like(g, _GROUND * jnp.finfo(g.dtype).eps / len(g)))
        reach = v.max() - v.min()
        x = x + temperature * jnp.where(reach > 0, jnp.log1p(reach) / reach, 1) * v
        done = (temperature == 1) & (residual <= tolerance)
        close = (reach <= _CLOSE) | (residual <= tolerance)
        cooler = jnp.where(close, jnp.maximum(temperature / 2, 1), temperature)
        return x - x.mean(), cooler, done, steps + 1

    def unfinished(state):
        return (state[3] < max_newton) & ~state[2]

    x, _, _, steps = jax.lax.while_loop(unfinished, step, (g, temperature, jnp.bool_(False), jnp.int32(0)))
    colder, _, left = _row_step(group, x)
    better = left < residual  # not so where the steps ended before temperature 1, or in rounding
    return *(jnp.where(better, new, old) for new, old in ((x, g), (colder, plan), (left, residual))), steps


def _solve_graph(weights: jax.Array, excess: jax.Array, ground: jax.Array) -> jax.Array:
    """Return v with Σ_j w_ej (v_e − v_j) + ground_e v_e = excess_e. See `_newton` in the reference."""
    index = jnp.arange(len(excess))

    def links(weights, e):
        return jnp.where(index > e, weights[e], 0)

    def remove(e, state):
        weights, excess, ground = state
        row = links(weights, e)
        share = row / (row.sum() + ground[e])
        return weights + share[:, None] * row, excess + share * excess[e], ground + share * ground[e]

    def put_back(i, v):
        e = len(excess) - 1 - i
        row = links(weights, e)
        return v.at[e].set((excess[e] + (row * v).sum()) / (row.sum() + ground[e]))

    weights, excess, ground = jax.lax.fori_loop(0, len(excess), remove, (weights, excess, ground))
    return jax.lax.fori_loop(0, len(excess), put_back, jnp.zeros_like(excess))
