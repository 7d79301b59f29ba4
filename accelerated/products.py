"""Matrix products and the dense FFN with backward passes of their own.

What is computed is what autodiff gives. The backward passes exist for two reasons: XLA on CPU is two to three times
slower on a product that sums over the first axis of both factors, which every gradient of a weight is; and autodiff of
an activation keeps five arrays as large as the hidden layer, where the hidden layer itself is enough.
"""

import functools

import jax
import jax.numpy as jnp

from .experts import _activated
from .grouped import transposed_product


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
    return transposed_product(_after(gradient, x) if copied else x, gradient)


def _after(gradient, x):
    """Return x, which XLA then does not read before the gradient is there.

    XLA on CPU would make the copies as early as it can, and hold those of all blocks until the backward pass comes to
    them. It drops barriers before it orders what is left, so the order takes a value: the first number of the gradient
    equals itself. Where that is NaN x becomes 0, and the first column of the product is NaN in any case.
    """
    first = gradient[(0,) * gradient.ndim]
    return jnp.where(first == first, x, 0)


@jax.custom_vjp
def product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return x · matrix for x [T, m] and a matrix [m, n]."""
    return x @ matrix


def _product_forward(x, matrix):
    return x @ matrix, (x, matrix)


def _product_backward(kept, gradient):
    x, matrix = kept
    return gradient @ matrix.T, weight_gradient(x, gradient)


product.defvjp(_product_forward, _product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dense_ffn(matrices: dict, x: jax.Array, activation: str) -> jax.Array:
    """Return what `experts.expert_ffn` does.

    Args:
        matrices: up [d, f], down [f, d] and, for SwiGLU, linear [d, f].
        x: [T, d].
        activation: one of `accounting.ACTIVATIONS`.

    Returns:
        [T, d].
    """
    return _ffn_forward(matrices, x, activation)[0]


def _activate(hidden: dict, activation: str) -> jax.Array:
    return _activated(hidden["up"], activation, hidden.get("linear"))


def _ffn_forward(matrices, x, activation):
    hidden = {name: x @ matrix for name, matrix in matrices.items() if name != "down"}
    return _activate(hidden, activation) @ matrices["down"], (matrices, x, hidden)


def _ffn_backward(activation, kept, gradient):
    matrices, x, hidden = kept
    activated = _activate(hidden, activation)
    _, pull = jax.vjp(functools.partial(_activate, activation=activation), jax.lax.optimization_barrier(hidden))
    (of_hidden,) = pull(gradient @ matrices["down"].T)
    of_matrices = {name: weight_gradient(x, of) for name, of in of_hidden.items()}
    of_matrices["down"] = weight_gradient(activated, gradient)
    return of_matrices, sum(of @ matrices[name].T for name, of in of_hidden.items())


dense_ffn.defvjp(_ffn_forward, _ffn_backward)
