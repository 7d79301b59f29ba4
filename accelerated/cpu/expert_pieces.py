"""The work of one expert on the rows of its own tokens, forward and backward: gather, products, nonlinearity, scatter.

A core does a whole piece of work, so the output of a product is still in the cache for the next product. Rows are
sorted by expert: `order` [n] has the assignments t k + j of expert 0, then those of expert 1, and so on. Dropped
assignments come last. Expert e has the entries from start[e] up to start[e + 1], exclusive.

All arrays are float32 at an address (`memory`), row after row. An address is in bytes, a size in numbers.
"""

from typing import NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from routelaws.reference.accounting import ACTIVATIONS

from ..kernels.compile import c_function, jit, jit_fused, jit_within
from .exponential import power_of_e
from .memory import floats, ints, longs
from .rows import dot, scale_row, write_scaled
from .tiles import ADD, BYTES, LANES, PANEL, PAST_CACHE, SCRATCH, STORED, TURNED, WRITE, product
from .together import PIECE, RUNS_PIECE, address_of

ROWS_AT_ONCE = 256
"""Maximum number of rows of an expert at a time. Gradients of a matrix are sums over pieces of this size, so they do
not depend on the number of threads.
"""

FORWARD, BACKWARD, WHOLE_BACKWARD, GRADIENT = range(4)
"""Kinds of work: compute the outputs of some rows; their gradients; all gradients of an expert, of rows and matrices;
the gradients of some hidden columns of an expert's matrices."""

GELU, RELU, SWIGLU = map(ACTIVATIONS.index, ("gelu", "relu", "swiglu"))
"""Numbers of the activations."""


class Job(NamedTuple):
    """The addresses of a layer's arrays, and its sizes. A missing array has address 0."""

    x: int  # [T, d]
    gate: int  # [T k]
    gradient: int  # [T, d], gradients of the output; for the backward pass
    up: int  # [E, d, f]
    linear: int  # [E, d, f], for SwiGLU
    down: int  # [E, f, d]
    up_before: int  # [n, f_row], x · up of each row; written in the forward pass if present, read in the backward pass
    linear_before: int  # [n, f_row], x · linear
    order: int  # [n] int32
    start: int  # [E + 1] int32
    output: int  # [T k, d], the gated outputs (forward) or the gradients of x (backward)
    of_gate: int  # [T k]; this field and the following ones are for the backward pass
    of_up: int  # [E, d, f]
    of_linear: int  # [E, d, f]
    of_down: int  # [E, f, d]
    kept_hidden: int  # [n, f_row], the gated hidden vectors; written by BACKWARD, read by GRADIENT
    kept_up: int  # [n, f_row], the gradients of x · up
    kept_linear: int  # [n, f_row]
    choices: int  # k
    width: int  # d
    hidden: int  # f
    hidden_row: int  # f_row >= f
    activation: int
    past_cache: int  # 1 to write gradients of matrices past the cache


_FIELDS = len(Job._fields)


class Scratch(NamedTuple):
    """Addresses of the memory of one thread; d_row = d + LANES."""

    here: int  # [ROWS_AT_ONCE, d_row], rows of x
    behind: int  # [ROWS_AT_ONCE, d_row], rows of the gradient of the output
    out: int  # [ROWS_AT_ONCE, d_row], rows to scatter
    up: int  # [ROWS_AT_ONCE, f_row]
    linear: int  # the same
    hidden: int  # the same
    share: int  # [f_row]
    rest: int  # [f_row]
    slope: int  # [f_row]
    panel: int  # of `product`
    d_row: int


@jit_within
def scratch_size(job):
    """Return the number of floats that `scratch_at` needs."""
    return ROWS_AT_ONCE * (3 * (job.width + LANES) + 3 * job.hidden_row) + 3 * job.hidden_row + SCRATCH


@jit_within
def scratch_at(job, at):
    d_row = job.width + LANES
    wide, deep, row = BYTES * ROWS_AT_ONCE * d_row, BYTES * ROWS_AT_ONCE * job.hidden_row, BYTES * job.hidden_row
    more = at + 3 * wide
    rest = more + 3 * deep
    wider = at, at + wide, at + 2 * wide, more, more + deep, more + 2 * deep
    return Scratch(*wider, rest, rest + row, rest + 2 * row, rest + 3 * row, d_row)


@jit_fused
def _shares(x, share, rest, swiglu):
    """Write the factor σ and 1 - σ, for silu(x) = x σ(x) or gelu(x) = x (1 + tanh u) / 2 = x σ(2 u).

    σ(z) = 1 / (1 + e^-z). NaN stays NaN.
    """
    one = np.float32(1.0)
    for j in range(x.size):
        e = power_of_e(-x[j] if swiglu else -ROOT * (x[j] + CUBE * x[j] * x[j] * x[j]))
        share[j] = one / (one + e)
        rest[j] = e * share[j]


ROOT, CUBE = np.float32(2.0 * np.sqrt(2.0 / np.pi)), np.float32(0.044715)  # of 2 u


@jit
def _activate(x, other, h, share, rest, activation):
    """Write the hidden vector h [f] from x · up and x · linear."""
    if activation == RELU:
        for j in range(x.size):
            h[j] = np.float32(0.0) if x[j] < np.float32(0.0) else x[j]
        return
    _shares(x, share, rest, activation == SWIGLU)
    for j in range(x.size):
        h[j] = x[j] * share[j]
    if activation == SWIGLU:
        for j in range(x.size):
            h[j] *= other[j]


@jit_fused
def _slopes(x, other, share, rest, slope, activation):
    """Write the derivative of the hidden vector by x · up and, for SwiGLU, by x · linear to `share`."""
    one = np.float32(1.0)
    if activation == RELU:
        for j in range(x.size):
            slope[j] = one if x[j] > np.float32(0.0) else np.float32(0.0)
    elif activation == GELU:
        for j in range(x.size):
            inner = ROOT * (one + np.float32(3.0) * CUBE * x[j] * x[j])
            slope[j] = share[j] * (one + x[j] * rest[j] * inner)
    else:
        for j in range(x.size):
            slope[j] = other[j] * share[j] * (one + x[j] * rest[j])
            share[j] *= x[j]


@jit
def _write_product(to, gate, a, b):
    for j in range(to.size):
        to[j] = gate * a[j] * b[j]


@jit
def _multiply(to, gate, b):  # the compiler sees that the write is in place only if both arguments are the same array
    for j in range(to.size):
        to[j] *= gate * b[j]


@jit
def _pull(job, scratch, i, up, linear, hidden, pulled, of_linear, assignment):
    """Backpropagate through the gate and the nonlinearity of row `i`.

    Args:
        up, linear: x · up and x · linear. All arrays of rows are addresses of [rows, f_row].
        hidden: becomes the hidden vectors times their gates.
        pulled: the gradient of the hidden vectors for gates of 1; becomes the gradient of x · up.
        of_linear: becomes the gradient of x · linear.
        assignment: assignment of the row. The gradient of its gate is the product of the output's gradient and the
            ungated output.
    """
    f, row = job.hidden, BYTES * i * job.hidden_row
    x, other, h, p = floats(up + row, f), floats(linear + row, f), floats(hidden + row, f), floats(pulled + row, f)
    share, rest, slope = floats(scratch.share, f), floats(scratch.rest, f), floats(scratch.slope, f)
    gate = floats(job.gate + BYTES * assignment, 1)[0]
    _activate(x, other, h, share, rest, job.activation)
    _slopes(x, other, share, rest, slope, job.activation)
    floats(job.of_gate + BYTES * assignment, 1)[0] = dot(h, p)
    if job.activation == SWIGLU:
        _write_product(floats(of_linear + row, f), gate, p, share)
    _multiply(p, gate, slope)
    scale_row(h, gate)


@jit
def _gather(source, job, order, target, target_row):
    """Copy the rows of the tokens of assignments [rows] from the address of [T, d]."""
    d = job.width
    for i in range(order.size):
        token = np.int64(order[i]) // job.choices
        write_scaled(floats(target + BYTES * i * target_row, d), np.float32(1.0), floats(source + BYTES * token * d, d))


@jit
def _forward(job, expert, begin, rows, scratch):
    """Write the gated outputs of some rows of an expert. For a backward pass, also write the inputs of the
    nonlinearity."""
    d, f, d_row, f_row, panel = job.width, job.hidden, scratch.d_row, job.hidden_row, scratch.panel
    at, row, order = BYTES * expert * d * f, BYTES * begin * f_row, ints(job.order + BYTES * begin, rows)
    here, hidden, out, down = scratch.here, scratch.hidden, scratch.out, job.down + at
    up = job.up_before + row if job.up_before else scratch.up
    linear = job.linear_before + row if job.linear_before else scratch.linear
    _gather(job.x, job, order, here, d_row)
    for into, before in ((job.up, up), (job.linear, linear)):
        if into:
            product(here, d_row, 1, into + at, f, STORED, before, f_row, rows, f, d, WRITE, down, panel)
    share, rest = floats(scratch.share, f), floats(scratch.rest, f)
    for i in range(rows):
        to = BYTES * i * f_row
        _activate(floats(up + to, f), floats(linear + to, f), floats(hidden + to, f), share, rest, job.activation)
    product(hidden, f_row, 1, down, d, STORED, out, d_row, rows, d, f, WRITE, down, panel)
    for i in range(rows):
        assignment = np.int64(order[i])
        gate, from_ = floats(job.gate + BYTES * assignment, 1)[0], floats(out + BYTES * i * d_row, d)
        write_scaled(floats(job.output + BYTES * assignment * d, d), gate, from_)


@jit
def _backward(job, expert, begin, rows, scratch, hidden, pulled, of_linear):
    """Write the gradients of some rows of an expert: of x and of gates.

    Also write three arrays [rows, f_row] at addresses: the gated hidden vectors, and the gradients of x · up and x ·
    linear. The rows of x and of the output's gradient stay in scratch.
    """
    d, f, d_row, f_row, panel = job.width, job.hidden, scratch.d_row, job.hidden_row, scratch.panel
    at, row, order = BYTES * expert * d * f, BYTES * begin * f_row, ints(job.order + BYTES * begin, rows)
    here, behind, out, up = scratch.here, scratch.behind, scratch.out, job.up + at
    _gather(job.x, job, order, here, d_row)
    _gather(job.gradient, job, order, behind, d_row)
    product(behind, d_row, 1, job.down + at, d, TURNED, pulled, f_row, rows, f, d, WRITE, up, panel)
    for i in range(rows):
        before = job.up_before + row, job.linear_before + row
        _pull(job, scratch, i, before[0], before[1], hidden, pulled, of_linear, np.int64(order[i]))
    product(pulled, f_row, 1, up, f, TURNED, out, d_row, rows, d, f, WRITE, up, panel)
    if job.linear:
        product(of_linear, f_row, 1, job.linear + at, f, TURNED, out, d_row, rows, d, f, ADD, up, panel)
    for i in range(rows):
        to = floats(job.output + BYTES * np.int64(order[i]) * d, d)
        write_scaled(to, np.float32(1.0), floats(out + BYTES * i * d_row, d))


@jit
def _gradients(job, expert, rows, scratch, hidden, pulled, of_linear, first, columns, add):
    """After `_backward`, write the gradients of some hidden columns of an expert's matrices, or add to them."""
    d, f, d_row, f_row, panel = job.width, job.hidden, scratch.d_row, job.hidden_row, scratch.panel
    here, behind, at = scratch.here, scratch.behind, BYTES * first
    aligned = (job.of_up | job.of_linear | job.of_down) % (BYTES * LANES) == 0 and d % PANEL == 0 and f % PANEL == 0
    how = ADD if add else PAST_CACHE if aligned and job.past_cache else WRITE
    into = BYTES * (expert * d * f + first)
    for of, values in ((job.of_up, pulled), (job.of_linear, of_linear)):
        if of:
            product(here, 1, d_row, values + at, f_row, STORED, of + into, f, d, columns, rows, how, here, panel)
    into = BYTES * (expert * d * f + first * d)
    product(hidden + at, 1, f_row, behind, d_row, STORED, job.of_down + into, d, columns, d, rows, how, here, panel)


@jit
def _no_gradients(job, expert, first, columns):
    """Write zeros, the gradients of some hidden columns of an idle expert's matrices."""
    d, f = job.width, job.hidden
    floats(job.of_down + BYTES * (expert * d * f + first * d), columns * d)[:] = 0
    for of in (job.of_up, job.of_linear):
        if of:
            for i in range(d):
                floats(of + BYTES * (expert * d * f + i * f + first), columns)[:] = 0


@jit_within
def _whole_backward(job, expert, begin, rows, scratch):
    """Write all gradients of an expert, from pieces of up to ROWS_AT_ONCE rows."""
    pieces, none = num_pieces(rows), np.int64(0)
    three = scratch.hidden, scratch.up, scratch.linear
    for i in range(pieces):
        first, end = rows * i // pieces, rows * (i + 1) // pieces
        _backward(job, expert, begin + first, end - first, scratch, *three)
        _gradients(job, expert, end - first, scratch, *three, none, job.hidden, i > 0)
    if rows == 0:
        _no_gradients(job, expert, none, job.hidden)


@jit_within
def _some_gradients(job, expert, first, columns, scratch):
    """Write the gradients of some hidden columns of an expert's matrices, from the stored arrays of all its rows."""
    start = ints(job.start + BYTES * expert, 2)
    begin, rows = np.int64(start[0]), np.int64(start[1] - start[0])
    pieces = num_pieces(rows)
    for i in range(pieces):
        row, end = begin + rows * i // pieces, begin + rows * (i + 1) // pieces
        order, at = ints(job.order + BYTES * row, end - row), BYTES * row * job.hidden_row
        _gather(job.x, job, order, scratch.here, scratch.d_row)
        _gather(job.gradient, job, order, scratch.behind, scratch.d_row)
        three = job.kept_hidden + at, job.kept_up + at, job.kept_linear + at
        _gradients(job, expert, end - row, scratch, *three, first, columns, i > 0)
    if rows == 0:
        _no_gradients(job, expert, first, columns)


@jit_within
def num_pieces(rows):
    return (rows + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE


def _run_piece(job, piece, memory):
    """Do one piece of work, with the arguments of `together.RUNS_PIECE`.

    A piece has four numbers: its kind (see above), its expert, the first of its rows in `order`, and their number. For
    GRADIENT, the last two are hidden columns.
    """
    job = Job(*to_fixed_tuple(longs(job, _FIELDS), _FIELDS))
    scratch, what = scratch_at(job, memory), longs(piece, PIECE)
    kind, expert, first, size = what[0], what[1], what[2], what[3]
    if kind == FORWARD:
        _forward(job, expert, first, size, scratch)
    elif kind == WHOLE_BACKWARD:
        _whole_backward(job, expert, first, size, scratch)
    elif kind == BACKWARD:
        at = BYTES * first * job.hidden_row
        _backward(job, expert, first, size, scratch, job.kept_hidden + at, job.kept_up + at, job.kept_linear + at)
    else:
        _some_gradients(job, expert, first, size, scratch)


RUN_PIECE = "routelaws_expert_piece"

address_of_run = address_of(RUN_PIECE, 3)
"""Function that returns the address of the compiled `_run_piece`."""


def compile_pieces():
    return c_function(_run_piece, RUNS_PIECE, RUN_PIECE)
