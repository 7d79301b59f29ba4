"""The routed FFN as a function that a program compiled by XLA calls (`foreign`)."""

import numpy as np
from numba import types

from .compile import c_function, jit
from .expert_pieces import (
    BACKWARD,
    FORWARD,
    GRADIENT,
    ROWS_AT_ONCE,
    SWIGLU,
    WHOLE_BACKWARD,
    Job,
    address_of_run,
    compile_pieces,
    scratch_size,
)
from .foreign import attribute, is_question, read_call, shape
from .memory import address, floats, ints, keep
from .tiles import PANEL, ROW_PADDING
from .together import PIECE, num_threads, run_together

PAST_CACHE_FROM = 1 << 21
"""Numbers in the matrices of one kind from which their gradients are written past the cache, which they would fill."""


@jit
def _sort(queue, num_experts, order, start):
    """Write the assignments sorted by expert to `order`, those without an expert at the end, and where each begins."""
    load = np.zeros(num_experts + 1, np.int64)
    for e in queue:
        load[min(e, num_experts)] += 1
    total = 0
    for e in range(num_experts + 1):
        start[e], total, load[e] = total, total + load[e], total
    for i in range(queue.size):
        e = min(queue[i], num_experts)
        order[load[e]] = i
        load[e] += 1


@jit
def _add(pieces, n, kind, expert, first, size):
    pieces[n, 0], pieces[n, 1], pieces[n, 2], pieces[n, 3] = kind, expert, first, size
    return n + 1


@jit
def _add_rows(pieces, kind, start, most):
    """Write pieces of up to `most` rows of one expert; return how many."""
    n = 0
    for e in range(start.size - 1):
        rows = np.int64(start[e + 1] - start[e])
        parts = (rows + most - 1) // most
        for i in range(parts):
            first = rows * i // parts
            n = _add(pieces, n, kind, e, start[e] + first, rows * (i + 1) // parts - first)
    return n


@jit
def _add_experts(pieces, start):
    """Write a piece for each expert, with all its rows; return how many. Large ones go first: one that is begun last
    would leave the other threads without work."""
    n, num_experts = 0, start.size - 1
    for large in (1, 0):
        for e in range(num_experts):
            rows = np.int64(start[e + 1] - start[e])
            if np.int64(rows * num_experts > start[num_experts]) == large:
                n = _add(pieces, n, np.int64(WHOLE_BACKWARD), e, np.int64(start[e]), rows)
    return n


@jit
def _add_columns(pieces, n, num_experts, hidden, parts):
    """Write pieces of hidden columns of each expert behind the n that are there; return how many there are."""
    panels = (hidden + PANEL - 1) // PANEL
    for e in range(num_experts):
        for i in range(parts):
            first, end = PANEL * (panels * i // parts), min(hidden, PANEL * (panels * (i + 1) // parts))
            n = _add(pieces, n, np.int64(GRADIENT), e, first, end - first)
    return n


@jit
def _largest(start):
    """Return the most rows of an expert."""
    most = 0
    for e in range(start.size - 1):
        most = max(most, start[e + 1] - start[e])
    return most


@jit
def _most_rows(assignments, threads):
    """Return how many rows a piece may have, so that there are some pieces for each thread."""
    return min(ROWS_AT_ONCE, max(32, assignments // (4 * threads)))


@jit
def _mark_dropped(job, dropped, backward):
    """Write the rows of assignments without an expert: zeros, and forward NaN where the gate is."""
    for i in dropped:
        row, gate = floats(job.output + 4 * job.width * i, job.width), floats(job.gate + 4 * np.int64(i), 1)
        nothing = np.float32(0.0) if backward else gate[0] * np.float32(0.0)
        row[:] = nothing
        if backward:
            floats(job.of_gate + 4 * np.int64(i), 1)[0] = nothing


def _experts(frame):
    """What XLA calls, forward and backward: a function of `foreign`.

    Forward: x, gate, queue, up, down, layer(, linear) -> output, order, start(, up_before(, linear_before)).
    Backward: x, gate, gradient, up, down, layer, up_before, order, start(, linear, linear_before)(, gradients of up,
    down(, linear)) -> gradients of x, gate, up, down(, linear). See `Job`; that of x is one for each assignment.
    Matrices are given of all layers, [layers, E, d, f]; the layer, int32, is the number of one of them. If gradients of
    all layers are given, those of this one are written there, and they are the results; otherwise the results are those
    of this layer alone.
    """
    if is_question(frame):
        return 0
    call = read_call(frame)
    a, r = call.arguments, call.results
    backward = call.num_arguments > 7
    gates, matrices = shape(call, 1), shape(call, 3)
    choices, assignments = gates[1], gates[0] * gates[1]
    num_experts, width, hidden = matrices[1], matrices[2], matrices[3]
    layer = 4 * num_experts * width * hidden * np.int64(ints(a[5], 1)[0])
    up, down = a[3] + layer, a[4] + layer
    activation, row, none = attribute(call, 0), hidden + ROW_PADDING, np.int64(0)
    gated = activation == SWIGLU
    linear = a[9 if backward else 6] + layer if gated else none
    order_at, start_at = (a[7], a[8]) if backward else (r[1], r[2])
    order, start = ints(order_at, assignments), ints(start_at, num_experts + 1)
    if not backward:
        _sort(ints(a[2], assignments), num_experts, order, start)
    threads = num_threads(call.interface, call.context)
    split = backward and threads > 1 and 3 * threads * _largest(start) > start[num_experts]
    kept = np.empty((3 if gated else 2, start[num_experts] if split else 0, row), np.float32)
    kept_at, of_kept = address(kept), 4 * kept.shape[1] * row
    past_cache = np.int64(num_experts * width * hidden >= PAST_CACHE_FROM)
    if backward:
        place = layer if call.num_arguments > (11 if gated else 9) else none
        of_linear, linear_before = (r[4] + place, a[10]) if gated else (none, none)
        job = Job(a[0], a[1], a[2], up, linear, down, a[6], linear_before, order_at, start_at, r[0], r[1],
                  r[2] + place, of_linear, r[3] + place, kept_at, kept_at + of_kept, kept_at + 2 * of_kept,
                  choices, width, hidden, row, activation, past_cache)  # fmt: skip
    else:
        job = Job(a[0], a[1], none, up, linear, down, r[3], r[4], order_at, start_at, r[0], none, none, none, none,
                  none, none, none, choices, width, hidden, row, activation, past_cache)  # fmt: skip
    _mark_dropped(job, order[start[num_experts] :], backward)
    rows, kind = _most_rows(assignments, threads), np.int64(BACKWARD if backward else FORWARD)
    parts = min((hidden + PANEL - 1) // PANEL, (4 * threads + num_experts - 1) // num_experts)
    pieces = np.empty((num_experts * (1 + parts) + assignments // rows, PIECE), np.int64)
    if backward and not split:
        count = wait_from = _add_experts(pieces, start)
    else:
        count = wait_from = _add_rows(pieces, kind, start, rows)
    if split:
        count = _add_columns(pieces, count, num_experts, hidden, parts)
    run, memory = address_of_run(), scratch_size(job)
    run_together(run, np.array(job), memory, pieces, count, wait_from, call.interface, call.context)
    keep(kept)
    return 0


def compiled():
    """Return `_experts`, compiled."""
    compile_pieces()
    return c_function(_experts, types.int64(types.int64))
