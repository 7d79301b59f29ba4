"""Newton's method for the potentials of `sinkhorn`, for logits that need too many sweeps.

Private to the fast twin. `routelaws.reference.routers._newton` derives the steps. Here the steps are a `while_loop`,
and the tokens may be sharded over devices. A step then costs one `psum` of E² numbers.
"""

import jax
import jax.numpy as jnp

from routelaws.reference.routers._newton import _CLOSE, _GROUND, _WARM

from ..notation import _masked_rows, _total


def newton(row_step, group, g, plan, residual, tolerance: float, max_newton: int):
    """Return potentials, plan, residual and number of steps.

    Args:
        row_step: (group, g, temperature) -> the plan, the mass of each expert, and the residual.
        group: the tokens, a `sinkhorn._Group`.
        g: [E], the potentials before the first step.
        plan: the plan of g.
        residual: the residual of this plan.
        tolerance: stop at a residual of at most this.
        max_newton: largest number of steps.
    """
    values = _masked_rows(group.logits + g, group.real)
    spread = (values.max(axis=1) - jnp.where(jnp.isneginf(values), jnp.inf, values).min(axis=1)).max()
    if group.axis_name is not None:
        spread = jax.lax.pmax(spread, group.axis_name)
    temperature = jnp.maximum(spread / _WARM, 1).astype(g.dtype)
    num_experts = group.num_experts
    ground = jnp.full_like(g, _GROUND * jnp.finfo(g.dtype).eps) / num_experts

    def step(state):
        x, temperature, _, steps = state
        plan, mass, residual = row_step(group, x, temperature)
        weights = _total(jnp.matmul(plan.T, plan, precision="highest"), group.axis_name) * group.count
        v = _solve_graph(weights, group.among(1 / num_experts - mass, 0), ground)
        reach = group.among(v, -jnp.inf).max() - group.among(v, jnp.inf).min()
        x = x + temperature * jnp.where(reach > 0, jnp.log1p(reach) / reach, 1) * v
        done = (temperature == 1) & (residual <= tolerance)
        close = (reach <= _CLOSE) | (residual <= tolerance)
        cooler = jnp.where(close, jnp.maximum(temperature / 2, 1), temperature)
        return group.among(x - x.sum() / num_experts, 0), cooler, done, steps + 1

    def unfinished(state):
        return (state[3] < max_newton) & ~state[2]

    x, _, _, steps = jax.lax.while_loop(unfinished, step, (g, temperature, jnp.bool_(False), jnp.int32(0)))
    colder, _, left = row_step(group, x)
    better = left < residual  # false if the steps ended before temperature 1, or in rounding
    return *(jnp.where(better, new, old) for new, old in ((x, g), (colder, plan), (left, residual))), steps


def _solve_graph(weights: jax.Array, excess: jax.Array, ground: jax.Array) -> jax.Array:
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
