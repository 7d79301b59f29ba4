"""A step of AdamW as a function that a program compiled by XLA calls (`foreign`): all parameters in one pass, in place.

XLA computes the first moment, the second and the parameter one after the other, each from memory. Here a number is read
with its moments and its gradient, and written with them.
"""

import numpy as np
from numba import types

from .compile import c_function, jit_fused
from .foreign import is_question, read_call, size
from .memory import floats, longs
from .together import PIECE, RUNS_PIECE, address_of, run_together

AT_ONCE = 1 << 14
"""Numbers of a piece of work, at most."""

BYTES = 4
"""Of a number."""

SHARE, FIRST, SECOND, KEPT_FIRST, KEPT_SECOND, EPSILON, TAKEN = range(7)
"""What all parameters have in common: the factor of the gradient; those of the moments, 1 / (1 - beta^t); both betas;
what is added to the root; and 0 for a step that is not taken."""

RATE, DECAY = range(2)
"""What an array of parameters has of its own: the learning rate, and the weight decay."""

ARRAYS = 4
"""For each array of parameters, one after the other: it, its first moment, its second moment, its gradient."""


@jit_fused
def _move(p, m, v, g, numbers, rate, decay):
    """Replace parameters and moments by those after the step."""
    one = np.float32(1.0)
    share, kept_first, kept_second = numbers[SHARE], numbers[KEPT_FIRST], numbers[KEPT_SECOND]
    first, second, epsilon = numbers[FIRST], numbers[SECOND], numbers[EPSILON]
    for i in range(p.size):
        gradient = share * g[i]
        m[i] = kept_first * m[i] + (one - kept_first) * gradient
        v[i] = kept_second * v[i] + (one - kept_second) * gradient * gradient
        p[i] -= rate * (first * m[i] / (np.sqrt(second * v[i]) + epsilon) + decay * p[i])


def _run_piece(job, piece, memory):
    """Move some parameters; `together.RUNS_PIECE` says with what. A piece is its array, and the first and number of its
    parameters there. A job is the addresses of what all arrays have in common and of what each has, then ARRAYS of each
    array."""
    piece = longs(piece, PIECE)
    array, first, some = piece[0], piece[1], piece[2]
    at = longs(job, 2 + ARRAYS * (array + 1))
    own, here, to = floats(at[1] + BYTES * 2 * array, 2), 2 + ARRAYS * array, BYTES * first
    p, m, v = floats(at[here] + to, some), floats(at[here + 1] + to, some), floats(at[here + 2] + to, some)
    _move(p, m, v, floats(at[here + 3] + to, some), floats(at[0], TAKEN + 1), own[RATE], own[DECAY])


RUN_PIECE = "routelaws_adamw_piece"

_address_of_run = address_of(RUN_PIECE, 3)


def _adamw(frame):
    """What XLA calls: numbers [7], own [n, 2], and ARRAYS times n arrays -> n times parameters and both moments, which
    are where those of the arguments are."""
    if is_question(frame):
        return 0
    call = read_call(frame)
    if floats(call.arguments[0], TAKEN + 1)[TAKEN] == np.float32(0.0):
        return 0
    arrays, count = (call.num_arguments - 2) // ARRAYS, 0
    for i in range(arrays):
        count += (size(call, 2 + ARRAYS * i) + AT_ONCE - 1) // AT_ONCE
    pieces, n = np.empty((count, PIECE), np.int64), 0
    for i in range(arrays):
        parameters = size(call, 2 + ARRAYS * i)
        for first in range(0, parameters, AT_ONCE):
            pieces[n, 0], pieces[n, 1], pieces[n, 2] = i, first, min(AT_ONCE, parameters - first)
            n += 1
    job, run = call.arguments[: call.num_arguments].copy(), _address_of_run()
    run_together(run, job, np.int64(0), pieces, count, count, call.interface, call.context)
    return 0


def compiled():
    """Return `_adamw`, compiled."""
    c_function(_run_piece, RUNS_PIECE, RUN_PIECE)
    return c_function(_adamw, types.int64(types.int64))
