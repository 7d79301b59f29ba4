"""See `routelaws.reference.routers.quantile`.

What differs: logits and bias enter the choice and the step through `stop_gradient`. An entry that is not finite does
not raise: the whole new bias is NaN then, and so is the gate of each token that has such a logit, or of all of them
where the bias has one.
"""

import jax
import jax.numpy as jnp

from ..errors import InputError
from ..notation import Routing, one_hot, top_k_indices
from .sinkhorn import gate_values


def quantile_bias(scores: jax.Array, bias: jax.Array, k: int = 1, *, num_steps: int = 1) -> jax.Array:
    """See reference. Everything below float32 is raised to float32."""
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    dtype = jnp.promote_types(jnp.result_type(scores, bias), jnp.float32)
    scores, bias = (jax.lax.stop_gradient(values).astype(dtype) for values in (scores, bias))
    capacity, more = divmod(num_tokens * k, num_experts)

    def step(_, bias):
        alpha = _middle(scores - bias, k)  # [T]
        candidates = (scores - alpha[:, None]).T  # [E, T]
        if more:
            x = jnp.broadcast_to(_middle(bias, more), (num_experts, 1))
            candidates = jnp.concatenate([candidates, x], axis=1)
        bias = _middle(candidates, capacity + (more > 0))
        return bias - bias.mean()

    if k < num_experts:
        finite = jnp.isfinite(scores).all() & jnp.isfinite(bias).all()
        bias = jnp.where(finite, jax.lax.fori_loop(0, num_steps, step, bias), jnp.nan)
    return bias


def quantile_router(
    logits: jax.Array, bias: jax.Array, k: int = 1, *, gate: str = "sigmoid", held: Routing | None = None
) -> Routing:
    """See reference."""
    num_tokens, num_experts = logits.shape
    _check_k(k, num_experts)
    scores = jax.lax.stop_gradient(logits - bias)
    # SELECT
    if held is None:
        expert = top_k_indices(scores, k)  # [T, k]
        plan = one_hot(expert, num_experts).sum(axis=1) / (num_tokens * k)  # [T, E]
        load = plan.sum(axis=0)  # [E]
        held = Routing(expert, expert, load, plan, jnp.abs(num_experts * load - 1).max())
    # COMBINE
    values = gate_values(logits, held.expert, gate)
    return held._replace(gate=jnp.where(jnp.isfinite(scores).all(axis=1, keepdims=True), values, jnp.nan))


def _check_k(k: int, num_experts: int) -> None:
    if not 1 <= k <= num_experts:
        raise InputError(f"k is {k}; it has to be between 1 and num_experts = {num_experts}")


def _middle(values: jax.Array, rank: int) -> jax.Array:
    """Return the middle between the rank-th and the next largest entry along the last axis."""
    ordered = jax.lax.top_k(values, rank + 1)[0]  # on CPU twenty times as fast as to sort
    return (ordered[..., -2] + ordered[..., -1]) / 2
