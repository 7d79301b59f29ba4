"""The Transformer: embedding, blocks of attention and FFN, logits. Some of the FFNs are routed.

A block is pre-norm: x + attention(norm(x)), then x + ffn(norm(x)). Attention and FFNs have no bias vectors. The logits
are the products of the normed state with the rows of the embedding table.
"""

import math

from routelaws.conformance.plain.arithmetic import add, dot, layer_norm, product, softmax, times
from routelaws.conformance.plain.routing import ffn, routed_ffn
from routelaws.conformance.plain.settings import at_block


def sinusoid(distance: float, width: int) -> list:
    """Return the sines and then the cosines of distance / 10000^(2i/width), for i = 0 … width/2 - 1."""
    angles = [distance / 10_000 ** (2 * i / width) for i in range(width // 2)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def norm(weights: dict, x: list) -> list:
    return layer_norm(x, weights["scale"], weights["offset"])


def head_of(matrix: list, head: int) -> list:
    """Return the [d][kqv] matrix of one head from [d][H][kqv]."""
    return [row[head] for row in matrix]


def turned_product(query: list, key: list, distance: float) -> float:
    """Return the product of a query and a key with rotary positions.

    Entries c and c + kqv/2 form one complex number, q_c or k_c. The result is the real part of
    Σ_c q_c conj(k_c) e^{i angle_c}, with angle_c = distance / 10000^(2c/kqv).
    """
    half, total = len(query) // 2, 0.0
    for c in range(half):
        angle = distance / 10_000 ** (2 * c / len(query))
        pair = complex(query[c], query[c + half]) * complex(key[c], -key[c + half])
        total += (pair * complex(math.cos(angle), math.sin(angle))).real
    return total


def attention_head(weights: dict, states: list, head: int, causal: bool, real: list) -> list:
    """Return the output of one head at every position, [S][kqv].

    The logit of position i for position j is (q_i · k_j + q_i · r_{i-j}) / √kqv. r_m is the sinusoid of distance m
    times the matrix `relative_key`. If this matrix is missing, positions are rotary, and the logit is the product of
    the rotated q_i and k_j, divided by √kqv. A causal head reads only positions j <= i. No head reads padding.
    """
    width, length = len(states[0]), len(states)
    query, key, value = (head_of(weights[name], head) for name in ("query", "key", "value"))
    kqv = len(query[0])
    queries = [product(x, query) for x in states]
    keys = [product(x, key) for x in states]
    values = [product(x, value) for x in states]
    rotary = "relative_key" not in weights
    if not rotary:
        relative = head_of(weights["relative_key"], head)
        positions = {m: product(sinusoid(m, width), relative) for m in range(-length + 1, length)}
    read = []
    for i in range(length):
        seen = [j for j in range(length) if real[j] and (j <= i or not causal)]
        if not seen:  # then i is padding, and no token reads this entry
            read.append([0.0] * kqv)
            continue
        if rotary:
            logits = [turned_product(queries[i], keys[j], i - j) for j in seen]
        else:
            logits = [dot(queries[i], keys[j]) + dot(queries[i], positions[i - j]) for j in seen]
        logits = times(1 / math.sqrt(kqv), logits)
        shares = softmax(logits)
        read.append([sum(share * values[j][c] for share, j in zip(shares, seen, strict=True)) for c in range(kqv)])
    return read


def attention(weights: dict, states: list, causal: bool = True, real: list | None = None) -> list:
    """Return the output of attention over one sequence, [S][d]. It is the sum of the projected outputs of all heads.

    Args:
        weights: query, key, value, relative_key [d][H][kqv] (not for rotary positions) and output [H][kqv][d].
        states: [S][d], normed.
        causal: whether position i reads only positions j <= i.
        real: [S] booleans, False for padding.
    """
    real = real if real is not None else [True] * len(states)
    total = [[0.0] * len(states[0]) for _ in states]
    for head, output in enumerate(weights["output"]):
        read = attention_head(weights, states, head, causal, real)
        total = [add(sofar, product(what, output)) for sofar, what in zip(total, read, strict=True)]
    return total


def at(weights, index: int):
    """Return the parameters of one block: entry `index` of every leaf of a nested dict."""
    if isinstance(weights, dict):
        return {name: at(inner, index) for name, inner in weights.items()}
    return weights[index]


def special(block: int, config) -> bool:
    """Return whether a block is routed, or is a wider block of a dense model. Blocks count from 0.

    These are the blocks with (block + 1) mod 1/R = 0. With the layout "upper", these are the last R L blocks.
    """
    differs = config.router != "dense" or config.flop_increase > 1
    if config.layout == "upper":
        return differs and block >= config.blocks - round(config.routing_frequency * config.blocks)
    return differs and (block + 1) % round(1 / config.routing_frequency) == 0


def forward(params: dict, tokens: list, config, training: bool = False, noise=None, table=None, real=None):
    """Return the logits [b][S][V] and the decision of each routed block, in order.

    Args:
        params: nested dicts of nested lists.
        tokens: [b][S] token ids.
        config: the fields of `ModelConfig`.
        training: route as in training (True) or evaluation (False).
        noise: one entry for each routed block (see `routing.routed_ffn`).
        table: the hash router's table (see `routing.routed_ffn`).
        real: [b][S] booleans, False for padding.
    """
    real = real if real is not None else [[True] * len(sequence) for sequence in tokens]
    states = [[times(math.sqrt(config.d_model), params["embedding"][t]) for t in sequence] for sequence in tokens]
    decisions, usual = [], 0
    for block in range(config.blocks):
        weights = at(params["blocks"], block)
        for s, sequence in enumerate(states):
            normed = [norm(weights["attention_norm"], x) for x in sequence]
            read = attention(weights["attention"], normed, config.objective == "causal", real[s])
            states[s] = [add(x, y) for x, y in zip(sequence, read, strict=True)]
        normed = [[norm(weights["ffn_norm"], x) for x in sequence] for sequence in states]
        if special(block, config) and config.router != "dense":
            index = len(decisions)
            change, decision = routed_ffn(
                at(params["routed_ffn"], index),
                normed,
                tokens,
                at_block(config, index),
                training,
                None if noise is None else noise[index],
                table,
                real,
            )
            if config.output_norm:
                outward = at(params["routed_ffn"]["output_norm"], index)
                change = [[norm(outward, x) for x in sequence] for sequence in change]
            decisions.append(decision)
        else:
            wide = special(block, config)
            matrices = at(params["wide_ffn"], block - usual) if wide else at(params["dense_ffn"], usual)
            usual += not wide
            change = [[ffn(matrices, x, config) for x in sequence] for sequence in normed]
        states = [[add(x, y) for x, y in zip(*pair, strict=True)] for pair in zip(states, change, strict=True)]
    logits = [
        [product_with_rows(norm(params["final_norm"], x), params["embedding"]) for x in sequence] for sequence in states
    ]
    return logits, decisions


def product_with_rows(x: list, rows: list) -> list:
    """Return the product of x with every row. Rows of the embedding table give the logits."""
    return [dot(x, row) for row in rows]
