"""The experts of each token: every router of a routed block, for one batch.

A block has E G experts of hidden width 4d/G, and a token uses k G experts. All numbers here count these narrow experts:
`experts_of` and `choices_of` multiply by G.

Tokens of a batch are numbered sequence by sequence, after padding is removed.
"""

import functools
import itertools
import math
from typing import NamedTuple

from routelaws.conformance.plain.arithmetic import (
    add,
    column,
    gelu,
    largest,
    log_sum_exp,
    mean,
    product,
    sigmoid,
    softmax,
    times,
)

SWEEPS = 300
"""Maximum number of sweeps for the Sinkhorn plan, many more than usual logits need."""


class Decision(NamedTuple):
    """The decision of one routed block; T counts the real tokens of the batch."""

    output: list  # [T][d]
    auxiliary: float = 0.0  # the sum of balance loss and z-loss with their weights
    log_probability: list | None = None  # [T], RL-R: log-probability of the drawn expert
    entropy: float = 0.0  # RL-R: mean over tokens of the entropy of the policy
    value: list | None = None  # [T], RL-R: the reward that the baseline predicts
    dropped: float = 0.0  # share of choices without a slot; for expert choice, share of tokens without an expert
    bias: list | None = None  # [E], the bias after this batch


def experts_of(config) -> int:
    """Return E G, the number of experts of a block."""
    return config.experts * config.granularity


def choices_of(config) -> int:
    """Return k G, the number of experts of a token."""
    return config.k * config.granularity


def ffn(weights: dict, x: list, config) -> list:
    """Return φ(x · up) · down, for up [d][f] and down [f][d].

    φ is GELU or ReLU. For SwiGLU, h = x · up, and φ(h) = h sigmoid(h) (x · linear).
    """
    hidden = product(x, weights["up"])
    if config.activation == "gelu":
        hidden = [gelu(value) for value in hidden]
    elif config.activation == "relu":
        hidden = [max(value, 0.0) for value in hidden]
    else:
        others = product(x, weights["linear"])
        hidden = [value * sigmoid(value) * other for value, other in zip(hidden, others, strict=True)]
    return product(hidden, weights["down"])


def expert(weights: dict, e: int, x: list, config) -> list:
    expert_weights = {name: weights[name][e] for name in ("up", "down", "linear") if name in weights}
    return ffn(expert_weights, x, config)


def routed_ffn(weights: dict, inputs: list, tokens: list, config, training: bool, noise, table, real: list):
    """Return the output of a routed block, [b][S][d], and its decision. Padding gets the output 0.

    Args:
        weights: up [E G][d][f], down [E G][f][d]. Some routers also have router [d][E G], bias or baseline.
        inputs: [b][S][d], normed.
        tokens: [b][S] token ids.
        noise: in training, Gumbel noise [b S][E G] for RL-R, or uniforms [b S] for GShard; else None.
        table: [V][k G], experts of each token id, for the hash router. None uses the remainder of the id.
        real: [b][S] booleans, False for padding.
    """
    places = [(s, i) for s, sequence in enumerate(inputs) for i in range(len(sequence)) if real[s][i]]
    states = [inputs[s][i] for s, i in places]
    if config.router == "expert_choice":
        decision = experts_choose(weights, states, groups(places, config, training), config)
    elif config.router == "mixture_of_tokens":
        decision = mixtures(weights, states, groups(places, config, training), config)
    else:
        if noise is not None:
            noise = [noise[s * len(inputs[0]) + i] for s, i in places]
        ids, sequences = [tokens[s][i] for s, i in places], [s for s, _ in places]
        decision = tokens_choose(weights, states, ids, sequences, config, training, noise, table)
    if "bias" in weights and decision.bias is None:  # of another router in a list
        decision = decision._replace(bias=weights["bias"])
    output = [[[0.0] * len(x) for x in sequence] for sequence in inputs]
    for (s, i), state, x in zip(places, states, decision.output, strict=True):
        output[s][i] = add(x, ffn(weights["shared"], state, config)) if config.shared_experts else x
    return output, decision


# ---- routers with k G experts per token ------------------------------------------------------------------------------


def tokens_choose(
    weights: dict, states: list, tokens: list, sequences: list, config, training: bool, noise, table
) -> Decision:
    """Return the decision of a router with k G experts per token. `sequences` [T] is the sequence of each token."""
    logits = None if config.router == "hash" else [product(x, weights["router"]) for x in states]
    if config.router_bias and config.router == "top_k":
        logits = [add(row, weights["router_bias"]) for row in logits]
    extra = {}
    if config.router in ("hash", "hash_gated"):
        chosen = [[token % experts_of(config)] if table is None else list(table[token]) for token in tokens]
        gates = normed(logits, chosen, config) if logits else [[1 / config.k] * choices_of(config) for _ in states]
    elif config.router == "sinkhorn":
        chosen = by_score(sinkhorn_plan(logits) if training else logits, config)
        gates = gates_of(logits, chosen, config.gate)
    elif config.router == "base":
        chosen = best_assignment(logits, choices_of(config)) if training else by_score(logits, config)
        gates = gates_of(logits, chosen, config.gate)
    elif config.router == "quantile":
        chosen = by_score([add(row, times(-1, weights["bias"])) for row in logits], config)
        gates = gates_of(logits, chosen, config.gate)
        extra["bias"] = quantile_step(logits, weights["bias"], choices_of(config))
    elif config.router == "top_k":
        chosen, gates, extra = top_k(weights, logits, sequences, config, training, noise)
    elif config.router == "reinforce":
        chosen, extra = reinforce(weights, states, logits, config, training, noise)
        gates = [[1 / config.k] * choices_of(config) for _ in states]
    else:
        raise NotImplementedError(f"router {config.router!r} has no branch here")
    without_ffn = [
        zero_experts(weights, x, experts, shares, config)
        for x, experts, shares in zip(states, chosen, gates, strict=True)
    ]
    chosen = [[None if e is None or e >= experts_of(config) else e for e in row] for row in chosen]
    if training and math.isfinite(config.capacity_factor):
        kept = with_slot(chosen, gates, config)
    else:
        kept = [[True] * len(row) for row in chosen]
    outputs = []
    latent = bool(config.latent_width)
    inputs = [product(x, weights["latent_down"]) for x in states] if latent else states
    for x, experts, shares, keep in zip(inputs, chosen, gates, kept, strict=True):
        outputs.append([0.0] * len(x))
        for e, gate, slot in zip(experts, shares, keep, strict=True):
            if e is not None and slot:
                outputs[-1] = add(outputs[-1], times(gate, expert(weights, e, x, config)))
    outputs = [product(y, weights["latent_up"]) for y in outputs] if latent else outputs
    outputs = [add(y, z) for y, z in zip(outputs, without_ffn, strict=True)]
    lost = [
        not slot
        for experts, row in zip(chosen, kept, strict=True)
        for e, slot in zip(experts, row, strict=True)
        if e is not None
    ]
    return Decision(outputs, dropped=mean(lost) if lost else 0.0, **extra)


def zero_experts(weights: dict, x: list, experts: list, gates: list, config) -> list:
    """Return the sum of gate times output over a token's experts without an FFN, numbered E G and above."""
    total = [0.0] * len(x)
    for e, gate in zip(experts, gates, strict=True):
        if e is None or e < experts_of(config) or config.zero_kind == "zero":
            continue
        output = x
        if config.zero_kind == "constant":
            number = e - experts_of(config)
            own, other = softmax(product(x, weights["constants"]["mix"][number]))
            output = add(times(own, x), times(other, weights["constants"]["offset"][number]))
        total = add(total, times(gate, output))
    return total


def by_score(scores: list, config) -> list:
    """Return, for each token, the k G experts with the largest scores."""
    return [largest(row, choices_of(config)) for row in scores]


def scores_of(logits: list, kind: str) -> list:
    """Return the scores for gates: softmax over the experts, or the sigmoid or √log(1 + exp z) of each logit."""
    if kind == "sqrtsoftplus":
        return [[math.sqrt(log_sum_exp([0.0, z])) for z in row] for row in logits]
    return [softmax(row) if kind == "softmax" else [sigmoid(z) for z in row] for row in logits]


def gates_of(logits: list, chosen: list, kind: str) -> list:
    """Return the scores of the chosen experts."""
    return [[row[e] for e in experts] for row, experts in zip(scores_of(logits, kind), chosen, strict=True)]


def sinkhorn_plan(logits: list) -> list:
    """Return the plan [T][E] that maximises <plan, logits> + entropy, with row sums 1/T and column sums 1/E.

    The plan is exp(logit + row potential + column potential). Row and column potentials are updated in turn until they
    converge.
    """
    tokens, experts = len(logits), len(logits[0])
    by_row, by_column = [0.0] * tokens, [0.0] * experts
    for _ in range(SWEEPS):
        by_row = [-math.log(tokens) - log_sum_exp(add(row, by_column)) for row in logits]
        new = [-math.log(experts) - log_sum_exp(add(column(logits, e), by_row)) for e in range(experts)]
        if new == by_column:
            break
        by_column = new
    return [
        [math.exp(z + a + b) for z, b in zip(row, by_column, strict=True)]
        for row, a in zip(logits, by_row, strict=True)
    ]


def best_assignment(scores: list, k: int) -> list:
    """Return the assignment of k experts to each token with the largest total score.

    Each expert gets exactly T k / E tokens. The function tries every assignment. `best` returns the largest total score
    of a token and all later tokens for the remaining slots.
    """
    tokens, experts = len(scores), len(scores[0])

    @functools.cache
    def best(token: int, slots: tuple) -> tuple:
        if token == tokens:
            return 0.0, ()
        optimum = (-math.inf, ())
        for some in itertools.combinations([e for e in range(experts) if slots[e]], k):
            left = tuple(n - (e in some) for e, n in enumerate(slots))
            rest, others = best(token + 1, left)
            optimum = max(optimum, (sum(scores[token][e] for e in some) + rest, (some, *others)))
        return optimum

    _, chosen = best(0, (tokens * k // experts,) * experts)
    return [sorted(some, key=lambda e, row=row: -row[e]) for some, row in zip(chosen, scores, strict=True)]


def middle(values: list, rank: int) -> float:
    """Return the mean of the values with rank `rank` and `rank + 1`. The largest has rank 1."""
    ordered = sorted(values, reverse=True)
    return (ordered[rank - 1] + ordered[rank]) / 2


def quantile_step(scores: list, bias: list, k: int) -> list:
    """Return the bias after one sweep, which computes prices of tokens and then prices of experts minus their mean."""
    tokens, experts = len(scores), len(scores[0])
    prices = [middle(add(row, times(-1, bias)), k) for row in scores] if k < experts else [0.0] * tokens
    new = [
        middle([row[e] - price for row, price in zip(scores, prices, strict=True)], tokens * k // experts)
        for e in range(experts)
    ]
    return [b - mean(new) for b in new]


def in_best_groups(scores: list, config) -> list:
    """Return the scores of a token, with −∞ for experts outside the best groups."""
    size = len(scores) // config.expert_groups
    groups = [scores[g * size : (g + 1) * size] for g in range(config.expert_groups)]
    counted = 2 if config.group_score == "two_best" else 1
    best = largest([sum(sorted(group)[::-1][:counted]) for group in groups], config.groups_per_token)
    return [score if e // size in best else -math.inf for e, score in enumerate(scores)]


def normed(logits: list, chosen: list, config) -> list:
    """Return the gates of the chosen experts: their scores, normalised and multiplied by the scale."""
    gates = gates_of(logits, chosen, config.gate)
    if config.normalisation == "sum":
        gates = [times(1 / sum(row), row) for row in gates]
    elif config.normalisation == "softmax":
        gates = [softmax([row[e] for e in experts]) for row, experts in zip(logits, chosen, strict=True)]
    return [times(config.gate_scale, row) for row in gates]


def top_k(weights: dict, logits: list, sequences: list, config, training: bool, uniforms) -> tuple:
    """Return the experts, the gates, and further fields of the `Decision` of top-k routing."""
    scores = scores_of(logits, config.gate)
    pushed = [add(row, weights["bias"]) for row in scores] if config.bias_rate else scores
    if config.expert_groups > 1:
        pushed = [in_best_groups(row, config) for row in pushed]
    chosen = by_score(pushed, config)
    gates = normed(logits, chosen, config)
    counted = [row[:1] for row in chosen] if config.sample_second else chosen  # GShard counts first choices
    parts = sequences if config.balance_scope == "sequence" else [0] * len(scores)
    losses = []
    for part in sorted(set(parts)):
        inside = [t for t, name in enumerate(parts) if name == part]
        losses.append(balance_loss([scores[t] for t in inside], [counted[t] for t in inside]))
    auxiliary = config.balance_weight * mean(losses)
    auxiliary += config.z_weight * mean([log_sum_exp(row) ** 2 for row in logits])
    extra = {"auxiliary": auxiliary}
    if config.bias_rate:
        load = loads(chosen, len(scores[0]))
        extra["bias"] = (
            budget_step(weights["bias"], load, config)
            if config.zero_experts
            else [
                b + config.bias_rate * ((mean(load) > n) - (mean(load) < n))
                for b, n in zip(weights["bias"], load, strict=True)
            ]
        )
    if config.sample_second and training:  # GShard: keep the second expert only if 2 · gate > uniform
        chosen = [
            [first, second if 2 * row[1] > u else None]
            for (first, second), row, u in zip(chosen, gates, uniforms, strict=True)
        ]
    return chosen, gates, extra


def budget_step(bias: list, load: list, config) -> list:
    """Return the bias after one batch: a real expert's share of the choices approaches 1/E of the real target."""
    real = experts_of(config)
    wanted = config.real_experts / choices_of(config) / real
    steps = [wanted - n / sum(load) if e < real else 0.0 for e, n in enumerate(load)]
    return add(bias, times(config.bias_rate, steps))


def loads(chosen: list, experts: int) -> list:
    everything = [e for row in chosen for e in row]
    return [everything.count(e) for e in range(experts)]


def balance_loss(scores: list, chosen: list) -> float:
    """Return E Σ_e f_e P_e. f_e is the share of choices of expert e before drops, and P_e is its mean probability.

    The scores of each token are divided by their sum, because some scores, such as sigmoids, do not sum to 1.
    """
    experts = len(scores[0])
    load = loads(chosen, experts)
    probabilities = [times(1 / sum(row), row) for row in scores]
    return experts * sum(n / sum(load) * mean(column(probabilities, e)) for e, n in enumerate(load))


def reinforce(weights: dict, states: list, logits: list, config, training: bool, gumbels) -> tuple:
    """Return the experts, drawn from the policy in training, and further fields of the `Decision`.

    In evaluation, the experts are the k G most probable ones.
    """
    policy = [nucleus(softmax(row), config.nucleus, choices_of(config)) for row in logits]
    if not training:
        return by_score(logits, config), {}
    chosen = by_score(
        [
            [math.log(p) + g if p else -math.inf for p, g in zip(*pair, strict=True)]
            for pair in zip(policy, gumbels, strict=True)
        ],
        config,
    )
    hidden = [[max(0.0, h) for h in product(x, weights["baseline"]["hidden"])] for x in states]
    return chosen, {
        "auxiliary": config.balance_weight * balance_loss([softmax(row) for row in logits], chosen),
        "log_probability": [log_of_draw(row, some) for row, some in zip(policy, chosen, strict=True)],
        "entropy": mean([-sum(p * math.log(p) for p in row if p) for row in policy]),
        "value": [sum(a * b for a, b in zip(h, weights["baseline"]["out"], strict=True)) for h in hidden],
    }


def log_of_draw(policy: list, drawn: list) -> float:
    """Return the log-probability of drawing these experts in this order without replacement."""
    total = 0.0
    for i, e in enumerate(drawn):
        left = sum(p for other, p in enumerate(policy) if other not in drawn[:i])
        total += math.log(policy[e] / left)
    return total


def nucleus(probabilities: list, whole: float, least: int) -> list:
    """Return the policy truncated to the most probable experts with a total probability of at least `whole`.

    At least `least` experts stay. The probabilities of these experts are divided by their sum.
    """
    kept, total = [], 0.0
    for e in largest(probabilities, len(probabilities)):
        if total < whole or len(kept) < least:
            kept.append(e)
            total += probabilities[e]
    return [p / total if e in kept else 0.0 for e, p in enumerate(probabilities)]


def with_slot(chosen: list, gates: list, config) -> list:
    """Return, for each choice, whether its expert had a free slot. An expert has min(T, ⌈capacity_factor k T / E⌉)."""
    tokens, experts = sum(any(e is not None for e in row) for row in chosen), experts_of(config)
    capacity = min(tokens, math.ceil(config.capacity_factor * choices_of(config) * tokens / experts))
    kept = [[False] * len(row) for row in chosen]
    used = [0] * experts
    for token, choice in order_of_service(chosen, gates, config.drop_order):
        e = chosen[token][choice]
        if e is not None and used[e] < capacity:
            used[e] += 1
            kept[token][choice] = True
    return kept


def order_of_service(chosen: list, gates: list, order: str) -> list:
    """Return (token, choice) in the order of assigning slots.

    With "choice", all first choices come before second choices, and earlier tokens come before later ones. With
    "token", all choices of a token come before the next token. With "priority", the largest gate comes first.
    """
    pairs = [(token, choice) for token in range(len(chosen)) for choice in range(len(chosen[0]))]
    if order == "token":
        return pairs
    by_choice = sorted(pairs, key=lambda pair: pair[1])  # a stable sort keeps the order of the tokens
    return by_choice if order == "choice" else sorted(by_choice, key=lambda pair: -gates[pair[0]][pair[1]])


# ---- expert choice and Mixture of Tokens -----------------------------------------------------------------------------


def groups(places: list, config, training: bool) -> list:
    """Return the groups of tokens as lists of token numbers.

    A group has the tokens at one position of g sequences, or tokens of one sequence.
    """
    if config.grouping == "position" or (config.objective == "causal" and not training):
        key = [(s // config.group_size, i) for s, i in places]
    elif config.router == "expert_choice":
        key = [s for s, _ in places]
    else:
        key = [(s, i // config.group_size) for s, i in places]
    return [[number for number, k in enumerate(key) if k == group_key] for group_key in sorted(set(key))]


def experts_choose(weights: dict, states: list, groups: list, config) -> Decision:
    """Return the decision of expert choice: each expert takes its ⌈k g / E⌉ best tokens from every group of g."""
    output, taken = [[0.0] * len(x) for x in states], set()
    for group in groups:
        scores = scores_of([product(states[t], weights["router"]) for t in group], config.gate)
        tokens = math.ceil(len(group) * config.k / config.experts)
        for e in range(experts_of(config)):
            for i in largest(column(scores, e), tokens):
                taken.add(group[i])
                done = expert(weights, e, states[group[i]], config)
                output[group[i]] = add(output[group[i]], times(scores[i][e], done))
    return Decision(output, dropped=1 - len(taken) / len(states))


def mixtures(weights: dict, states: list, groups: list, config) -> Decision:
    """Return the decision of Mixture of Tokens: each expert processes one mixture of the tokens of each group.

    The share of a token in the mixture of an expert is a softmax over the tokens of the group. By default, the token
    gets the same share of the output of the expert. With `emit` "experts", its share is a softmax over the experts.
    With `learned_temperature`, mixtures and outputs have two learned temperatures.
    """
    mixing = giving = config.temperature
    if config.learned_temperature:
        mixing, giving = (config.temperature * math.exp(s) for s in weights["log_temperature"])
    output = [[0.0] * len(x) for x in states]
    for group in groups:
        logits = [product(states[t], weights["router"]) for t in group]
        for e in range(experts_of(config)):
            shares = softmax(times(1 / mixing, column(logits, e)))
            if config.emit == "experts":
                given = [softmax(times(1 / giving, row))[e] for row in logits]
            else:
                given = softmax(times(1 / giving, column(logits, e)))
            if config.one_hot:
                first = largest(shares, 1)[0]
                shares = given = [float(i == first) for i in range(len(group))]
            mixture = [
                sum(share * states[t][c] for share, t in zip(shares, group, strict=True)) for c in range(config.d_model)
            ]
            done = expert(weights, e, mixture, config)
            for share, t in zip(given, group, strict=True):
                output[t] = add(output[t], times(share, done))
    return Decision(output)
