"""LayerNorm and RMSNorm with a backward pass written by hand.

The gradients equal autodiff's. Autodiff keeps two arrays of the input's size and reads memory more often. This code
keeps only the input, which is in memory anyway, and two numbers per row.
"""

import functools

import jax

from .notation import _at_least_float32
from .products import delayed


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalise(scale: jax.Array, offset: jax.Array | None, x: jax.Array, epsilon: float) -> jax.Array:
    """Return the result of `transformer.layer_norm`.

    Args:
        scale, offset: [d]; without an offset, RMSNorm.
        x: [..., d].
        epsilon: number added to the variance, or to the mean square.

    Returns:
        [..., d] in the dtype of x.
    """
    return _forward(scale, offset, x, epsilon)[0]


def _forward(scale, offset, x, epsilon):
    wide = _at_least_float32(x)
    mean = None if offset is None else wide.mean(axis=-1, keepdims=True)
    centred = wide if offset is None else wide - mean
    spread = jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    normed = centred * spread * scale
    return (normed if offset is None else normed + offset).astype(x.dtype), (scale, x, spread, mean)


def _backward(epsilon, kept, gradient):
    scale, x, spread, mean = kept
    gradient = _at_least_float32(gradient)
    wide, rows, of_normed = _at_least_float32(x), tuple(range(x.ndim - 1)), gradient * scale
    normed = (wide if mean is None else wide - delayed(mean, gradient)) * spread
    along = (of_normed * normed).mean(axis=-1, keepdims=True)
    level = 0 if mean is None else of_normed.mean(axis=-1, keepdims=True)
    of_x = spread * (of_normed - level - normed * along)
    of_scale = (gradient * normed).sum(axis=rows).astype(scale.dtype)
    of_offset = None if mean is None else gradient.sum(axis=rows).astype(scale.dtype)
    return of_scale, of_offset, of_x.astype(x.dtype)


normalise.defvjp(_forward, _backward)
