"""Cross-entropy of logits x · embeddingᵀ in chunks, with a backward pass written by hand.

The program never stores all logits, [tokens, V]. For each chunk of tokens, it computes the logits, their softmax and,
if needed, the gradients, while the logits are in the cache. So training computes the logits only once, and stores
neither the logits nor their gradient. A chunk has some positions of all sequences, so a batch may be sharded over
devices.
"""

import jax
import jax.numpy as jnp

from .notation import _at_least_float32
from .products import weight_gradient
from .target import platform

CHUNK_LOGITS, CHUNK_TOKENS = 2**18, 256
"""Number of logits of a chunk, for the cache of a core, and smallest number of its tokens. Small chunks are slow,
because each chunk adds to the gradient of the whole embedding."""

WIDER = 2**8
"""On an accelerator, chunks have more logits by this factor (256 MiB in float32), because small products are slow."""


@jax.custom_vjp
def summed_log_probability(x, embedding, target, counted) -> tuple[jax.Array, jax.Array]:
    """Return the targets' log-probabilities: their sum over the counted tokens, and the value of every token.

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


def _forward(x, embedding, target, counted):
    log_probability, of_x, of_embedding = _run(x, embedding, target, counted, True)
    return (log_probability.sum(), log_probability), (of_x, of_embedding.astype(embedding.dtype))


def _backward(kept, gradient):
    of_sum, _ = gradient
    return *((of_sum * of).astype(of.dtype) for of in kept), None, None


summed_log_probability.defvjp(_forward, _backward)


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
