"""Softmax attention on CPU: by compiled loops that XLA calls, from the rows that projections write to those they read.

A head's part of a sequence is small: its queries, keys, values and a block of logits stay in the cache of a core, from
which `kernels.attention_pieces` neither writes logits nor weights, and heads and sequences are shared out over all
cores. The backward pass is written by hand; kept are two numbers for each query of a head. Results differ from those of
`attention.attend` by rounding alone, and do not depend on the number of threads.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .attention import attend
from .loops import ATTENTION, alike, call_loops, like


def attend_rows(projected: jax.Array, relative: jax.Array | None, heads: int, causal: bool) -> jax.Array:
    """Return softmax attention, where `loops.loops_run`.

    Args:
        projected: [b, S, 3 H c], queries, keys and values, in each of them one head after the other.
        relative: [D, H c], the keys of the D distances from S − 1 downwards, to 0 if causal and to 1 − S if not; None
            for no such term.
        heads: H.
        causal: position i sees positions up to i only.

    Returns:
        [b, S, H c], in the dtype of `projected`.
    """
    none = jnp.zeros((0, projected.shape[-1] // 3))
    given = alike(projected, none if relative is None else relative)
    return _attend(heads, causal, *given).astype(projected.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(heads, causal, projected, relative):
    return _forward(heads, causal, projected, relative)[0]


def _attributes(heads, causal) -> dict:
    return {"causal": np.int64(causal), "heads": np.int64(heads)}


def _elsewhere(heads, causal, projected, relative):
    """Return `_attend` where a program is compiled for something else than a CPU."""
    b, length, width = projected.shape
    query, key, value = projected.reshape(b, length, 3, heads, -1).transpose(2, 3, 0, 1, 4)
    if len(relative):
        relative = jnp.pad(relative, ((1, 0), (0, 0))).reshape(len(relative) + 1, heads, -1).swapaxes(0, 1)
    parts = attend(query, key, value, relative if relative.size else None, None, causal)
    return jnp.concatenate(parts, axis=2).transpose(1, 2, 0, 3).reshape(b, length, width // 3)


def _forward(heads, causal, projected, relative):
    b, length, width = projected.shape
    kept_shape, options = (b, heads, length, 2), _attributes(heads, causal)

    def on_cpu(projected, relative):
        of = like(projected)
        results = of((b, length, width // 3)), of(kept_shape)
        return tuple(call_loops(ATTENTION, (projected, relative), results, **options))

    def on_other(projected, relative):
        nothing = jnp.where(False, projected.reshape(-1)[0], 0)  # varies over devices as the rest does
        return _elsewhere(heads, causal, projected, relative), jnp.broadcast_to(nothing, kept_shape)

    mixed, kept = lax.platform_dependent(projected, relative, cpu=on_cpu, default=on_other)
    return mixed, (projected, relative, kept)


def _backward(heads, causal, saved, gradient):
    """Return the gradients of `projected` and `relative` from that of the output."""

    def on_cpu(projected, relative, kept, gradient):
        of, arrays = like(projected), (projected, relative, kept, gradient)
        results = of(projected.shape), of(relative.shape)
        return tuple(call_loops(ATTENTION, arrays, results, **_attributes(heads, causal)))

    def on_other(projected, relative, kept, gradient):
        return jax.vjp(functools.partial(_elsewhere, heads, causal), projected, relative)[1](gradient)

    return lax.platform_dependent(*saved, gradient, cpu=on_cpu, default=on_other)


_attend.defvjp(_forward, _backward)
