"""Attention as a function that compiled XLA programs call (`xla`)."""

import numpy as np
from numba import types

from ..kernels.compile import c_function, jit
from .attention_pieces import ADD_UP, BACKWARD, FORWARD, Job, address_of_run, compile_pieces, scratch_size, share_size
from .memory import address, keep
from .together import PIECE, run_together
from .xla import attribute, is_question, read_call, shape

AT_LEAST = 64
"""Minimum number of pieces of work, if heads times sequences is not smaller. The number of pieces depends only on
shapes, so sums over sequences do not depend on the number of threads.
"""


@jit
def _pieces(kind, sequences, heads, at_once):
    """Return one piece of work for each head and up to `at_once` sequences."""
    groups = (sequences + at_once - 1) // at_once
    pieces = np.empty((groups * heads + heads, PIECE), np.int64)
    for i in range(groups * heads):
        first = i // heads * at_once
        pieces[i, 0], pieces[i, 1], pieces[i, 2], pieces[i, 3] = kind, i, first, min(at_once, sequences - first)
    return pieces


def _attention(frame):
    """The function that XLA calls (`xla`). `calls.call_loops` checks the shapes.

    Forward: projected, relative -> mixed, kept. Backward: projected, relative, kept, gradient -> gradients of projected
    and relative. `Job` has the shapes. Here, projected is [b, S, 3 H c], and relative is [D, H c], where D = 0 means
    none. Attributes: backward, causal, heads.
    """
    if is_question(frame):
        return 0
    call = read_call(frame)
    a, r, none = call.arguments, call.results, np.int64(0)
    sizes, distances = shape(call, 0), shape(call, 1)[0]
    backward, causal, heads = attribute(call, 0), attribute(call, 1), attribute(call, 2)
    sequences, length, width = sizes[0], sizes[1], sizes[2] // (3 * heads)
    at_once = max(1, sequences * heads // AT_LEAST)
    groups = (sequences + at_once - 1) // at_once
    pieces, count = _pieces(BACKWARD if backward else FORWARD, sequences, heads, at_once), groups * heads
    shares, wait_from = np.empty(count * share_size(distances, width) if backward else 0, np.float32), count
    job = Job(
        projected=a[0], relative=a[1] if distances else none, kept=a[2] if backward else r[1], gradient=a[3],
        mixed=none if backward else r[0], of_projected=r[0] if backward else none,
        of_relative=r[1] if backward else none, shares=address(shares),
        groups=groups, heads=heads, length=length, width=width, distances=distances, causal=causal,
    )  # fmt: skip
    for head in range(heads if backward and distances else 0):
        pieces[count, 0], pieces[count, 1] = ADD_UP, head
        count += 1
    run, memory = address_of_run(), scratch_size(job)
    run_together(run, np.array(job), memory, pieces, count, wait_from, call.interface, call.context)
    keep(shares)
    return 0


def compiled():
    compile_pieces()
    return c_function(_attention, types.int64(types.int64))
