"""Matrix products and the dense FFN with backward passes written by hand.

The gradients equal autodiff's. There are three reasons for this code:

- XLA on CPU is two to three times slower on products that sum over the first axis of both factors, such as every weight
  gradient. This code first copies one factor transposed.
- Autodiff of an activation keeps five arrays of the hidden layer's size. The hidden layer alone is enough.
- XLA on CPU copies inputs of the backward pass too early, and keeps the copies in memory (`delayed`).
"""

import functools

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
        gradient: [..., T, n], the gradient of x · w.

    Returns:
        [..., m, n].
    """
    return jax.lax.platform_dependent(x, gradient, cpu=_by_transposed_copy, default=lambda x, g: x.mT @ g)


def _by_transposed_copy(x, gradient):
    """Return xᵀ · gradient; if x is copied, the copy waits for the gradient."""
    copied = x.shape[-1] <= gradient.shape[-1]
    return transposed_product(delayed(x, gradient) if copied else x, gradient)


def delayed(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return x, but make XLA read it only after the gradient, and not merge it with earlier reads.

    Otherwise XLA on CPU copies the saved arrays of all blocks early and keeps the copies until the backward pass. For
    four blocks this is a quarter of a step's memory. A barrier would not help, because XLA drops barriers before it
    schedules. So x depends on a test whether the first number of the gradient equals itself. If this number is NaN, x
    becomes 0. Some gradients are then 0, and others are NaN anyway.
    """
    if not gradient.size:
        return x
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
    # The matrix is a slice of a stack, and XLA copies slices: slice again instead of keeping the copy.
    return gradient @ delayed(matrix, gradient).T, weight_gradient(x, gradient)


product.defvjp(_product_forward, _product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dense_ffn(matrices: dict, x: jax.Array, activation: str) -> jax.Array:
    """Return the result of `experts.expert_ffn`.

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
    (of_hidden,) = pull(gradient @ delayed(matrices["down"], gradient).T)
    of_matrices = {name: weight_gradient(x, of) for name, of in of_hidden.items()}
    of_matrices["down"] = weight_gradient(activated, gradient)
    return of_matrices, sum(of @ delayed(matrices[name], of).T for name, of in of_hidden.items())


dense_ffn.defvjp(_ffn_forward, _ffn_backward)
