"""Attention as a function that a program compiled by XLA calls (`foreign`)."""

import numpy as np
from numba import types

from .attention_pieces import ADD_UP, BACKWARD, FORWARD, Job, address_of_run, compile_pieces, scratch_size, share_size
from .compile import c_function, jit
from .foreign import attribute, is_question, read_call, shape
from .memory import address, keep
from .together import PIECE, run_together

AT_LEAST = 64
"""So many pieces of work there are, at least, where there are so many heads and sequences. The number follows from
shapes alone, and so do sums over sequences."""


@jit
def _pieces(kind, sequences, heads, at_once):
    """Return a piece for each head and up to `at_once` sequences."""
    groups = (sequences + at_once - 1) // at_once
    pieces = np.empty((groups * heads + heads, PIECE), np.int64)
    for i in range(groups * heads):
        first = i // heads * at_once
        pieces[i, 0], pieces[i, 1], pieces[i, 2], pieces[i, 3] = kind, i, first, min(at_once, sequences - first)
    return pieces


def _attention(frame):
    """What XLA calls, forward and backward: a function of `foreign`.

    Forward: projected, relative -> mixed, kept. Backward: projected, relative, kept, gradient -> gradients of projected
    and relative. See `Job` for their shapes; projected is here [b, S, 3 H c] and relative [D, H c], D = 0 for none.
    Attributes: causal, heads.
    """
    if is_question(frame):
        return 0
    call = read_call(frame)
    a, r = call.arguments, call.results
    sizes, distances = shape(call, 0), shape(call, 1)[0]
    causal, heads = attribute(call, 0), attribute(call, 1)
    sequences, length, width = sizes[0], sizes[1], sizes[2] // (3 * heads)
    none, relative = np.int64(0), a[1] if distances else np.int64(0)
    at_once = max(1, sequences * heads // AT_LEAST)
    groups = (sequences + at_once - 1) // at_once
    pieces = _pieces(BACKWARD if call.num_arguments > 2 else FORWARD, sequences, heads, at_once)
    count = wait_from = groups * heads
    last = groups, heads, length, width, distances, causal
    if call.num_arguments > 2:
        job = Job(a[0], relative, none, a[2], a[3], r[0], r[1], none, *last)
        shares = np.empty(count * share_size(job), np.float32)
        job = Job(a[0], relative, none, a[2], a[3], r[0], r[1], address(shares), *last)
        for head in range(heads if distances else 0):
            pieces[count, 0], pieces[count, 1] = ADD_UP, head
            count += 1
    else:
        shares = np.empty(0, np.float32)
        job = Job(a[0], relative, r[0], r[1], none, none, none, none, *last)
    run, memory = address_of_run(), scratch_size(job)
    run_together(run, np.array(job), memory, pieces, count, wait_from, call.interface, call.context)
    keep(shares)
    return 0


def compiled():
    """Return `_attention`, compiled."""
    compile_pieces()
    return c_function(_attention, types.int64(types.int64))
