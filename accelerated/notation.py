"""See `routelaws.reference.notation` for the letters and the tie rule.

What differs here: NaN cannot raise under jit. It is carried through to the loss, where the training loop stops on it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .errors import InputError


class Routing(NamedTuple):
    """See reference."""

    expert: jax.Array  # [T, k] int32
    gate: jax.Array  # [T, k]
    load: jax.Array  # [E]
    plan: jax.Array  # [T, E]
    residual: jax.Array  # []


class ExpertChoice(NamedTuple):
    """See reference."""

    token: jax.Array  # [E, C] int32
    gate: jax.Array  # [E, C]
    experts_per_token: jax.Array  # [T] int32


def _check_group(name: str, values: jax.Array) -> None:
    """Raise InputError unless values are those of one group of tokens, [T, E]."""
    if jnp.ndim(values) != 2:
        raise InputError(
            f"{name} has shape {jnp.shape(values)}; [T, E] is needed, one group of tokens: reshape a batch to "
            "[b S, E], or use vmap over its groups"
        )


def _check_bias(bias: jax.Array, num_experts: int) -> None:
    """Raise InputError unless there is one bias for each expert."""
    if jnp.shape(bias) != (num_experts,):
        raise InputError(f"bias has shape {jnp.shape(bias)}; {(num_experts,)} is needed")


def _at_least_float32(values: jax.Array) -> jax.Array:
    """Return values raised to float32 where they are below it: what routers and losses compute in."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _real_tokens(mask: jax.Array, num_tokens: int) -> jax.Array:
    """Return the mask as [T] bool."""
    if jnp.shape(mask) != (num_tokens,):
        raise InputError(f"mask has shape {jnp.shape(mask)}; {(num_tokens,)} is needed")
    return jnp.asarray(mask, bool)


def _masked_rows(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return [T, n] with zeros in the rows of padding, so that nothing that is there can reach a gradient."""
    return values if mask is None else jnp.where(_real_tokens(mask, len(values))[:, None], values, 0)


def _padded_experts(expert: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return [T, k] with experts 0 … k−1 in the rows of padding."""
    if mask is None:
        return expert
    return jnp.where(_real_tokens(mask, len(expert))[:, None], expert, jnp.arange(expert.shape[1], dtype=expert.dtype))


def _total(values, axis_name: str | None):
    """Return the sum over a mapped axis, if there is one."""
    return values if axis_name is None else jax.lax.psum(values, axis_name)


def canonical_zero(values: jax.Array) -> jax.Array:
    """See reference. Adding 0.0 would be folded away under jit, and `lax.top_k` ranks +0.0 above -0.0."""
    return jnp.where(values == 0, jnp.zeros((), values.dtype), values)


def check_finite(name: str, values) -> np.ndarray:
    """See reference; for concrete arrays only, outside jit.

    Raises:
        ValueError: an entry is NaN or infinite; the message names the first one.
    """
    values = np.asarray(values)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):  # a lone number gives one empty index
        where = tuple(int(i) for i in bad[0])
        raise ValueError(f"{name}: entry {where} is {values[where]}; every entry has to be finite")
    return values


def top_k_indices(scores: jax.Array, k: int) -> jax.Array:
    """See reference. At k = 1 an argmax (lowest index on ties) is cheaper than `lax.top_k`."""
    scores = canonical_zero(scores)
    if k == 1:
        return jnp.argmax(scores, axis=-1, keepdims=True).astype(jnp.int32)
    return jax.lax.top_k(scores, k)[1]


def softmax(logits: jax.Array) -> jax.Array:
    """See reference."""
    return jax.nn.softmax(logits, axis=-1)


def log_sum_exp(logits: jax.Array, axis: int) -> jax.Array:
    """See reference."""
    return jax.nn.logsumexp(logits, axis=axis)


def one_hot(indices: jax.Array, size: int) -> jax.Array:
    """See reference; float32, or float64 where x64 is on."""
    return jax.nn.one_hot(indices, size, dtype=jnp.result_type(float))
