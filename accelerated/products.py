"""Matrix products and the dense FFN with backward passes of their own.

What is computed is what autodiff gives. The backward passes exist for three reasons: XLA on CPU is two to three times
slower on a product that sums over the first axis of both factors, which every gradient of a weight is (here a factor is
copied transposed); autodiff of an activation keeps five arrays as large as the hidden layer, where the hidden layer
itself is enough; and XLA on CPU copies early, and so holds, what the backward pass reads late (`delayed`).
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
        gradient: [..., T, n], of x · w.

    Returns:
        [..., m, n].
    """
    return jax.lax.platform_dependent(x, gradient, cpu=_by_transposed_copy, default=lambda x, g: x.mT @ g)


def _by_transposed_copy(x, gradient):
    """Return xᵀ · gradient; where x is what is copied, the copy is not made before the gradient is there."""
    copied = x.shape[-1] <= gradient.shape[-1]
    return transposed_product(delayed(x, gradient) if copied else x, gradient)


def delayed(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return x, which XLA then does not read before the gradient is there, nor take for what it has read before.

    XLA on CPU would make copies of what the forward pass keeps as early as it can, and hold those of all blocks until
    the backward pass comes to them: a quarter of the memory of a step of four blocks. It drops barriers before it
    orders what is left, so the order takes a value: the first number of the gradient equals itself. Where that is NaN
    x becomes 0; some gradients are then 0 that were numbers, beside others that are NaN in any case.
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
    # A matrix is a layer of a stack, and its slice a copy: it is made again, and not held all the while.
    return gradient @ delayed(matrix, gradient).T, weight_gradient(x, gradient)


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
    (of_hidden,) = pull(gradient @ delayed(matrices["down"], gradient).T)
    of_matrices = {name: weight_gradient(x, of) for name, of in of_hidden.items()}
    of_matrices["down"] = weight_gradient(activated, gradient)
    return of_matrices, sum(of @ delayed(matrices[name], of).T for name, of in of_hidden.items())


dense_ffn.defvjp(_ffn_forward, _ffn_backward)
