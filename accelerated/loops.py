"""Compiled loops that programs of XLA call on CPU: whether they run here, and what calls of them need.

The loops are in `kernels`; who calls them is in `attention_rows` and `grouped`.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .shapes import shape_of, sizes_of

CALLS = tuple(f"routelaws_{what}" for what in ("attention", "experts"))
"""What compiled programs call loops by."""

ATTENTION, EXPERTS = CALLS

_PORTABLE = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Trace inside without the loops: programs that other processes and other versions of this package can read."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def loops_run(call: str, dtype) -> bool:
    """Return whether the loops of a call can run here: on CPU in float32, or bfloat16, for which they compute in
    float32.

    What the process computes on by default decides, when a function is traced, unless it has to be `portable`.
    """
    if _PORTABLE.get() or jax.default_backend() != "cpu" or dtype not in (jnp.float32, jnp.bfloat16):
        return False
    return _made_known(call)


def _made_known(call: str) -> bool:
    """Let XLA know the loops of a call; return False where it cannot."""
    from .kernels import foreign  # numba, which takes a while to import

    return foreign.registered(call)


def call_loops(
    call: str,
    arrays: dict[str, jax.Array],
    results: list[str],
    aliases: dict[int, int] | None = None,
    attributes: dict[str, int] | None = None,
    **sizes: int,
) -> list[jax.Array]:
    """Call loops, which read and write at addresses: here all that they are given is checked.

    Args:
        call: one of `CALLS`.
        arrays: {"gate [T, k]": gate, ...} in the order in which the loops take them, see `shapes`.
        results: ["[T, k, d]", ...]; their sizes follow from those of the arrays.
        aliases: {argument: result}, which results are written where an argument was.
        attributes: more that the loops are told.
        sizes: letters that do not follow from an array alone.

    Raises:
        ValueError: the arrays do not fit each other, see `shapes.sizes_of`.
    """
    _made_known(call)
    sizes = sizes_of(call.removeprefix("routelaws_"), arrays, **sizes)
    first, *_ = arrays.values()
    types = [_like(first, *shape_of(spec, sizes)) for spec in results]
    attributes = {name: np.int64(value) for name, value in (attributes or {}).items()}
    options = {"vmap_method": "sequential", "input_output_aliases": aliases}
    return jax.ffi.ffi_call(call, types, **options)(*arrays.values(), **attributes)


def _like(x: jax.Array, shape: tuple[int, ...], dtype) -> jax.ShapeDtypeStruct:
    """Return the type of an array that varies over the axes of a `shard_map` as x does."""
    return jax.eval_shape(lambda x: jnp.broadcast_to(x.sum().astype(dtype), shape), x)


def alike(*arrays: jax.Array) -> list[jax.Array]:
    """Return arrays in float32 that all vary over the same axes of a `shard_map`, as a call wants them; so do their
    gradients. The condition never holds and is gone after compiling."""
    each = sum(jax.lax.stop_gradient(values.reshape(-1)[0]).astype(jnp.float32) for values in arrays if values.size)
    return [jnp.where(False, each, values.astype(jnp.float32)) for values in arrays]
