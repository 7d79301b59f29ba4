"""Softmax attention over heads, with a backward pass written by hand.

The logit of query i and key j is (qᵢ · kⱼ + qᵢ · r₍ᵢ₋ⱼ₎) / √c. For each head, one product computes qᵢ · r₍ₘ₎ for all
distances m. Then each row is shifted, so that column j of row i holds the distance i − j. On a CPU, the shift copies
nothing: the product has an extra first column, and its memory, cut into rows that are one number shorter, holds the
shifted rows (`shift`). On a TPU, memory has tiles, and these cuts are a sixth of all bytes that a step moves (S = 512).
Autodiff would write and read the shifted rows and their gradients several times.

The backward pass keeps queries, keys, values and results. It also keeps the weights of sequences that are short
relative to the head width. For longer sequences, it recomputes the weights. (In unrolled blocks XLA merges the
recomputation with the forward pass, and so keeps the weights.) XLA on CPU is slow on products that sum over the first
axis of both factors. So this code copies the smaller factor transposed.
"""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .own_backward import delayed, weight_gradient
from .shapes import ANY_FLOAT, number_of_distances, sizes_of, sizes_of_attention

LEAST_HALF, QUERIES = 64, 256
"""Minimum number of queries of a half, and the number of queries of a part of a long sequence. Causal attention runs in
parts, because a part needs no later key. For S = 2,048, a step compiled for a TPU v5e moves 1.5, 1.1 and 1.05 times as
many bytes with 2, 4 and 16 parts as with 8 (docs/scale.md)."""

KEPT_WEIGHTS = 4
"""Largest ratio of keys to head width at which the backward pass keeps weights (as much memory as a hidden layer)."""


def attend_rows(projected, relative, heads: int, causal: bool, mask=None, by: Callable | None = None) -> jax.Array:
    """Return softmax attention, [b, S, H c], of projected rows.

    Args:
        projected: [b, S, 3 H c], queries, keys and values, each with its heads in order.
        relative: [D, H c], the keys of the D distances (see `attend`); None for no relative term.
        heads: H.
        causal, mask: see `attend`.
        by: a function with the arguments and results of `attend`; None uses `attend`.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    sizes = sizes_of_attention(projected, relative, heads, causal)
    b, length, width = (sizes[letter] for letter in "bSc")
    query, key, value = projected.reshape(b, length, 3, heads, width).transpose(2, 3, 0, 1, 4)  # [H, b, S, c] each
    if relative is not None:
        relative = jnp.pad(relative, ((1, 0), (0, 0))).reshape(len(relative) + 1, heads, width).swapaxes(0, 1)
    parts = (by or attend)(query, key, value, relative, mask, causal)
    return jnp.concatenate(parts, axis=2).transpose(1, 2, 0, 3).reshape(b, length, heads * width)


def attend(query, key, value, relative, mask, causal: bool) -> list[jax.Array]:
    """Return softmax attention, [H, b, S, c], as one array or as several (earlier queries first).

    Args:
        query: [H, b, S, c].
        key: [H, b, S, c].
        value: [H, b, S, c].
        relative: [H, 1 + D, c], a row of zeros and the keys of the D distances from S − 1 down to 0 (causal) or 1 − S;
            None for no relative term.
        mask: [b, S] bool, True for a real token; only padding sees padding. None if all tokens are real.
        causal: position i sees positions up to i only.

    Raises:
        ValueError: the shapes are inconsistent.
    """
    check_heads(query, key, value, relative, mask, causal)
    length = query.shape[2]
    if not query.size:
        return [query]
    number, parts = parts_of(length, causal), []
    for first, end in itertools.pairwise(i * length // number for i in range(number + 1)):
        seen = None if mask is None else mask[:, :end]
        distances = relative
        if relative is not None and end < length:
            distances = jnp.concatenate([relative[:, :1], relative[:, 1 + length - end :]], axis=1)
        parts.append(_attend(query[:, :, first:end], key[:, :, :end], value[:, :, :end], distances, seen, causal))
    return parts


def parts_of(length: int, causal: bool) -> int:
    """Return the number of parts of a sequence of S positions. The k-th of n parts needs k/n of the keys."""
    return max(2, length // QUERIES) if causal and length >= 2 * LEAST_HALF else 1


def check_heads(query, key, value, relative, mask, causal: bool) -> None:
    """Raise `ValueError` if the arguments of `attend` are inconsistent."""
    arrays = {f"{name} [H, b, S, c]": array for name, array in (("query", query), ("key", key), ("value", value))}
    sizes = sizes_of("attention", arrays, ANY_FLOAT)
    if relative is not None:
        rows = 1 + number_of_distances(sizes["S"], causal)
        sizes_of("attention", {"relative [H, R, c]": relative}, ANY_FLOAT, R=rows, **sizes)
    if mask is not None:
        sizes_of("attention", {"mask [b, S] bool": mask}, **sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(query, key, value, relative, mask, causal):
    """Return the attention of the last Q queries to K positions.

    Query [H, b, Q, c], key and value [H, b, K, c], mask [b, K]. Distances begin at K − 1. Without `causal` Q is K.
    """
    return _forward(query, key, value, relative, mask, causal)[0]


def _logits(query, key, relative, mask, causal):
    heads, b, length, width = query.shape
    keys = key.shape[2]
    logits = jnp.einsum("hbic,hbjc->hbij", query, key)
    if relative is not None:
        by_distance = jnp.einsum("htc,hmc->htm", query.reshape(heads, -1, width), relative)
        logits = logits + shift(by_distance.reshape(heads, b, length, -1), keys)
    logits = logits.astype(jnp.promote_types(query.dtype, jnp.float32)) * (1 / math.sqrt(width))
    if causal or mask is not None:
        logits = jnp.where(seen_keys(length, keys, mask, causal), logits, -jnp.inf)
    return logits


def seen_keys(length, keys, mask, causal):
    """Return [Q, K] or [b, Q, K] bool, the keys that each query sees."""
    before = keys - length
    seen = np.tri(length, keys, before, dtype=bool) if causal else np.ones((length, keys), bool)
    return seen if mask is None else seen & (mask[:, None, :] | np.eye(length, keys, before, dtype=bool))


def shift(by_distance: jax.Array, keys: int) -> jax.Array:
    """Return logits by key, [..., Q, K], from logits by distance, [..., Q, 1 + D].

    Column 0 is ignored. The next columns are the distances K − 1, K − 2, ...

    Query i is at position K − Q + i. Result (i, j) needs distance K − Q + i − j: entry (i, Q − i + j), at number Q + i
    D + j in memory. Entries without a distance are arbitrary.
    """
    *head, length, columns = by_distance.shape
    rows = by_distance.reshape(*head, -1)[..., length:].reshape(*head, length, columns - 1)
    return rows[..., :keys]


def _shift_back(by_key: jax.Array, columns: int) -> jax.Array:
    """Return the gradient of `shift` for 1 + D columns: entry (i, j) goes back to its distance."""
    *head, length, keys = by_key.shape
    if columns - 1 > keys:
        by_key = jnp.concatenate([by_key, jnp.zeros((*head, length, columns - 1 - keys), by_key.dtype)], axis=-1)
    rows = by_key.reshape(*head, -1)
    return jnp.concatenate([jnp.zeros((*head, length), rows.dtype), rows], axis=-1).reshape(*head, length, columns)


def _forward(query, key, value, relative, mask, causal):
    logits = _logits(query, key, relative, mask, causal)
    largest = logits.max(axis=-1, keepdims=True)
    weights = jnp.exp(logits - largest)  # divided by their sum later, because the output is smaller
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights.astype(value.dtype)
    mixed = (jnp.einsum("hbij,hbjc->hbic", weights, value) / total).astype(value.dtype)
    kept = weights if key.shape[2] <= KEPT_WEIGHTS * key.shape[3] else None
    return mixed, (query, key, value, relative, mask, mixed, largest, total, kept)


def _backward(causal, kept, gradient):
    query, key, value, relative, mask, mixed, largest, total, weights = kept
    if weights is None:
        weights = jnp.exp(_logits(query, key, relative, mask, causal) - largest).astype(value.dtype)
    heads, b, length, width = query.shape
    scaled = gradient / delayed(total, gradient)  # `total` is in float32 or wider
    along = (scaled * delayed(mixed, gradient)).sum(axis=-1, keepdims=True)
    of_value = weight_gradient(weights, scaled.astype(value.dtype))
    factor = 1 / math.sqrt(width)
    of_weights = jnp.einsum("hbic,hbjc->hbij", (scaled * factor).astype(value.dtype), value)
    of_logits = (weights * (of_weights - along * factor)).astype(query.dtype)
    of_query = jnp.einsum("hbij,hbjc->hbic", of_logits, key)
    of_key = weight_gradient(of_logits, query)
    if relative is None:
        return of_query, of_key, of_value, None, None
    by_distance = _shift_back(of_logits, relative.shape[1]).reshape(heads, b * length, -1)
    of_query += jnp.einsum("htm,hmc->htc", by_distance, relative).reshape(query.shape)
    of_relative = weight_gradient(by_distance.reshape(heads, b, length, -1), query).sum(axis=1)
    return of_query, of_key, of_value, of_relative, None


_attend.defvjp(_forward, _backward)
