"""One record for each router, with the facts that the rest of the code needs. Start here to add a router.

    router              who chooses                     training                              evaluation
    dense               none                            every token through one FFN           the same
    hash                a table, by token id            nothing dropped                       the same
    hash_gated          a table, by token id            nothing dropped; learned gates        the same
    sinkhorn  (S-BASE)  the plan of the whole group     capacity                              argmax of the logits
    base                an exact assignment             exactly balanced                      argmax of the logits
    quantile            logits minus a bias             capacity; the bias is learned         the same, nothing dropped
    top_k               the token's logits              capacity; a balance loss or a bias    the same, nothing dropped
    reinforce (RL-R)    a draw from the policy          capacity; a policy gradient           argmax of the logits
    expert_choice       the experts                     groups of g tokens                    groups by position
    mixture_of_tokens   none: experts see mixtures      groups of g tokens, by position       the same

In evaluation all routers are causal, and all except the last two are independent of the rest of the batch. With the
masked objective no model is causal, and the last two routers may form groups within one sequence.
"""

import itertools
import math
from typing import NamedTuple

from ..errors import InputError

ROUTED = ("objective", "output_norm", "shared_experts")
"""Options of routed models."""

SCORED = (*ROUTED, "router_scale")
"""Options of routers with weights."""

LIMITED = ("capacity_factor", "drop_order", "latent_width")
"""Options of routers that assign experts to tokens: an expert may have too few slots, or work at a narrower width."""

GROUPING = ("grouping", "group_size")


class Router(NamedTuple):
    """The record of one router: its names, options and defaults.

    Attributes:
        name: the value of `--router`.
        router_type: the value in a results table; the released table has Dense, Hash, S-Base and RL-R.
        options: fields of `ModelConfig` that only some routers have. With other routers they keep their default.
        functions: public names of its file in this folder.
        file: its file in this folder; None if it is `name`.
        paper_name: its name in the paper; None if it is `name`.
        capacity_factor: default number of slots of an expert in training, in units of its fair share; our choice. BASE
            needs only a fair share: its assignment is balanced. Evaluation drops nothing for any router.
        gate: the default function from logits to gates.
        constant_gate: whether all gates are 1/k, so that the output is the mean of k dense FFNs.
        router_scale: default deviation of the initial router weights in units of 1/√d; our choice. RL-R needs more than
            1: a nearly uniform initial policy becomes more uniform in training, and the router learns nothing.
        grouped: whether it sees groups of tokens of several sequences.
        policy: whether it draws from a policy by Gumbel noise, with a baseline and terms of the loss.
        example: fields of a small model, for tests.
    """

    name: str
    router_type: str
    options: tuple[str, ...]
    functions: tuple[str, ...] = ()
    file: str | None = None
    paper_name: str | None = None
    capacity_factor: float = math.inf
    gate: str = "softmax"
    constant_gate: bool = False
    router_scale: float = 1.0
    grouped: bool = False
    policy: bool = False
    example: dict = {"experts": 4, "k": 2}


RECORDS = (
    Router("dense", "Dense", ("objective",), constant_gate=True, example={}),
    Router(
        "hash",
        "Hash",
        (*ROUTED, *LIMITED, "hash"),
        (
            "Clusters", "balanced_table", "bigram_experts", "cluster_tokens", "clustered_table", "dispersed_table",
            "fixed_router", "learned_gates", "modulo_table", "multi_hash", "position_ids", "previous_tokens",
            "random_table", "table_router",
        ),
        file="hash_layer",
        constant_gate=True,
    ),
    Router(
        "hash_gated",
        "Hash-Gated",
        (*SCORED, *LIMITED, "hash", "gate", "normalisation", "gate_scale"),
        file="hash_layer",
    ),
    Router(
        "sinkhorn",
        "S-Base",
        (*SCORED, *LIMITED, "gate"),
        ("SinkhornPlan", "gate_values", "sinkhorn_plan", "sinkhorn_router"),
        paper_name="S-BASE",
        capacity_factor=2.0,
    ),
    Router(
        "base",
        "Base",
        (*SCORED, *LIMITED, "gate"),
        ("Assignment", "balanced_assignment", "base_router", "dual_bound"),
        capacity_factor=1.0,
        gate="sigmoid",
    ),
    Router(
        "quantile",
        "Quantile",
        (*SCORED, *LIMITED, "gate"),
        ("quantile_bias", "quantile_router"),
        capacity_factor=2.0,
        gate="sigmoid",
    ),
    Router(
        "top_k",
        "Top-K",
        (
            *SCORED, *LIMITED, "gate", "balance_weight", "normalisation", "sample_second", "z_weight", "bias_rate",
            "gate_scale", "router_bias", "expert_groups", "groups_per_token", "group_score", "balance_scope",
            "zero_experts", "zero_kind", "real_experts",
        ),
        ("chosen_gates", "gshard_router", "switch_router", "top_k_router"),
        capacity_factor=2.0,
    ),
    Router(
        "reinforce",
        "RL-R",
        (
            "output_norm", "shared_experts", "router_scale", *LIMITED, "balance_weight", "policy_weight",
            "baseline_weight", "entropy_weight", "nucleus", "reward_to_go",
        ),
        (
            "PolicyTerms", "log_policy", "log_probability", "policy_entropy", "policy_terms", "reinforce_router",
            "reward_to_go", "state_value",
        ),
        paper_name="RL-R",
        capacity_factor=2.0,
        constant_gate=True,
        router_scale=16.0,
        policy=True,
        example={"experts": 4, "granularity": 2},
    ),
    Router(
        "expert_choice",
        "Expert-Choice",
        (*SCORED, *GROUPING, "gate"),
        (
            "expert_choice_ffn", "expert_choice_router", "group_by_position", "selection_scores",
            "ungroup_by_position",
        ),
        grouped=True,
    ),
    Router(
        "mixture_of_tokens",
        "MoT",
        (*SCORED, *GROUPING, "temperature", "one_hot", "emit", "learned_temperature"),
        ("MixtureOutput", "emit_weights", "group_within_sequence", "mixing_weights", "ungroup_within_sequence"),
        grouped=True,
        example={"experts": 2, "group_size": 4},
    ),
)  # fmt: skip
"""All routers that a model can be built with."""

RECORD_OF = {record.name: record for record in RECORDS}

ROUTERS = tuple(RECORD_OF)
"""Values of `--router`."""

ROUTER_TYPES = {record.name: record.router_type for record in RECORDS}
"""The `router_type` in a results table for the name of each router."""

DENSE = ROUTER_TYPES["dense"]

OPTIONS = frozenset(option for record in RECORDS for option in record.options)
"""Fields of `ModelConfig` that are for some routers only."""

EXAMPLES = {record.name: {"router": record.name, **record.example} for record in RECORDS}
"""A small model with each router, by its fields."""


SEVERAL = tuple(record.name for record in RECORDS if "capacity_factor" in record.options and not record.policy)
"""Routers that one model can mix, one for each routed block: they choose experts for tokens, without a baseline."""


def router_counts(routers: str) -> list[tuple[str, int]]:
    """Return [(router, number of blocks)] of a list, neighbours merged: "hash,hash,top_k" and "hash:2,top_k" are equal.

    Raises:
        ValueError: an entry is not ROUTER or ROUTER:NUMBER, or one model cannot mix this router with others.

    Example:
        >>> router_counts("hash,hash:2,top_k")
        [('hash', 3), ('top_k', 1)]
    """
    entries = [entry.strip().partition(":") for entry in routers.split(",")]
    for (name, colon, number), entry in zip(entries, routers.split(","), strict=True):
        if name not in SEVERAL or (colon and not (number.isascii() and number.isdecimal() and int(number[:9]))):
            raise InputError(
                f"router lists {entry.strip()!r}; list only the routed blocks, with entries such as top_k or top_k:3, "
                f"of {', '.join(SEVERAL)}"
            )
    merged = itertools.groupby(entries, key=lambda entry: entry[0])
    return [(name, sum(int(number[:9] or 1) for *_, number in group)) for name, group in merged]


def record_of(routers: str) -> Router:
    """Return the record of a router, or of a list: the options of all, and the defaults that all share, else None."""
    if routers in RECORD_OF:
        return RECORD_OF[routers]
    counts = router_counts(routers)
    records = [RECORD_OF[name] for name, _ in counts]
    options = dict.fromkeys(option for record in records for option in record.options)
    shared = {}
    for field in ("capacity_factor", "gate", "router_scale"):
        values = {getattr(record, field) for record in records}
        shared[field] = values.pop() if len(values) == 1 else None
    router_type = " + ".join(record.router_type for record in records)
    return Router(routers, router_type, tuple(options), constant_gate=all(r.constant_gate for r in records), **shared)


def routers_with(option: str) -> tuple[str, ...]:
    """Return the routers that have this option of `OPTIONS`."""
    return tuple(record.name for record in RECORDS if option in record.options)
