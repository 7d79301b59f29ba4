"""All experts of a layer: each runs on the rows of its own tokens.

A batched product `[E, C, d] x [E, d, f]` also computes empty slots, and uses one core for small products. This file
sorts the rows by expert, and each expert runs only on its rows. A core does all the work of an expert, from gathering
its rows to scattering its outputs (`expert_pieces`).

The backward pass is written by hand. It keeps the vectors before the nonlinearity, sorted by expert, and recomputes
other arrays in the cache. Results differ from plain JAX only by rounding, and do not depend on the number of threads.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from routelaws.reference.accounting import ACTIVATIONS

from ..errors import InputError
from ..operations.shapes import ANY_FLOAT, shape_of, sizes_of
from .calls import EXPERTS, call_loops, in_float32, loops_run

ORDER = ("x", "gate", "queue", "up", "down", "gradient", "before", "linear", "linear before")
"""The order of the loops' arguments. `expert_call` has their positions."""


def experts_run(matrices: dict, x: jax.Array) -> bool:
    """Return whether the loops run here on these matrices and rows. If so, empty slots cost no time."""
    return all(matrix.dtype == x.dtype for matrix in matrices.values()) and loops_run(EXPERTS, x)


def experts(
    twin: Callable, activation: str, matrices: dict, x: jax.Array, gate: jax.Array, queue: jax.Array
) -> jax.Array:
    """Return [T, d], the gated sum of the outputs of each token's experts.

    Args:
        twin: a function in plain JAX that takes the following arguments by position. It runs on other platforms than a
            CPU, and if the loops do not run.
        activation: one of `ACTIVATIONS`.
        matrices: up [E, d, f], down [E, f, d] and, for SwiGLU, linear [E, d, f].
        x: [T, d], with the dtype of the matrices.
        gate: [T, k].
        queue: [T, k] int32, the expert of each assignment. An assignment with a number outside [0, E) is dropped: it
            adds 0, or NaN if its gate is NaN.

    Raises:
        ValueError: the loops run, and the activation is unknown, a matrix is missing or unexpected, or the arrays are
            inconsistent.
    """
    if not experts_run(matrices, x):
        return twin(activation, matrices, x, gate, queue)
    sizes = _check(activation, matrices, x, gate, queue)
    if not sizes["d"] * sizes["f"]:  # an expert of width 0 returns 0, but loops need a column
        return twin(activation, matrices, x, gate, queue)
    rows, gates, *values = in_float32(x, gate, *matrices.values())
    matrices = dict(zip(matrices, values, strict=True))
    return _experts(twin, activation, matrices, rows, gates, queue).astype(x.dtype)


def _check(activation, matrices, x, gate, queue) -> dict:
    if activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}; allowed: {', '.join(ACTIVATIONS)}")
    names = ("up", "down", "linear") if activation == "swiglu" else ("up", "down")
    if set(names) != set(matrices):
        raise InputError(f"experts: the matrices are {', '.join(matrices)}; {', '.join(names)} are needed")
    arrays = {"x [T, d]": x, "gate [T, k]": gate, "queue [T, k] int32": queue}
    sizes = sizes_of("experts", arrays | _named(matrices), ANY_FLOAT)  # the gate may have any of these
    if not sizes["E"]:
        shape = list(matrices["up"].shape)
        raise InputError(f"experts: up has shape {shape}, without an expert; at least one is needed")
    return sizes


def _names(matrices) -> list[str]:
    return ["up", "down", *(["linear"] if "linear" in matrices else [])]


def _named(matrices: dict) -> dict:
    return {f"{name} [E, {'f, d' if name == 'down' else 'd, f'}]": matrices[name] for name in _names(matrices)}


def _row(matrices) -> int:
    from .tiles import ROW_PADDING

    return matrices["up"].shape[-1] + ROW_PADDING


def _kept(matrices) -> list[str]:
    return [f"{name} [T k, F]" for name in ("before", "linear before")][: len(matrices) - 1]


def _call(activation, matrices, rows, before, backward, results) -> list[jax.Array]:
    """Call the loops (`expert_call`).

    Args:
        rows: x, gate and queue, with their shapes; for the backward pass also the gradient [T, d] of the output.
        before: the vectors before the nonlinearity for the backward pass; [] for the forward pass.
        results: the shapes of the results.
    """
    arrays = rows | _named(matrices) | dict(zip(_kept(matrices), before, strict=False))
    arrays = {spec: arrays[spec] for spec in sorted(arrays, key=lambda spec: ORDER.index(spec.partition(" [")[0]))}
    attributes = {"activation": ACTIVATIONS.index(activation), "backward": backward}
    return call_loops(EXPERTS, arrays, results, attributes, F=_row(matrices))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _experts(twin, activation, matrices, x, gate, queue):
    return _outputs(twin, activation, False, matrices, x, gate, queue)[0]


def _outputs(twin, activation, keep, matrices, x, gate, queue):
    """Return the outputs [T, d] and, if needed, the arrays for the backward pass."""
    kept = _kept(matrices) if keep else []

    def on_cpu(matrices, x, gate, queue):
        rows = {"x [T, d]": x, "gate [T, k]": gate, "queue [T, k] int32": queue}
        outputs, *before = _call(activation, matrices, rows, [], False, ["[T, k, d]", *kept])
        return outputs.sum(axis=1), before

    def on_other(matrices, x, gate, queue):
        nothing = jnp.where(False, x.sum(), 0)  # varies over devices, like the other arrays
        sizes = sizes_of("experts", {"gate [T, k]": gate}, F=_row(matrices))
        before = [jnp.broadcast_to(nothing, shape_of(spec, sizes)[0]) for spec in kept]
        return twin(activation, matrices, x, gate, queue), before

    inputs = matrices, x, gate, queue
    output, before = lax.platform_dependent(*inputs, cpu=on_cpu, default=on_other)
    return output, (inputs, before)


def _forward(twin, activation, matrices, x, gate, queue):
    return _outputs(twin, activation, True, matrices, x, gate, queue)


def _backward(twin, activation, saved, gradient):
    """Return the gradients of all arguments from the gradient of the output [T, d]."""

    def on_cpu(given, before, gradient):
        matrices, x, gate, queue = given
        rows = {"x [T, d]": x, "gate [T, k]": gate, "queue [T, k] int32": queue, "gradient [T, d]": gradient}
        results = ["[T, k, d]", "[T, k]", *_named(matrices)]
        of_x, of_gate, *of_matrices = _call(activation, matrices, rows, before, True, results)
        return dict(zip(_names(matrices), of_matrices, strict=True)), of_x.sum(axis=1), of_gate

    def on_other(given, before, gradient):
        matrices, x, gate, queue = given
        _, pull = jax.vjp(lambda *moved: twin(activation, *moved, queue), matrices, x, gate)
        return pull(gradient)

    return *lax.platform_dependent(*saved, gradient, cpu=on_cpu, default=on_other), None


_experts.defvjp(_forward, _backward)
