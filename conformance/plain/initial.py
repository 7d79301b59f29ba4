import math


def weights(config) -> dict:
    """Return {name: (shape, standard deviation)}, nested like the parameters. Constants have the deviation 0.

    A matrix starts from a normal distribution with the deviation 1/√(fan-in), truncated at two deviations. The output
    matrix of attention and the second matrix of an FFN write into the residual stream. Their deviation is divided by
    √(2L), because the stream is a sum of 2L outputs. Scales of norms start at 1. Offsets and biases start at 0.
    """
    d, blocks, heads, kqv = config.d_model, config.blocks, config.heads, config.kqv_size
    differing = config.router != "dense" or config.flop_increase > 1
    special = round(blocks * config.routing_frequency) if differing else 0
    width, swiglu = (3 * d, True) if config.activation == "swiglu" else (4 * d, False)
    projections = ("query", "key", "value", "relative_key")[: 3 if config.positions == "rotary" else 4]
    smaller = math.sqrt(2 * blocks)
    shapes = {
        "embedding": ((config.vocab_size, d), 1 / math.sqrt(d)),
        "blocks": {
            "attention_norm": norm(blocks, d),
            "ffn_norm": norm(blocks, d),
            "attention": {name: ((blocks, d, heads, kqv), 1 / math.sqrt(d)) for name in projections}
            | {"output": ((blocks, heads, kqv, d), 1 / math.sqrt(heads * kqv) / smaller)},
        },
        "final_norm": {"scale": ((d,), 0.0), "offset": ((d,), 0.0)},
    }
    if blocks > special:
        shapes["dense_ffn"] = ffn((blocks - special,), d, width, width, smaller, swiglu)
    if special and config.router == "dense":
        wide = width * config.flop_increase
        shapes["wide_ffn"] = ffn((special,), d, wide, wide, smaller, swiglu)
    if special and config.router != "dense":
        shapes["routed_ffn"] = routed(config, special, width, smaller)
    return shapes


def norm(blocks: int, d: int) -> dict:
    """Return the scale and the offset of one LayerNorm in each block."""
    return {"scale": ((blocks, d), 0.0), "offset": ((blocks, d), 0.0)}


def ffn(leading: tuple, d: int, hidden: int, fan_in: int, smaller: float, swiglu: bool) -> dict:
    """Return the two matrices of FFNs with one hidden width, or the three matrices for SwiGLU."""
    shapes = {
        "up": ((*leading, d, hidden), 1 / math.sqrt(d)),
        "down": ((*leading, hidden, d), 1 / math.sqrt(fan_in) / smaller),
    }
    return shapes | ({"linear": shapes["up"]} if swiglu else {})


def routed(config, blocks: int, width: int, smaller: float) -> dict:
    """Return the weights of the routed blocks: the router, and E G experts with 1/G of the dense hidden width.

    The routers hash and reinforce have constant gates. In their blocks, the second matrix of a narrow expert uses the
    fan-in of a dense FFN, because G narrow experts replace a dense FFN.
    """
    d, experts = config.d_model, config.experts * config.granularity
    hidden = width // config.granularity
    routers = config.listed if len(config.listed) > 1 else config.listed * blocks
    latent = config.latent_width
    written = 1.0 if latent else smaller  # latent_up, not the experts, writes into the residual stream
    shapes = ffn((blocks, experts), latent or d, hidden, hidden, written, config.activation == "swiglu")
    if latent:
        shapes["latent_down"] = ((blocks, d, latent), 1 / math.sqrt(d))
        shapes["latent_up"] = ((blocks, latent, d), 1 / math.sqrt(latent) / smaller)
    fan_in = [width if router in ("hash", "reinforce") else hidden for router in routers]
    deviations = [1 / math.sqrt(wide) / written for wide in fan_in]
    same = len(set(deviations)) == 1
    shapes["down"] = shapes["down"][0], deviations[0] if same else [[[[deviation]]] for deviation in deviations]
    if config.router != "hash":
        shapes["router"] = ((blocks, d, experts + config.zero_experts), config.router_scale / math.sqrt(d))
    if config.router_bias:
        shapes["router_bias"] = ((blocks, experts + config.zero_experts), 0.0)
    if config.zero_kind == "constant":
        zero = config.zero_experts
        shapes["constants"] = {"mix": ((blocks, zero, d, 2), 1 / math.sqrt(d)), "offset": ((blocks, zero, d), 0.0)}
    if config.shared_experts:
        wide = config.shared_experts * hidden
        shapes["shared"] = ffn((blocks,), d, wide, wide, smaller, config.activation == "swiglu")
    if "quantile" in config.listed or config.bias_rate > 0:
        shapes["bias"] = ((blocks, experts + config.zero_experts), 0.0)
    if config.output_norm:
        shapes["output_norm"] = norm(blocks, d)
    if config.learned_temperature:
        shapes["log_temperature"] = ((blocks, 2), 0.0)
    if config.router == "reinforce":
        shapes["baseline"] = {
            "hidden": ((blocks, d, d // 8), 1 / math.sqrt(d)),
            "out": ((blocks, d // 8), 1 / math.sqrt(d // 8)),
        }
    return shapes


def deviation_when_cut(limit: float = 2.0) -> float:
    """Return the deviation of a standard normal that is truncated at ±limit, such as 0.8796 for the limit 2."""
    density = math.exp(-(limit**2) / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(limit / math.sqrt(2))
    return math.sqrt(1 - 2 * limit * density / inside)
