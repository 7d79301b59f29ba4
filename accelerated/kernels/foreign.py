"""The routed FFN as functions that a program compiled by XLA calls: its foreign function interface, for CPU.

XLA calls with the address of a frame, in which the addresses and shapes of arguments and results are. Its layout is
public (`xla/ffi/api/c_api.h`, which jaxlib brings along), and read here word by word of 8 bytes. `known` compares that
header with what is read here, so that another version of it is not misunderstood.
"""

import functools
import re
import threading
from pathlib import Path

import jax
import numpy as np
from numba import config, types

from .compile import c_function, jit
from .expert_pieces import BACKWARD, FORWARD, GRADIENT, ROWS_AT_ONCE, SWIGLU, WHOLE_BACKWARD, Job
from .memory import address, floats, ints, keep, longs
from .tiles import LANES, PANEL, compile_product
from .together import NUM_THREADS, PIECE, SCHEDULE, compile_help, num_threads, run_together

ROW_PADDING = LANES
"""Numbers between the rows that are kept from the forward to the backward pass. Without them rows of a power of two
would share a few places of the cache."""

_EXTENSION, _INTERFACE, _CONTEXT = 1, 2, 3
_NUM_ARGUMENTS, _ARGUMENTS, _NUM_RESULTS, _RESULTS, _ATTRIBUTES = 7, 9, 12, 14, 20  # words of the frame, as those above

PAST_CACHE_FROM = 1 << 21
"""Numbers in the matrices of one kind from which their gradients are written past the cache, which they would fill."""

_MOST_ARRAYS = 10
_DATA, _DIMENSIONS = 3, 5  # of an array
_METADATA, _VERSION_THERE, _VERSION_HERE = 3, 3, 4  # words of an extension, of the metadata, of the interface

KNOWN = {
    "XLA_FFI_CallFrame": "struct_size extension_start api ctx stage args rets attrs future",
    "XLA_FFI_Args": "struct_size extension_start size types args",
    "XLA_FFI_Rets": "struct_size extension_start size types rets",
    "XLA_FFI_Attrs": "struct_size extension_start size types names attrs",
    "XLA_FFI_Buffer": "struct_size extension_start dtype data rank dims",
    "XLA_FFI_Scalar": "dtype value",
    "XLA_FFI_Extension_Base|XLA_FFI_InternalExtension": "struct_size type next",  # its name before and from JAX 0.12
    "XLA_FFI_Metadata_Extension": "extension_base metadata",
    "XLA_FFI_Metadata": "struct_size api_version traits state_type_id",
    "XLA_FFI_Api": "struct_size extension_start api_version internal_api",  # then the functions
    "XLA_FFI_Api_Version": "struct_size extension_start major_version minor_version",
    "XLA_FFI_ThreadPool_Schedule_Args": "struct_size extension_start ctx task data",
    "XLA_FFI_ThreadPool_NumThreads_Args": "struct_size extension_start ctx num_threads",
}
"""The fields of the structures that are read or written here, in their order."""

FIRST_FUNCTION = 6
"""The word of the interface where its functions begin."""


def known(header: str) -> bool:
    """Return whether a header of XLA's interface has the layout that is read here."""
    code = re.sub(r"//.*", "", header)
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", code)
    called = {"ThreadPool_Schedule": SCHEDULE, "ThreadPool_NumThreads": NUM_THREADS}
    structures = re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\n\}", re.sub(r"_XLA_FFI_API_.*", "", code), re.DOTALL)
    fields = {name: " ".join(re.findall(r"(\w+);", body)) for name, body in structures}
    return all(functions[word - FIRST_FUNCTION :][:1] == [name] for name, word in called.items()) and all(
        expected in map(fields.get, names.split("|")) for names, expected in KNOWN.items()
    )


def registered(name: str) -> bool:
    """Make the function known to XLA under a name; return False where that cannot be done.

    It cannot where XLA's interface is another than the one that is known here, and where numba does not compile.
    """
    with _ONE_THREAD:
        return _registered(name)


_ONE_THREAD = threading.Lock()


@functools.cache
def _registered(name):
    try:
        header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    except OSError:
        return False
    if config.DISABLE_JIT or not known(header):
        return False
    compile_product()
    compile_help()
    called = c_function(_experts, types.int64(types.int64))
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(called.ctypes), platform="cpu")
    return True


@jit
def _addresses(arrays, count):
    """Return the addresses of the numbers of all arguments or results, as many as a call can have; 0 for the others."""
    found = np.zeros(_MOST_ARRAYS, np.int64)
    each = longs(arrays, count)
    for i in range(count):
        found[i] = longs(each[i], _DATA + 1)[_DATA]
    return found


@jit
def _shape(arrays, i):
    """Return the sizes of the first three axes of array i."""
    array = longs(longs(arrays, i + 1)[i], _DIMENSIONS + 1)
    return longs(array[_DIMENSIONS], 3)


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
    """What XLA calls, forward and backward.

    Forward: x, gate, queue, up, down(, linear) -> output, order, start(, up_before(, linear_before)).
    Backward: x, gate, gradient, up, down, up_before, order, start(, linear, linear_before) -> gradients of x, gate, up,
    down(, linear). See `Job`; that of x is one for each assignment.
    """
    words = longs(frame, _ATTRIBUTES + 1)
    if words[_EXTENSION]:  # asks for the version of the interface: that of XLA itself
        metadata = longs(words[_EXTENSION], _METADATA + 1)[_METADATA]
        longs(metadata, _VERSION_THERE + 1)[_VERSION_THERE] = longs(words[_INTERFACE], _VERSION_HERE + 1)[_VERSION_HERE]
        return 0
    backward = words[_NUM_ARGUMENTS] > 6
    a, r = _addresses(words[_ARGUMENTS], words[_NUM_ARGUMENTS]), _addresses(words[_RESULTS], words[_NUM_RESULTS])
    gates, matrices = _shape(words[_ARGUMENTS], 1), _shape(words[_ARGUMENTS], 3)
    choices, assignments = gates[1], gates[0] * gates[1]
    num_experts, width, hidden = matrices[0], matrices[1], matrices[2]
    activation = longs(longs(longs(words[_ATTRIBUTES], 1)[0], 2)[1], 1)[0]
    interface, context, row = words[_INTERFACE], words[_CONTEXT], hidden + ROW_PADDING
    order_at, start_at = (a[6], a[7]) if backward else (r[1], r[2])
    order, start = ints(order_at, assignments), ints(start_at, num_experts + 1)
    if not backward:
        _sort(ints(a[2], assignments), num_experts, order, start)
    threads = num_threads(interface, context)
    split = backward and threads > 1 and 3 * threads * _largest(start) > start[num_experts]
    kept = np.empty((3 if activation == SWIGLU else 2, start[num_experts] if split else 0, row), np.float32)
    kept_at, of_kept = address(kept), 4 * kept.shape[1] * row
    past_cache = np.int64(num_experts * width * hidden >= PAST_CACHE_FROM)
    if backward:
        job = Job(a[0], a[1], a[2], a[3], a[8], a[4], a[5], a[9], order_at, start_at, r[0], r[1], r[2], r[4], r[3],
                  kept_at, kept_at + of_kept, kept_at + 2 * of_kept,
                  choices, width, hidden, row, activation, past_cache)  # fmt: skip
    else:
        none = np.int64(0)
        job = Job(a[0], a[1], none, a[3], a[5], a[4], r[3], r[4], order_at, start_at, r[0], none, none, none, none,
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
    run_together(job, pieces, count, wait_from, interface, context)
    keep(kept)
    return 0
