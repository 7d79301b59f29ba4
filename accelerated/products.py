"""Matrix products and the dense FFN with backward passes of their own.

What is computed is what autodiff gives. The backward passes exist for three reasons: XLA on CPU is two to three times
slower on a product that sums over the first axis of both factors, which every gradient of a weight is (here a factor is
copied transposed); autodiff of an activation keeps five arrays as large as the hidden layer, where the hidden layer
itself is enough; and it keeps what a product reads, which can be computed again from what is there in any case
(`Again`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .experts import _activated


def transposed_product(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return xᵀ · gradient over the last two axes, for CPU: the narrower factor is copied transposed.

    The barriers keep XLA from folding the copies into the product again.

    Args:
        x: [..., T, m].
        gradient: [..., T, n].
    """
    keep = jax.lax.optimization_barrier
    if x.shape[-1] <= gradient.shape[-1]:
        return keep(x.mT) @ gradient
    return keep(keep(gradient.mT) @ x).mT


def weight_gradient(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return xᵀ · gradient over the last two axes, the gradient of w in x · w.

    Args:
        x: [..., T, m].
        gradient: [..., T, n], of x · w.

    Returns:
        [..., m, n].
    """
    return jax.lax.platform_dependent(x, gradient, cpu=_by_transposed_copy, default=lambda x, g: x.mT @ g)


def _by_transposed_copy(x, gradient):
    """Return xᵀ · gradient; where x is what is copied, the copy is not made before the gradient is there."""
    copied = x.shape[-1] <= gradient.shape[-1]
    return transposed_product(after(gradient, x) if copied else x, gradient)


def after(gradient, x):
    """Return x, which XLA then does not read before the gradient is there, nor take for what it has read before.

    XLA on CPU would make copies of what the forward pass keeps as early as it can, and hold those of all blocks until
    the backward pass comes to them; and what both passes compute it would compute once, and hold as long. It drops
    barriers before it orders what is left, so the order takes a value: the first number of the gradient equals itself.
    Where that is NaN x becomes 0; some gradients are then 0 that were numbers, beside others that are NaN in any case.
    """
    if not gradient.size:
        return x
    first = gradient[(0,) * gradient.ndim]
    return jnp.where(first == first, x, 0)


class Again(NamedTuple):
    """What a product reads, [T, m], as a function of arrays that are kept in any case.

    On CPU the gradient of the matrix copies it transposed, and what is cheap is computed in the loop of that copy.

    Attributes:
        make: can be hashed; make(*source) is what the product reads
        source: arrays; the backward pass takes the last of them once the gradient is there, and not before
    """

    make: Callable
    source: tuple


def _given(x):
    return x


def _as_again(x: jax.Array | Again) -> Again:
    return x if isinstance(x, Again) else Again(_given, (x,))


def _made_again(make, source, gradient):
    """Return make(*source), computed when the gradient is there."""
    return make(*source[:-1], after(gradient, source[-1]))


def product(x: jax.Array | Again, matrix: jax.Array) -> jax.Array:
    """Return x · matrix for x [T, m] and a matrix [m, n]."""
    return _product(*_as_again(x), matrix)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(make, source, matrix):
    return make(*source) @ matrix


def _product_forward(make, source, matrix):
    return make(*source) @ matrix, (source, matrix)


def _product_backward(make, kept, gradient):
    source, matrix = kept
    _, pull = jax.vjp(make, *source)
    # A matrix is a layer of a stack, and its slice a copy: it is made again, and not held all the while.
    return pull(gradient @ after(gradient, matrix).T), weight_gradient(_made_again(make, source, gradient), gradient)


_product.defvjp(_product_forward, _product_backward)


def dense_ffn(matrices: dict, x: jax.Array | Again, activation: str) -> jax.Array:
    """Return what `experts.expert_ffn` does.

    Args:
        matrices: up [d, f], down [f, d] and, for SwiGLU, linear [d, f].
        x: [T, d].
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        [T, d].
    """
    make, source = _as_again(x)
    return _ffn(matrices, make, source, activation)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 3))
def _ffn(matrices, make, source, activation):
    return _ffn_forward(matrices, make, source, activation)[0]


def _activate(hidden: dict, activation: str) -> jax.Array:
    return _activated(hidden["up"], activation, hidden.get("linear"))


def _ffn_forward(matrices, make, source, activation):
    x = make(*source)
    hidden = {name: x @ matrix for name, matrix in matrices.items() if name != "down"}
    return _activate(hidden, activation) @ matrices["down"], (matrices, source, hidden)


def _ffn_backward(make, activation, kept, gradient):
    matrices, source, hidden = kept
    activated = _activate(hidden, activation)
    _, pull = jax.vjp(functools.partial(_activate, activation=activation), jax.lax.optimization_barrier(hidden))
    (of_hidden,) = pull(gradient @ after(gradient, matrices["down"]).T)
    x = _made_again(make, source, of_hidden["up"])
    of_matrices = {name: weight_gradient(x, of) for name, of in of_hidden.items()}
    of_matrices["down"] = weight_gradient(activated, gradient)
    _, pull = jax.vjp(make, *source)
    return of_matrices, pull(sum(of @ after(of, matrices[name]).T for name, of in of_hidden.items()))


_ffn.defvjp(_ffn_forward, _ffn_backward)
