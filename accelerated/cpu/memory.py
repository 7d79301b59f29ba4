"""Memory of XLA programs for compiled loops: arrays at addresses, and atomic counters.

An address is an integer. XLA passes the addresses of its buffers (`xla`).
"""

import os

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from ..kernels.compile import jit, jit_within

_LONG = ir.IntType(64)


def _pointer_to(number):
    @intrinsic
    def pointer(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(number).as_pointer())

        return types.CPointer(number)(types.int64), generate

    return pointer


_float_pointer, _long_pointer, _int_pointer = map(_pointer_to, (types.float32, types.int64, types.int32))


@jit
def floats(address, size):
    """Return the float32 array [size] at an address."""
    return carray(_float_pointer(address), (size,))


@jit
def longs(address, size):
    """Return the int64 array [size] at an address."""
    return carray(_long_pointer(address), (size,))


@jit
def ints(address, size):
    """Return the int32 array [size] at an address."""
    return carray(_int_pointer(address), (size,))


@jit_within
def address(array):
    return np.int64(array.ctypes.data)


@jit
def keep(array):
    """Keep an array alive until this call; numba does not follow addresses and would free the memory earlier."""


@intrinsic
def add_atomically(typing, address, amount):
    """Add to the int64 at an address atomically, and return the old value."""

    def generate(context, builder, signature, arguments):
        address, amount = arguments
        return builder.atomic_rmw("add", builder.inttoptr(address, _LONG.as_pointer()), amount, "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _read_atomically(typing, address):
    """Return the int64 at an address, by an atomic read."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], _LONG.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def power_of_two(typing, whole):
    """Return 2^k as a float32 for a whole number -126 <= k <= 127, given as a float32.

    Python's integers would have 64 bits, and a vector would hold only half as many numbers.
    """

    def generate(context, builder, signature, arguments):
        biased = builder.add(builder.fptosi(arguments[0], ir.IntType(32)), ir.IntType(32)(127))
        return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())

    return types.float32(types.float32), generate


allocate = types.ExternalFunction("malloc", types.int64(types.int64))
release = types.ExternalFunction("free", types.void(types.int64))
_let_others_run = types.ExternalFunction("sched_yield", types.int32()) if os.name == "posix" else None


@jit
def wait_until(address, least):
    """Wait until other threads have increased the int64 at an address to at least `least`."""
    tries = 0
    while _read_atomically(address) < least:
        tries += 1
        if _let_others_run is not None and tries > 1000:
            _let_others_run()
