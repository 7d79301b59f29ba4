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

from .loops import EXPERTS, UNWRITTEN, call_loops, like


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


class Stack:
    """The matrices of all routed layers, of which one is to be run.

    The loops read them where they are, since a layer of its own would be a copy, and write gradients where they belong.
    A backward pass hands one array for each matrix on, from the last layer to the first, and each fills in its own
    part: gradients of single layers would have to be copied together. For that the forward pass hands `passed` on,
    which nothing is computed from: who runs a layer takes it from here, and leaves here what the next one is to take.
    After the last layer it goes to `end_passing`.

    Attributes:
        matrices: constants, up [n_r, E, d, f], down [n_r, E, f, d] and, for SwiGLU, linear [n_r, E, d, f]
        layer: int32, the number of the layer
        passed: the same matrices, whose gradient is asked for
    """

    def __init__(self, matrices: dict, layer: jax.Array, passed: dict):
        self.matrices, self.layer, self.passed = matrices, layer, passed

    def ffn(self, activation: str, elsewhere: Callable, x: jax.Array, gate: jax.Array, queue: jax.Array) -> jax.Array:
        """Return `grouped_ffn` of the layer's matrices."""
        constant = self.matrices, self.layer
        output, self.passed = _passing_ffn(activation, elsewhere, x, gate, queue, constant, self.passed)
        return output


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def grouped_ffn(
    activation: str, elsewhere: Callable, matrices: dict, x: jax.Array, gate: jax.Array, queue: jax.Array
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
    """
    return _run(activation, elsewhere, False, x, gate, queue, _alone(matrices))[0]


def _alone(matrices):
    """Return a layer as the only one of a stack, and its number."""
    return {name: matrix[None] for name, matrix in matrices.items()}, jnp.zeros((), jnp.int32)


def _forward(activation, elsewhere, matrices, x, gate, queue):
    return _run(activation, elsewhere, True, x, gate, queue, _alone(matrices))


def _backward(activation, elsewhere, saved, gradient):
    """Return the gradients of all arguments from that of the output [T, d]."""
    *of_rows, of_matrices = _pull(activation, elsewhere, saved, gradient, None)
    return of_matrices, *of_rows, None


grouped_ffn.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _passing_ffn(activation, elsewhere, x, gate, queue, stack, passed):
    """Return `grouped_ffn` of a layer of a stack (matrices, number), and `passed`."""
    return _run(activation, elsewhere, False, x, gate, queue, stack)[0], passed


def _passing_forward(activation, elsewhere, x, gate, queue, stack, passed):
    output, saved = _run(activation, elsewhere, True, x, gate, queue, stack)
    return (output, passed), saved


def _passing_backward(activation, elsewhere, saved, gradients):
    *of_rows, of_stack = _pull(activation, elsewhere, saved, *gradients)
    return *of_rows, None, None, of_stack


_passing_ffn.defvjp(_passing_forward, _passing_backward)


def end_passing(h: jax.Array, passed: dict) -> jax.Array:
    """Return h, what all layers of a stack have computed; `passed` is what they have handed on, float32.

    The gradient of what they hand on begins here, as memory to which nothing is written on CPU: each layer fills in its
    part, and all of them together the whole. Zeros would be written for nothing, in the time of two percent of a step.
    """
    return _end_passing(tuple((name, matrix.shape) for name, matrix in sorted(passed.items())), h, passed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _end_passing(shapes, h, passed):
    return h


def _begin_gradient(shapes, _, gradient):
    names, types = [name for name, _ in shapes], [jax.ShapeDtypeStruct(shape, jnp.float32) for _, shape in shapes]
    begun = lax.platform_dependent(
        gradient,  # of which nothing is read: without it the memory would be that of all steps, and be copied for each
        cpu=lambda gradient: list(call_loops(UNWRITTEN, (gradient,), types)),
        default=lambda _: [jnp.zeros(each.shape, each.dtype) for each in types],
    )
    return gradient, dict(zip(names, begun, strict=True))


_end_passing.defvjp(lambda _, h, passed: (h, None), _begin_gradient)


def _run(activation, elsewhere, keep, x, gate, queue, stack):
    """Return [T, d], and what the backward pass needs if it is to be kept."""

    def on_cpu(*given):
        outputs, kept = _call_forward(activation, *given, keep)
        return outputs.sum(axis=1), kept if keep else None

    def on_other(x, gate, queue, stack):
        output = elsewhere(_layer(stack), x, gate, queue)
        if not keep:
            return output, None
        nothing = jnp.where(False, x.reshape(-1)[0], 0)  # varies over devices as the rest does
        before = tuple(jnp.broadcast_to(nothing, shape) for shape in _kept_shapes(stack, gate))
        none, num_experts = nothing.astype(jnp.int32), stack[0]["up"].shape[1]
        return output, Kept(jnp.broadcast_to(none, gate.size), jnp.broadcast_to(none, num_experts + 1), before)

    given = x, gate, queue, stack
    output, kept = lax.platform_dependent(*given, cpu=on_cpu, default=on_other)
    return output, (given, kept)


def _layer(stack) -> dict:
    matrices, layer = stack
    return {name: matrix[layer] for name, matrix in matrices.items()}


def _names(matrices) -> list[str]:
    """Return the names of the matrices in the order in which the loops take them."""
    return ["up", "down", *(["linear"] if "linear" in matrices else [])]


def _call_forward(activation, x, gate, queue, stack, keep):
    """Return the gated output of each assignment [T, k, d], and what is kept."""
    (num_tokens, k), width, (matrices, layer) = gate.shape, x.shape[1], stack
    of, num_experts = like(x), matrices["up"].shape[1]
    results = of((num_tokens, k, width)), of((num_tokens * k,), jnp.int32), of((num_experts + 1,), jnp.int32)
    kept = _kept_shapes(stack, gate) if keep else []
    up, down, *linear = (matrices[name] for name in _names(matrices))
    arrays = x, gate, queue, up, down, layer, *linear
    outputs, order, start, *before = _call(activation, arrays, (*results, *map(of, kept)))
    return outputs, Kept(order, start, tuple(before))


def _call(activation, arrays, results, aliases=None):
    """Call the loops, forward or backward as the arrays say (`kernels.expert_call`); `results` are types."""
    from .kernels import expert_pieces

    number = expert_pieces.ACTIVATION_NUMBERS[activation]
    return call_loops(EXPERTS, arrays, results, aliases, activation=np.int64(number))


def _kept_shapes(stack, gate):
    from .kernels.tiles import ROW_PADDING

    matrices, _ = stack
    return [(gate.size, matrices["up"].shape[3] + ROW_PADDING)] * (len(matrices) - 1)


def _pull(activation, elsewhere, saved, gradient, into) -> tuple:
    """Return the gradients of x, gate and the matrices from that of the output [T, d].

    Those of matrices are written to `into`, their place in a stack [n_r, ...] of them for each matrix, where it is
    given, and the stack is returned.
    """

    def on_cpu(given, kept, gradient, into):
        x, gate, _, (matrices, layer) = given
        of, names = like(x), _names(matrices)
        shapes = [matrices[name].shape[into is None :] for name in names]
        results = [of((*gate.shape, x.shape[1])), of(gate.shape), *map(of, shapes)]
        (up, down, *linear), (before, *other) = [matrices[name] for name in names], kept.before
        arrays = [x, gate, gradient, up, down, layer, before, kept.order, kept.start, *linear, *other]
        places = [] if into is None else [into[name] for name in names]
        aliases = {len(arrays) + i: 2 + i for i in range(len(places))}
        of_x, of_gate, *of_matrices = _call(activation, [*arrays, *places], results, aliases)
        return of_x.sum(axis=1), of_gate, dict(zip(names, of_matrices, strict=True))

    def on_other(given, kept, gradient, into):
        x, gate, queue, stack = given
        _, pull = jax.vjp(lambda *given: elsewhere(*given, queue), _layer(stack), x, gate)
        of_matrices, *of_rows = pull(gradient)
        if into is not None:
            of_matrices = {name: into[name].at[stack[1]].set(of) for name, of in of_matrices.items()}
        return *of_rows, of_matrices

    return lax.platform_dependent(*saved, gradient, into, cpu=on_cpu, default=on_other)
