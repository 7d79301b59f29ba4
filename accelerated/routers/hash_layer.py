"""See `routelaws.reference.routers.hash_layer`.

What differs: the routers run under jit, where a wrong id cannot raise. In `hash_layer` a negative one wraps like any
remainder; in `table_router` and `fixed_router` what is out of range gets a gate that is not a number, on which a
training loop stops; in `bigram_experts` it gets expert -1. Repeated experts in a row are not looked for. With a mask
that has no real token, plan and loads are NaN.

Tables are built once, on the host, by NumPy: arrays of int32. Distances between tokens and centres come from one
matrix product, so two centres that are equally near are told apart by rounding unless the numbers are whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InputError, _check_k
from ..notation import Routing, _masked_rows, _padded_experts, _real_tokens, check_finite, one_hot

HASH_GATES = ("mean", "sum")
"""See reference."""

_ENTRIES = 2**24
"""Distances that are held at a time."""


class Clusters(NamedTuple):
    """See reference; NumPy."""

    centres: np.ndarray  # [clusters, d]
    cluster: np.ndarray  # [V]
    rounds: int
    converged: bool


def hash_layer(token_ids: jax.Array, num_experts: int, *, mask: jax.Array | None = None) -> Routing:
    """See reference."""
    if num_experts < 1:
        raise InputError(f"num_experts is {num_experts}; at least 1 is needed")
    if not jnp.issubdtype(token_ids.dtype, jnp.integer):
        raise InputError(f"token_ids have dtype {token_ids.dtype}; integers are needed")
    return fixed_router((token_ids % num_experts)[:, None], num_experts, mask=mask)


def table_router(
    token_ids: jax.Array,
    table: jax.Array,
    num_experts: int,
    *,
    gate: str = "mean",
    mask: jax.Array | None = None,
) -> Routing:
    """See reference."""
    # A negative index would count from the end.
    ids = jnp.where(token_ids < 0, len(table), token_ids)
    expert = jnp.take(jnp.asarray(table), ids, axis=0, mode="fill", fill_value=-1)
    return fixed_router(expert, num_experts, gate=gate, mask=mask)


def fixed_router(expert: jax.Array, num_experts: int, *, gate: str = "mean", mask: jax.Array | None = None) -> Routing:
    """See reference."""
    if gate not in HASH_GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(HASH_GATES)}")
    expert = jnp.asarray(expert, jnp.int32)
    num_tokens, k = expert.shape
    expert = _padded_experts(expert, mask)
    # SELECT
    num_real = num_tokens if mask is None else _real_tokens(mask, num_tokens).sum()
    plan = _masked_rows(one_hot(expert, num_experts).sum(axis=1), mask) / (num_real * k)  # [T, E]
    load = plan.sum(axis=0)  # [E]
    # COMBINE
    inside = (expert >= 0) & (expert < num_experts)
    gates = jnp.where(inside, 1 / k if gate == "mean" else 1.0, jnp.nan).astype(plan.dtype)
    return Routing(expert, _masked_rows(gates, mask), load, plan, jnp.abs(load * num_experts - 1).max())


def _without_repeats(picks):
    """See reference: step over the experts that are taken, in rising order, column by column."""
    table = picks.copy()
    for choice in range(1, picks.shape[1]):
        taken = np.sort(table[:, :choice], axis=1)
        for column in taken.T:
            table[:, choice] += table[:, choice] >= column
    return table.astype(np.int32)


def _steps(num_experts, k):
    """See reference: j s and i s differ modulo E if and only if E / gcd(s, E) does not divide j − i."""
    steps, first = np.arange(num_experts), (num_experts - 1) // k
    steps = steps[num_experts // np.gcd(steps, num_experts) >= k]
    return np.roll(steps, -np.searchsorted(steps, first))


def modulo_table(vocab_size: int, num_experts: int, k: int = 1) -> np.ndarray:
    """See reference."""
    _check_k(k, num_experts)
    ids, steps = np.arange(vocab_size), _steps(num_experts, k)
    step = steps[ids // num_experts % len(steps)]
    return ((ids[:, None] + step[:, None] * np.arange(k)) % num_experts).astype(np.int32)


def random_table(uniforms: np.ndarray, num_experts: int) -> np.ndarray:
    """See reference."""
    uniforms = check_finite("uniforms", np.asarray(uniforms, np.float64))
    _check_k(uniforms.shape[1], num_experts)
    if not np.all((uniforms >= 0) & (uniforms < 1)):
        raise InputError("uniforms have to be at least 0 and below 1")
    radix = num_experts - np.arange(uniforms.shape[1])
    return _without_repeats(np.minimum((uniforms * radix).astype(np.int64), radix - 1))


def balanced_table(counts: np.ndarray, num_experts: int, k: int = 1) -> np.ndarray:
    """See reference. The experts are sorted for a token only if fewer than k are near the emptiest: about V E steps."""
    counts = np.asarray(counts)
    _check_k(k, num_experts)
    if not np.issubdtype(counts.dtype, np.integer) or (counts.size and counts.min() < 0):
        raise InputError("counts have to be integers of at least 0")
    # Ascending order of the complement: negating an unsigned or the most negative count would wrap.
    order = np.argsort(~counts.astype(np.int64), kind="stable")
    experts, steps = np.arange(num_experts), _steps(num_experts, num_experts)
    table, (load, held) = np.empty((len(counts), k), np.int32), np.zeros((2, num_experts), np.int64)
    for place, (token, count) in enumerate(zip(order.tolist(), counts[order].tolist(), strict=True)):
        least = load.min()
        emptiest = np.flatnonzero(load == least)
        first = emptiest[held[emptiest].argmin()]
        walk = (first + steps[place % len(steps)] * experts) % num_experts
        chosen = walk[load[walk] < least + count][:k]
        if len(chosen) < k:
            chosen = np.lexsort((held, load))[:k]
        load[chosen] += count
        held[chosen] += 1
        table[token] = chosen
    return table


def cluster_tokens(embeddings: np.ndarray, centres: np.ndarray, *, max_rounds: int = 100) -> Clusters:
    """See reference."""
    embeddings = check_finite("embeddings", np.asarray(embeddings, np.float64))
    centres = check_finite("centres", np.asarray(centres, np.float64))
    cluster, rounds, converged = _nearest(embeddings, centres), 0, False
    while rounds < max_rounds and not converged:
        # Tokens in order of cluster: the sum of each cluster is one contiguous piece.
        order, size = np.argsort(cluster, kind="stable"), np.bincount(cluster, minlength=len(centres))
        filled = np.flatnonzero(size)
        centres = centres.copy()
        first = (np.cumsum(size) - size)[filled]
        centres[filled] = np.add.reduceat(embeddings[order], first, axis=0) / size[filled, None]
        moved = _nearest(embeddings, centres)
        rounds, converged, cluster = rounds + 1, bool((moved == cluster).all()), moved
    return Clusters(centres, cluster, rounds, converged)


def _pieces(embeddings, centres):
    """Yield (rows, |c|² − 2 x·c [rows, clusters]): the squared distances but for |x|², which decides nothing."""
    norms, rows = (centres**2).sum(axis=1), max(1, _ENTRIES // len(centres))
    for start in range(0, len(embeddings), rows):
        piece = slice(start, start + rows)
        yield piece, norms - 2 * embeddings[piece] @ centres.T


def _nearest(embeddings, centres):
    found = [distances.argmin(axis=1) for _, distances in _pieces(embeddings, centres)]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def clustered_table(clusters: Clusters, embeddings: np.ndarray, k: int = 1) -> np.ndarray:
    """See reference."""
    _check_k(k, len(clusters.centres))
    embeddings = check_finite("embeddings", np.asarray(embeddings, np.float64))
    table = np.zeros((len(embeddings), k), np.int32)
    for piece, distances in _pieces(embeddings, np.asarray(clusters.centres)):
        table[piece] = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return table


def dispersed_table(cluster: np.ndarray, num_experts: int, k: int = 1) -> np.ndarray:
    """See reference."""
    place = np.empty(len(cluster), np.int64)
    place[np.argsort(np.asarray(cluster), kind="stable")] = np.arange(len(cluster))
    return modulo_table(len(cluster), num_experts, k)[place]


def multi_hash(table: np.ndarray, num_experts: int) -> np.ndarray:
    """See reference."""
    table = np.asarray(table)
    if table.size and not (0 <= table.min() and table.max() < num_experts):
        raise InputError(f"the table reaches from {table.min()} to {table.max()}; allowed: 0 to {num_experts - 1}")
    return (table + num_experts * np.arange(table.shape[1])).astype(np.int32)


def bigram_experts(token_ids: jax.Array, previous: jax.Array, tables: jax.Array, num_experts: int) -> jax.Array:
    """See reference."""
    tables, vocab_size = jnp.asarray(tables), tables.shape[1]
    inside = (token_ids >= 0) & (token_ids < vocab_size) & (previous >= 0) & (previous < vocab_size)
    expert = (tables[0, previous] + tables[1, token_ids]) % num_experts
    return jnp.where(inside, expert, -1).astype(jnp.int32)[:, None]


def previous_tokens(token_ids: jax.Array, start: int = 0) -> jax.Array:
    """See reference."""
    first = jnp.full_like(token_ids[..., :1], start)
    return jnp.concatenate([first, token_ids[..., :-1]], axis=-1)


def position_ids(token_ids: jax.Array) -> jax.Array:
    """See reference; int32."""
    return jnp.broadcast_to(jnp.arange(token_ids.shape[-1], dtype=jnp.int32), token_ids.shape)
