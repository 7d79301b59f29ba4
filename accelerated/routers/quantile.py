"""Quantile balancing: a bias per expert, moved after each batch towards the value that balances the batch.

Step by step, with sources and examples: `routelaws.reference.routers.quantile`.

Differences from the reference: logits and bias pass through `stop_gradient` into the choice and the step. A non-finite
logit or bias raises no error: the whole new bias is NaN. A logit of NaN or +∞ makes the gate of its token NaN, and a
non-finite bias makes all gates NaN. Without a mask the program finds order statistics by `lax.top_k`. With a mask the
number of real tokens is known only at run time, so the program sorts columns, which is slower. A group without real
tokens does not change the bias.

`axis_name`: the tokens are sharded along this axis of a `shard_map` (or a `vmap`). In `quantile_bias` each device takes
the step on its own tokens. The result is the unweighted mean of the biases over the devices (one `pmean` of E numbers).
In `quantile_router` T, load and residual cover the tokens of all devices, and each device returns its own rows.
"""

import jax
import jax.numpy as jnp

from routelaws.reference.notation import _check_k

from .._docstrings import describe_twins
from ..notation import (
    Routing,
    _among,
    _at_least_float32,
    _check_bias,
    _check_group,
    _imbalance,
    _masked_rows,
    _number_available,
    _padded_experts,
    _prepared,
    _real_gates,
    _total,
    one_hot,
    top_k_indices,
)
from .sinkhorn import _count_real, gate_values


def quantile_bias(
    scores: jax.Array,
    bias: jax.Array,
    k: int = 1,
    *,
    num_steps: int = 1,
    mask: jax.Array | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Return the bias after one or more steps on one batch.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens are sharded. Each member takes the
            step on its own tokens, and the result is the mean of the biases.

    Raises:
        ValueError: the scores are not [T, E] or the bias is not [E], k is out of range, or a mask has the wrong shape.

    Differs from the reference: the bias has at least float32. A wrong entry makes the whole new bias NaN. A group
    without a real token does not change the bias.
    """
    _check_group("scores", scores)
    _check_bias(bias, jnp.shape(scores)[1])
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    dtype = jnp.promote_types(jnp.result_type(scores, bias), jnp.float32)
    scores, bias = (jax.lax.stop_gradient(values).astype(dtype) for values in (scores, bias))
    scores, valid, available = _prepared(scores, k, mask)
    num_real = _count_real(num_tokens, mask)

    def step(_, bias):
        if mask is None:
            plain, some = ((lambda b, a=a: _one_step(scores, b, k, mask, num_real, a)) for a in (None, available))
            new = jax.lax.cond(jnp.isneginf(scores).any(), some, plain, bias)
        else:
            new = _one_step(scores, bias, k, mask, num_real, available)
        return new if axis_name is None else jax.lax.pmean(new, axis_name)

    valid = valid.all() & jnp.isfinite(_among(bias, available, 0)).all()
    if axis_name is not None:
        valid = jax.lax.pmin(valid.astype(jnp.int32), axis_name) > 0
    new = bias if k == num_experts else jax.lax.fori_loop(0, num_steps, step, bias)
    return jnp.where(valid, new, jnp.nan)


def quantile_router(
    logits: jax.Array,
    bias: jax.Array,
    k: int = 1,
    *,
    gate: str = "sigmoid",
    mask: jax.Array | None = None,
    held: Routing | None = None,
    axis_name: str | None = None,
) -> Routing:
    """Route a group of tokens by logits minus bias, in training and in evaluation.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding. T, load and residual then cover all members. Each member returns its own rows.

    Raises:
        ValueError: the logits are not [T, E] or the bias is not [E], k is out of range, the gate is unknown, or a mask
            has the wrong shape.

    Differs from the reference: a logit of NaN or +∞ makes the gate of its token NaN, and a non-finite bias makes all
    gates NaN. Choice and bias carry no gradient.
    """
    _check_group("logits", logits)
    _check_bias(bias, jnp.shape(logits)[1])
    num_tokens, num_experts = logits.shape
    _check_k(k, num_experts)
    logits, valid, available = _prepared(logits, k, mask, held=held, axis_name=axis_name)
    bias = _among(_at_least_float32(bias), available, 0)
    finite, scores = jnp.isfinite(bias).all(), jax.lax.stop_gradient(logits - bias)
    # SELECT
    if held is None:
        expert = top_k_indices(scores, k)  # [T, k]
        plan = one_hot(expert, num_experts).sum(axis=1) / (_count_real(num_tokens, mask, axis_name) * k)
        expert, plan = _padded_experts(expert, mask), _masked_rows(plan, mask)
        load = _total(plan.sum(axis=0), axis_name)  # [E]
        held = Routing(expert, expert, load, plan, _imbalance(load, available))
    # COMBINE
    gates = gate_values(logits, held.expert, gate)
    return held._replace(gate=_real_gates(gates, valid & finite, mask))


def _one_step(scores: jax.Array, bias: jax.Array, k: int, mask: jax.Array | None, num_real, available) -> jax.Array:
    """Return the bias [E] after a step on the `num_real` real tokens."""
    num_experts = len(bias)
    value = scores - _among(bias, available, 0)
    if available is not None:
        value = _finite_or_least(value)
    alpha = _middle(value, k)  # [T]
    candidates = (scores - alpha[:, None]).T  # [E, T]
    if mask is None and available is None:
        everyone, more = divmod(num_real * k, num_experts)
        if more:
            gamma = jnp.broadcast_to(_middle(bias, more), (num_experts, 1))
            candidates = jnp.concatenate([candidates, gamma], axis=1)
        bias = _middle(candidates, everyone + (more > 0))
        return bias - bias.mean()
    num_priced = _number_available(available, num_experts)
    everyone, more = jnp.divmod(num_real * k, num_priced)
    gamma = jnp.where(more > 0, _middle_of_sorted(_among(bias, available, -jnp.inf), more), -jnp.inf)
    candidates = candidates if mask is None else jnp.where(mask, candidates, -jnp.inf)
    candidates = jnp.concatenate([candidates, jnp.broadcast_to(gamma, (num_experts, 1))], axis=1)
    new = _middle_of_sorted(_finite_or_least(candidates), everyone + (more > 0))
    new = new - _among(new, available, 0).sum() / num_priced
    return _among(jnp.where((num_real > 0) & (k < num_priced), new, bias), available, bias)


def _finite_or_least(values: jax.Array) -> jax.Array:
    """Return values in which entries of −∞ are the smallest finite entry along the last axis."""
    return jnp.maximum(values, jnp.where(jnp.isneginf(values), jnp.inf, values).min(axis=-1, keepdims=True))


def _middle(values: jax.Array, rank: int) -> jax.Array:
    """Return the middle between the rank-th and the next largest entry along the last axis."""
    # On CPU top_k is twenty times as fast as a sort. But XLA sorts if it sees that only two entries are used.
    ordered = jax.lax.optimization_barrier(jax.lax.top_k(values, rank + 1)[0])
    return (ordered[..., -2] + ordered[..., -1]) / 2


def _middle_of_sorted(values: jax.Array, rank: jax.Array) -> jax.Array:
    """Return `_middle` for a rank that is known only at run time. A rank out of range gives an arbitrary number."""
    ordered = -jnp.sort(-values, axis=-1)
    at = jnp.maximum(rank - 1, 0)
    return (jnp.take(ordered, at, axis=-1) + jnp.take(ordered, at + 1, axis=-1)) / 2


describe_twins(__name__)
