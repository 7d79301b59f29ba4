"""One routed block, with any router: compute the vector that the block adds to each token.

    SCORE    logits = x · router                                                (not for HASH)
    SELECT   which experts work on which tokens, and with which gate            `decide`, or the groups below
    PLACE, COMBINE                                                              `experts.routed_ffn`
    LOSS     the router's term of the training loss                             `BlockOutput.auxiliary`

There are three kinds of routers. The first kind (hash, sinkhorn, base, quantile, top_k, reinforce) assigns experts to
tokens. Its group is all b·S tokens of the batch, sequence by sequence. In expert choice the experts choose tokens of a
group, and in a Mixture of Tokens the experts process mixtures of a group. For these two kinds a group is one position
of g sequences, so no token sees a later position of any sequence. But a token sees the other sequences of its group:
put unrelated texts in a group, not neighbouring windows of one text. With grouping "sequence" a group is a whole
sequence (expert choice) or g neighbours in it (Mixture of Tokens). A token then sees later tokens, as the masked
objective allows. Among causal models, only expert choice can train in this way. Its evaluation groups tokens by
position.

Padding: with a `mask` real tokens get the same result as without padding; padded tokens count in no load, capacity or
loss.

Some routers (quantile, and top_k with a bias rate) have a bias per expert. The parameters contain this bias, but no
gradient reaches it. `BlockOutput.bias` is the updated bias for the next batch.

Shared experts (`ModelConfig.shared_experts`) process every real token, without a router or a gate. The block adds their
output to the output of the routed experts. The program stores them as one FFN, as wide as all of them together.

With a latent width l (LatentMoE, Elango et al. 2026, arXiv 2601.18089), the experts process x · latent_down, and the
block adds their weighted sum · latent_up. The router and the shared experts see x.

Zero-computation experts (`experts.zero_computation`) come after the E G real experts: the router chooses among all,
with one score and one bias each. They have no slots. Their outputs have the width of x, also with a latent width.

HASH reads its experts from a table (see `hash_table`).
"""

import math
from typing import NamedTuple

import numpy as np

from . import balance
from .configuration import ModelConfig
from .errors import InputError
from .experts import expert_capacity, expert_ffn, routed_ffn, zero_computation
from .notation import ExpertChoice, Routing, _as_bool
from .routers import hash_layer as hashes
from .routers.base import base_router
from .routers.expert_choice import expert_choice_ffn, expert_choice_router, group_by_position, ungroup_by_position
from .routers.mixture_of_tokens import group_within_sequence, mixture_of_tokens, ungroup_within_sequence
from .routers.quantile import quantile_bias, quantile_router
from .routers.reinforce import reinforce_router, state_value
from .routers.sinkhorn import sinkhorn_router
from .routers.top_k import gshard_router, top_k_router


class Policy(NamedTuple):
    """The data of a block that the loss of RL-R needs."""

    logits: np.ndarray  # [T, E G]
    value: np.ndarray  # [T], the baseline's estimate of the reward


class Decision(NamedTuple):
    """The decision of a router that assigns experts to tokens, for one group."""

    routing: Routing  # experts and gates of the tokens of the group
    auxiliary: float = 0.0  # the router's term of the training loss
    bias: np.ndarray | None = None  # [E G], for the next batch; None if the router has none
    policy: Policy | None = None  # RL-R only


class BlockOutput(NamedTuple):
    """The result of a routed block."""

    output: np.ndarray  # [b, S, d]
    routing: Routing | ExpertChoice | None  # None for a Mixture of Tokens, which selects nothing
    dropped_fraction: float  # share of assignments without a slot; expert choice: share of tokens that no expert chose
    auxiliary: float  # the router's term of the training loss
    bias: np.ndarray | None  # [E G], for the next batch; None if the router has none
    policy: Policy | None  # RL-R only


def routed_block(
    params: dict,
    x: np.ndarray,
    tokens: np.ndarray,
    config: ModelConfig,
    *,
    training: bool = False,
    noise: np.ndarray | None = None,
    table: np.ndarray | None = None,
    held: Routing | ExpertChoice | None = None,
    mask: np.ndarray | None = None,
) -> BlockOutput:
    """Run a routed block.

    Args:
        params: {"up": [E G, d, 4d/G], "down": [E G, 4d/G, d]}, and "linear" for SwiGLU. The router can have "router"
            [d, E G], "router_bias" [E G], "bias" [E G], "baseline" {"hidden": [d, d/8], "out": [d/8]} and
            "log_temperature" [2]. With a latent width l, experts have l instead of d, and there are "latent_down"
            [d, l] and "latent_up" [l, d]. With Z zero-computation experts, the router has E G + Z columns; if they are
            constant, "constants" {"mix": [Z, d, 2], "offset": [Z, d]}. The s shared experts are one FFN of width
            s 4d/G, "shared" {"up", "down"}.
        x: [b, S, d].
        tokens: [b, S], the token ids.
        config: the model, with one router; see `ModelConfig.of_block`.
        training: True routes as in training, False as in evaluation.
        noise: the entry of this block in the result of `transformer.draw_noise`.
        table: see `hash_table`.
        held: an earlier routing of the same tokens; the block reuses its experts and computes new gates.
        mask: [b, S] bool, True for a real token; None if all tokens are real. A padded token gets 0.

    Returns:
        `BlockOutput`.

    Raises:
        ValueError: the group size does not divide b (or S, for neighbours), noise or table is missing, no token is
            real, or a token needs more experts than are available.
    """
    if config.router == "mixture_of_tokens":
        done = _mixture_block(params, x, config, training, mask)
    elif config.router == "expert_choice":
        done = _expert_choice_block(params, x, config, training, held, mask)
    else:
        options = {"noise": noise, "table": table, "held": held, "mask": mask}
        done = _token_choice_block(params, x, tokens, config, training, **options)
    if "bias" in params and done.bias is None:  # of another router in a list
        done = done._replace(bias=params["bias"])
    if not config.shared_experts:
        return done
    shared = expert_ffn(**params["shared"], x=x, activation=config.activation)
    return done._replace(output=done.output + (shared if mask is None else np.where(mask[..., None], shared, 0)))


def _token_choice_block(params, x, tokens, config, training, *, noise, table, held, mask):
    """Run a block with a router that assigns experts to tokens."""
    group = x.reshape(-1, config.d_model)  # [T, d]
    asks = None if mask is None else mask.reshape(-1)
    options = {"training": training, "noise": noise, "table": table, "held": held}
    decided = decide(params, group, tokens, config, mask=asks, **options)
    routing = decided.routing
    capacity_factor = config.capacity_factor if training else math.inf
    if config.sample_second:
        # This mask excludes padding, and the second experts that GShard's draw drops: both have gate 0.
        asks = routing.gate != 0
    expert = routing.expert
    if config.zero_experts:
        real = expert < config.expert_count
        asks = real if asks is None else asks[:, None] & real
        expert = np.where(real, expert, 0)
    options = {"order": config.drop_order, "mask": asks, "activation": config.activation}
    inputs = group @ params["latent_down"] if config.latent_width else group
    if config.zero_experts and not asks.any():
        output, dropped = np.zeros(inputs.shape), 0.0
    else:
        output, dropped = routed_ffn(params, inputs, expert, routing.gate, capacity_factor, **options)
    if config.latent_width:
        output = output @ params["latent_up"]
    if config.zero_experts:  # padding has gates of 0
        options = {"kind": config.zero_kind, "constants": params.get("constants")}
        output = output + zero_computation(group, routing.expert, routing.gate, config.expert_count, **options)
    return BlockOutput(output.reshape(x.shape), routing, dropped, decided.auxiliary, decided.bias, decided.policy)


def _mixture_block(params, x, config, training, mask):
    """Run a Mixture of Tokens, group by group.

    A learned temperature is e^s times the temperature of the configuration, with one s for mixing and one for
    redistribution (`log_temperature`). So it is positive for every s (our choice).
    """
    groups, real, ungroup = _groups(x, mask, config, training)
    options = {"one_hot": config.one_hot, "activation": config.activation, "emit": config.emit}
    temperature = config.temperature
    if config.learned_temperature:
        temperature, options["emit_temperature"] = config.temperature * np.exp(params["log_temperature"])
    output = np.zeros(groups.shape)
    for i in np.flatnonzero(real.any(axis=1)):  # a group of only padding keeps its zeros
        output[i] = mixture_of_tokens(params, groups[i], temperature, mask=real[i], **options).output
    return BlockOutput(ungroup(output), None, 0.0, 0.0, None, None)


def _groups(x, mask, config, training):
    """Return the groups [n, T, d], a mask of their real tokens [n, T], and the function that undoes the grouping."""
    real = np.ones(x.shape[:2], bool) if mask is None else _as_bool(mask)
    length = x.shape[1]
    if config.groups_by_position(training):
        group, undo, size = group_by_position, ungroup_by_position, config.group_size
    else:
        group, undo = group_within_sequence, ungroup_within_sequence
        size = length if config.router == "expert_choice" else config.group_size
    return group(x, size), group(real, size), lambda grouped: undo(grouped, length)


def _expert_choice_block(params, x, config, training, held, mask):
    """Run expert choice, group by group.

    Each expert takes k g / E tokens of each group, or k S / E tokens of a sequence of S tokens, rounded up. So a token
    can have more than k experts on average.
    """
    groups, real, ungroup = _groups(x, mask, config, training)
    output, choices = np.zeros(groups.shape), []
    for i, group in enumerate(groups):
        held_here = None if held is None else ExpertChoice(*(field[i] for field in held))  # of group i
        choices.append(_choose(group @ params["router"], config, held_here, real[i]))
        options = {"activation": config.activation}
        output[i] = expert_choice_ffn(params, group, choices[i], **options)
    choice = ExpertChoice(*(np.stack(field) for field in zip(*choices, strict=True)))  # fields [groups, ...]
    unchosen = (choice.experts_per_token == 0)[real].mean()
    return BlockOutput(ungroup(output), choice, unchosen, 0.0, None, None)


def _choose(logits, config, held, real):
    """Return the choice of one group. If all tokens are padding, each expert takes token 0 with gate 0."""
    if real.any():
        mask = None if real.all() else real
        return expert_choice_router(logits, config.choices, score=config.gate, held=held, mask=mask)
    num_tokens, num_experts = logits.shape
    columns = expert_capacity(num_tokens, num_experts, 1, config.choices)
    token, gate = np.zeros((num_experts, columns), np.int64), np.zeros((num_experts, columns))
    return ExpertChoice(token, gate, np.zeros(num_tokens, np.int64))


def decide(
    params: dict,
    group: np.ndarray,
    tokens: np.ndarray,
    config: ModelConfig,
    *,
    training: bool = False,
    noise: np.ndarray | None = None,
    table: np.ndarray | None = None,
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Decision:
    """Return the decision of a router that assigns experts to the tokens of a group.

    Args:
        params: see `routed_block`.
        group: [T, d].
        tokens: [b, S], the token ids, with b S = T.
        config: the model.
        training, noise, table, held: see `routed_block`.
        mask: [T] bool (see `routed_block`).

    Returns:
        `Decision`.
    """
    if config.router == "hash":
        routing = _hash_routing(tokens, config, table, mask, hashes)
        routing = _mean_of_choices(routing, config, mask)
        return Decision(routing if held is None else held._replace(gate=routing.gate))
    if config.router == "hash_gated":
        routing = _hash_routing(tokens, config, table, mask, hashes) if held is None else held
        options = {"score": config.gate, "normalisation": config.normalisation, "gate_scale": config.gate_scale}
        return Decision(hashes.learned_gates(routing, group @ params["router"], **options, mask=mask))
    logits = group @ params["router"]  # SCORE
    if config.router_bias:
        logits = logits + params["router_bias"]
    options = {"gate": config.gate, "held": held, "mask": mask}
    if config.router == "sinkhorn":
        return Decision(sinkhorn_router(logits, config.choices, training=training, **options))
    if config.router == "base":
        return Decision(base_router(logits, config.choices, training=training, **options))
    if config.router == "quantile":
        bias = params["bias"]
        routing = quantile_router(logits, bias, config.choices, **options)
        return Decision(routing, bias=quantile_bias(logits, bias, config.choices, mask=mask) if training else bias)
    if config.router == "reinforce":
        return _decide_reinforce(params, group, logits, config, training, noise, held, mask)
    if config.router == "top_k":
        return _decide_top_k(params, logits, tokens, config, training, noise, held, mask)
    raise NotImplementedError(f"router {config.router!r} is not known here")


def _decide_top_k(params, logits, tokens, config, training, noise, held, mask):
    """Return the decision of TOP-K for logits [T, E]: the selection, the losses to add, the bias of the next step.

    The balance loss of a sequence counts the chosen experts (our choice), so that a `held` routing fixes the counts.
    DeepSeek-V3 counts the largest scores, without bias and groups.
    """
    bias = params["bias"] if config.has_bias else None
    if config.sample_second:
        _check_noise(training, noise, held)
        routing = gshard_router(logits, noise if training else None, held=held, mask=mask)
    else:
        routing = top_k_router(logits, config.choices, bias=bias, **config.top_k_options(), held=held, mask=mask)
    if not training:
        return Decision(routing, 0.0, bias)
    if bias is not None:
        counts = balance.expert_counts(routing.expert, config.choosable, mask=mask)
        there = ~np.isneginf(logits if mask is None else logits[mask]).all(axis=0)
        bias = np.where(there, _next_bias(balance, np.where(there, bias, -np.inf), counts, config), bias)
    options = {"dialect": "first_choice" if config.sample_second else "assignments", "score": config.gate, "mask": mask}
    if config.balance_scope == "sequence":
        uneven = balance.sequence_loss(logits, routing.expert, tokens.shape[1], **options).loss
    else:
        uneven = balance.auxiliary_loss(logits, routing.expert, **options).loss
    added = config.balance_weight * uneven + config.z_weight * balance.z_loss(logits, mask=mask)
    return Decision(routing, added, bias)


def _next_bias(balance, bias, counts, config):
    """Return the bias of TOP-K for the next batch. balance is `balance.py`; the accelerated package passes its own."""
    if config.zero_experts:
        share = config.real_experts / config.choices
        return balance.update_budget_bias(bias, counts, config.expert_count, share, rate=config.bias_rate)
    return balance.update_bias(bias, counts, rate=config.bias_rate)


def _decide_reinforce(params, group, logits, config, training, noise, held, mask):
    """Return the decision of RL-R. `transformer.loss` computes the rewards and adds the loss terms of RL-R."""
    _check_noise(training, noise, held)
    gumbel = noise if training else None
    routing = reinforce_router(logits, config.choices, gumbel=gumbel, nucleus=config.nucleus, held=held, mask=mask)
    policy = Policy(logits, state_value(params["baseline"], group))
    return Decision(_mean_of_choices(routing, config, mask), policy=policy)


def _check_noise(training, noise, held):
    if training and noise is None and held is None:
        raise InputError("this router is random in training: pass noise, see transformer.draw_noise")


def _mean_of_choices(routing, config, mask):
    """Return the routing with gate 1/k at each of the k G experts of a token, and gate 0 for padding."""
    gate = np.full(routing.expert.shape, 1 / config.k)
    return routing._replace(gate=gate if mask is None else np.where(mask[:, None], gate, 0))


def _hash_routing(tokens, config, table, mask, hashes):
    """Return the routing of HASH, which reads only token ids [b, S] or positions.

    hashes is `hash_layer.py`; the accelerated package passes its own.
    """
    ids = tokens
    if config.hash in ("previous", "bigram"):
        ids = hashes.previous_tokens(tokens)
    elif config.hash == "position":
        ids = hashes.position_ids(tokens)
    ids = ids.reshape(-1)
    if table is None:
        if config.hash not in ("modulo", "previous", "position"):
            raise InputError(f"the {config.hash} hash needs a table: see routed_block.hash_table")
        entries = tokens.shape[1] if config.hash == "position" else config.vocab_size
        table = hashes.modulo_table(entries, config.expert_count, config.choices)  # a table of remainders
    if config.hash == "bigram":
        expert = hashes.bigram_experts(tokens.reshape(-1), ids, table, config.expert_count)
        return hashes.fixed_router(expert, config.expert_count, mask=mask)
    return hashes.table_router(ids, table, config.expert_count, mask=mask)


def hash_table(
    config: ModelConfig,
    *,
    uniforms: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    embeddings: np.ndarray | None = None,
) -> np.ndarray:
    """Return the table of a hash model, from token id to experts.

    Args:
        config: a model with router "hash" in any block, and any hash except "position", whose table has a row per
            position.
        uniforms: in [0, 1): [V, k G] for random, [V, G] for multi, [2, V] for bigram.
        counts: [V] integers, the frequency of each token, for balanced.
        embeddings: [V, d'], for clustered and dispersed, with V >= E G. The initial centres are the embeddings of E G
            tokens, at equal steps of the id (our choice).

    Returns:
        [V, k G] int32; for bigram [2, V].

    Raises:
        ValueError: an array that the hash needs is missing or has the wrong shape.
    """
    return _hash_table(config, uniforms, counts, embeddings, hashes)


def _hash_table(config, uniforms, counts, embeddings, hashes):
    experts, choices = config.expert_count, config.choices
    if not config.has_table:
        raise InputError(f"router {config.router} with hash {config.hash} has no table of token ids")
    if config.hash in ("modulo", "previous"):
        return hashes.modulo_table(config.vocab_size, experts, choices)
    numbers = _numbers_for_table(config, uniforms, counts, embeddings)
    if config.hash == "balanced":
        return hashes.balanced_table(numbers, experts, choices)
    if config.hash == "random":
        return hashes.random_table(numbers, experts)
    if config.hash == "multi":
        return hashes.multi_hash(_whole(numbers, config.experts), config.experts)
    if config.hash == "bigram":
        return _whole(numbers, experts)
    return _table_of_clusters(np.asarray(embeddings), config, hashes)


def _numbers_for_table(config, uniforms, counts, embeddings):
    """Return the array that the hash needs, checked."""
    of_tokens, of_choices = (config.vocab_size,), (config.vocab_size, config.choices)
    numbers, shape = {
        "random": (uniforms, of_choices),
        "multi": (uniforms, of_choices),
        "bigram": (uniforms, (2, *of_tokens)),
        "balanced": (counts, of_tokens),
        "clustered": (embeddings, of_tokens),
        "dispersed": (embeddings, of_tokens),
    }[config.hash]
    if numbers is None or np.shape(numbers)[: len(shape)] != shape:
        raise InputError(f"the {config.hash} hash needs numbers of shape {shape}, not {np.shape(numbers)}")
    return numbers


def _whole(uniforms, num_experts):
    """Return integers in [0, E) from uniforms, even if a product rounds up to E."""
    return np.minimum((np.asarray(uniforms) * num_experts).astype(np.int32), num_experts - 1)


def _table_of_clusters(embeddings, config, hashes):
    """Return the clustered or the dispersed table [V, k G] of embeddings [V, d'], with a cluster for each expert."""
    experts = config.expert_count
    if len(embeddings) < experts:
        raise InputError(
            f"{len(embeddings)} token embeddings are too few for {experts} clusters, one for each expert; use at least "
            f"{experts}, or another hash, such as balanced"
        )
    centres = embeddings[np.arange(experts) * len(embeddings) // experts]
    clusters = hashes.cluster_tokens(embeddings, centres)
    if config.hash == "clustered":
        return hashes.clustered_table(clusters, embeddings, config.choices)
    return hashes.dispersed_table(clusters.cluster, experts, config.choices)
