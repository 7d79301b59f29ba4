"""S-BASE: assign tokens to experts by an entropy-regularised transport plan.

Step by step, with sources and examples: `routelaws.reference.routers.sinkhorn`.

Differences from the reference: sweeps and Newton steps are `while_loop`s, and the logits enter the plan through
`stop_gradient`. A logit of NaN or +∞ raises no error: the gates of its token are NaN, and in training the residual is
NaN, too. The program ignores all logits of a padded row.

Sweeps start in the scaling form (`_scaling_sweeps`). The program computes exp(z) once, and a sweep is two products of
this matrix with a vector. If the scales leave a safe range, or an entry of the plan could underflow, the sweeps
continue in log space from the current potentials (`_log_sweeps`). `sweeps` counts both forms.

If the sweeps converge, Newton's method does not run. Under vmap the loops run until the last group is done, and a
finished group keeps its result. Newton's method runs if at least one group needs it.

`axis_name`: the tokens of the group are sharded along this axis of a `shard_map` (or a `vmap`). T is the number of
tokens on all devices, and each device returns its own rows. A sweep costs one `psum` of E numbers. If the mass of an
expert underflows, it costs a `pmax` and a second `psum`, too. The plan costs a `pmax` of one number, and a Newton step
a `psum` of E² numbers. The stopping conditions are the same on all devices, so all devices run the same number of
steps.

The size of the output at initialisation: with softmax gates, the output of a routed FFN shrinks as E grows. For E = 4,
16, 64 and 256 it is 0.5, 0.23, 0.1 and 0.04 times the output of a dense FFN at k = 1, and 0.6, 0.31, 0.13 and 0.05
times at k = 4. With sigmoid gates it does not shrink (0.71 to 0.92 times at k = 1, 1.07 to 1.79 times at k = 4). The
reference explains and computes these numbers, and lists our choices.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from routelaws.reference.notation import _check_k
from routelaws.reference.routers.sinkhorn import GATES

from .._docstrings import describe_twins
from ..errors import InputError
from ..notation import (
    Routing,
    _among,
    _as_bool,
    _at_least_float32,
    _check_group,
    _imbalance,
    _masked_rows,
    _or_nan,
    _padded_experts,
    _prepared,
    _real_gates,
    _total,
    one_hot,
    top_k_indices,
)
from ..operations.target import platform
from ._newton import newton

_CACHED = 1 << 22  # largest number of bytes of a kernel that fits a cache; measured
_BLOCK, _LEAST_BLOCK = 1024, 64  # rows: see `_products`; measured


class SinkhornPlan(NamedTuple):
    """The plan and its quality.

    Attributes:
        plan: [T, E], rows sum to 1/T exactly (padded rows to 0), columns to 1/E within residual / E
        column_potential: [E], the potentials g; only their differences matter
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
    """The tokens of a group on this device, and the data that links this device to the others."""

    logits: jax.Array  # [T, E], the largest of each row is 0
    real: jax.Array | None  # [T] bool; None: all of them
    available: jax.Array  # [E] bool, the available experts
    count: jax.Array | int  # [], real tokens on all devices
    axis_name: str | None

    @property
    def num_experts(self):
        """The number of available experts, a float of the logits' type."""
        return self.available.sum(dtype=self.logits.dtype)

    def among(self, values: jax.Array, rest) -> jax.Array:
        """Return [..., E] with `rest` for unavailable experts."""
        return _among(values, self.available, rest)


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
    """Return the transport plan of T tokens to E experts, each token with mass 1/T and each expert with mass 1/E.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding. T is then the number of tokens on all members, and each member returns its own rows.

    Raises:
        ValueError: the logits are not [T, E], or a mask has the wrong shape.

    Differs from the reference: logits below float32 are converted to float32 and carry no gradient into the plan. A
    logit of NaN or +∞ raises no error: the residual is NaN, and `converged` is False.
    """
    _check_group("logits", logits)
    prepared = _prepared(jax.lax.stop_gradient(logits), 1, mask, axis_name=axis_name)
    group = _group(*prepared, mask, axis_name)

    unfinished = functools.partial(_unfinished, tolerance, max_sweeps, num_sweeps)

    def with_logarithms(state):
        g, plan, _, sweeps, steps, _ = state
        # Without the barrier, XLA would store the shifted logits for loops that rarely run.
        again, _ = jax.lax.optimization_barrier((prepared[0], plan))
        group = _group(again, *prepared[1:], mask, axis_name)
        g, plan, residual, sweeps = _log_sweeps(group, g, sweeps, unfinished)
        if num_sweeps is None and max_newton > 0:
            g, plan, residual, steps = _newton_if_needed(group, (g, plan, residual, steps), tolerance, max_newton)
        return g, plan, residual, sweeps, steps, jnp.bool_(True)

    g, plan, residual, sweeps, precise = _scaling_sweeps(group, unfinished)
    done = precise & ~unfinished(residual, sweeps)
    if num_sweeps is None:
        done &= residual <= tolerance
    # This is a loop of at most one round: under vmap it is skipped if no group needs it; a cond would always run.
    state = g, plan, residual, sweeps, jnp.int32(0), done
    g, plan, residual, sweeps, steps, _ = jax.lax.while_loop(lambda s: ~s[5], with_logarithms, state)
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
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding. T, load and residual then cover all members. Each member returns its own rows.

    Raises:
        ValueError: the logits are not [T, E], k is out of range, the gate is unknown, or a mask has the wrong shape.

    Differs from the reference: logits below float32 are converted to float32. A logit of NaN or +∞ makes the gates of
    its token NaN, and in training the residual too.
    """
    _check_group("logits", logits)
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    logits, valid, available = _prepared(logits, k, mask, held=held, axis_name=axis_name)
    # SELECT
    if held is None:
        group = _group(logits, valid, available, mask, axis_name)
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
            held = Routing(expert, expert, load, chosen, _imbalance(load, available))
    # COMBINE
    gates = gate_values(logits, held.expert, gate)
    return held._replace(gate=_real_gates(gates, valid, mask))


def gate_values(logits: jax.Array, expert: jax.Array, gate: str) -> jax.Array:
    """Return the gate of each chosen expert, [T, k], from logits [T, E] and expert [T, k]."""
    if gate not in GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(GATES)}")
    logits = _at_least_float32(logits)
    chosen = _entries(logits, expert)
    if gate == "sigmoid":
        return jax.nn.sigmoid(chosen)
    top = jax.lax.stop_gradient(logits.max(axis=1, keepdims=True))
    return jnp.exp(chosen - top) / jnp.exp(logits - top).sum(axis=1, keepdims=True)


@jax.custom_vjp
def _entries(values: jax.Array, index: jax.Array) -> jax.Array:
    """Return the entries [T, k] of values [T, E] at the index [T, k].

    The function compares indices. The gradient of a gather would be a scatter, which XLA on CPU runs one number at a
    time.
    """
    return jnp.take_along_axis(values, index, axis=1)


def _entries_forward(values, index):
    return jnp.take_along_axis(values, index, axis=1), (index, jnp.arange(values.shape[1], dtype=index.dtype))


def _entries_backward(kept, gradient):
    index, column = kept
    return jnp.where(index[:, :, None] == column, gradient[:, :, None], 0).sum(axis=1), None


_entries.defvjp(_entries_forward, _entries_backward)


def _count_real(num_tokens: int, mask: jax.Array | None, axis_name: str | None = None):
    """Return the number of real tokens: a Python number if it follows from the shapes."""
    if mask is not None:
        return _total(_as_bool(mask).sum(), axis_name)
    return num_tokens if axis_name is None else num_tokens * jax.lax.axis_size(axis_name)


def _group(logits: jax.Array, valid: jax.Array, available, mask: jax.Array | None, axis_name: str | None) -> _Group:
    """Return the group of `_prepared` logits: without gradients, each row minus its maximum, invalid rows NaN."""
    logits, count = jax.lax.stop_gradient(logits), _count_real(len(logits), mask, axis_name)
    top = _or_nan(logits.max(axis=1, keepdims=True), valid)
    top = jax.lax.optimization_barrier(top)  # without the barrier, XLA stores the difference before its exp
    return _Group(logits - top, mask, available, count, axis_name)


def _unfinished(tolerance: float, max_sweeps: int, num_sweeps: int | None, residual: jax.Array, sweeps: jax.Array):
    if num_sweeps is not None:
        return sweeps < num_sweeps
    return (sweeps < max_sweeps) & ~(residual <= tolerance)


def _scaling_sweeps(group: _Group, unfinished):
    """Take sweeps with scales instead of potentials, from g = 0, while the scales stay in a safe range.

    With the kernel K = exp(z), u = exp(g) and w = 1 / (K u), the plan is K u w / T and the masses are u (w K) / T. The
    function accepts a sweep if the new u stays between the fourth root of the smallest float and its reciprocal (our
    choice). Then underflow in K does not affect the sums. Relative to a sum, it is less than the square root of the
    smallest float.

    An entry K u w / T of the plan is precise if its K is a normal number. Otherwise the entry is below tiny · u w / T,
    where tiny is the smallest normal number. If no u w / T is above 1, such an entry is itself below tiny.

    Args:
        unfinished: a function (residual, number of sweeps) -> whether to sweep again.

    Returns:
        g [E], the plan [T, E], its residual, the number of sweeps, and whether all entries of the plan are precise.
    """
    kernel = jnp.exp(group.logits)
    safe = float(jnp.finfo(kernel.dtype).tiny) ** 0.25

    def evaluate(state):
        _, u, _, _, sweeps = state
        weights, sums = _products(kernel, u, group.real)
        sums = group.among(group.num_experts * _total(sums, group.axis_name) / group.count, 1)
        return u, 1 / sums, weights, jnp.abs(u * sums - 1).max(), sweeps + 1

    def goes_on(state):
        _, new, _, residual, sweeps = state
        allowed = (new > safe).all() & (new < 1 / safe).all()  # False for NaN
        return (sweeps < 0) | (unfinished(residual, sweeps) & allowed)

    # Each round keeps its own u and the next u. The first round is no sweep, but it saves one copy of the products.
    u = jnp.ones(kernel.shape[1], kernel.dtype)  # stays 1 for an unavailable expert
    start = u, u, kernel[:, 0], u[0], jnp.int32(-1)
    u, _, weights, residual, sweeps = jax.lax.while_loop(goes_on, evaluate, start)

    weights = weights / group.count
    most = weights.max()
    if group.axis_name is not None:
        most = jax.lax.pmax(most, group.axis_name)
    return jnp.log(u), _scaled(kernel, u, weights, sweeps), residual, sweeps, most * u.max() <= 1


def _products(kernel: jax.Array, u: jax.Array, real: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return w = 1 / (kernel u) [T], 0 in padded rows, and w kernel [E].

    The kernel may not fit a cache. If T can then be divided into blocks of rows, the function computes the second
    product for each block and adds the results. Its rounding error then differs from the error of a single product.
    """
    weights = 1 / jnp.matmul(kernel, u, precision="highest")
    weights = weights if real is None else jnp.where(real, weights, 0)
    num_rows, num_experts = kernel.shape
    block = math.gcd(num_rows, _BLOCK)
    if kernel.nbytes <= _CACHED or block < _LEAST_BLOCK:
        return weights, jnp.matmul(weights, kernel, precision="highest")
    blocks = weights.reshape(-1, 1, block), kernel.reshape(-1, block, num_experts)
    return weights, jnp.matmul(*blocks, precision="highest").sum(axis=(0, 1))


def _scaled(kernel: jax.Array, u: jax.Array, weights: jax.Array, sweeps: jax.Array) -> jax.Array:
    """Return kernel · u · w, [T, E].

    On CPU, if the result does not fit a cache, the function overwrites the kernel. This takes half the time of writing
    to a new buffer. XLA overwrites only the carry of a loop, so this is a loop of one round. The compiler cannot
    evaluate its end condition, so it keeps the loop.
    """
    if kernel.nbytes <= _CACHED or platform() != "cpu":
        return kernel * (u * weights[:, None])

    def scale(state):
        return state[0] * (u * weights[:, None]), jnp.bool_(True)

    return jax.lax.while_loop(lambda state: ~state[1], scale, (kernel, sweeps < 0))[0]


def _log_sweeps(group: _Group, g: jax.Array, sweeps: jax.Array, unfinished):
    """Continue from the potentials g in log space. Return potentials, plan, residual and the total number of sweeps."""
    before = sweeps

    def evaluate(state):
        _, g, _, _, sweeps = state
        plan, mass, residual = _row_step(group, g)
        new = group.among(g - jnp.log(group.num_experts) - _log_mass(group, g, mass), 0)
        return g, new, plan, residual, sweeps + 1

    def goes_on(state):
        return (state[4] < before) | unfinished(state[3], state[4])

    start = g, g, group.logits, jnp.zeros_like(g[0]), sweeps - 1
    g, _, plan, residual, sweeps = jax.lax.while_loop(goes_on, evaluate, start)
    return g, plan, residual, sweeps


def _row_step(group: _Group, g: jax.Array, temperature: jax.Array | None = None):
    values = group.logits + g
    if temperature is not None:
        values = values / temperature
    # Subtract a shift that avoids overflow and underflow in exp; it is constant in a row and cancels.
    plan = jnp.exp(values - values.max(axis=1, keepdims=True))
    plan = _masked_rows(plan / (plan.sum(axis=1, keepdims=True) * group.count), group.real)
    mass = _total(plan.sum(axis=0), group.axis_name)
    return plan, mass, _imbalance(mass, group.available)


def _log_mass(group: _Group, g: jax.Array, mass: jax.Array) -> jax.Array:
    """Return the log of the mass of each expert. If the mass underflows, recompute the sum with a shift."""
    mass = group.among(mass, 1)

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


def _newton_if_needed(group: _Group, state: tuple, tolerance: float, max_newton: int) -> tuple:
    """Return `state` (g, plan, residual, steps). If the residual is above the tolerance, `newton` runs first.

    A loop of at most one round, as in `sinkhorn_plan`.
    """
    return jax.lax.while_loop(
        lambda s: (s[2] > tolerance) & (s[3] == 0),
        lambda s: newton(_row_step, group, *s[:3], tolerance, max_newton),
        state,
    )


describe_twins(__name__)
