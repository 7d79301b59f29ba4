"""All experts of a layer as a loop over pieces of work: one piece is a run of tokens that share an expert.

A batched product `[E, C, d] x [E, d, f]` pays for C slots whatever is in them. Here the loads are known when the
products start: the rows are sorted by expert, and each expert runs on nearly as many rows as it has. XLA wants sizes
that are known when it compiles, so an expert takes the smallest of a handful of sizes (`piece_sizes`) that holds its
rows. There is one `while_loop` for each size, over the experts that took it; a size that nobody took costs nothing. An
expert with more rows than the largest size has whole pieces of that size beside its last one.

    rows of expert e   | whole piece | whole piece | last piece, padded to its size |

Many experts go through these loops four at a time: sorted by the rows of their last pieces, four in a row share a size.
Then the products of one expert run while the matrices of the next are copied, and small ones share two threads better.

In the backward pass the last piece of an expert comes first and gives the gradient of the matrices of the expert; its
whole pieces, if there are any, add to what is there. The gradient of an idle expert is 0. Where an expert has few rows,
its gradient is larger than the vectors that it is a product of. Then the loops write these vectors into slots, the same
number for each expert, and one batched product writes every gradient once, where a loop would write it three times:
zeros, the product, and a copy of the product.

The backward pass is written by hand, for three reasons. A gather by an order of rows has a gather as its gradient, not
a scatter-add. Autodiff cannot reverse a `while_loop`. And of a piece only the vectors before the nonlinearity are
kept: what follows from them is computed again while the piece is in the cache.

The loops are for CPU: on one, a product of the size of one expert runs at full speed, and a step of a loop costs
microseconds. Results differ from those of the batched form by rounding alone.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_UNIT = 8  # rows; sizes are multiples of it

_MANY = 64
"""Experts from which they go through the loops four at a time. With few, four that share a size waste more rows than
that gains. On two cores the layer takes 0.93 to 0.96 of the time with 64 experts and 512, the same with 16, and 1.05
with 8; a training step with 32 takes the same, and compiles 1.6 seconds longer."""


class Rows(NamedTuple):
    """Where the rows of the experts are, and which piece of work is whose.

    Attributes:
        pair: [R] int32, the assignment t k + j in each row; T k where the row is empty
        row: [T, k] int32, the row of each assignment; R where it has none
        by_size: [groups, experts in a group] int32, the experts in the order of the sizes of their last pieces; the
            idle ones first
        bound: [number of sizes + 1] int32, where in `by_size` the groups of each size begin
        first: [E] int32, the first row of each expert
        whole: [E] int32, the number of whole pieces of each expert, beside its last piece
        whole_end: [E] int32, their running total
    """

    pair: jax.Array
    row: jax.Array
    by_size: jax.Array
    bound: jax.Array
    first: jax.Array
    whole: jax.Array
    whole_end: jax.Array


def piece_sizes(num_assignments: int, num_experts: int) -> tuple[int, ...]:
    """Return the numbers of rows that a piece may have, ascending: dense around the mean load m, spaced by √m.

    Loads of a balanced router scatter by about that much. Few sizes compile faster, many waste fewer rows; these were
    the best compromise of those tried.
    """
    mean = num_assignments / num_experts
    root = math.sqrt(mean)
    wanted = (mean / 2, mean, mean + root, mean + 2.5 * root)
    return tuple(sorted({max(1, math.ceil(size / _UNIT)) * _UNIT for size in wanted}))


def position_in_queue(queue: jax.Array, num_experts: int) -> jax.Array:
    """Return [n] int32, how many entries of `queue` [n] before each one are equal to it; anything for an entry E.

    Blocks of entries are compared pair by pair; what was before a block is a running total of counts.
    """
    block = 32
    num_blocks = -(-len(queue) // block)
    entries = jnp.pad(queue, (0, num_blocks * block - len(queue)), constant_values=num_experts)
    entries = entries.reshape(num_blocks, block)
    earlier = np.tril(np.ones((block, block), bool), -1)
    within = ((entries[:, :, None] == entries[:, None, :]) & earlier).sum(axis=2, dtype=jnp.int32)
    counts = (entries[:, :, None] == jnp.arange(num_experts)).sum(axis=1, dtype=jnp.int32)  # [blocks, E]
    before = jnp.cumsum(counts, axis=0) - counts
    return (within + jnp.take_along_axis(before, jnp.minimum(entries, num_experts - 1), axis=1)).reshape(-1)[
        : len(queue)
    ]


def place_rows(queue: jax.Array, slot: jax.Array, num_experts: int) -> Rows:
    """Give each assignment a row.

    Args:
        queue: [T, k] integers, the expert of each assignment; E for one that gets no row.
        slot: [T, k] integers, the place of each assignment among those of its expert, without gaps.
        num_experts: E.
    """
    sizes = piece_sizes(queue.size, num_experts)
    load = (queue.reshape(-1, 1) == jnp.arange(num_experts)).sum(axis=0, dtype=jnp.int32)
    whole = jnp.maximum(load - 1, 0) // sizes[-1]
    by_size, group_size = _share_sizes(load - whole * sizes[-1], sizes)
    size = jnp.zeros_like(load).at[by_size].set(jnp.array([0, *sizes], jnp.int32)[group_size][:, None])
    padded = whole * sizes[-1] + size
    end = jnp.cumsum(padded, dtype=jnp.int32)
    first = end - padded
    num_rows = _most_rows(queue.size, num_experts, by_size.shape[1], sizes)
    row = jnp.where(queue < num_experts, first[jnp.minimum(queue, num_experts - 1)] + slot, num_rows)
    pair = jnp.full(num_rows, queue.size, jnp.int32)
    pair = pair.at[row].set(jnp.arange(queue.size, dtype=jnp.int32).reshape(queue.shape), mode="drop")
    bound = (group_size[:, None] <= np.arange(len(sizes) + 1)).sum(axis=0, dtype=jnp.int32)
    placed = Rows(pair, row, by_size, bound, first, whole, jnp.cumsum(whole, dtype=jnp.int32))
    return lax.optimization_barrier(placed)  # or XLA computes them again for every element that they place


def _share_sizes(rest, sizes):
    """Return the experts in groups [groups, experts in a group] by their rows in `rest` [E], and the size [groups] of
    each group: 0 for idle experts, n for the n-th of `sizes`.

    Where the groups do not come out even, the first expert is there several times; its work is then done again.
    """
    together = 4 if len(rest) >= _MANY else 1
    order = jnp.argsort(rest).astype(jnp.int32)
    order = jnp.pad(order, (-len(rest) % together, 0), mode="edge").reshape(-1, together)
    largest = rest[order[:, -1]]
    return order, jnp.searchsorted(np.array((0, *sizes), np.int32), largest, method="compare_all").astype(jnp.int32)


def _most_rows(num_assignments, num_experts, together, sizes):
    """Return a number of rows that is enough for any loads.

    A piece has fewer than `widest gap` rows above the most that an expert of its group needs. A group needs no more
    than the smallest of the next one, so what is added within groups is at most all experts but one of the last group.
    """
    widest_gap = int(np.diff((0, *sizes)).max())
    return num_assignments + num_experts * (widest_gap - 1) + (together - 1) * sizes[-1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def grouped_ffn(
    activate: Callable, into: tuple[jax.Array, ...], down: jax.Array, x: jax.Array, gate: jax.Array, rows: Rows
) -> jax.Array:
    """Return [T, d], the gated sum of what the experts of each token compute for it.

    Args:
        activate: from the vectors behind the matrices `into` to the hidden vector, element by element.
        into: one or two arrays [E, d, f].
        down: [E, f, d].
        x: [T, d].
        gate: [T, k], of the dtype of x.
        rows: where the assignments are.
    """
    return _forward(activate, into, down, x, gate, rows)[0]


def _forward(activate, into, down, x, gate, rows):
    """Return the output [T, d], and what the backward pass keeps; see `grouped_ffn`."""
    num_rows, k = len(rows.pair), rows.row.shape[1]

    def run(e, first, size, state):
        before, outputs = state
        here = _take(x, _slice(rows.pair, first, size) // k)
        hidden = tuple(here @ _of(matrix, e) for matrix in into)
        output = activate(*hidden) @ _of(down, e)
        return tuple(map(functools.partial(_write, first), before, hidden)), _write(first, outputs, output)

    state = tuple(_zeros((num_rows, matrix.shape[2]), x) for matrix in into), _zeros((num_rows, x.shape[1]), x)
    before, outputs = _run_whole(rows, gate.size, run, _run_last(rows, gate.size, run, state))
    gate = lax.optimization_barrier(gate)  # or it is computed again for every element that it multiplies
    result = (_take(outputs, rows.row) * gate[:, :, None]).sum(axis=1)
    return result, (into, down, x, gate, rows, before, outputs)


def _backward(activate, saved, gradient):
    """Return the gradients of all arguments from that of the output [T, d], piece by piece as forward."""
    into, down, x, gate, rows, before, outputs = saved
    (num_experts, hidden_width, width), k = down.shape, rows.row.shape[1]
    slots = piece_sizes(gate.size, num_experts)[-1]
    few_rows = slots * (width + hidden_width) < width * hidden_width
    # XLA's own sum over the last axis takes seven times as long on CPU as a product with ones.
    into_gate = (_take(outputs, rows.row) * gradient[:, None, :]) @ jnp.ones(width, x.dtype)
    gate_of_row = lax.optimization_barrier(_take(gate.reshape(-1), rows.pair))

    def vectors(e, first, size):
        token = _slice(rows.pair, first, size) // k
        here, behind = _take(x, token), _take(gradient, token) * _slice(gate_of_row, first, size)[:, None]
        hidden, pull = jax.vjp(activate, *(_slice(values, first, size) for values in before))
        pulled = pull(behind @ _of(down, e).T)
        below = sum(values @ _of(matrix, e).T for values, matrix in zip(pulled, into, strict=True))
        return below, (here, behind, hidden, *pulled)

    def last(e, first, size, state):
        below, parts = vectors(e, first, size)
        parts = parts if few_rows else _of_matrices(transposed_product, *parts)
        return _write(first, state[0], below), tuple(
            _write(e, whole, part[None]) for whole, part in zip(state[1], parts, strict=True)
        )

    def other(e, first, size, state):
        below, parts = vectors(e, first, size)
        parts = _of_matrices(transposed_product, *parts)
        return _write(first, state[0], below), tuple(
            _write(e, whole, (_of(whole, e) + part)[None]) for whole, part in zip(state[1], parts, strict=True)
        )

    shapes = [matrix.shape for matrix in (*into, down)]
    if few_rows:
        widths = width, width, hidden_width, *(matrix.shape[2] for matrix in into)
        shapes = [(num_experts, slots, width) for width in widths]
    below, parts = _run_last(rows, gate.size, last, (_zeros(outputs.shape, x), tuple(_zeros(s, x) for s in shapes)))
    if few_rows:
        parts = _of_matrices(_product_of_slots, *parts)
    below, of_matrices = _run_whole(rows, gate.size, other, (below, parts))
    below = _take(below, rows.row).sum(axis=1)
    return of_matrices[:-1], of_matrices[-1], below, lax.optimization_barrier(into_gate), None


grouped_ffn.defvjp(_forward, _backward)


def _of_matrices(product, here, behind, hidden, *pulled):
    """Return the gradients of all matrices from the vectors on both sides of each."""
    return *(product(here, values) for values in pulled), product(hidden, behind)


def transposed_product(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return xᵀ · gradient over the last two axes, for CPU: the narrower factor is copied transposed.

    The barriers keep XLA from folding the copies into the product again.

    Args:
        x: [..., T, m].
        gradient: [..., T, n].
    """
    keep = lax.optimization_barrier
    if x.shape[-1] <= gradient.shape[-1]:
        return keep(x.mT) @ gradient
    return keep(keep(gradient.mT) @ x).mT


def _product_of_slots(values, gradient):
    """Return valuesᵀ · gradient of all experts at once; copying a wider first factor transposed takes 3 % less time."""
    transposed = values.mT
    return (lax.optimization_barrier(transposed) if values.shape[-1] > gradient.shape[-1] else transposed) @ gradient


def _run_last(rows, num_assignments, last, state):
    """Run `last` on the last piece of each expert that has one."""
    sizes = piece_sizes(num_assignments, len(rows.first))
    for number, size in enumerate(sizes):

        def run_last(carry, size=size):
            i, state = carry
            for e in rows.by_size[i]:
                state = last(e, rows.first[e] + rows.whole[e] * sizes[-1], size, state)
            return i + 1, state

        end = rows.bound[number + 1]
        _, state = lax.while_loop(lambda carry, end=end: carry[0] < end, run_last, (rows.bound[number], state))
    return state


def _run_whole(rows, num_assignments, other, state):
    """Run `other` on the whole pieces."""
    largest = piece_sizes(num_assignments, len(rows.first))[-1]

    def run_other(carry):
        i, state = carry
        e = (rows.whole_end <= i).sum(dtype=jnp.int32)
        number = i - rows.whole_end[e] + rows.whole[e]
        return i + 1, other(e, rows.first[e] + number * largest, largest, state)

    zero = rows.first[0]  # always, and it varies over devices as the state does
    return lax.while_loop(lambda carry: carry[0] < rows.whole_end[-1], run_other, (zero, state))[1]


def _zeros(shape, like):
    """Return zeros that vary over the axes of a `shard_map` as `like` does."""
    return jnp.broadcast_to(jnp.where(False, like.reshape(-1)[0], 0).astype(like.dtype), shape)


def _take(values, indices):
    """Return values[indices]; an index past the end gives zeros."""
    return jnp.take(values, indices, axis=0, mode="fill", fill_value=0)


def _slice(values, first, size):
    return lax.dynamic_slice_in_dim(values, first, size, axis=0)


def _of(matrices, e):
    return lax.dynamic_index_in_dim(matrices, e, axis=0, keepdims=False)


def _write(first, whole, part):
    return lax.dynamic_update_slice_in_dim(whole, part, first, axis=0)
