"""See `routelaws.reference.experts`.

What differs is how the work is laid out. With a finite capacity factor every expert has the same number of slots and
all experts run as one batched matrix product `[E, C, d] x [E, d, f]`. When nothing may be dropped, one expert can hold
all tokens, and E·T slots would be needed; instead the sorted assignments are cut into blocks of equal length, each
with tokens of one expert only, and the batch axis of the product runs over the blocks: at most twice the rows that a
dense layer has, whatever the loads.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .errors import InputError
from .notation import one_hot


class Placement(NamedTuple):
    """See reference."""

    slot: jax.Array  # [T, k]
    kept: jax.Array  # [T, k]
    token: jax.Array  # [E, C]


def expert_capacity(num_tokens: int, num_experts: int, k: int, capacity_factor: float) -> int:
    """See reference."""
    if not capacity_factor > 0:
        raise InputError(f"capacity_factor is {capacity_factor}; it has to be above 0 (inf drops nothing)")
    if math.isinf(capacity_factor):
        return num_tokens
    return min(num_tokens, math.ceil(Fraction(str(float(capacity_factor))) * k * num_tokens / num_experts))


def dispatch(expert: jax.Array, num_experts: int, capacity: int) -> Placement:
    """See reference. An index out of range cannot raise under jit: such an assignment gets no slot."""
    num_tokens, k = expert.shape
    slot = _queue_position(expert, num_experts)
    kept = slot < capacity
    token = jnp.full((num_experts, capacity), num_tokens, jnp.int32)
    ids = jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32)[:, None], (num_tokens, k))
    token = token.at[expert, slot].set(ids, mode="drop")
    return Placement(slot, kept, token)


def _queue_position(expert: jax.Array, num_experts: int) -> jax.Array:
    """Return [T, k], how many earlier assignments want the same expert (choice-major order)."""
    num_tokens, k = expert.shape
    chosen = jax.nn.one_hot(expert.T.reshape(-1), num_experts, dtype=jnp.int32)  # [k T, E]
    before = jnp.cumsum(chosen, axis=0) - chosen
    return (before * chosen).sum(axis=1).reshape(k, num_tokens).T


def gelu(x: jax.Array) -> jax.Array:
    """See reference."""
    return jax.nn.gelu(x, approximate=True)


def expert_ffn(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    """See reference; also for a batch of experts: up [E, d, f], down [E, f, d], x [E, C, d]."""
    return gelu(x @ up) @ down


@jax.custom_vjp
def _permute_rows(x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """Return x[source] for x [T, d] (an index T gives zeros), where row r of x went to rows target[r] of the result.

    The gradient of a gather is a scatter-add, which is slow on CPU. Since `target` [T, k] says where each row went,
    the gradient is a gather as well; an index past the end gives zeros.
    """
    return jnp.take(x, source, axis=0, mode="fill", fill_value=0)


def _permute_rows_forward(x, source, target):
    return _permute_rows(x, source, target), (source, target)


def _permute_rows_backward(indices, gradient):
    source, target = indices
    rows = gradient.reshape(-1, gradient.shape[-1])
    back = jnp.take(rows, target, axis=0, mode="fill", fill_value=0).sum(axis=1)
    return back, None, None


_permute_rows.defvjp(_permute_rows_forward, _permute_rows_backward)


def combine(outputs: jax.Array, expert: jax.Array, placement: Placement, gate: jax.Array) -> jax.Array:
    """See reference."""
    num_experts, capacity, _ = outputs.shape
    num_tokens, k = expert.shape
    row = jnp.where(placement.kept, expert * capacity + placement.slot, num_experts * capacity)  # [T, k]
    return _gated_sum(outputs.reshape(num_experts * capacity, -1), row, placement.token.reshape(-1), gate)


def _gated_sum(rows: jax.Array, row: jax.Array, token: jax.Array, gate: jax.Array) -> jax.Array:
    """Return Σⱼ gate[t, j] rows[row[t, j]]; `token` [rows] names the token of each row, T for an empty one.

    At k = 1 each row goes to one token at most, so both directions are gathers. For k > 1 a row still belongs to one
    (token, choice) pair; the pairs are numbered t * k + j.
    """
    num_tokens, k = row.shape
    pair_of_row = token
    if k > 1:
        pair_of_row = jnp.full(len(rows) + 1, num_tokens * k, jnp.int32)
        pair_of_row = pair_of_row.at[row.reshape(-1)].set(jnp.arange(num_tokens * k, dtype=jnp.int32))[:-1]
    picked = _permute_rows(rows, row.reshape(-1), pair_of_row[:, None])  # [T k, d]
    return (picked.reshape(num_tokens, k, -1) * gate[:, :, None]).sum(axis=1)


class RoutedOutput(NamedTuple):
    """See reference."""

    output: jax.Array  # [T, d]
    dropped_fraction: jax.Array  # []


def routed_ffn(
    params: dict, x: jax.Array, expert: jax.Array, gate: jax.Array, capacity_factor: float = math.inf
) -> RoutedOutput:
    """See reference."""
    num_experts = len(params["up"])
    num_tokens, k = expert.shape
    capacity = expert_capacity(num_tokens, num_experts, k, capacity_factor)
    if capacity == num_tokens and num_experts > 1:
        return RoutedOutput(_dropless(params, x, expert, gate), jnp.zeros((), gate.dtype))
    # PLACE
    placement = dispatch(expert, num_experts, capacity)
    row = jnp.where(placement.kept, expert * capacity + placement.slot, num_experts * capacity)
    buffers = _permute_rows(x, placement.token.reshape(-1), row)
    # RUN
    outputs = expert_ffn(params["up"], params["down"], buffers.reshape(num_experts, capacity, -1))
    # COMBINE
    output = combine(outputs, expert, placement, gate.astype(outputs.dtype))
    return RoutedOutput(output, (~placement.kept).mean(dtype=gate.dtype))


def _dropless(params: dict, x: jax.Array, expert: jax.Array, gate: jax.Array) -> jax.Array:
    """Run every assignment, in blocks of rows that share an expert."""
    num_experts = len(params["up"])
    num_tokens, k = expert.shape
    # PLACE
    rows_per_block = -(-num_tokens * k // num_experts)
    num_blocks = num_experts + num_tokens * k // rows_per_block  # no loads need more
    slot = _queue_position(expert, num_experts)
    load = one_hot(expert, num_experts).sum(axis=(0, 1)).astype(jnp.int32)  # [E]
    last_block = jnp.cumsum(-(-load // rows_per_block))  # [E], one past the last block of each expert
    first_block = last_block - (-(-load // rows_per_block))
    row = first_block[expert] * rows_per_block + slot  # [T, k]
    expert_of_block = jnp.searchsorted(last_block, jnp.arange(num_blocks), side="right", method="compare_all")
    expert_of_block = jnp.minimum(expert_of_block, num_experts - 1)  # blocks past the end are empty
    token = jnp.full(num_blocks * rows_per_block, num_tokens, jnp.int32)
    token = token.at[row].set(jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32)[:, None], row.shape))
    buffers = _permute_rows(x, token, row).reshape(num_blocks, rows_per_block, -1)
    # RUN
    outputs = expert_ffn(params["up"][expert_of_block], params["down"][expert_of_block], buffers)
    # COMBINE
    return _gated_sum(outputs.reshape(num_blocks * rows_per_block, -1), row, token, gate.astype(outputs.dtype))
