"""HASH: each token id always goes to the same experts; the router learns nothing.

Roller et al. 2021, "Hash Layers For Large Sparse Models" (arXiv 2106.04426); HASH in Clark et al. 2022.

    1. SELECT   expert(t) = id(t) mod E                                       `hash_layer`
                experts(t) = table[id(t)], any table [V, k]                   `table_router`
    2. COMBINE  hₜ ← Σⱼ FFN_{expert(t, j)}(hₜ), with a constant gate           `fixed_router`
                or with the score of a router at the experts of the table     `learned_gates`

A table is an array [V, k] of int32 from token id to expert ids, distinct within a row. Build it once, before training;
you can save and load it:

    remainder           id mod E; further choices at equal steps from it      `modulo_table`
    random              uniform                                               `random_table`
    balanced            most frequent token first, into the emptiest expert   `balanced_table`
    clustered           similar tokens share an expert                        `clustered_table`
    dispersed           similar tokens go to different experts                `dispersed_table`

You can look up other integers than the token id. Call `table_router` with the ids before each token for the
previous-token hash, or with the positions for the position hash (`previous_tokens`, `position_ids`). The bigram hash
adds the table entries of two tokens modulo E (`bigram_experts`). With random tables each pair of tokens gets a
uniformly random expert.

Loads. No table is perfectly even: the most frequent token, with a share p of the text, always has the same k experts.
So the largest load is at least p E / k times the mean. The remainder is fairly even if the vocabulary is sorted by
frequency. A balanced table is the most even over the counted corpus. A random table is even only in expectation, and a
dispersed table only in the number of token ids.

MultiHash (k > 1) cuts the hidden layer of every expert into k segments. Segment j comes from the expert that the j-th
hash names. The output is the sum of k out of k E narrow experts, without a gate. `multi_hash` numbers the narrow
experts.

Sources and our choices: Roller et al. compare several hashes; the main text of Clark et al. names only "HASH". Our
choices: the remainder as the default (docs/choices.md); the mean over k > 1 experts of full width, which keeps the size
of the output; the steps of `modulo_table` and `balanced_table`; the sum modulo E of the bigram; the id before the first
token; the round-robin order in `dispersed_table`. The exact form of MultiHash is our reading.

Experts that are not available: the router has no logits. Build a table for only the n available experts:
`available[balanced_table(counts, n)]`, with `available` [n] integers.

No later token leaks, in training or in evaluation. The expert of a token depends only on that token, the token before
it or its position.

The router ignores the ids of padded tokens.
"""

from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..notation import (
    Routing,
    _check_group,
    _check_k,
    _equal_shares,
    _real_tokens,
    _route_real_tokens,
    check_finite,
    one_hot,
    top_k_indices,
)
from .top_k import _check_gate_scale, _check_options, chosen_gates

HASH_GATES = ("mean", "sum")
"""Constant gates: 1/k ("mean"), or 1 ("sum", for MultiHash)."""


class Clusters(NamedTuple):
    """Token embeddings in groups around centres.

    Attributes:
        centres: [clusters, d]
        cluster: [V] integers, the nearest centre of each token, ties to the lower index
        rounds: the number of moves of the centres
        converged: whether the last move changed no token's cluster
    """

    centres: np.ndarray
    cluster: np.ndarray
    rounds: int
    converged: bool


def hash_layer(token_ids: np.ndarray, num_experts: int, *, mask: np.ndarray | None = None) -> Routing:
    """Route every token by the remainder of its id.

    Args:
        token_ids: [T] integers >= 0.
        num_experts: E >= 1.
        mask: [T] bool, the real tokens; None for all. Below, T counts real tokens.

    Returns:
        `Routing` with k = 1 and gate 1. `plan` holds 1/T at each token's expert.

    Raises:
        ValueError: E < 1, the ids are not integers, an id is negative, or a mask has the wrong shape or is all False.

    Example:
        >>> hash_layer(np.array([0, 1, 5, 7]), 4).expert.ravel().tolist()
        [0, 1, 1, 3]
        >>> found = hash_layer(np.array([5, 7, -1, -1]), 4, mask=np.array([True, True, False, False]))
        >>> found.expert.ravel().tolist(), found.gate.ravel().tolist(), found.load.tolist()
        ([1, 3, 0, 0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5])
    """
    token_ids = np.asarray(token_ids)
    if mask is not None:
        return _route_real_tokens(hash_layer, mask, token_ids, num_experts=num_experts)
    if num_experts < 1:
        raise InputError(f"num_experts is {num_experts}; at least 1 is needed")
    if not np.issubdtype(token_ids.dtype, np.integer) or (token_ids.size and token_ids.min() < 0):
        raise InputError("token_ids have to be integers of at least 0")
    if token_ids.ndim != 1:
        raise InputError(f"token_ids have shape {token_ids.shape}; [T] is needed")
    token_ids = token_ids.astype(np.int64)  # a byte cannot hold every number of experts
    # SELECT
    expert = token_ids % num_experts  # [T]
    plan = one_hot(expert, num_experts) / len(token_ids)  # [T, E]
    load = plan.sum(axis=0)  # [E]
    # COMBINE
    gate = np.ones((len(token_ids), 1))
    return Routing(expert[:, None], gate, load, plan, np.abs(load * num_experts - 1).max())


def table_router(
    token_ids: np.ndarray,
    table: np.ndarray,
    num_experts: int,
    *,
    gate: str = "mean",
    mask: np.ndarray | None = None,
) -> Routing:
    """Route every token by its row of the table.

    Args:
        token_ids: [T] integers in [0, V): ids of the tokens or of the previous tokens, or positions.
        table: [V, k] integers in [0, E), distinct within a row.
        num_experts: E.
        gate: "mean" (every gate is 1/k) or "sum" (every gate is 1, for MultiHash).
        mask: [T] bool, the real tokens; None for all. Below, T counts real tokens.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: an id is not in the table, or `fixed_router` raises this error.

    Example:
        >>> table = np.array([[0, 1], [2, 0]])
        >>> found = table_router(np.array([1, 1, 0]), table, 3)
        >>> found.expert.tolist(), found.gate[0].tolist()
        ([[2, 0], [2, 0], [0, 1]], [0.5, 0.5])
    """
    options = dict(num_experts=num_experts, gate=gate)
    if mask is not None:
        return _route_real_tokens(table_router, mask, token_ids, table=table, **options)
    if token_ids.size and not (0 <= token_ids.min() and token_ids.max() < len(table)):
        raise InputError(f"token_ids range from {token_ids.min()} to {token_ids.max()}; allowed: 0 to {len(table) - 1}")
    return fixed_router(table[token_ids], **options)


def fixed_router(
    expert: np.ndarray,
    num_experts: int,
    *,
    gate: str = "mean",
    mask: np.ndarray | None = None,
) -> Routing:
    """Return the routing for given experts.

    Args:
        expert: [T, k] integers in [0, E), distinct within a row.
        num_experts: E.
        gate: "mean" (every gate is 1/k) or "sum" (every gate is 1, for MultiHash).
        mask: [T] bool, the real tokens; None for all. Below, T counts real tokens.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: an argument is out of its range, a row repeats an expert, no token is real, or fewer than k experts
            may be chosen.
    """
    if mask is not None:
        options = dict(num_experts=num_experts, gate=gate)
        return _route_real_tokens(fixed_router, mask, expert, **options)
    if gate not in HASH_GATES:
        raise InputError(f"gate is {gate!r}; allowed: {', '.join(HASH_GATES)}")
    if expert.ndim != 2 or not np.issubdtype(expert.dtype, np.integer):
        raise InputError(f"the experts are {expert.dtype} {expert.shape}; integers [T, k] are needed")
    if expert.size and not (0 <= expert.min() and expert.max() < num_experts):
        raise InputError(f"expert indices range from {expert.min()} to {expert.max()}; allowed: 0 to {num_experts - 1}")
    num_tokens, k = expert.shape
    _check_k(k, num_experts)
    for t, row in enumerate(expert):
        if len(set(row.tolist())) < k:
            raise InputError(f"token {t} has experts {row.tolist()}; they have to be distinct")
    gates = np.full((num_tokens, k), 1 / k if gate == "mean" else 1.0)
    return _equal_shares(expert, num_experts)._replace(gate=gates)


def learned_gates(
    routing: Routing,
    logits: np.ndarray,
    *,
    score: str = "softmax",
    normalisation: str = "none",
    gate_scale: float = 1.0,
    mask: np.ndarray | None = None,
) -> Routing:
    """Return a routing with the same experts, and gates from the scores of a router that learns.

    A table chooses the experts, and the router learns only how much of each expert to use. The first routed blocks of
    DeepSeek-V4 do so (transformers 5.24, `DeepseekV4HashRouter`; score "sqrtsoftplus", "sum", scale 1.5).

    Args:
        routing: from `table_router` or `fixed_router`.
        logits: [T, E], finite; the raw router logits z.
        score, normalisation, gate_scale: see `top_k_router`.
        mask: [T] bool, the real tokens; None for all. Other tokens get gate 0.

    Returns:
        `Routing`.

    Raises:
        ValueError: a logit of a real token is not finite, or `top_k_router` refuses an option.

    Example:
        Softplus 4 and 1 at the two experts of the table, so the scores 2 and 1; the best expert, 2, is not in the row:

        >>> z = np.log(np.expm1([[1.0, 4.0, 9.0]]))
        >>> found = table_router(np.array([0]), np.array([[1, 0]]), 3)
        >>> np.round(learned_gates(found, z, score="sqrtsoftplus", normalisation="sum").gate, 4).tolist()
        [[0.6667, 0.3333]]
    """
    _check_group("logits", logits)
    _check_options(routing.expert.shape[1], np.shape(logits)[1], score, normalisation, False)
    _check_gate_scale(gate_scale)
    real = np.ones(len(logits), bool) if mask is None else _real_tokens(mask, len(logits))
    gate = np.zeros(routing.expert.shape)
    gate[real] = gate_scale * chosen_gates(
        check_finite("logits", logits[real]), routing.expert[real], score, normalisation
    )
    return routing._replace(gate=gate)


def _without_repeats(picks, num_experts):
    """Return [V, k] distinct experts; pick p (from 0) means the p-th expert that is not yet in the row."""
    table = np.zeros(picks.shape, dtype=np.int32)
    for token, row in enumerate(picks):
        left = list(range(num_experts))
        table[token] = [left.pop(pick) for pick in row]
    return table


def _steps(num_experts, k):
    """Return the steps s for which 0, s, … (k − 1) s differ modulo E: from (E − 1) // k on, then the smaller ones."""
    steps = [s for s in range(num_experts) if len({j * s % num_experts for j in range(k)}) == k]
    first = (num_experts - 1) // k
    return [s for s in steps if s >= first] + [s for s in steps if s < first]


def modulo_table(vocab_size: int, num_experts: int, k: int = 1) -> np.ndarray:
    """Return the table [V, k]: the remainder of the id, then further experts at equal steps from it.

    Choice j of token t is (t + j s) mod E. The ids form runs of E: 0 to E − 1, E to 2 E − 1 and so on. All ids of a run
    use the same step s. A step is valid if the k choices of a token differ. The next run uses the next valid step. The
    steps rise from (E − 1) // k on, and then from the smallest again. (Our choice, as in double hashing: the remainder
    gives the start, the quotient the step.)

    Within a run, choice j is the first choice shifted cyclically, so it names every expert once. Therefore

    - for each choice, the numbers of vocabulary tokens of two experts differ by at most one;
    - if ids are sorted by frequency, the loads of all k choices together are at least as even as the loads at k = 1.

    The first step separates the most frequent tokens: the k experts of a token are about E / k apart. No two of the E
    tokens in the first run have the same set of experts if k < E.

    Limits: the k experts of the most frequent token get its whole share. If the vocabulary is not sorted by frequency,
    the numbers of token ids are even, but not the loads. There are at most E (E − 1) / 2 different sets of experts.
    Random tables have more for k > 2.

    Args:
        vocab_size: V.
        num_experts: E.
        k: experts per token, 1 <= k <= E.

    Raises:
        ValueError: k is out of range.

    Example:
        With E = 4 and k = 2 the steps are 1, 2 and 3. Ids 0 to 3 have step 1, ids 4 to 7 step 2:

        >>> modulo_table(5, 4).ravel().tolist()
        [0, 1, 2, 3, 0]
        >>> modulo_table(8, 4, 2).tolist()
        [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3], [2, 0], [3, 1]]
    """
    _check_k(k, num_experts)
    table, steps = np.zeros((vocab_size, k), dtype=np.int32), _steps(num_experts, k)
    for token in range(vocab_size):
        run = token // num_experts
        for choice in range(k):
            table[token, choice] = (token + choice * steps[run % len(steps)]) % num_experts
    return table


def random_table(uniforms: np.ndarray, num_experts: int) -> np.ndarray:
    """Return [V, k] experts drawn uniformly, without repeats within a row.

    Args:
        uniforms: [V, k] in [0, 1), k <= E.
        num_experts: E.

    Raises:
        ValueError: a uniform is outside [0, 1), or k is out of range.

    Example:
        >>> random_table(np.array([[0.0, 0.0], [0.4, 0.9], [0.9, 0.1]]), 3).tolist()
        [[0, 1], [1, 2], [2, 0]]
    """
    uniforms = check_finite("uniforms", uniforms)
    _check_k(uniforms.shape[1], num_experts)
    if not np.all((uniforms >= 0) & (uniforms < 1)):
        raise InputError("uniforms have to be at least 0 and below 1")
    num_left = num_experts - np.arange(uniforms.shape[1])  # remaining experts at each choice
    picks = np.minimum((uniforms * num_left).astype(np.int64), num_left - 1)  # a product can round up
    return _without_repeats(picks, num_experts)


def balanced_table(counts: np.ndarray, num_experts: int, k: int = 1) -> np.ndarray:
    """Return the table [V, k] that balances the loads for given counts of the tokens.

    Each token, the most frequent first, goes to the emptiest expert and to k − 1 nearly empty experts. To find these
    k − 1 experts, the program steps from the emptiest expert in equal steps modulo E. It takes the experts whose
    load exceeds the smallest load by less than the token's count. If there are fewer than k such experts, it takes the
    k emptiest experts. The step changes from token to token. (Our choice: if each token took the k emptiest experts,
    the same k experts would always work together, like one expert.)

    Ties: among equally frequent tokens, the lower id goes first. Among equally full experts, an expert with fewer token
        ids so far counts as emptier, then the expert with the lower index. So tokens with count 0 are spread too.

    The loads of the fullest and the emptiest expert differ by at most twice the largest count. At k = 1 they differ by
    at most the largest count.

    Args:
        counts: [V] integers >= 0, the frequency of each token in a corpus.
        num_experts: E.
        k: experts per token, 1 <= k <= E.

    Raises:
        ValueError: the counts are not integers >= 0, or k is out of range.

    Example:
        >>> balanced_table(np.array([1, 5, 3, 3, 0, 0]), 2).ravel().tolist()
        [0, 0, 1, 1, 0, 1]

        Two of four experts, with alternating steps 1 and 3. The second token steps from 2 to 1 and 0, which are too
        full, and takes 3. The last token steps from 0 to 3, whose load 7 is less than 3 above the load 5 of expert 0:

        >>> balanced_table(np.array([5, 4, 3, 3]), 4, 2).tolist()
        [[0, 1], [2, 3], [2, 3], [0, 3]]
    """
    counts = np.asarray(counts)
    _check_k(k, num_experts)
    if not np.issubdtype(counts.dtype, np.integer) or (counts.size and counts.min() < 0):
        raise InputError("counts have to be integers of at least 0")
    table = np.zeros((len(counts), k), dtype=np.int32)
    load, num_held = [0] * num_experts, [0] * num_experts  # for each expert: occurrences, and tokens in the table
    steps = _steps(num_experts, num_experts)  # each leads to every expert
    frequent_first = sorted(range(len(counts)), key=lambda token: (-int(counts[token]), token))
    for place, token in enumerate(frequent_first):
        count, step = int(counts[token]), steps[place % len(steps)]
        emptiest = sorted(range(num_experts), key=lambda e: (load[e], num_held[e], e))
        walk = [(emptiest[0] + i * step) % num_experts for i in range(num_experts)]
        near = [e for e in walk if load[e] < load[emptiest[0]] + count]
        chosen = near[:k] if len(near) >= k else emptiest[:k]
        for e in chosen:
            load[e] += count
            num_held[e] += 1
        table[token] = chosen
    return table


def cluster_tokens(embeddings: np.ndarray, centres: np.ndarray, *, max_rounds: int = 100) -> Clusters:
    """Group token embeddings by k-means (Lloyd's algorithm) from given centres. The result is deterministic.

    In each round every centre moves to the mean of its tokens, and then every token joins its nearest centre. A centre
    without tokens does not move.

    Args:
        embeddings: [V, d], finite.
        centres: [clusters, d], finite, the initial centres.
        max_rounds: the largest number of moves of the centres; with 0 each token goes to the nearest initial centre.

    Returns:
        `Clusters`.

    Raises:
        ValueError: an entry is not finite.

    Example:
        >>> found = cluster_tokens(np.array([[0.0], [1.0], [8.0], [9.0]]), np.array([[0.0], [1.0]]))
        >>> found.cluster.tolist(), found.centres.ravel().tolist(), found.rounds
        ([0, 0, 1, 1], [0.5, 8.5], 2)
    """
    embeddings = check_finite("embeddings", embeddings)
    centres = check_finite("centres", centres).copy()
    cluster, rounds, converged = _distances(embeddings, centres).argmin(axis=1), 0, False
    while rounds < max_rounds and not converged:
        for c in range(len(centres)):
            if (cluster == c).any():
                centres[c] = embeddings[cluster == c].mean(axis=0)
        moved = _distances(embeddings, centres).argmin(axis=1)
        rounds, converged, cluster = rounds + 1, bool((moved == cluster).all()), moved
    return Clusters(centres, cluster, rounds, converged)


def _distances(embeddings, centres):
    """Return [V, clusters], the squared distance of each token from each centre."""
    return np.array([((centres - embedding) ** 2).sum(axis=1) for embedding in embeddings])


def clustered_table(clusters: Clusters, embeddings: np.ndarray, k: int = 1) -> np.ndarray:
    """Return the table [V, k] of the k nearest centres of each token. Centre e belongs to expert e.

    Args:
        clusters: from `cluster_tokens`, with E centres.
        embeddings: [V, d], finite.
        k: experts per token, 1 <= k <= E.

    Raises:
        ValueError: an entry is not finite, or k is out of range.
    """
    _check_k(k, len(clusters.centres))
    distances = _distances(check_finite("embeddings", embeddings), clusters.centres)
    return top_k_indices(-distances, k).astype(np.int32)


def dispersed_table(cluster: np.ndarray, num_experts: int, k: int = 1) -> np.ndarray:
    """Return the table [V, k] in which the tokens of one cluster go to the experts in turn.

    The function sorts tokens by cluster, then by id, and looks up each token's rank in `modulo_table`. So for each
    choice, the numbers of vocabulary tokens of two experts differ by at most one. Within a cluster they differ by at
    most two (by one for the first choice). The reason is that a cluster covers whole runs of ranks and parts of at most
    two runs. The function ignores token frequency, so the loads are about as even as with a random table.

    Args:
        cluster: [V] integers, from `cluster_tokens`; there may be more or fewer clusters than experts.
        num_experts: E.
        k: experts per token, 1 <= k <= E.

    Raises:
        ValueError: k is out of range.

    Example:
        >>> dispersed_table(np.array([1, 0, 1, 0, 0]), 2).ravel().tolist()
        [1, 0, 0, 1, 0]
    """
    place = np.zeros(len(cluster), dtype=np.int64)
    in_order = sorted(range(len(cluster)), key=lambda token: (int(cluster[token]), token))
    for i, token in enumerate(in_order):
        place[token] = i
    return modulo_table(len(cluster), num_experts, k)[place]


def multi_hash(table: np.ndarray, num_experts: int) -> np.ndarray:
    """Cut each expert into k narrow experts, and return the table [V, k] of their numbers.

    Segment j of expert e has the number j E + e. The narrow experts have the weights up [E, d, f] and down [E, f, d],
    cut into k segments of f/k hidden units: [k E, d, f/k] and [k E, f/k, d], first segment 0 of every expert. Route
    with `table_router(ids, multi_hash(table, E), k * E, gate="sum")`.

    Args:
        table: [V, k] integers in [0, E); column j is the j-th hash, and a row may repeat an expert.
        num_experts: E.

    Raises:
        ValueError: an index is out of range.

    Source: Roller et al. 2021, as we read it.

    Example:
        >>> multi_hash(np.array([[1, 1], [0, 2]]), 3).tolist()
        [[1, 4], [0, 5]]
    """
    table = np.asarray(table)
    if table.size and not (0 <= table.min() and table.max() < num_experts):
        raise InputError(f"the table reaches from {table.min()} to {table.max()}; allowed: 0 to {num_experts - 1}")
    return (table + num_experts * np.arange(table.shape[1])).astype(np.int32)


def bigram_experts(token_ids: np.ndarray, previous: np.ndarray, tables: np.ndarray, num_experts: int) -> np.ndarray:
    """Return [T, 1], the expert of each pair of tokens: (tables[0, previous] + tables[1, current]) mod E.

    With two independent random tables every pair has a uniformly random expert, and any two pairs are independent.

    Args:
        token_ids: [T] integers in [0, V).
        previous: [T] integers in [0, V), the ids of the previous tokens.
        tables: [2, V] integers in [0, E), such as two columns of `random_table`.
        num_experts: E.

    Raises:
        ValueError: an id is not in the tables.

    Example:
        >>> bigram_experts(np.array([0, 1]), np.array([1, 0]), np.array([[0, 1], [0, 2]]), 3).ravel().tolist()
        [1, 2]
    """
    for name, ids in (("token_ids", token_ids), ("previous", previous)):
        if ids.size and not (0 <= ids.min() and ids.max() < tables.shape[1]):
            raise InputError(f"{name} range from {ids.min()} to {ids.max()}; allowed: 0 to {tables.shape[1] - 1}")
    _check_k(1, num_experts)
    tables = np.asarray(tables, np.int64)  # the sum of two bytes can overflow
    return ((tables[0, previous] + tables[1, token_ids]) % num_experts)[:, None]


def previous_tokens(token_ids: np.ndarray, start: int = 0) -> np.ndarray:
    """Return the id before each token of a sequence, and `start` before the first.

    Args:
        token_ids: [..., S] integers; sequences are along the last axis and independent of each other.
        start: the id to put before the first token.

    Example:
        >>> previous_tokens(np.array([[3, 4, 5], [6, 7, 8]])).tolist()
        [[0, 3, 4], [0, 6, 7]]
    """
    shifted = np.full_like(token_ids, start)
    shifted[..., 1:] = token_ids[..., :-1]
    return shifted


def position_ids(token_ids: np.ndarray) -> np.ndarray:
    """Return the position of each token in its sequence, from 0, in the shape of token_ids [..., S]."""
    return np.broadcast_to(np.arange(token_ids.shape[-1]), token_ids.shape)
