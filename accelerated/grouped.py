"""All experts of a layer on CPU: each runs on the rows of its own tokens, by compiled loops that XLA calls.

A batched product `[E, C, d] x [E, d, f]` pays for C slots whatever is in them, and one core does all of a small product
while the others wait. Here the rows are sorted by expert, an expert runs on as many rows as it has, and each core takes
an expert, from gathering its rows to scattering its outputs (`kernels.expert_pieces`).

The backward pass is written by hand. Kept are the vectors before the nonlinearity; what follows from them is computed
again while it is in the cache. Results differ from those of the batched form by rounding alone, and do not depend on
the number of threads.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .loops import EXPERTS, call_loops, like


class Kept(NamedTuple):
    """What the backward pass needs beside the arguments."""

    order: jax.Array  # [T k] int32, the assignments t k + j sorted by expert, those without one at the end
    start: jax.Array  # [E + 1] int32, where those of each expert begin
    before: tuple[jax.Array, ...]  # [T k, f + padding], sorted: the vectors before the nonlinearity


def position_in_queue(queue: jax.Array, num_experts: int) -> jax.Array:
    """Return [n] int32, how many entries of `queue` [n] before each one are equal to it; anything for an entry E.

    Blocks of entries are compared pair by pair; what was before a block is a running total of counts.
    """
    block = 32
    num_blocks = -(-len(queue) // block)
    entries = jnp.pad(queue, (0, num_blocks * block - len(queue)), constant_values=num_experts)
    entries = entries.reshape(num_blocks, block)
    earlier = np.tril(np.ones((block, block), bool), -1)
    within = ((entries[:, :, None] == entries[:, None, :]) & earlier).sum(axis=2, dtype=jnp.int32)
    counts = (entries[:, :, None] == jnp.arange(num_experts)).sum(axis=1, dtype=jnp.int32)  # [blocks, E]
    before = jnp.cumsum(counts, axis=0) - counts
    return (within + jnp.take_along_axis(before, jnp.minimum(entries, num_experts - 1), axis=1)).reshape(-1)[
        : len(queue)
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def grouped_ffn(
    activation: str,
    elsewhere: Callable,
    into: tuple[jax.Array, ...],
    down: jax.Array,
    x: jax.Array,
    gate: jax.Array,
    queue: jax.Array,
) -> jax.Array:
    """Return [T, d], the gated sum of what the experts of each token compute for it.

    Args:
        activation: one of `accounting.ACTIVATIONS`.
        elsewhere: a function of all arguments that follow, which computes the same where a program is compiled for
            something else than a CPU.
        into: [E, d, f], up and, for SwiGLU, linear.
        down: [E, f, d].
        x: [T, d], float32 as all of these.
        gate: [T, k].
        queue: [T, k] int32, the expert of each assignment; E for one that is dropped.
    """

    def on_cpu(*given):
        return _call_forward(activation, *given, keep=False)[0].sum(axis=1)

    return lax.platform_dependent(into, down, x, gate, queue, cpu=on_cpu, default=elsewhere)


def _call_forward(activation, into, down, x, gate, queue, keep):
    """Return the gated output of each assignment [T, k, d], and what is kept."""
    (num_tokens, k), width, num_experts = gate.shape, x.shape[1], len(down)
    of = like(x)
    results = of((num_tokens, k, width)), of((num_tokens * k,), jnp.int32), of((num_experts + 1,), jnp.int32)
    kept = _kept_shapes(into, gate) if keep else []
    arrays = x, gate, queue, into[0], down, *into[1:]
    outputs, order, start, *before = _call(activation, arrays, (*results, *map(of, kept)))
    return outputs, Kept(order, start, tuple(before))


def _call(activation, arrays, results):
    """Call the loops, forward or backward as the arrays say (`kernels.expert_call`); `results` are types."""
    from .kernels import expert_pieces

    number = expert_pieces.ACTIVATION_NUMBERS[activation]
    return call_loops(EXPERTS, arrays, results, activation=np.int64(number))


def _kept_shapes(into, gate):
    from .kernels.tiles import ROW_PADDING

    return [(gate.size, matrix.shape[2] + ROW_PADDING) for matrix in into]


def _forward(activation, elsewhere, into, down, x, gate, queue):
    def on_cpu(*given):
        outputs, kept = _call_forward(activation, *given, keep=True)
        return outputs.sum(axis=1), kept

    def on_other(into, down, x, gate, queue):
        nothing = jnp.where(False, x.reshape(-1)[0], 0)  # varies over devices as the rest does
        before = tuple(jnp.broadcast_to(nothing, shape) for shape in _kept_shapes(into, gate))
        none = nothing.astype(jnp.int32)
        kept = Kept(jnp.broadcast_to(none, gate.size), jnp.broadcast_to(none, len(down) + 1), before)
        return elsewhere(into, down, x, gate, queue), kept

    given = into, down, x, gate, queue
    output, kept = lax.platform_dependent(*given, cpu=on_cpu, default=on_other)
    return output, (given, kept)


def _backward(activation, elsewhere, saved, gradient):
    """Return the gradients of all arguments from that of the output [T, d]."""

    def on_cpu(given, kept, gradient):
        into, down, x, gate, _ = given
        of = like(x)
        results = [of((*gate.shape, x.shape[1])), *(of(given.shape) for given in (gate, into[0], down, *into[1:]))]
        before, *other_before = kept.before
        arrays = x, gate, gradient, into[0], down, before, kept.order, kept.start, *into[1:], *other_before
        of_x, of_gate, of_up, of_down, *of_linear = _call(activation, arrays, results)
        return (of_up, *of_linear), of_down, of_x.sum(axis=1), of_gate

    def on_other(given, kept, gradient):
        *given, queue = given
        return jax.vjp(lambda *given: elsewhere(*given, queue), *given)[1](gradient)

    return *lax.platform_dependent(*saved, gradient, cpu=on_cpu, default=on_other), None


grouped_ffn.defvjp(_forward, _backward)
