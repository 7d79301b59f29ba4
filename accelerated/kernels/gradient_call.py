"""The gradient of a matrix as a function that a program compiled by XLA calls (`foreign`).

xᵀ · g of x [T, m] and g [T, n] sums over the first axis of both, and neither is transposed for it. What a piece of the
result reads of some tokens is copied first: rows of a power of two would share a few places of the cache.
"""

import numpy as np
from numba import types

from .compile import c_function, jit
from .foreign import is_question, read_call, shape
from .memory import floats, longs
from .tiles import ADD, IN_PLACE, MOST_ROWS, PANEL, ROW_PADDING, SCRATCH, WRITE, ask_for_row, product
from .together import PIECE, RUNS_PIECE, address_of, num_threads, run_together

ENOUGH = 1 << 22
"""Products of numbers that are worth a piece of their own: another thread takes some time to come."""

PIECES = 1
"""Pieces for each thread, at least, of a large result. The larger they are, the less of the time is copying."""

SIDE = 512
"""The most rows and columns of a piece."""

DEEP = 256
"""Tokens that are added up at once: what a piece reads of them stays in the cache."""

AHEAD = 6
"""Rows by which the cache is asked for what will be copied."""

BYTES = 4
"""Of a number."""


@jit
def _copy(at, row, rows, columns, memory, to_row):
    """Copy [rows, columns] from rows of one length to rows of another."""
    for i in range(rows):
        for j in range(0, columns, PANEL):
            ask_for_row(at + BYTES * ((i + AHEAD) * row + j))
        from_, to = floats(at + BYTES * i * row, columns), floats(memory + BYTES * i * to_row, columns)
        for j in range(columns):
            to[j] = from_[j]


def _run_piece(job, piece, memory):
    """Write some rows and columns of the result; `together.RUNS_PIECE` says with what. A piece is its first row, rows,
    first column and columns."""
    job, piece = longs(job, 6), longs(piece, PIECE)
    x, g, c, tokens, m, n = job[0], job[1], job[2], job[3], job[4], job[5]
    row, rows, column, columns = piece[0], piece[1], piece[2], piece[3]
    to, right = c + BYTES * (row * n + column), memory + BYTES * SCRATCH
    left, left_row, right_row = right + BYTES * DEEP * (SIDE + ROW_PADDING), rows + ROW_PADDING, columns + ROW_PADDING
    for first in range(0, tokens, DEEP):
        deep, how = min(DEEP, tokens - first), ADD if first else WRITE
        _copy(x + BYTES * (first * m + row), m, deep, rows, left, left_row)
        _copy(g + BYTES * (first * n + column), n, deep, columns, right, right_row)
        product(left, 1, left_row, right, right_row, IN_PLACE, to, n, rows, columns, deep, how, right, memory)


_MEMORY = SCRATCH + 2 * DEEP * (SIDE + ROW_PADDING)
RUN_PIECE = "routelaws_gradient_piece"

_address_of_run = address_of(RUN_PIECE, 3)


@jit
def _cut(tokens, m, n, threads):
    """Return in how many parts to cut the rows and the columns of the result."""
    wanted = min(PIECES * threads if threads > 1 else 1, tokens * m * n // ENOUGH)
    by_columns = max((n + SIDE - 1) // SIDE, min(wanted, (n + PANEL - 1) // PANEL))
    by_rows = min((wanted + by_columns - 1) // by_columns, (m + MOST_ROWS - 1) // MOST_ROWS)
    by_rows = max((m + SIDE - 1) // SIDE, by_rows)
    return by_rows, by_columns


def _gradient(frame):
    """What XLA calls: x [T, m], g [T, n] -> [m, n]; T is 1 or more."""
    if is_question(frame):
        return 0
    call = read_call(frame)
    tokens, m, n = shape(call, 0)[0], shape(call, 0)[1], shape(call, 1)[1]
    threads = num_threads(call.interface, call.context)
    parts, by_columns = _cut(tokens, m, n, threads)
    panels, count = (n + PANEL - 1) // PANEL, parts * by_columns
    pieces = np.empty((count, PIECE), np.int64)
    for i in range(count):
        row, column = i // by_columns, i % by_columns
        first, left = m * row // parts, PANEL * (panels * column // by_columns)
        pieces[i, 0], pieces[i, 1] = first, m * (row + 1) // parts - first
        pieces[i, 2], pieces[i, 3] = left, min(n, PANEL * (panels * (column + 1) // by_columns)) - left
    job = np.array([call.arguments[0], call.arguments[1], call.results[0], tokens, m, n])
    run, memory = _address_of_run(), np.int64(_MEMORY)
    run_together(run, job, memory, pieces, count, count, call.interface, call.context)
    return 0


def compiled():
    """Return `_gradient`, compiled."""
    c_function(_run_piece, RUNS_PIECE, RUN_PIECE)
    return c_function(_gradient, types.int64(types.int64))
