"""The size and cost of a model: N, P, F and B of any configuration.

Clark et al. 2022 report three numbers for each of 223 runs: the dense parameter count N, the total parameter count P,
and the forward FLOPs of one training step. The formulas below reproduce all these numbers exactly. Here n_r =
routing_frequency * num_blocks is the number of routed blocks, and a = num_heads * kqv_size:

    N = L (5da + 8d² + 4d)                   query, key, value, output and relative-position key; FFN; two norms
    P = N + n_r ((E − 1) 8d² + dEG)          E experts instead of one FFN, and a router
    F = L (8da + 2da + 16d² + 6Sa + 3SH + 10d) + 2Vd + n_r (2dEG + (k − 1) 16d²)    per token, forward

G is 1 in all these runs. With granularity G (Krajewski et al. 2024) there are E·G experts of width 4d/G, and k·G of
them process a token. The weights and FLOPs of the experts do not change, but the router grows. Expert choice uses the
same formulas, with k as the mean number of experts per token. In a Mixture of Tokens each expert processes one mixture
per group of g tokens. So E/g replaces k in F; mixing and redistribution add 2dEG each.

Later extensions are counted in the same way (our choice where no paper gives a count):
- SwiGLU: an FFN of three matrices and width 3d has 9d² weights instead of 8d² (Ludziejewski et al. 2025).
- rotary positions: 4da instead of 5da in N, because there is no relative-position key. In F, 4Sa replaces 6Sa, and 6a
  is added for the rotation of a token's query and key (3 FLOPs per entry).
- LayerNorm on the output of a routed layer: 2d in P and 5d in F for each routed block; N does not grow.
- RMSNorm: d weights per norm instead of 2d. F counts it like LayerNorm.
- learned temperatures of a Mixture of Tokens: 2 in P for each routed block.
- s shared experts, each as wide as a routed expert: s 8d² / G in P and s 16d² / G in F for each routed block; N does
  not grow. DeepSeekMoE (Dai et al. 2024, arXiv 2401.06066) counts shared experts as active.
- a latent width l (LatentMoE, Elango et al. 2026, arXiv 2601.18089): an expert has l/d of its weights and FLOPs. The
  two projections add 2dl in P and 4dl in F for each routed block.
- Z zero-computation experts: dZ router weights, and 3d weights each if they are constant (two for mixing, one offset).
  In F, the mean number of real experts per token replaces kG; F excludes the additions of the other experts.
- a learned bias of the router: EG + Z in P for each routed block. F excludes this addition.

N and P exclude the embedding, the final norm, and the bias of routers that balance with a bias. F includes attention
without the causal mask (6Sa for QK, relative QK and AV), 3 FLOPs per attention logit for the softmax, 10d for the
norms, and the output layer 2Vd. N does not grow with k. The masked objective has the same count as the causal
objective, although it projects the keys of 2S − 1 distances instead of S.

This file follows three conventions of the released table:
- Hash has no router weights, but the table counts d·E router weights and their FLOPs.
- RL-R has a baseline d → d/8 → 1 in every routed block: d·d/8 + d/8 more parameters, and twice as many FLOPs.
- A dense model with flop_increase = X counts as X experts, all used, in a share R of its blocks.

Source: deduced from the released table; we could not compare the formulas with the paper's appendix.
"""

from typing import NamedTuple

from .errors import InputError
from .notation import _check_k
from .routers.records import ROUTER_TYPES

TABLE_VOCAB_SIZE = 32_000
"""Vocabulary of every run in the released table."""

TABLE_SEQUENCE_LENGTH = 2048
"""Tokens per sequence of every run in the released table."""

TABLE_TOKENS_PER_STEP = 256 * 2048
"""Tokens per training step of every run in the released table."""

ACTIVATIONS = ("gelu", "relu", "swiglu")
"""Nonlinearities of an FFN. SwiGLU (Shazeer 2020, arXiv 2002.05202) multiplies silu(x · up) by x · linear."""

POSITIONS = ("relative", "rotary")
"""Ways to encode positions in attention: a key for each distance, or a rotation of queries and keys (RoPE)."""

NORMS = ("layer", "rms")
"""Norms of the residual stream: LayerNorm, or RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467)."""

ROUNDING = 1e-3
"""The largest accepted relative error of a rounded routing frequency: 0.0833 counts as 1/12."""


class Shape(NamedTuple):
    """The shape of a dense model of the paper: four sizes, and N.

    Attributes:
        d_model: d
        num_blocks: L
        num_heads: H
        kqv_size: width of one head
        dense_parameters: N, without the embedding
    """

    d_model: int
    num_blocks: int
    num_heads: int
    kqv_size: int
    dense_parameters: int


SIZES = {
    "15M": Shape(512, 6, 8, 32, 16_527_360),
    "25M": Shape(512, 8, 8, 64, 27_279_360),
    "55M": Shape(640, 10, 12, 64, 57_369_600),
    "130M": Shape(896, 12, 16, 64, 132_163_584),
    "370M": Shape(1536, 12, 12, 128, 368_123_904),
    "1.3B": Shape(2048, 24, 16, 128, 1_308_819_456),
}
"""The six sizes of the paper."""


class Accounting(NamedTuple):
    """The size and the cost of one model.

    Attributes:
        dense_parameters: N
        total_parameters: P
        flops_per_token: F, forward pass
        utilisation: B = P / F
    """

    dense_parameters: int
    total_parameters: int
    flops_per_token: int
    utilisation: float


def routed_blocks(num_blocks: int, routing_frequency: float) -> int:
    """Return n_r = R L, the number of routed blocks, as an integer.

    R may be rounded: 0.3333 of 6 blocks is 2 blocks. The function returns the integer nearest to R L if the two differ
    by at most `ROUNDING` · max(1, R L).

    Raises:
        ValueError: R is not in (0, 1], R L differs by more than this from an integer, or the integer is 0.
    """
    if not 0 < routing_frequency <= 1:
        raise InputError(f"routing_frequency is {routing_frequency}; it has to be above 0 and at most 1")
    product = routing_frequency * num_blocks
    if abs(product - round(product)) > ROUNDING * max(1, product) or round(product) < 1:
        raise InputError(
            f"routing_frequency {routing_frequency:g} times blocks {num_blocks} is {product:g}; "
            "it has to be a whole number of routed blocks, at least 1"
        )
    return round(product)


def count(
    d_model: int,
    num_blocks: int,
    num_heads: int,
    kqv_size: int,
    router_type: str = "Dense",
    num_experts: int = 1,
    k: int = 1,
    routing_frequency: float = 0.5,
    flop_increase: int = 1,
    *,
    granularity: int = 1,
    group_size: int | None = None,
    vocab_size: int = TABLE_VOCAB_SIZE,
    sequence_length: int = TABLE_SEQUENCE_LENGTH,
    activation: str = "gelu",
    positions: str = "relative",
    output_norm: bool = False,
    learned_temperature: bool = False,
    shared_experts: int = 0,
    latent_width: int = 0,
    zero_experts: int = 0,
    zero_kind: str = "identity",
    real_experts: float | None = None,
    router_bias: bool = False,
    norm: str = "layer",
) -> Accounting:
    """Count the parameters and the FLOPs of a model.

    Args:
        d_model: d.
        num_blocks: L.
        num_heads: H.
        kqv_size: width of one head; H * kqv_size need not equal d.
        router_type: one of the values of ROUTER_TYPES. Types without a rule above count like S-Base.
        num_experts: E >= 1, in units of a dense FFN; 1 for a dense model.
        k: experts per token in units of a dense FFN, 1 <= k <= E (ignored for a dense model).
        routing_frequency: R, the share of blocks that are routed; R * L must be an integer, but R may be rounded (see
            `routed_blocks`).
        flop_increase: X >= 1, the factor by which a dense model widens the FFN in a share R of its blocks.
        granularity: G >= 1, the number of narrow experts that replace one expert; 1 for a dense model.
        group_size: g >= 1, tokens in a group of a Mixture of Tokens. None means E: then the experts cost as much as a
            dense FFN.
        vocab_size: V, for the output layer's FLOPs.
        sequence_length: S, for the attention's FLOPs.
        activation: activation of all FFNs; "swiglu" changes the number of weights.
        positions: "relative" or "rotary".
        output_norm: whether the output of a routed layer passes through a LayerNorm.
        learned_temperature: whether a Mixture of Tokens learns its temperatures.
        shared_experts: s >= 0, experts of width 4d/G in each routed block that process every token.
        latent_width: l >= 0, the width at which experts work; 0 for d.
        zero_experts: Z >= 0, only for Top-K.
        zero_kind: the kind of the zero-computation experts, one of `experts.ZERO_KINDS`.
        real_experts: the mean number of real experts among the kG choices of a token; None for kG.
        router_bias: whether Top-K adds a learned number per expert to the logits.
        norm: "layer" or "rms".

    Returns:
        `Accounting`.

    Raises:
        ValueError: the router_type is unknown, a number is out of range, or R L is not whole.

    Example:
        The 15M model of the paper with 64 experts in every other block:

        >>> count(512, 6, 8, 32, "S-Base", 64)[:2]
        (16527360, 412987392)

        Two shared experts with G = 4 add half of the 8 · 512² weights of a dense FFN to each of three routed blocks:

        >>> more, less = (count(512, 6, 8, 32, "Top-K", 8, granularity=4, shared_experts=s) for s in (2, 0))
        >>> more.total_parameters - less.total_parameters == 3 * 4 * 512**2
        True
        >>> more.flops_per_token - less.flops_per_token == 3 * 8 * 512**2
        True
    """
    _check(router_type, num_experts, k, flop_increase, granularity, group_size)
    _check_options(router_type, activation, positions, norm, output_norm, learned_temperature)
    d, a = d_model, num_heads * kqv_size
    rotary, S = positions == "rotary", sequence_length
    attention = (4 if rotary else 5) * d * a
    ffn = (9 if activation == "swiglu" else 8) * d * d
    shared = _shared_weights(router_type, shared_experts, zero_experts, router_bias, ffn, granularity)
    of_norm = d if norm == "rms" else 2 * d
    dense = num_blocks * (attention + ffn + 2 * of_norm)
    attention_flops = 2 * attention + ((4 * S + 6) if rotary else 6 * S) * a + 3 * S * num_heads
    flops = num_blocks * (attention_flops + 2 * ffn + 10 * d) + 2 * vocab_size * d
    if router_type == "Dense":
        num_experts = k = flop_increase  # the table counts a wide FFN as this many experts, all used
    if num_experts == 1 and router_type == "Dense":
        return Accounting(dense, dense, flops, dense / flops)
    routed = routed_blocks(num_blocks, routing_frequency)
    choosable = num_experts * granularity + zero_experts
    router = d * choosable
    baseline = d * (d // 8) + d // 8 if router_type == "RL-R" else 0
    output, norm_flops = (of_norm, 5 * d) if output_norm else (0, 0)
    temperatures = 2 if learned_temperature else 0
    added = choosable if router_bias else 0
    added += 3 * d * zero_experts if zero_kind == "constant" else 0
    expert, latent = ffn * (latent_width or d) // d, 2 * d * latent_width
    active = k * expert if real_experts is None else round(real_experts * expert / granularity)
    total = dense - ffn * routed
    total += routed * (num_experts * expert + router + baseline + output + temperatures + shared + added + latent)
    flops += routed * (2 * router + 2 * baseline + 2 * (active - ffn) + norm_flops + 2 * shared + 2 * latent)
    if router_type == "MoT":
        flops += routed * (4 * router + _mixture_flops(num_experts, group_size or num_experts, ffn))
    return Accounting(dense, total, flops, total / flops)


def _shared_weights(router_type, shared_experts, zero_experts, router_bias, ffn, granularity) -> int:
    """Return the number of weights of the shared experts in a routed block."""
    if shared_experts < 0 or (router_type == "Dense" and shared_experts):
        raise InputError(
            f"shared_experts is {shared_experts}; needed: at least 0 for a routed model, 0 for a dense model"
        )
    if router_bias and router_type != "Top-K":
        raise InputError("router_bias is True, but only Top-K has this option")
    if zero_experts < 0 or (zero_experts and router_type != "Top-K"):
        raise InputError(f"zero_experts is {zero_experts}; needed: at least 0 for Top-K, 0 for other routers")
    if shared_experts * ffn % granularity:
        raise InputError(
            f"granularity is {granularity}; it has to divide {shared_experts * ffn}, the number of shared weights"
        )
    return shared_experts * ffn // granularity


def _mixture_flops(num_experts: int, group_size: int, ffn: int) -> int | float:
    """Return the FLOPs per token of a Mixture of Tokens minus the FLOPs of one dense FFN, as an integer if possible."""
    extra = 2 * ffn * (num_experts - group_size)
    return extra // group_size if extra % group_size == 0 else extra / group_size


def _check(router_type, num_experts, k, flop_increase, granularity, group_size) -> None:
    if router_type not in ROUTER_TYPES.values():
        raise InputError(f"router_type is {router_type!r}; allowed: {', '.join(ROUTER_TYPES.values())}")
    if num_experts < 1:
        raise InputError(f"num_experts is {num_experts}; at least 1 is needed")
    if router_type == "Dense" and num_experts != 1:
        raise InputError(f"num_experts is {num_experts}; a dense model has 1")
    if router_type != "Dense":
        _check_k(k, num_experts)
    if flop_increase < 1 or (router_type != "Dense" and flop_increase != 1):
        raise InputError(
            f"flop_increase is {flop_increase}; needed: at least 1 for a dense model, 1 for a routed model"
        )
    if granularity < 1 or (router_type == "Dense" and granularity != 1):
        raise InputError(f"granularity is {granularity}; needed: at least 1 for a routed model, 1 for a dense model")
    if group_size is not None and group_size < 1:
        raise InputError(f"group_size is {group_size}; at least 1 is needed")


def _check_options(router_type, activation, positions, norm, output_norm, learned_temperature) -> None:
    named = (("activation", activation, ACTIVATIONS), ("positions", positions, POSITIONS), ("norm", norm, NORMS))
    for name, value, allowed in named:
        if value not in allowed:
            raise InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
    if output_norm and router_type == "Dense":
        raise InputError("output_norm is True; a dense model has no routed layers")
    if learned_temperature and router_type != "MoT":
        raise InputError("learned_temperature is True, but only MoT has this option")
