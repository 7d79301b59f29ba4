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


class Stacked(NamedTuple):
    """The matrices of all routed layers, of which one is to be run. The loops read them where they are: a layer of its
    own would be a copy."""

    matrices: dict  # up, down and, for SwiGLU, linear, each with an axis of layers in front
    layer: jax.Array  # int32, which of them


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def grouped_ffn(
    activation: str,
    elsewhere: Callable,
    matrices: dict,
    x: jax.Array,
    gate: jax.Array,
    queue: jax.Array,
    stacked: Stacked | None = None,
) -> jax.Array:
    """Return [T, d], the gated sum of what the experts of each token compute for it.

    Args:
        activation: one of `accounting.ACTIVATIONS`.
        elsewhere: a function of matrices, x, gate and queue, which computes the same where a program is compiled for
            something else than a CPU.
        matrices: up [E, d, f], down [E, f, d] and, for SwiGLU, linear [E, d, f].
        x: [T, d], float32 as all of these.
        gate: [T, k].
        queue: [T, k] int32, the expert of each assignment; E for one that is dropped.
        stacked: the same matrices in the stack that they are a layer of; read in place of them, where it is given, and
            constant for the gradient, which is that of `matrices`.
    """
    stacked = _stacked(matrices, stacked)

    def on_cpu(*given):
        return _call_forward(activation, *given, keep=False)[0].sum(axis=1)

    def on_other(x, gate, queue, stacked):
        return elsewhere(_layer(stacked), x, gate, queue)

    return lax.platform_dependent(x, gate, queue, stacked, cpu=on_cpu, default=on_other)


def _stacked(matrices, stacked) -> Stacked:
    if stacked is not None:
        return stacked
    return Stacked({name: matrix[None] for name, matrix in matrices.items()}, jnp.zeros((), jnp.int32))


def _layer(stacked: Stacked) -> dict:
    return {name: matrix[stacked.layer] for name, matrix in stacked.matrices.items()}


def _call_forward(activation, x, gate, queue, stacked, keep):
    """Return the gated output of each assignment [T, k, d], and what is kept."""
    (num_tokens, k), width, up = gate.shape, x.shape[1], stacked.matrices["up"]
    of = like(x)
    results = of((num_tokens, k, width)), of((num_tokens * k,), jnp.int32), of((up.shape[1] + 1,), jnp.int32)
    kept = _kept_shapes(stacked, gate) if keep else []
    arrays = x, gate, queue, up, stacked.matrices["down"], stacked.layer, *_linear(stacked)
    outputs, order, start, *before = _call(activation, arrays, (*results, *map(of, kept)))
    return outputs, Kept(order, start, tuple(before))


def _linear(stacked):
    return [stacked.matrices["linear"]] if "linear" in stacked.matrices else []


def _call(activation, arrays, results):
    """Call the loops, forward or backward as the arrays say (`kernels.expert_call`); `results` are types."""
    from .kernels import expert_pieces

    number = expert_pieces.ACTIVATION_NUMBERS[activation]
    return call_loops(EXPERTS, arrays, results, activation=np.int64(number))


def _kept_shapes(stacked, gate):
    from .kernels.tiles import ROW_PADDING

    hidden = stacked.matrices["up"].shape[3]
    return [(gate.size, hidden + ROW_PADDING)] * (1 + len(_linear(stacked)))


def _forward(activation, elsewhere, matrices, x, gate, queue, stacked):
    def on_cpu(*given):
        outputs, kept = _call_forward(activation, *given, keep=True)
        return outputs.sum(axis=1), kept

    def on_other(x, gate, queue, stacked):
        nothing = jnp.where(False, x.reshape(-1)[0], 0)  # varies over devices as the rest does
        before = tuple(jnp.broadcast_to(nothing, shape) for shape in _kept_shapes(stacked, gate))
        none, num_experts = nothing.astype(jnp.int32), stacked.matrices["up"].shape[1]
        kept = Kept(jnp.broadcast_to(none, gate.size), jnp.broadcast_to(none, num_experts + 1), before)
        return elsewhere(_layer(stacked), x, gate, queue), kept

    given = x, gate, queue, _stacked(matrices, stacked)
    output, kept = lax.platform_dependent(*given, cpu=on_cpu, default=on_other)
    return output, (given, kept)


def _backward(activation, elsewhere, saved, gradient):
    """Return the gradients of all arguments from that of the output [T, d]."""

    def on_cpu(given, kept, gradient):
        x, gate, _, stacked = given
        of, names = like(x), ("up", "down", *("linear" for _ in _linear(stacked)))
        shapes = [stacked.matrices[name].shape[1:] for name in names]
        results = [of((*gate.shape, x.shape[1])), of(gate.shape), *map(of, shapes)]
        (before, *other_before), both = kept.before, [stacked.matrices[name] for name in names[:2]]
        arrays = x, gate, gradient, *both, stacked.layer, before, kept.order, kept.start
        of_x, of_gate, *of_matrices = _call(activation, (*arrays, *_linear(stacked), *other_before), results)
        return dict(zip(names, of_matrices, strict=True)), of_x.sum(axis=1), of_gate

    def on_other(given, kept, gradient):
        x, gate, queue, stacked = given
        return jax.vjp(lambda *given: elsewhere(*given, queue), _layer(stacked), x, gate)[1](gradient)

    return *lax.platform_dependent(*saved, gradient, cpu=on_cpu, default=on_other), None, None


grouped_ffn.defvjp(_forward, _backward)
