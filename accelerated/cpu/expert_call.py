"""The routed FFN as a function that compiled XLA programs call (`xla`)."""

from typing import NamedTuple

import numpy as np
from numba import types

from ..kernels.compile import c_function, jit
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
from .memory import address, floats, ints, keep
from .tiles import PANEL, ROW_PADDING
from .together import PIECE, num_threads, run_together
from .xla import attribute, is_question, read_call, shape

PAST_CACHE_FROM = 1 << 21
"""Gradients of matrices with at least this many numbers are written past the cache, because they would fill it."""

X, GATE, QUEUE, UP, DOWN, GRADIENT_OF_OUTPUT, UP_BEFORE, LINEAR, LINEAR_BEFORE = range(9)
LINEAR_FORWARD = GRADIENT_OF_OUTPUT
"""The positions of the arguments of `_experts`; a missing argument has address 0."""

FEWEST_ROWS = 32
"""Smallest number of rows of a piece, if its expert has them; with fewer rows, reading the matrices dominates."""


@jit
def _sort(queue, num_experts):
    """Return the assignments sorted by expert, [n] int32, and the first position of each expert, [E + 1] int32.

    Assignments without an expert (numbers outside [0, E)) come last.
    """
    load, order = np.zeros(num_experts + 1, np.int64), np.empty(queue.size, np.int32)
    start, total = np.empty(num_experts + 1, np.int32), 0
    for e in queue:
        load[e if 0 <= e < num_experts else num_experts] += 1
    for e in range(num_experts + 1):
        start[e], total, load[e] = total, total + load[e], total
    for i in range(queue.size):
        e = queue[i] if 0 <= queue[i] < num_experts else num_experts
        order[load[e]] = i
        load[e] += 1
    return order, start


@jit
def _add(pieces, n, kind, expert, first, size):
    pieces[n, 0], pieces[n, 1], pieces[n, 2], pieces[n, 3] = kind, expert, first, size
    return n + 1


@jit
def _most_rows(left, threads):
    """Return the size of the next piece. Sizes decrease with the number of rows left, so that threads end together."""
    if threads == 1:
        return ROWS_AT_ONCE
    return min(ROWS_AT_ONCE, max(FEWEST_ROWS, left // (2 * threads)))


@jit
def _rows_of(start, split):
    """Return the number of rows of the experts with `split` [E] not 0."""
    rows = np.int64(0)
    for e in range(split.size):
        if split[e]:
            rows += start[e + 1] - start[e]
    return rows


@jit
def _add_rows(pieces, n, kind, start, split, threads):
    """Append pieces of rows of the experts in `split` to the n pieces. Return the new number."""
    left = _rows_of(start, split)
    for e in range(split.size):
        first, end = np.int64(start[e]), np.int64(start[e + 1])
        while split[e] and first < end:
            most = _most_rows(left, threads)
            parts = (end - first + most - 1) // most
            rows = (end - first + parts - 1) // parts
            n, first, left = _add(pieces, n, kind, e, first, rows), first + rows, left - rows
    return n


@jit
def _add_experts(pieces, n, start, split):
    """Append one piece for each expert that is not in `split`, largest first. Return the new number."""
    above = np.int64(start[split.size]) + 1
    while above > 0:
        from_ = above // 2
        for e in range(split.size):
            rows = np.int64(start[e + 1] - start[e])
            if from_ <= rows < above and not split[e]:
                n = _add(pieces, n, np.int64(WHOLE_BACKWARD), e, np.int64(start[e]), rows)
        above = from_
    return n


@jit
def _add_columns(pieces, n, start, split, hidden, threads):
    left, panels = _rows_of(start, split), (hidden + PANEL - 1) // PANEL
    for e in range(split.size):
        if split[e]:
            rows, most = np.int64(start[e + 1] - start[e]), _most_rows(left, threads)
            parts = min(panels, (rows + most - 1) // most)
            for i in range(parts):
                first, end = PANEL * (panels * i // parts), min(hidden, PANEL * (panels * (i + 1) // parts))
                n = _add(pieces, n, np.int64(GRADIENT), e, first, end - first)
            left -= rows
    return n


@jit
def _split(start, threads):
    """Return [E], 1 for the experts whose backward pass is split among threads.

    An expert is split if it has more than half of a thread's share of the rows. The next largest experts are split
    until split experts have a quarter of all rows, so that threads end together. An expert with at most a sixteenth of
    a thread's share is never split. The experts that are not split have one piece each, which moves less memory.
    """
    split = np.zeros(start.size - 1, np.int64)
    total, chosen = np.int64(start[split.size]), np.int64(0)
    if threads == 1:
        return split
    for e in range(split.size):
        rows = np.int64(start[e + 1] - start[e])
        if 2 * threads * rows > total:
            split[e], chosen = 1, chosen + rows
    while 4 * chosen < total:
        largest, most = -1, total // (16 * threads)
        for e in range(split.size):
            rows = np.int64(start[e + 1] - start[e])
            if rows > most and not split[e]:
                largest, most = e, rows
        if largest < 0:
            break
        split[largest], chosen = 1, chosen + most
    return split


@jit
def _pieces(start, split, hidden, threads, backward):
    """Return the pieces of work [more, PIECE], their number, and the first piece that waits for all earlier pieces."""
    experts = split.size
    pieces = np.empty((3 * (experts + start[experts] // FEWEST_ROWS + 1), PIECE), np.int64)
    if not backward:
        count = _add_rows(pieces, 0, np.int64(FORWARD), start, split, threads)
        return pieces, count, count
    count = _add_experts(pieces, 0, start, split)
    wait_from = _add_rows(pieces, count, np.int64(BACKWARD), start, split, threads)
    return pieces, _add_columns(pieces, wait_from, start, split, hidden, threads), wait_from


@jit
def _mark_dropped(job, dropped, backward):
    """Write the rows of assignments without an expert: zeros, but NaN in the forward pass if the gate is NaN."""
    for i in dropped:
        row, gate = floats(job.output + 4 * job.width * i, job.width), floats(job.gate + 4 * np.int64(i), 1)
        nothing = np.float32(0.0) if backward else gate[0] * np.float32(0.0)
        row[:] = nothing
        if backward:
            floats(job.of_gate + 4 * np.int64(i), 1)[0] = nothing


class Sizes(NamedTuple):
    """Sizes of a layer: T k, k, E, d, f; the number of its activation, and 1 for the backward pass."""

    assignments: int
    choices: int
    experts: int
    width: int
    hidden: int
    activation: int
    backward: int


class Sorted(NamedTuple):
    """Addresses of the results of `_sort`, and of arrays that row pieces write and column pieces read (see `Job`)."""

    order: int
    start: int
    hidden: int
    up: int
    linear: int


@jit
def _sizes(call):
    gate, up = shape(call, GATE), shape(call, UP)
    activation, backward = attribute(call, 0), attribute(call, 1)
    return Sizes(gate[0] * gate[1], gate[1], up[0], up[1], up[2], activation, backward)


@jit
def _forward_job(call, sizes, rows):
    a, r, none = call.arguments, call.results, np.int64(0)
    return Job(
        x=a[X], gate=a[GATE], up=a[UP], down=a[DOWN], linear=a[LINEAR_FORWARD],
        output=r[0], up_before=r[1], linear_before=r[2], order=rows.order, start=rows.start,
        gradient=none, of_gate=none, of_up=none, of_down=none, of_linear=none,
        kept_hidden=none, kept_up=none, kept_linear=none,
        choices=sizes.choices, width=sizes.width, hidden=sizes.hidden, hidden_row=sizes.hidden + ROW_PADDING,
        activation=sizes.activation, past_cache=none,
    )  # fmt: skip


@jit
def _backward_job(call, sizes, rows):
    a, r = call.arguments, call.results
    return Job(
        x=a[X], gate=a[GATE], up=a[UP], down=a[DOWN], linear=a[LINEAR],
        gradient=a[GRADIENT_OF_OUTPUT], up_before=a[UP_BEFORE], linear_before=a[LINEAR_BEFORE],
        output=r[0], of_gate=r[1], of_up=r[2], of_down=r[3], of_linear=r[4], order=rows.order, start=rows.start,
        kept_hidden=rows.hidden, kept_up=rows.up, kept_linear=rows.linear,
        choices=sizes.choices, width=sizes.width, hidden=sizes.hidden, hidden_row=sizes.hidden + ROW_PADDING,
        activation=sizes.activation,
        past_cache=np.int64(sizes.experts * sizes.width * sizes.hidden >= PAST_CACHE_FROM),
    )  # fmt: skip


def _experts(frame):
    """The function that XLA calls (see `xla`). `calls.call_loops` checks the shapes.

    Forward: x, gate, queue, up, down(, linear) -> output(, up_before(, linear_before)).
    Backward: x, gate, queue, up, down, gradient, up_before(, linear, linear_before) -> gradients of x, gate, up,
    down(, linear). The gradient of x has a row for each assignment (see `Job`). Attributes: activation, backward.
    """
    if is_question(frame):
        return 0
    call = read_call(frame)
    sizes = _sizes(call)
    order, start = _sort(ints(call.arguments[QUEUE], sizes.assignments), sizes.experts)
    threads = num_threads(call.interface, call.context)
    split = _split(start, threads) if sizes.backward else np.ones(sizes.experts, np.int64)
    shared = start[sizes.experts] if sizes.backward and _rows_of(start, split) > 0 else 0
    kept = np.empty((3 if sizes.activation == SWIGLU else 2, shared, sizes.hidden + ROW_PADDING), np.float32)
    kept_at, of_kept = address(kept), 4 * kept.shape[1] * kept.shape[2]
    rows = Sorted(address(order), address(start), kept_at, kept_at + of_kept, kept_at + 2 * of_kept)
    job = _backward_job(call, sizes, rows) if sizes.backward else _forward_job(call, sizes, rows)
    _mark_dropped(job, order[start[sizes.experts] :], sizes.backward)
    pieces, count, wait_from = _pieces(start, split, sizes.hidden, threads, sizes.backward)
    run, memory = address_of_run(), scratch_size(job)
    run_together(run, np.array(job), memory, pieces, count, wait_from, call.interface, call.context)
    keep(kept)
    keep(order)
    keep(start)
    return 0


def compiled():
    compile_pieces()
    return c_function(_experts, types.int64(types.int64))
