import math
from types import SimpleNamespace

USUAL = dict(
    vocab_size=32_000,
    d_model=512,
    blocks=6,
    heads=8,
    router="dense",
    experts=1,
    k=1,
    routing_frequency=0.5,
    granularity=1,
    flop_increase=1,
    drop_order="choice",
    sample_second=False,
    z_weight=0.0,
    bias_rate=0.0,
    policy_weight=0.01,
    baseline_weight=0.01,
    entropy_weight=0.0,
    nucleus=1.0,
    reward_to_go=False,
    hash="modulo",
    grouping="position",
    temperature=1.0,
    one_hot=False,
    objective="causal",
    mask_token=0,
    activation="gelu",
    positions="relative",
    layout="spread",
    output_norm=False,
    emit="mixing",
    learned_temperature=False,
    balance_scope="group",
    gate_scale=1.0,
    expert_groups=1,
    groups_per_token=1,
    group_score="two_best",
    router_bias=False,
    shared_experts=0,
    latent_width=0,
    zero_experts=0,
    zero_kind="identity",
)
"""Default values that do not depend on other fields."""


def routers_of_blocks(listed: str) -> list:
    """Return the router of each routed block from a list such as hash:2,top_k, or one router for all blocks."""
    entries = [entry.split(":") for entry in listed.split(",")]
    return [name for name, *number in entries for _ in range(int(number[0]) if number else 1)]


def at_block(config: SimpleNamespace, index: int) -> SimpleNamespace:
    """Return the settings of the routed block `index`: those of its own router, with the defaults of this router."""
    return settings(**config.fields | {"router": config.listed[index]}) if len(config.listed) > 1 else config


def settings(**fields) -> SimpleNamespace:
    """Return the fields of a configuration, with defaults for missing fields.

    The width of a head is d / H. In training, the capacity factor is 2. It is 1 for BASE, which is balanced. Hash
    routers have no limit. Gates are a sigmoid for BASE and quantile, and a softmax for other routers. Several gates of
    a token sum to 1, and a single gate is unchanged. The balance loss has the weight 0.01, or 0 if `bias_rate` is
    above 0. The router weights of RL-R start 16 times as large as those of other routers. A group has E tokens.
    The target of the number of real experts per token is the number with equal loads.
    """
    config = SimpleNamespace(**USUAL | fields, listed=routers_of_blocks(fields.get("router", "dense")), fields=fields)
    real = config.experts * config.granularity
    several = config.k * config.granularity > 1
    slots = {"sinkhorn": 2.0, "base": 1.0, "quantile": 2.0, "top_k": 2.0, "reinforce": 2.0}
    for name, value in (
        ("kqv_size", config.d_model // config.heads),
        ("capacity_factor", slots.get(config.router, math.inf)),
        ("gate", "sigmoid" if config.router in ("base", "quantile") else "softmax"),
        ("normalisation", "sum" if several else "none"),
        ("balance_weight", 0.0 if config.bias_rate else 0.01),
        ("router_scale", 16.0 if config.router == "reinforce" else 1.0),
        ("group_size", config.experts),
        ("real_experts", config.k * config.granularity * real / (real + config.zero_experts)),
    ):
        if name not in fields:
            setattr(config, name, value)
    return config
