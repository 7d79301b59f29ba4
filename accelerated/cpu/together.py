"""Run the pieces of a job on XLA's threads.

A compiled program calls a job on one thread (`xla`). This first thread requests more threads from XLA's pool, and
begins. Each thread takes the next piece until no piece is left. The first thread returns when all pieces are done. It
does not wait for requested threads that have not started, because they may be busy. A thread that starts too late finds
no piece left. All threads share a control block. The last thread frees it.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..kernels.compile import c_function, jit
from .memory import add_atomically, address, allocate, keep, longs, release, wait_until

USERS, NEXT, DONE, PIECES, WAIT_FROM, FIRST_PIECE, RUN, JOB, MEMORY, SIZE = range(10)
"""Entries of the control block, int64, in this order: number of threads that may still read the block; the next piece;
number of finished pieces; number of pieces; the first piece that waits for all earlier pieces; address of the first
piece; address of the function that does a piece; address of the job; number of float32 that a thread needs for itself.
SIZE is the number of entries."""

PIECE = 4
"""The number of integers that describe a piece."""

SCHEDULE, NUM_THREADS = 17, 18
"""Positions of two functions in XLA's interface, in words of 8 bytes (see `xla.known`)."""

_WORD, LINE = 8, 16  # bytes of a number; float32 numbers in a cache line
_LONG, _BYTES = ir.IntType(64), ir.IntType(8).as_pointer()


def _help(control):
    """Do pieces until none is left. Each thread runs this function."""
    block = longs(control, SIZE)
    piece = add_atomically(control + _WORD * NEXT, np.int64(1))
    if piece < block[PIECES]:
        memory = np.empty(block[MEMORY] + LINE, np.float32)
        aligned = (address(memory) + 4 * LINE - 1) // (4 * LINE) * 4 * LINE
        while piece < block[PIECES]:
            if piece >= block[WAIT_FROM]:
                wait_until(control + _WORD * DONE, block[WAIT_FROM])
            _run_piece(block[RUN], block[JOB], block[FIRST_PIECE] + _WORD * PIECE * piece, aligned)
            add_atomically(control + _WORD * DONE, np.int64(1))
            piece = add_atomically(control + _WORD * NEXT, np.int64(1))
        keep(memory)
    _leave(control)


@jit
def _leave(control):
    if add_atomically(control + _WORD * USERS, np.int64(-1)) == 1:
        release(control)


HELP = "routelaws_help", types.void(types.int64)

help_ = types.ExternalFunction(*HELP)
"""`_help` as a C function for a thread."""

RUNS_PIECE = types.void(types.int64, types.int64, types.int64)
"""Type of a function that does a piece, from the addresses of the job, of the PIECE numbers, and of a thread's
memory."""


def compile_help():
    return c_function(_help, HELP[1], HELP[0])


def address_of(name: str, arguments: int):
    """Return a function for compiled loops: it returns the address of a C function with some int64 arguments."""

    @intrinsic
    def find(typing):
        def generate(context, builder, signature, given):
            kind = ir.FunctionType(ir.VoidType(), [_LONG] * arguments)
            return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, name), _LONG)

        return types.int64(), generate

    return find


_address_of_help = address_of(HELP[0], 1)


@intrinsic
def _call(typing, function, argument):
    def generate(context, builder, signature, arguments):
        function, argument = arguments
        kind = ir.FunctionType(_BYTES, [_BYTES]).as_pointer()
        result = builder.call(builder.inttoptr(function, kind), [builder.inttoptr(argument, _BYTES)])
        return builder.ptrtoint(result, _LONG)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _run_piece(typing, function, job, piece, memory):
    def generate(context, builder, signature, arguments):
        function, *rest = arguments
        kind = ir.FunctionType(ir.VoidType(), [_LONG] * 3).as_pointer()
        builder.call(builder.inttoptr(function, kind), rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@jit
def num_threads(interface, context):
    """Return the number of threads of XLA's pool; 1 without a pool."""
    count, functions = np.ones(1, np.int64), longs(interface, NUM_THREADS + 1)
    message = np.array([4 * _WORD, 0, context, address(count)], np.int64)
    failed = _call(functions[NUM_THREADS], address(message))
    keep(message)
    return np.int64(1) if failed else count[0]


@jit
def run_together(run, job, memory, pieces, count, wait_from, interface, context):
    """Do all pieces of a job.

    Args:
        run: the address of a function that does one piece (see `RUNS_PIECE`).
        job: [m] int64, common data of all pieces.
        memory: number of float32 for each thread.
        pieces: [n, PIECE] int64, in starting order.
        count: number of pieces, at most n.
        wait_from: this piece and later pieces wait for all pieces before it; `count` if no piece waits.
        interface: the address of XLA's functions.
        context: XLA's argument for these calls.
    """
    helpers = max(0, min(num_threads(interface, context), count) - 1)
    control = allocate(np.int64(_WORD * SIZE))
    block = longs(control, SIZE)
    block[USERS] = 2 + helpers  # this thread counts twice, because it looks again after helping
    block[NEXT], block[DONE] = 0, 0
    block[PIECES], block[WAIT_FROM], block[FIRST_PIECE] = count, wait_from, address(pieces)
    block[RUN], block[JOB], block[MEMORY] = run, address(job), memory
    schedule = longs(interface, NUM_THREADS)[SCHEDULE]
    message = np.array([5 * _WORD, 0, context, _address_of_help(), control], np.int64)
    for _ in range(helpers):
        if _call(schedule, address(message)):
            add_atomically(control + _WORD * USERS, np.int64(-1))
    keep(message)
    help_(control)
    wait_until(control + _WORD * DONE, count)
    keep(pieces)
    keep(job)
    _leave(control)
