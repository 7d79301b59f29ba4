"""See `routelaws.reference.routers.sinkhorn`.

What differs: the sweeps are a `while_loop` (a `fori_loop` for a fixed count), and the logits enter the plan through
`stop_gradient`. A logit that is not finite does not raise: it is carried into the residual and the gates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..errors import InputError
from ..notation import Routing, log_sum_exp, one_hot, softmax, top_k_indices

GATES = ("softmax", "sigmoid")
"""See reference."""


class SinkhornPlan(NamedTuple):
    """See reference."""

    plan: jax.Array  # [T, E]
    column_potential: jax.Array  # [E]
    residual: jax.Array  # []
    sweeps: jax.Array  # []
    converged: jax.Array  # []


def sinkhorn_plan(
    logits: jax.Array, *, tolerance: float = 1e-3, max_sweeps: int = 100, num_sweeps: int | None = None
) -> SinkhornPlan:
    """See reference. Logits below float32 are raised to float32."""
    logits = jax.lax.stop_gradient(logits)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    num_tokens, num_experts = logits.shape

    def row_step(g):
        f = -jnp.log(num_tokens) - log_sum_exp(logits + g, axis=1)
        log_plan = logits + f[:, None] + g
        # exp is safe here: after a row step no entry of the plan exceeds 1/T.
        mass = jnp.exp(log_plan).sum(axis=0)
        return log_plan, mass, jnp.abs(num_experts * mass - 1).max()

    def column_step(state):
        g, log_plan, mass, _, sweeps = state
        # An expert whose mass underflows to 0 is out of reach of the plain sum; take the shifted one for it.
        log_mass = jnp.where(mass > 0, jnp.log(mass), log_sum_exp(log_plan, axis=0))
        g = g - jnp.log(num_experts) - log_mass
        return g, *row_step(g), sweeps + 1

    def unfinished(state):
        residual, sweeps = state[3], state[4]
        return (sweeps < max_sweeps) & ~(residual <= tolerance)

    g = jnp.zeros(num_experts, logits.dtype)
    state = (g, *row_step(g), jnp.int32(0))
    if num_sweeps is None:
        state = jax.lax.while_loop(unfinished, column_step, state)
    else:
        state = jax.lax.fori_loop(0, num_sweeps, lambda _, s: column_step(s), state)
    g, log_plan, _, residual, sweeps = state
    return SinkhornPlan(jnp.exp(log_plan), g, residual, sweeps, residual <= tolerance)


def sinkhorn_router(
    logits: jax.Array,
    k: int = 1,
    *,
    training: bool = True,
    gate: str = "softmax",
    num_sweeps: int | None = None,
    held: Routing | None = None,
) -> Routing:
    """See reference."""
    num_tokens, num_experts = logits.shape
    if not 1 <= k <= num_experts:
        raise InputError(f"k is {k}; it has to be between 1 and num_experts = {num_experts}")
    # SELECT
    if held is None:
        if training:
            solved = sinkhorn_plan(logits, num_sweeps=num_sweeps)
            plan, residual = solved.plan, solved.residual
            expert = top_k_indices(jax.lax.stop_gradient(logits) + solved.column_potential, k)  # [T, k]
        else:
            expert = top_k_indices(jax.lax.stop_gradient(logits), k)
            plan = one_hot(expert, num_experts).sum(axis=1) / (num_tokens * k)
            residual = jnp.abs(num_experts * plan.sum(axis=0) - 1).max()
        load = one_hot(expert, num_experts).sum(axis=(0, 1)) / (num_tokens * k)  # [E]
        held = Routing(expert, expert, load, plan, residual)
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def gate_values(logits: jax.Array, expert: jax.Array, gate: str) -> jax.Array:
    """See reference."""
    if gate not in GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(GATES)}")
    activated = softmax(logits) if gate == "softmax" else jax.nn.sigmoid(logits)
    return jnp.take_along_axis(activated, expert, axis=1)
