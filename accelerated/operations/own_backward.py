"""Matrix products, the dense FFN, norms and cross-entropy with backward passes written by hand.

The gradients equal autodiff's. The reasons for this code:

- XLA on CPU is two to three times slower on products that sum over the first axis of both factors, such as every weight
  gradient. This code first copies one factor transposed.
- Autodiff of an activation keeps five arrays of the hidden layer's size. The hidden layer alone is enough.
- Autodiff of cross-entropy keeps the logits of all tokens (`summed_log_probability`).
- XLA on CPU copies inputs of the backward pass too early, and keeps the copies in memory (`delayed`).
"""

import functools

import jax
import jax.numpy as jnp

from ..experts import _activated
from ..notation import _at_least_float32
from .target import platform

CHUNK_LOGITS, CHUNK_TOKENS = 2**18, 256
"""Number of logits of a chunk, for the cache of a core, and smallest number of its tokens. Small chunks are slow,
because each chunk adds to the gradient of the whole embedding."""

WIDER = 2**8
"""On an accelerator, chunks have more logits by this factor (256 MiB in float32), because small products are slow."""


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalise(scale: jax.Array, offset: jax.Array | None, x: jax.Array, epsilon: float) -> jax.Array:
    """Return the result of `transformer.layer_norm`: LayerNorm or RMSNorm.

    Autodiff keeps two arrays of the input's size and reads memory more often. This code keeps only the input, which is
    in memory anyway, and two numbers per row.

    Args:
        scale, offset: [d]; without an offset, RMSNorm.
        x: [..., d].
        epsilon: number added to the variance, or to the mean square.

    Returns:
        [..., d] in the dtype of x.
    """
    return _normalise_forward(scale, offset, x, epsilon)[0]


def _normalise_forward(scale, offset, x, epsilon):
    wide = _at_least_float32(x)
    mean = None if offset is None else wide.mean(axis=-1, keepdims=True)
    centred = wide if offset is None else wide - mean
    spread = jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    normed = centred * spread * scale
    return (normed if offset is None else normed + offset).astype(x.dtype), (scale, x, spread, mean)


def _normalise_backward(epsilon, kept, gradient):
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


normalise.defvjp(_normalise_forward, _normalise_backward)


@jax.custom_vjp
def summed_log_probability(x, embedding, target, counted) -> tuple[jax.Array, jax.Array]:
    """Return the targets' log-probabilities: their sum over the counted tokens, and the value of every token.

    The program never stores all logits, [tokens, V]. For each chunk of tokens, it computes the logits, their softmax
    and, if needed, the gradients, while the logits are in the cache. So training computes the logits only once, and
    stores neither the logits nor their gradient. A chunk has some positions of all sequences, so a batch may be sharded
    over devices.

    Args:
        x: [b, S, d].
        embedding: [V, d], with the dtype of x; logits are x · embeddingᵀ in this dtype.
        target: [b, S] integers in [0, V).
        counted: [b, S] bool.

    Returns:
        (sum, [b, S]) in at least float32. The values [b, S] are constants for the gradient, and 0 for tokens that do
        not count.
    """
    log_probability = _run(x, embedding, target, counted, False)[0]
    return log_probability.sum(), log_probability


def _log_probability_forward(x, embedding, target, counted):
    log_probability, of_x, of_embedding = _run(x, embedding, target, counted, True)
    return (log_probability.sum(), log_probability), (of_x, of_embedding.astype(embedding.dtype))


def _log_probability_backward(kept, gradient):
    of_sum, _ = gradient
    return *((of_sum * of).astype(of.dtype) for of in kept), None, None


summed_log_probability.defvjp(_log_probability_forward, _log_probability_backward)


def _chunk_length(b: int, length: int, vocab_size: int) -> int:
    larger = 1 if platform() == "cpu" else WIDER
    tokens = max(larger * CHUNK_LOGITS // vocab_size, CHUNK_TOKENS)
    return min(length, max(1, tokens // b))


def _run(x, embedding, target, counted, with_gradient):
    """Return log-probabilities [b, S] and the gradients of their sum for x and the embedding, or None for both."""
    b, length, _ = x.shape
    wide = _at_least_float32(embedding).dtype
    done = (jnp.zeros((b, length), wide), None, None)
    if with_gradient:
        done = (done[0], jnp.zeros_like(x), jnp.zeros(embedding.shape, wide))
    if not b * length:
        return done
    size = _chunk_length(b, length, len(embedding))

    def chunk(done, start, size=size):
        part = [jax.lax.dynamic_slice_in_dim(array, start, size, axis=1) for array in (x, target, counted)]
        log_probability, of_x, of_embedding = _chunk(*part, embedding, wide, with_gradient)
        sums, xs, embeddings = done
        sums = jax.lax.dynamic_update_slice_in_dim(sums, log_probability, start, axis=1)
        if with_gradient:
            xs = jax.lax.dynamic_update_slice_in_dim(xs, of_x, start, axis=1)
            embeddings += of_embedding
        return (sums, xs, embeddings), None

    whole = length // size * size
    done, _ = jax.lax.scan(chunk, done, jnp.arange(0, whole, size))
    if whole < length:
        done, _ = chunk(done, whole, length - whole)
    return done


def _chunk(x, target, counted, embedding, wide, with_gradient):
    shape, x = x.shape, x.reshape(target.size, x.shape[-1])
    target, counted = target.reshape(-1, 1), counted.reshape(-1, 1)
    logits = x @ embedding.T
    if logits.dtype != wide:  # the barrier forces the same rounding as in `apply`
        logits = jax.lax.optimization_barrier(logits).astype(wide)
    largest = logits.max(axis=-1, keepdims=True)
    powers = jnp.exp(logits - largest)
    total = powers.sum(axis=-1, keepdims=True)
    log_probability = jnp.take_along_axis(logits, target, axis=-1) - largest - jnp.log(total)
    log_probability = jnp.where(counted, log_probability, 0).reshape(shape[:2])
    if not with_gradient:
        return log_probability, None, None
    hit = target == jnp.arange(len(embedding), dtype=target.dtype)
    of_logits = jnp.where(counted, hit - powers / total, 0).astype(x.dtype)
    return log_probability, (of_logits @ embedding).reshape(shape), weight_gradient(of_logits, x)
