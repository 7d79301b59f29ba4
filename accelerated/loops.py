"""Compiled loops that programs of XLA call on CPU: whether they run here, and what calls of them need.

The loops are in `kernels`; who calls them is in `attention_rows`, `grouped`, `products`, `routers.sinkhorn` and
`training.optimizer`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

CALLS = tuple(f"routelaws_{what}" for what in ("adamw", "attention", "experts", "gradient", "sweep", "unwritten"))
"""What compiled programs call loops by."""

ADAMW, ATTENTION, EXPERTS, GRADIENT, SWEEP, UNWRITTEN = CALLS

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


def call_loops(call: str, arrays, results, aliases: dict[int, int] | None = None, **attributes):
    """Call loops on arrays; `results` are types, see `like`, and attributes are integers. `aliases` says which results
    are written where an argument was: {argument: result}."""
    _made_known(call)
    options = {"vmap_method": "sequential", "input_output_aliases": aliases}
    return jax.ffi.ffi_call(call, results, **options)(*arrays, **attributes)


def like(x: jax.Array) -> Callable:
    """Return a function from a shape to the type of an array that varies over the axes of a `shard_map` as x does."""

    def of(shape, dtype=jnp.float32):
        return jax.eval_shape(lambda x: jnp.broadcast_to(x.reshape(-1)[0].astype(dtype), shape), x)

    return of


def alike(*arrays: jax.Array) -> list[jax.Array]:
    """Return arrays in float32 that all vary over the same axes of a `shard_map`, as a call wants them; so do their
    gradients. The condition never holds and is gone after compiling."""
    each = sum(jax.lax.stop_gradient(values.reshape(-1)[0]).astype(jnp.float32) for values in arrays if values.size)
    return [jnp.where(False, each, values.astype(jnp.float32)) for values in arrays]
