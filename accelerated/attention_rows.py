"""Softmax attention on CPU: by compiled loops that XLA calls, from the rows that projections write to those they read.

A head's part of a sequence is small: its queries, keys, values and a block of logits stay in the cache of a core, from
which `kernels.attention_pieces` neither writes logits nor weights, and heads and sequences are shared out over all
cores. The backward pass is written by hand; kept are two numbers for each query of a head. Results differ from those of
`attention.attend` by rounding alone, and do not depend on the number of threads.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from .attention import attend
from .loops import ATTENTION, alike, call_loops
from .shapes import sizes_of

FLOATS = ("float32", "bfloat16")
"""What arrays may be; the loops compute in float32."""


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

    Raises:
        ValueError: the shapes do not fit each other, or a dtype is neither float32 nor bfloat16.
    """
    sizes = sizes_of("attention", {"projected [b, S, 3 H c]": projected}, FLOATS, H=heads)
    width, length = heads * sizes["c"], sizes["S"]
    if relative is None:
        relative = jnp.zeros((0, width))
    else:
        distances = length if causal else max(2 * length - 1, 0)
        sizes_of("attention", {"relative [D, H c]": relative}, FLOATS, D=distances, **sizes)
    if not projected.size:
        return projected[..., :width]
    return _attend(heads, causal, *alike(projected, relative)).astype(projected.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(heads, causal, projected, relative):
    return _forward(heads, causal, projected, relative)[0]


def _call(heads, causal, projected, relative, more, results):
    """Call the loops, forward or backward as there are more arrays or not (`kernels.attention_call`)."""
    arrays = {"projected [b, S, 3 H c]": projected, "relative [D, H c]": relative} | more
    return tuple(call_loops(ATTENTION, arrays, results, attributes={"causal": causal, "heads": heads}, H=heads))


def _elsewhere(heads, causal, projected, relative):
    """Return `_attend` where a program is compiled for something else than a CPU."""
    b, length, width = projected.shape
    query, key, value = projected.reshape(b, length, 3, heads, -1).transpose(2, 3, 0, 1, 4)
    if len(relative):
        relative = jnp.pad(relative, ((1, 0), (0, 0))).reshape(len(relative) + 1, heads, -1).swapaxes(0, 1)
    parts = attend(query, key, value, relative if relative.size else None, None, causal)
    return jnp.concatenate(parts, axis=2).transpose(1, 2, 0, 3).reshape(b, length, width // 3)


def _forward(heads, causal, projected, relative):
    b, length, _ = projected.shape

    def on_cpu(projected, relative):
        return _call(heads, causal, projected, relative, {}, ["[b, S, H c]", "[b, H, S, 2]"])

    def on_other(projected, relative):
        nothing = jnp.where(False, projected.reshape(-1)[0], 0)  # varies over devices as the rest does
        return _elsewhere(heads, causal, projected, relative), jnp.broadcast_to(nothing, (b, heads, length, 2))

    mixed, kept = lax.platform_dependent(projected, relative, cpu=on_cpu, default=on_other)
    return mixed, (projected, relative, kept)


def _backward(heads, causal, saved, gradient):
    """Return the gradients of `projected` and `relative` from that of the output."""

    def on_cpu(projected, relative, kept, gradient):
        more = {"kept [b, H, S, 2]": kept, "gradient [b, S, H c]": gradient}
        return _call(heads, causal, projected, relative, more, ["[b, S, 3 H c]", "[D, H c]"])

    def on_other(projected, relative, kept, gradient):
        return jax.vjp(functools.partial(_elsewhere, heads, causal), projected, relative)[1](gradient)

    return lax.platform_dependent(*saved, gradient, cpu=on_cpu, default=on_other)


_attend.defvjp(_forward, _backward)
