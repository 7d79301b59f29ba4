"""Softmax attention, from the rows of the input projection to the rows of the output projection.

A core's cache can hold the queries, keys and values of one head in one sequence, and a block of logits. So
`attention_pieces` never writes logits or weights to memory. The heads and sequences are divided among all cores. The
backward pass is written by hand and keeps two numbers per query of a head. Results differ from plain JAX only by
rounding, and do not depend on the number of threads.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..operations.shapes import sizes_of_attention
from .calls import ATTENTION, call_loops, in_float32, loops_run


def attention(twin: Callable, projected: jax.Array, relative: jax.Array | None, heads: int, causal: bool) -> jax.Array:
    """Return softmax attention.

    Args:
        twin: a function in plain JAX that takes the following arguments by name. It runs on other platforms than a CPU,
            and if the loops do not run.
        projected: [b, S, 3 H c], queries, keys and values, each with its heads in order.
        relative: [D, H c], the keys of the D distances from S − 1 down to 0 (causal) or 1 − S; None for no relative
            term.
        heads: H.
        causal: position i sees positions up to i only.

    Returns:
        [b, S, H c], in the dtype of `projected`.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    arrays = [projected] if relative is None else [projected, relative]
    if not loops_run(ATTENTION, *arrays):
        return twin(projected, relative, heads, causal)
    width = heads * sizes_of_attention(projected, relative, heads, causal)["c"]
    if relative is None:
        relative = jnp.zeros((0, width))
    if not projected.size:
        return projected[..., :width]
    return _attention(twin, heads, causal, *in_float32(projected, relative)).astype(projected.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(twin, heads, causal, projected, relative):
    return _forward(twin, heads, causal, projected, relative)[0]


def _call(heads, causal, projected, relative, more, results):
    """Call the loops (`attention_call`). With more arrays, they run the backward pass."""
    arrays = {"projected [b, S, 3 H c]": projected, "relative [D, H c]": relative} | more
    attributes = {"backward": bool(more), "causal": causal, "heads": heads}
    return tuple(call_loops(ATTENTION, arrays, results, attributes, H=heads))


def _elsewhere(twin, heads, causal, projected, relative):
    """Return the result of `_attention` in a program for another platform than a CPU."""
    return twin(projected, relative if len(relative) else None, heads, causal)


def _forward(twin, heads, causal, projected, relative):
    b, length, _ = projected.shape

    def on_cpu(projected, relative):
        return _call(heads, causal, projected, relative, {}, ["[b, S, H c]", "[b, H, S, 2]"])

    def on_other(projected, relative):
        nothing = jnp.where(False, projected.reshape(-1)[0], 0)  # varies over devices, like the other arrays
        mixed = _elsewhere(twin, heads, causal, projected, relative)
        return mixed, jnp.broadcast_to(nothing, (b, heads, length, 2))

    mixed, kept = lax.platform_dependent(projected, relative, cpu=on_cpu, default=on_other)
    return mixed, (projected, relative, kept)


def _backward(twin, heads, causal, saved, gradient):
    def on_cpu(projected, relative, kept, gradient):
        more = {"kept [b, H, S, 2]": kept, "gradient [b, S, H c]": gradient}
        return _call(heads, causal, projected, relative, more, ["[b, S, 3 H c]", "[D, H c]"])

    def on_other(projected, relative, kept, gradient):
        return jax.vjp(functools.partial(_elsewhere, twin, heads, causal), projected, relative)[1](gradient)

    return lax.platform_dependent(*saved, gradient, cpu=on_cpu, default=on_other)


_attention.defvjp(_forward, _backward)
