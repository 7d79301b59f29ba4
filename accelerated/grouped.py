"""All experts of a layer on CPU: each runs on the rows of its own tokens, by compiled loops that XLA calls.

A batched product `[E, C, d] x [E, d, f]` pays for C slots whatever is in them, and one core does all of a small product
while the others wait. Here the rows are sorted by expert, an expert runs on as many rows as it has, and each core takes
an expert, from gathering its rows to scattering its outputs (`kernels.expert_pieces`).

The backward pass is written by hand. Kept are the vectors before the nonlinearity, sorted by expert; what follows from
them is computed again while it is in the cache. Results differ from those of the batched form by rounding alone, and do
not depend on the number of threads.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from routelaws.reference.accounting import ACTIVATIONS

from .errors import InputError
from .loops import EXPERTS, call_loops
from .shapes import shape_of, sizes_of


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

    Attributes:
        matrices: constants, up [n_r, E, d, f], down [n_r, E, f, d] and, for SwiGLU, linear [n_r, E, d, f]
        layer: int32, the number of the layer
        passed: the same matrices, whose gradient is asked for
    """

    def __init__(self, matrices: dict, layer: jax.Array, passed: dict):
        self.matrices, self.layer, self.passed = matrices, layer, passed

    def ffn(self, activation: str, elsewhere: Callable, x: jax.Array, gate: jax.Array, queue: jax.Array) -> jax.Array:
        """Return `grouped_ffn` of the layer's matrices; d and f are 1 at least. Layers out of range are clipped."""
        sizes = _check(activation, "n, E", self.matrices, x, gate, queue)
        if not sizes["d"] * sizes["f"]:
            raise InputError(f"experts: d = {sizes['d']} and f = {sizes['f']}; a stack needs 1 of each at least")
        constant = self.matrices, self.layer
        output, self.passed = _passing_ffn(activation, elsewhere, x, gate, queue, constant, self.passed)
        return output


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
        queue: [T, k] int32, the expert of each assignment; one that is not in [0, E) is dropped: it adds 0, and NaN
            where its gate is NaN.

    Raises:
        ValueError: the activation is unknown, a matrix is missing or not wanted, or the arrays do not fit each other.
    """
    sizes = _check(activation, "E", matrices, x, gate, queue)
    if not sizes["d"] * sizes["f"]:  # an expert without width adds 0; loops want some columns
        return elsewhere(matrices, x, gate, queue)
    return _grouped_ffn(activation, elsewhere, matrices, x, gate, queue)


def _check(activation, axes, matrices, x, gate, queue) -> dict:
    """Return the sizes T, k, E, d and f; `axes` are those of the matrices before d and f."""
    _check_activation(activation, matrices.get("linear"))
    names = _names(matrices)
    if set(names) != set(matrices):
        raise InputError(f"experts: the matrices are {', '.join(matrices)}; {', '.join(names)} are needed")
    arrays = {"x [T, d]": x, "gate [T, k]": gate, "queue [T, k] int32": queue}
    sizes = sizes_of("experts", arrays | _named(matrices, axes))
    if not sizes["E"]:
        raise InputError(
            f"experts: up has shape {list(matrices['up'].shape)}, without an expert; one is needed at least"
        )
    return sizes


def _check_activation(activation, linear):
    if activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}; allowed: {', '.join(ACTIVATIONS)}")
    if (linear is None) == (activation == "swiglu"):
        given = "missing" if linear is None else "given"
        raise InputError(f"activation is {activation!r} and the matrix linear is {given}; it goes with swiglu alone")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _grouped_ffn(activation, elsewhere, matrices, x, gate, queue):
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


_grouped_ffn.defvjp(_forward, _backward)


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


def _run(activation, elsewhere, keep, x, gate, queue, stack):
    """Return [T, d], and what the backward pass needs if it is to be kept."""
    kept = _kept(stack[0]) if keep else []

    def on_cpu(*given):
        outputs, *before = _call(activation, given, {}, ["[T, k, d]", *kept])
        return outputs.sum(axis=1), before

    def on_other(x, gate, queue, stack):
        nothing = jnp.where(False, x.sum(), 0)  # varies over devices as the rest does
        sizes = sizes_of("experts", {"gate [T, k]": gate}, F=_row(stack[0]))
        before = [jnp.broadcast_to(nothing, shape_of(spec, sizes)[0]) for spec in kept]
        return elsewhere(_layer(stack), x, gate, queue), before

    given = x, gate, queue, stack
    output, before = lax.platform_dependent(*given, cpu=on_cpu, default=on_other)
    return output, (given, before)


def _layer(stack) -> dict:
    matrices, _ = stack
    return {name: matrix[_in_range(*stack)] for name, matrix in matrices.items()}


def _in_range(matrices, layer):
    return jnp.clip(layer, 0, len(matrices["up"]) - 1)  # as the loops do


def _names(matrices) -> list[str]:
    """Return the names of the matrices in the order in which the loops take them."""
    return ["up", "down", *(["linear"] if "linear" in matrices else [])]


def _named(matrices: dict, axes: str, what: str = "") -> dict:
    """Return matrices with their shapes, as `sizes_of` takes them, and with a word before their names."""
    return {
        f"{what}{name} [{axes}, {'f, d' if name == 'down' else 'd, f'}]": matrices[name] for name in _names(matrices)
    }


def _row(matrices) -> int:
    """Return how many numbers the loops have from one hidden vector to the next."""
    from .kernels.tiles import ROW_PADDING

    return matrices["up"].shape[-1] + ROW_PADDING


def _kept(matrices) -> list[str]:
    """Return the shapes of the vectors before the nonlinearity, sorted by expert; SwiGLU has two of each."""
    return [f"{name} [T k, F]" for name in ("before", "linear before")][: len(matrices) - 1]


def _call(activation, given, more, results, aliases=None) -> list[jax.Array]:
    """Call the loops, forward or backward as there are more arrays or not (`kernels.expert_call`)."""
    from .kernels import expert_pieces

    x, gate, queue, (matrices, layer) = given
    arrays = {"x [T, d]": x, "gate [T, k]": gate, "queue [T, k] int32": queue, "layer [] int32": layer}
    arrays |= _named(matrices, "n, E") | more
    attributes = {"activation": expert_pieces.ACTIVATION_NUMBERS[activation]}
    return call_loops(EXPERTS, arrays, results, aliases, attributes, F=_row(matrices))


def _pull(activation, elsewhere, saved, gradient, into) -> tuple:
    """Return the gradients of x, gate and the matrices from that of the output [T, d].

    Those of matrices are written to `into`, their place in a stack [n_r, ...] of them for each matrix, where it is
    given, and the stack is returned.
    """

    def on_cpu(given, before, gradient, into):
        matrices, _ = given[3]
        more = {"gradient [T, d]": gradient} | dict(zip(_kept(matrices), before, strict=True))
        places = {} if into is None else _named(into, "n, E", "gradient of ")
        first, names = 4 + len(matrices) + len(more), _names(matrices)
        aliases = {first + i: 2 + i for i in range(len(places))}
        results = ["[T, k, d]", "[T, k]", *_named(matrices, "E" if into is None else "n, E")]
        of_x, of_gate, *of_matrices = _call(activation, given, more | places, results, aliases)
        return of_x.sum(axis=1), of_gate, dict(zip(names, of_matrices, strict=True))

    def on_other(given, before, gradient, into):
        x, gate, queue, stack = given
        _, pull = jax.vjp(lambda *given: elsewhere(*given, queue), _layer(stack), x, gate)
        of_matrices, *of_rows = pull(gradient)
        if into is not None:
            layer = _in_range(*stack)
            of_matrices = {name: into[name].at[layer].set(of) for name, of in of_matrices.items()}
        return *of_rows, of_matrices

    return lax.platform_dependent(*saved, gradient, into, cpu=on_cpu, default=on_other)
