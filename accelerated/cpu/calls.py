"""Decide whether compiled loops run here, and call them from XLA programs."""

import contextlib
import contextvars
import os
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ..operations.shapes import shape_of, sizes_of
from ..operations.target import platform

ATTENTION, EXPERTS = "routelaws_attention", "routelaws_experts"
"""Names of the loops in compiled programs."""

SWITCH = "ROUTELAWS_CPU_LOOPS"
"""Environment variable; the value 0 switches all loops off."""

FLOATS = ("float32", "bfloat16")
"""Types of the arrays of a layer; loops compute in float32."""

_PORTABLE = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Trace without the loops inside the `with` block, so that other versions of this package can run the program."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def loops_run(call: str, *arrays: jax.Array) -> bool:
    """Return whether the loops of a call run here on these arrays. Their dtypes must be in `FLOATS`.

    They run if the program is traced for a CPU (see `target`), loops are not switched off, and the program is not
    `portable`.
    """
    if _PORTABLE.get() or os.environ.get(SWITCH) == "0" or platform() != "cpu":
        return False
    return all(str(jnp.result_type(array)) in FLOATS for array in arrays) and _registered(call)


def _registered(call: str) -> bool:
    """Register the loops of a call with XLA. Return False if that fails."""
    from . import xla  # importing numba takes a while

    return xla.registered(call)


def call_loops(
    call: str, arrays: dict[str, jax.Array], results: list[str], attributes: dict[str, int], **sizes: int
) -> list[jax.Array]:
    """Call the loops. Check all arguments first, because the loops read and write at addresses.

    Args:
        call: `ATTENTION` or `EXPERTS`.
        arrays: {"gate [T, k]": gate, ...} in the loops' order (see `shapes`).
        results: ["[T, k, d]", ...]; the arrays determine the sizes.
        attributes: further integer arguments.
        sizes: values of letters that no array determines.

    Raises:
        ValueError: the arrays are inconsistent (see `shapes.sizes_of`).
    """
    _registered(call)
    sizes = sizes_of(call.removeprefix("routelaws_"), arrays, **sizes)
    first, *_ = arrays.values()
    types = [_result_type(first, *shape_of(spec, sizes)) for spec in results]
    attributes = {name: np.int64(value) for name, value in attributes.items()}
    return jax.ffi.ffi_call(call, types, vmap_method="sequential")(*arrays.values(), **attributes)


def _result_type(x: jax.Array, shape: tuple[int, ...], dtype) -> jax.ShapeDtypeStruct:
    """Return the type of an array that varies over the same axes of a `shard_map` as x."""
    return jax.eval_shape(lambda x: jnp.broadcast_to(x.sum().astype(dtype), shape), x)


def in_float32(*arrays: jax.Array) -> list[jax.Array]:
    """Return arrays in float32 that all vary over the same axes of a `shard_map`, as their gradients do.

    For this, each array depends on all others through a condition that is never true. The compiler removes the
    condition.
    """
    sum_of_firsts = sum(
        jax.lax.stop_gradient(values.reshape(-1)[0]).astype(jnp.float32) for values in arrays if values.size
    )
    return [jnp.where(False, sum_of_firsts, values.astype(jnp.float32)) for values in arrays]
