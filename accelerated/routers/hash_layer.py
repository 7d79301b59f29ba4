"""HASH: each token id always goes to the same experts; the router learns nothing.

Step by step, with sources and examples: `routelaws.reference.routers.hash_layer`.

Differences from the reference: the routers run under jit, where a wrong id raises no error. In `hash_layer` a negative
id wraps, as in any remainder. In `table_router` and `fixed_router` an id out of range gets a NaN gate, which stops a
training loop. In `bigram_experts` it gets expert -1. The routers do not check whether a row repeats an expert. With a
mask without real tokens, plan and loads are NaN.

NumPy builds the tables once, on the host, as arrays of int32. Distances between tokens and centres come from one matrix
product. So rounding decides between two equally near centres, except if all entries are integers.
"""

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.notation import _check_k
from routelaws.reference.routers.hash_layer import (  # noqa: F401 - all for users
    HASH_GATES,
    Clusters,
    dispersed_table,
    modulo_table,
    multi_hash,
)

from .._docstrings import describe_twins
from ..errors import InputError
from ..notation import (
    Routing,
    _at_least_float32,
    _check_group,
    _imbalance,
    _masked_rows,
    _padded_experts,
    _real_tokens,
    check_finite,
    one_hot,
)
from .top_k import _check_gate_scale, _check_options, chosen_gates

_ENTRIES = 2**24
"""Largest number of distances in memory at a time."""


def hash_layer(token_ids: jax.Array, num_experts: int, *, mask: jax.Array | None = None) -> Routing:
    """Route every token by the remainder of its id.

    Raises:
        ValueError: E < 1, the ids are not integers, or a mask has the wrong shape.

    Differs from the reference: a negative id wraps, as in any remainder. With a mask without real tokens, plan and
    loads are NaN.
    """
    if num_experts < 1:
        raise InputError(f"num_experts is {num_experts}; at least 1 is needed")
    if not jnp.issubdtype(token_ids.dtype, jnp.integer):
        raise InputError(f"token_ids have dtype {token_ids.dtype}; integers are needed")
    if token_ids.ndim != 1:
        raise InputError(f"token_ids have shape {token_ids.shape}; [T] is needed")
    if token_ids.dtype.itemsize < 4:  # a byte cannot hold every number of experts
        token_ids = token_ids.astype(jnp.int32)
    return fixed_router((token_ids % num_experts)[:, None], num_experts, mask=mask)


def table_router(
    token_ids: jax.Array,
    table: jax.Array,
    num_experts: int,
    *,
    gate: str = "mean",
    mask: jax.Array | None = None,
) -> Routing:
    """Route every token by its row of the table.

    Raises:
        ValueError: `fixed_router` raises this error.

    Differs from the reference: an id or an expert out of range gets a NaN gate, which stops a training loop.
    """
    # A negative index would count from the end of the table.
    ids = jnp.where(token_ids < 0, len(table), token_ids)
    expert = jnp.take(jnp.asarray(table), ids, axis=0, mode="fill", fill_value=-1)
    return fixed_router(expert, num_experts, gate=gate, mask=mask)


def fixed_router(
    expert: jax.Array,
    num_experts: int,
    *,
    gate: str = "mean",
    mask: jax.Array | None = None,
) -> Routing:
    """Return the routing for given experts.

    Raises:
        ValueError: the gate is unknown, or a mask has the wrong shape.

    Differs from the reference: an index out of range gets a NaN gate. The function does not check whether a row repeats
    an expert. With a mask without real tokens, plan and loads are NaN.
    """
    if gate not in HASH_GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(HASH_GATES)}")
    expert = jnp.asarray(expert)
    if expert.ndim != 2 or not jnp.issubdtype(expert.dtype, jnp.integer):
        raise InputError(f"the experts are {expert.dtype} {expert.shape}; integers [T, k] are needed")
    num_tokens, k = expert.shape
    _check_k(k, num_experts)
    expert = expert.astype(jnp.int32)
    inside = (expert >= 0) & (expert < num_experts)
    expert = _padded_experts(expert, mask)
    # SELECT
    num_real = num_tokens if mask is None else _real_tokens(mask, num_tokens).sum()
    plan = _masked_rows(one_hot(expert, num_experts).sum(axis=1), mask) / (num_real * k)  # [T, E]
    load = plan.sum(axis=0)  # [E]
    # COMBINE
    gates = jnp.where(inside, 1 / k if gate == "mean" else 1.0, jnp.nan).astype(plan.dtype)
    return Routing(expert, _masked_rows(gates, mask), load, plan, _imbalance(load))


def learned_gates(
    routing: Routing,
    logits: jax.Array,
    *,
    score: str = "softmax",
    normalisation: str = "none",
    gate_scale: float = 1.0,
    mask: jax.Array | None = None,
) -> Routing:
    """Return a routing with the same experts, and gates from the scores of a router that learns.

    Raises:
        ValueError: the logits are not [T, E], an option is unknown or out of range, or a mask has the wrong shape.

    Differs from the reference: logits of lower precision than float32 are converted to float32. Wrong logits, and
    experts out of range, raise no error: the gates of their token are NaN.
    """
    _check_group("logits", logits)
    _check_options(routing.expert.shape[1], logits.shape[1], score, normalisation, False)
    _check_gate_scale(gate_scale)
    logits = _at_least_float32(logits)
    valid = jnp.isfinite(logits).all(axis=1, keepdims=True) & jnp.isfinite(routing.gate)
    gate = gate_scale * chosen_gates(jnp.where(valid[:, :1], logits, 0), routing.expert, score, normalisation)
    return routing._replace(gate=_masked_rows(jnp.where(valid, gate, jnp.nan), mask))


def _without_repeats(picks):
    """Return [V, k] distinct experts. A pick p (from 0) is the p-th expert that is not yet in the row.

    Column by column, each pick steps over the experts that are already in the row, in rising order.
    """
    table = picks.copy()
    for choice in range(1, picks.shape[1]):
        taken = np.sort(table[:, :choice], axis=1)
        for column in taken.T:
            table[:, choice] += table[:, choice] >= column
    return table.astype(np.int32)


def random_table(uniforms: np.ndarray, num_experts: int) -> np.ndarray:
    """Return [V, k] experts drawn uniformly, without repeats within a row."""
    uniforms = check_finite("uniforms", np.asarray(uniforms, np.float64))
    _check_k(uniforms.shape[1], num_experts)
    if not np.all((uniforms >= 0) & (uniforms < 1)):
        raise InputError("uniforms have to be at least 0 and below 1")
    radix = num_experts - np.arange(uniforms.shape[1])
    return _without_repeats(np.minimum((uniforms * radix).astype(np.int64), radix - 1))


def balanced_table(counts: np.ndarray, num_experts: int, k: int = 1) -> np.ndarray:
    """Return the table [V, k] that balances the loads for given counts of the tokens.

    Differs from the reference: the function sorts the experts for a token only if fewer than k experts are near the
    emptiest. It takes about V E steps.
    """
    counts = np.asarray(counts)
    _check_k(k, num_experts)
    if not np.issubdtype(counts.dtype, np.integer) or (counts.size and counts.min() < 0):
        raise InputError("counts have to be integers of at least 0")
    # Sort by the complement in rising order, because the negative of an unsigned count would wrap.
    order = np.argsort(~counts.astype(np.int64), kind="stable")
    experts = np.arange(num_experts)
    steps = experts[np.gcd(experts, num_experts) == 1]  # each of these reaches every expert
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
    """Group token embeddings by k-means (Lloyd's algorithm) from given centres. The result is deterministic.

    Differs from the reference: distances come from one matrix product. So rounding decides between two equally near
    centres, except if all entries are integers.
    """
    embeddings = check_finite("embeddings", np.asarray(embeddings, np.float64))
    centres = check_finite("centres", np.asarray(centres, np.float64))
    cluster, rounds, converged = _nearest(embeddings, centres), 0, False
    while rounds < max_rounds and not converged:
        # Tokens are sorted by cluster, so that the tokens of a cluster are one contiguous piece.
        order, size = np.argsort(cluster, kind="stable"), np.bincount(cluster, minlength=len(centres))
        filled = np.flatnonzero(size)
        centres = centres.copy()
        first = (np.cumsum(size) - size)[filled]
        centres[filled] = np.add.reduceat(embeddings[order], first, axis=0) / size[filled, None]
        moved = _nearest(embeddings, centres)
        rounds, converged, cluster = rounds + 1, bool((moved == cluster).all()), moved
    return Clusters(centres, cluster, rounds, converged)


def _pieces(embeddings, centres):
    """Yield (rows, |c|² − 2 x·c [rows, clusters]): the squared distances without |x|², which does not change the
    order."""
    norms, rows = (centres**2).sum(axis=1), max(1, _ENTRIES // len(centres))
    for start in range(0, len(embeddings), rows):
        piece = slice(start, start + rows)
        yield piece, norms - 2 * embeddings[piece] @ centres.T


def _nearest(embeddings, centres):
    nearest = [distances.argmin(axis=1) for _, distances in _pieces(embeddings, centres)]
    return np.concatenate(nearest) if nearest else np.empty(0, np.int64)


def clustered_table(clusters: Clusters, embeddings: np.ndarray, k: int = 1) -> np.ndarray:
    """Return the table [V, k] of the k nearest centres of each token. Centre e belongs to expert e.

    Differs from the reference: equally near centres as in `cluster_tokens`.
    """
    _check_k(k, len(clusters.centres))
    embeddings = check_finite("embeddings", np.asarray(embeddings, np.float64))
    table = np.zeros((len(embeddings), k), np.int32)
    for piece, distances in _pieces(embeddings, np.asarray(clusters.centres)):
        table[piece] = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return table


def bigram_experts(token_ids: jax.Array, previous: jax.Array, tables: jax.Array, num_experts: int) -> jax.Array:
    """Return [T, 1], the expert of each pair of tokens: (tables[0, previous] + tables[1, current]) mod E.

    Raises:
        ValueError: there is no expert.

    Differs from the reference: an id out of range gets expert -1.
    """
    _check_k(1, num_experts)
    tables, vocab_size = jnp.asarray(tables, jnp.int32), tables.shape[1]  # the sum of two bytes can overflow
    inside = (token_ids >= 0) & (token_ids < vocab_size) & (previous >= 0) & (previous < vocab_size)
    expert = (tables[0, previous] + tables[1, token_ids]) % num_experts
    return jnp.where(inside, expert, -1).astype(jnp.int32)[:, None]


def previous_tokens(token_ids: jax.Array, start: int = 0) -> jax.Array:
    """Return the id before each token of a sequence, and `start` before the first."""
    first = jnp.full_like(token_ids[..., :1], start)
    return jnp.concatenate([first, token_ids[..., :-1]], axis=-1)


def position_ids(token_ids: jax.Array) -> jax.Array:
    """Return the position of each token in its sequence, from 0, in the shape of token_ids [..., S].

    Differs from the reference: the positions are int32.
    """
    return jnp.broadcast_to(jnp.arange(token_ids.shape[-1], dtype=jnp.int32), token_ids.shape)


describe_twins(__name__)
