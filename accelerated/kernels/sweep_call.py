"""A sweep of Sinkhorn's method as a function that a program compiled by XLA calls (`foreign`): the kernel is read once.

XLA computes w = 1 / (K u) and then w K, each of them with K from memory. Here a row is in the cache when the second
product reads it.
"""

import numpy as np
from numba import types

from .compile import c_function, jit_fused
from .foreign import is_question, read_call, shape
from .memory import floats, longs
from .rows import dot
from .together import PIECE, RUNS_PIECE, address_of, run_together

BLOCK = 1024
"""Rows of a piece of work. Its share of w K is one row of the result, so that none depends on the number of threads."""

BYTES = 4
"""Of a number."""

KERNEL, SCALES, REAL, WEIGHTS, SUMS, EXPERTS = range(6)
"""Addresses of the arrays, that of `real` is 0 where there is none; and the number of experts."""


@jit_fused
def _add_scaled(to, factor, x):
    """Add x times a number."""
    for j in range(to.size):
        to[j] += factor * x[j]


def _run_piece(job, piece, memory):
    """Take some rows; `together.RUNS_PIECE` says with what. A piece is its number, its first row, and how many."""
    at, piece = longs(job, EXPERTS + 1), longs(piece, PIECE)
    block, first, rows, width = piece[0], piece[1], piece[2], at[EXPERTS]
    u, sums = floats(at[SCALES], width), floats(at[SUMS] + BYTES * width * block, width)
    weights = floats(at[WEIGHTS] + BYTES * first, rows)
    real = floats(at[REAL] + BYTES * first, rows)
    sums[:] = 0
    for i in range(rows):
        row = floats(at[KERNEL] + BYTES * width * (first + i), width)
        weights[i] = np.float32(1.0) / dot(row, u)
        if at[REAL] != 0 and real[i] == np.float32(0.0):
            weights[i] = np.float32(0.0)
        else:
            _add_scaled(sums, weights[i], row)


RUN_PIECE = "routelaws_sweep_piece"

_address_of_run = address_of(RUN_PIECE, 3)


def _sweep(frame):
    """What XLA calls: K [T, E], u [E](, real [T], 0 in padded rows) -> w [T] and [T / BLOCK rounded up, E], whose sum
    over the blocks is w K."""
    if is_question(frame):
        return 0
    call = read_call(frame)
    num_rows, width = shape(call, 0)[0], shape(call, 0)[1]
    job, blocks = np.empty(EXPERTS + 1, np.int64), (num_rows + BLOCK - 1) // BLOCK
    job[KERNEL], job[SCALES], job[REAL] = call.arguments[0], call.arguments[1], call.arguments[2]
    job[WEIGHTS], job[SUMS], job[EXPERTS] = call.results[0], call.results[1], width
    pieces = np.empty((blocks, PIECE), np.int64)
    for i in range(blocks):
        pieces[i, 0], pieces[i, 1], pieces[i, 2] = i, BLOCK * i, min(BLOCK, num_rows - BLOCK * i)
    run_together(_address_of_run(), job, np.int64(0), pieces, blocks, blocks, call.interface, call.context)
    return 0


def compiled():
    """Return `_sweep`, compiled."""
    c_function(_run_piece, RUNS_PIECE, RUN_PIECE)
    return c_function(_sweep, types.int64(types.int64))
