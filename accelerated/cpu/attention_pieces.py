"""Softmax attention of one head on some sequences, forward and backward, in blocks of queries that stay in the cache.

The program finishes a block of queries (logits, weights, outputs) before the next block, so no [S, S] array is in
memory. The backward pass recomputes the weights from two numbers per query, the largest logit and the sum of
exponentials, as in Dao et al. 2022, "FlashAttention" (arXiv 2205.14135). A causal block reads only the keys up to its
last query.

The relative logit of query i and key j is q_i · r_(i-j). For a block, one product computes q_i · r_m for all distances
m of the block. In each row of this product, the distance to key 0 is one number further left than in the row before.

All arrays are float32 at an address (`memory`). An address is in bytes, a size in numbers.
"""

from typing import NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from ..kernels.compile import c_function, jit, jit_fused, jit_sum, jit_within
from .exponential import power_of_e
from .memory import floats, longs
from .rows import dot, scale_row, write_scaled
from .tiles import ADD, BYTES, IN_PLACE, LANES, MOST_ROWS, WRITE, largest, product, turn
from .together import PIECE, RUNS_PIECE, address_of

FORWARD, BACKWARD, ADD_UP = range(3)
"""Kinds of work: compute the output of a head for some sequences; compute its gradients for some sequences; add up the
gradients of its distance keys over all sequences.
"""

QUERIES = 2 * MOST_ROWS
"""Queries of a block."""


class Job(NamedTuple):
    """The addresses of a layer's arrays, and its sizes. A missing array has address 0."""

    projected: int  # [b, S, 3, H, c], queries, keys and values
    relative: int  # [D, H, c], keys of the distances from S - 1 downwards
    mixed: int  # [b, S, H, c], the output of the forward pass
    kept: int  # [b, H, S, 2], of each query: the largest logit before division by √c, and 1 / the sum of exponentials
    gradient: int  # [b, S, H, c], gradients of the output; this field and the next two are for the backward pass
    of_projected: int  # [b, S, 3, H, c]
    of_relative: int  # [D, H, c]
    shares: int  # [groups, H, D, wide], the gradient of relative from each piece
    groups: int  # number of pieces of a head
    heads: int  # H
    length: int  # S
    width: int  # c
    distances: int  # D
    causal: int  # 1 if queries see no later key


_FIELDS = len(Job._fields)


class Scratch(NamedTuple):
    """Addresses of the memory of one thread. Widths are rounded up to whole vectors and padded with 0."""

    query: int  # [S, wide]
    key: int  # [S, wide]
    value: int  # [S, wide]
    gradient: int  # [S, wide]
    key_turned: int  # [wide, row]
    value_turned: int  # [wide, row]
    relative: int  # [D, wide]
    relative_turned: int  # [wide, distance_row]
    of_query: int  # [S, wide]
    of_key: int  # [S, wide]
    of_value: int  # [S, wide]
    weights: int  # [QUERIES, row]
    pulled: int  # [QUERIES, row], gradients of weights
    by_distance: int  # [QUERIES, distance_row]
    wide: int
    row: int
    distance_row: int


@jit_within
def _multiply(a, a_row, a_deep, b, b_row, c, c_row, rows, columns, depth, how):
    product(a, a_row, a_deep, b, b_row, IN_PLACE, c, c_row, rows, columns, depth, how, b, b)


@jit
def _up(size, to):
    return (size + to - 1) // to * to


@jit
def share_size(distances, width):
    """Return the size of `Job.shares` per piece."""
    return distances * _up(width, LANES)


@jit
def _sizes(job):
    return (
        _up(job.width, LANES),
        _up(job.length, LANES) + LANES,
        _up(job.distances, LANES) + _up(job.length + QUERIES, LANES) + LANES,
    )


@jit
def scratch_size(job):
    """Return the number of floats that `_scratch_at` needs."""
    wide, row, distance_row = _sizes(job)
    length, distances = _up(job.length, LANES), _up(job.distances, LANES)
    tall = 7 * length * wide + distances * wide
    return tall + wide * (2 * row + distance_row) + QUERIES * (2 * row + distance_row)


@jit
def _scratch_at(job, at):
    wide, row, distance_row = _sizes(job)
    tall, distant = BYTES * _up(job.length, LANES) * wide, BYTES * _up(job.distances, LANES) * wide
    four = at, at + tall, at + 2 * tall, at + 3 * tall
    three = at + 4 * tall, at + 5 * tall, at + 6 * tall
    rest = at + 7 * tall
    relative, turned = rest, rest + distant
    turned_size = BYTES * wide * row
    relative_turned = turned + 2 * turned_size
    weights = relative_turned + BYTES * wide * distance_row
    block = BYTES * QUERIES * row
    return Scratch(
        *four, turned, turned + turned_size, relative, relative_turned, *three,
        weights, weights + block, weights + 2 * block, wide, row, distance_row,
    )  # fmt: skip


@jit
def _copy_rows(source, source_row, rows, width, target, target_row):
    """Copy [rows, width] and set the rest of each target row to 0."""
    for i in range(rows):
        from_, to = floats(source + BYTES * i * source_row, width), floats(target + BYTES * i * target_row, target_row)
        for j in range(width):
            to[j] = from_[j]
        for j in range(width, target_row):
            to[j] = 0.0


@jit
def _place_rows(source, source_row, rows, width, target, target_row):
    """Copy [rows, width]."""
    for i in range(rows):
        from_, to = floats(source + BYTES * i * source_row, width), floats(target + BYTES * i * target_row, width)
        for j in range(width):
            to[j] = from_[j]


@jit
def _zeros(at, size):
    floats(at, size)[:] = 0.0


@jit
def _fill(x, first, value):
    for j in range(first, x.size):
        x[j] = value


@jit
def _add_row(x, y):
    for j in range(x.size):
        x[j] += y[j]


@jit_fused
def _powers(x, most, scale):
    """Replace x by e^((x - most) scale). x has whole vectors, so the loop has no scalar remainder."""
    for i in range(x.size // LANES):
        for j in range(LANES):
            x[i * LANES + j] = power_of_e((x[i * LANES + j] - most) * scale)


@jit_sum
def _sum(x):
    total = np.float32(0.0)
    for j in range(x.size):
        total += x[j]
    return total


@jit
def _write_pulled(to, weights, pulled, along, scale):
    """Write the gradient of logits before their division by √c."""
    for j in range(to.size):
        to[j] = weights[j] * ((pulled[j] - along) * scale)


class Block(NamedTuple):
    """Some queries of a sequence, their keys and their distances.

    The fields are the first query, the number of queries, the number of visible keys, the first distance, and the
    number of distances.
    """

    first: int
    rows: int
    keys: int
    far: int
    distances: int


@jit
def _block(job, first):
    rows = min(QUERIES, job.length - first)
    end = first + rows
    keys = end if job.causal else job.length
    return Block(first, rows, keys, job.length - end, keys if job.causal else keys + rows - 1)


@jit
def _seen(job, block, i):
    """Return the number of keys that query i of a block sees."""
    return block.first + i + 1 if job.causal else job.length


@jit
def _logits(job, block, s):
    """Write the logits of a block, before their division by √c."""
    queries = s.query + BYTES * block.first * s.wide
    wide_keys = _up(block.keys, LANES)
    _multiply(queries, s.wide, 1, s.key_turned, s.row, s.weights, s.row, block.rows, wide_keys, s.wide, WRITE)
    if job.relative:
        keys, columns, to_row = s.relative_turned + BYTES * block.far, _up(block.distances, LANES), s.distance_row
        _multiply(queries, s.wide, 1, keys, to_row, s.by_distance, to_row, block.rows, columns, s.wide, WRITE)
        for i in range(block.rows):
            whole = _up(_seen(job, block, i), LANES)
            _add_row(floats(s.weights + BYTES * i * s.row, whole), floats(_by_key(block, s, i), whole))


@jit
def _by_key(block, s, i):
    """Return the address of query i's logit by the distance to key 0. The next keys follow."""
    return s.by_distance + BYTES * (i * s.distance_row + block.rows - 1 - i)


@jit
def _read_sequence(job, s, sequence, head, backward):
    c, row = job.width, 3 * job.heads * job.width
    at = job.projected + BYTES * (sequence * job.length * row + head * c)
    for to, i in ((s.query, 0), (s.key, 1), (s.value, 2)):
        _copy_rows(at + BYTES * i * job.heads * c, row, job.length, c, to, s.wide)
    turn(s.key, s.wide, job.length, s.wide, s.key_turned, s.row)
    if backward:
        at = job.gradient + BYTES * (sequence * job.length * job.heads + head) * c
        _copy_rows(at, job.heads * c, job.length, c, s.gradient, s.wide)
        turn(s.value, s.wide, job.length, s.wide, s.value_turned, s.row)


@jit
def _read_relative(job, s, head):
    if job.relative:
        c = job.width
        _copy_rows(job.relative + BYTES * head * c, job.heads * c, job.distances, c, s.relative, s.wide)
        turn(s.relative, s.wide, job.distances, s.wide, s.relative_turned, s.distance_row)


@jit
def _forward(job, s, sequence, head):
    c, scale = job.width, np.float32(1.0 / np.sqrt(job.width))
    _read_sequence(job, s, sequence, head, False)
    kept = floats(job.kept + 2 * BYTES * (sequence * job.heads + head) * job.length, 2 * job.length)
    for first in range(0, job.length, QUERIES):
        block = _block(job, first)
        _logits(job, block, s)
        for i in range(block.rows):
            row, seen = s.weights + BYTES * i * s.row, _seen(job, block, i)
            weights = floats(row, _up(seen, LANES))
            _fill(weights, seen, -np.inf)
            most = largest(row, weights.size)
            _powers(weights, most, scale)
            _zeros(row + BYTES * seen, max(block.keys, weights.size) - seen)
            kept[2 * (first + i)], kept[2 * (first + i) + 1] = most, np.float32(1.0) / _sum(weights)
        _multiply(s.weights, s.row, 1, s.value, s.wide, s.of_query, s.wide, block.rows, s.wide, block.keys, WRITE)
        at = job.mixed + BYTES * ((sequence * job.length + first) * job.heads + head) * c
        for i in range(block.rows):
            to = floats(at + BYTES * i * job.heads * c, c)
            write_scaled(to, kept[2 * (first + i) + 1], floats(s.of_query + BYTES * i * s.wide, c))


@jit
def _weights_again(job, block, s, kept):
    """Convert the logits of a block to weights, and write the gradients of logits by distance."""
    scale = np.float32(1.0 / np.sqrt(job.width))
    for i in range(block.rows):
        row, seen = BYTES * i * s.row, _seen(job, block, i)
        whole = _up(seen, LANES)
        weights, pulled = floats(s.weights + row, whole), floats(s.pulled + row, whole)
        most, share = kept[2 * (block.first + i)], kept[2 * (block.first + i) + 1]
        _fill(weights, seen, most)
        _powers(weights, most, scale)
        scale_row(weights, share)
        _zeros(s.weights + row + BYTES * seen, max(block.keys, whole) - seen)
        _fill(pulled, seen, 0.0)
        to, end = _by_key(block, s, i), s.by_distance + BYTES * (i + 1) * s.distance_row
        _write_pulled(floats(to, whole), weights, pulled, dot(weights, pulled), scale)
        _zeros(s.by_distance + BYTES * i * s.distance_row, block.rows - 1 - i)
        _zeros(to + BYTES * seen, (end - to) // BYTES - seen)


@jit
def _backward(job, s, sequence, head, of_relative):
    """Write the gradients of queries, keys and values of a sequence, and add the gradients of distances."""
    c, h, wide, distance_row = job.width, job.heads, s.wide, s.distance_row
    _read_sequence(job, s, sequence, head, True)
    kept = floats(job.kept + 2 * BYTES * (sequence * h + head) * job.length, 2 * job.length)
    _zeros(s.of_key, job.length * wide)
    _zeros(s.of_value, job.length * wide)
    for first in range(0, job.length, QUERIES):
        block = _block(job, first)
        rows, keys = block.rows, block.keys
        at = BYTES * first * wide
        query, gradient, of_query = s.query + at, s.gradient + at, s.of_query + at
        _logits(job, block, s)
        _multiply(gradient, wide, 1, s.value_turned, s.row, s.pulled, s.row, rows, _up(keys, LANES), wide, WRITE)
        _weights_again(job, block, s, kept)
        _multiply(s.weights, 1, s.row, gradient, wide, s.of_value, wide, keys, wide, rows, ADD)
        # By keys, the gradients of logits are rows. Each begins at the last query's first key, and is one number
        # shorter.
        by_key, shorter = _by_key(block, s, 0), distance_row - 1
        _multiply(by_key, 1, shorter, query, wide, s.of_key, wide, keys, wide, rows, ADD)
        _multiply(by_key, shorter, 1, s.key, wide, of_query, wide, rows, wide, keys, WRITE)
        if job.relative:
            far, many = BYTES * block.far * wide, block.distances
            _multiply(s.by_distance, distance_row, 1, s.relative + far, wide, of_query, wide, rows, wide, many, ADD)
            _multiply(s.by_distance, 1, distance_row, query, wide, of_relative + far, wide, many, wide, rows, ADD)
    at = job.of_projected + BYTES * (sequence * job.length * 3 * h + head) * c
    for from_, i in ((s.of_query, 0), (s.of_key, 1), (s.of_value, 2)):
        _place_rows(from_, wide, job.length, c, at + BYTES * i * h * c, 3 * h * c)


@jit
def _add_up(job, head):
    """Write the gradients of a head's distance keys: the sum over its pieces."""
    c, wide, row, size = job.width, _up(job.width, LANES), job.heads * job.width, share_size(job.distances, job.width)
    first, step = job.shares + BYTES * head * size, BYTES * job.heads * size
    for i in range(1, job.groups):
        _add_row(floats(first, size), floats(first + i * step, size))
    _place_rows(first, wide, job.distances, c, job.of_relative + BYTES * head * c, row)


def _run_piece(job, piece, memory):
    """Do one piece of work, with the arguments of `together.RUNS_PIECE`.

    A piece has four numbers: its kind (see above), group · H + head, its first sequence, and its number of sequences.
    """
    job = Job(*to_fixed_tuple(longs(job, _FIELDS), _FIELDS))
    scratch, what = _scratch_at(job, memory), longs(piece, PIECE)
    kind, number, first, size = what[0], what[1], what[2], what[3]
    of_relative = share_size(job.distances, job.width)
    head, share = number % job.heads, job.shares + BYTES * number * of_relative
    if kind == ADD_UP:
        _add_up(job, head)
        return
    _read_relative(job, scratch, head)
    if kind == BACKWARD:
        _zeros(share, of_relative)
    for sequence in range(first, first + size):
        if kind == FORWARD:
            _forward(job, scratch, sequence, head)
        else:
            _backward(job, scratch, sequence, head, share)


RUN_PIECE = "routelaws_attention_piece"

address_of_run = address_of(RUN_PIECE, 3)
"""Function that returns the address of the compiled `_run_piece`."""


def compile_pieces():
    return c_function(_run_piece, RUNS_PIECE, RUN_PIECE)
