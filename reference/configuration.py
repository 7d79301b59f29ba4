"""The configuration of a model: every option that changes its function, and the rules for valid combinations.

A model is dense or routed. In a routed model, one of the routers of `routers/` decides which experts process which
tokens. A routed block has E·G experts of hidden width 4d/G: E times the weights of a dense FFN. Each token uses k·G
experts: k times the FLOPs of a dense FFN.

`routers/records.py` lists the routers with their options and defaults.
"""

import dataclasses
import math
import warnings

from .accounting import ACTIVATIONS, NORMS, POSITIONS, ROUNDING, Accounting, count, routed_blocks
from .errors import InputError
from .experts import DROP_ORDERS, ZERO_KINDS
from .notation import _check_k
from .routers.mixture_of_tokens import EMITS
from .routers.records import (
    OPTIONS,
    RECORD_OF,
    RECORDS,
    ROUTERS,
    SEVERAL,
    Router,
    record_of,
    router_counts,
    routers_with,
)
from .routers.sinkhorn import GATES
from .routers.top_k import GROUP_SCORES, NORMALISATIONS, SCORES, _check_gate_scale, _groups_of_experts

HASHES = (
    "modulo", "random", "balanced", "clustered", "dispersed", "multi", "previous", "position", "bigram",
)  # fmt: skip
"""What a hash model looks up. modulo, random, balanced, clustered and dispersed: the token id in one table. multi: the
token id in several tables. previous: the id of the previous token. bigram: both ids. position: the position.

`routed_block.hash_table` needs the counts of the tokens for balanced, their embeddings for clustered and dispersed, and
uniform random numbers for random, multi and bigram.
"""

OBJECTIVES = ("causal", "masked")
"""What the model predicts: the next token from earlier tokens, or hidden tokens from all other tokens."""

GROUPINGS = ("position", "sequence")
"""The tokens of a group: one position of g sequences, a whole sequence (expert_choice), or g neighbours in a sequence
(mixture_of_tokens)."""

BALANCE_SCOPES = ("group", "sequence")
"""The tokens of one balance loss of top_k: the whole group, or each sequence separately."""

LAYOUTS = ("spread", "upper")
"""Which blocks are routed: every (1/R)-th block, or the last R L blocks."""


def _is_whole(least: int):
    """Return a function that checks that a value is a whole number of at least `least`."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


_COUNTS = dict.fromkeys(
    (
        "vocab_size", "d_model", "blocks", "heads", "experts", "k", "granularity", "flop_increase", "expert_groups",
        "groups_per_token",
    ),
    (_is_whole(1), "a whole number of at least 1"),
)  # fmt: skip
"""The range of each count: a condition and its description."""

_WEIGHTS = ("balance_weight", "z_weight", "bias_rate", "policy_weight", "baseline_weight", "entropy_weight")

_RANGES = {
    "capacity_factor": (lambda value: value > 0, "above 0 (inf drops no token)"),
    **dict.fromkeys(_WEIGHTS, (lambda value: 0 <= value < math.inf, "a finite number of at least 0")),
    **dict.fromkeys(("shared_experts", "latent_width", "zero_experts"), (_is_whole(0), "a whole number of at least 0")),
    "router_scale": (lambda value: 0 < value < math.inf, "above 0 and finite"),
    "nucleus": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "temperature": (lambda value: 0 < value < math.inf, "above 0 and finite"),
    "group_size": (_is_whole(1), "a whole number of at least 1"),
    "mask_rate": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
}
"""The range of each of the other numbers."""

_NAMES = {
    "hash": HASHES,
    "grouping": GROUPINGS,
    "drop_order": DROP_ORDERS,
    "objective": OBJECTIVES,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
    "norm": NORMS,
    "layout": LAYOUTS,
    "emit": EMITS,
    "group_score": GROUP_SCORES,
    "balance_scope": BALANCE_SCOPES,
    "zero_kind": ZERO_KINDS,
}
"""Fields that are one of several names."""

_NAMES_FILLED_IN = {"gate": SCORES, "normalisation": NORMALISATIONS}
"""Fields that are one of several names; the default depends on other fields."""

_FILLED_IN = (
    "capacity_factor",
    "gate",
    "normalisation",
    "balance_weight",
    "router_scale",
    "group_size",
    "real_experts",
)
"""Options with the default None, which stands for a value that depends on other fields."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model. The fields are listed with their meaning and default.

    A field left at None gets its default value, and `dataclasses.replace` keeps this value. So if you replace a field,
    set the fields that depend on it to None again. kqv_size depends on d_model and heads, group_size on experts, and
    the options of a router on the router, k, granularity, bias_rate, experts and zero_experts.

    Attributes:
        vocab_size: V, the number of token ids. A SentencePiece tokenizer of this size is trained on the corpus.
        d_model: d, the width of the model; an even number.
        blocks: L, the number of blocks.
        heads: H, the number of attention heads.
        kqv_size: Width of one head. If not given: d_model / heads.
        router: {routers}. Or a list with the router of each routed block, from the first on: hash,top_k,top_k or
            hash:1,top_k:2. A list can have {several}. An option applies to all routers that have it.
        experts: E, the number of experts, each as large as a dense FFN. A dense model has 1.
        k: Experts per token. For expert_choice: the mean number.
        routing_frequency: R, the share of blocks that are routed. R times the number of blocks must be a whole number.
        granularity: G: each expert is cut into G narrower experts. A block then has E G experts; each token uses k G of
            them.
        flop_increase: For a dense model: factor by which the FFN is wider in a share R of the blocks.
        capacity_factor: Slots of an expert in training, as a multiple of its fair share; with inf, no token is dropped.
            If not given: 1 for base, 2 for sinkhorn, quantile, top_k and reinforce, inf for the other routers.
        drop_order: Which tokens come first if an expert has too few slots. choice: tokens with this expert as first
            choice, then tokens with it as second choice. token: earlier tokens. priority: tokens with the largest
            gates (not for hash and reinforce).
        gate: Function from logits to gates: softmax, sigmoid or, for top_k and hash_gated, sqrtsoftplus (as in
            DeepSeek-V4). If not given: sigmoid for base and quantile, softmax for the other routers. hash, reinforce
            and mixture_of_tokens have no gate option.
        normalisation: Normalisation of the gates of top_k and hash_gated: none, sum or softmax (over the chosen
            experts). If not given: "none" for one expert per token, else "sum".
        sample_second: For top_k with two experts per token, as in GShard: keep the second expert with probability
            min(1, 2 gate).
        balance_weight: Weight of the balance loss of top_k and reinforce; the loss is 1 if all experts have the same
            load. If not given: 0.01, or 0 if --bias-rate is above 0.
        z_weight: Weight of the z-loss of top_k.
        bias_rate: For top_k: step size of the bias of an expert. Each step lowers the bias if the load of the expert is
            above the mean, and raises it if the load is below. 0: no bias.
        balance_scope: For top_k, the balance loss: one loss over all tokens of the group (group), or the mean of one
            loss per sequence (sequence, as in DeepSeek-V3).
        gate_scale: For top_k and hash_gated: multiply every gate by this factor.
        expert_groups: For top_k: number of groups of equal size into which the E G experts are divided. A token first
            chooses groups, then experts of these groups.
        groups_per_token: For top_k: number of groups that a token chooses.
        group_score: For top_k, the score of a group: the sum of its two largest expert scores (two_best) or its largest
            expert score (best).
        router_bias: For top_k: add one learned number per expert to the logits.
        shared_experts: Number of shared experts, which work on every token. Each is as wide as one routed expert.
        latent_width: l, as in LatentMoE: experts work at width l, not d. One matrix [d, l] per block projects tokens
            before the experts, and one matrix [l, d] projects the sum of their outputs. The router and the shared
            experts keep width d. 0: no projection.
        zero_experts: For top_k: number of zero-computation experts among which a token also chooses, after the E G real
            ones. They have no FFN, no capacity and nearly no cost.
        zero_kind: What a zero-computation expert returns: its input (identity, as in LongCat-Flash), nothing (zero), or
            a learned mixture of its input and a learned offset (constant; all three as in MoE++).
        real_experts: With zero_experts and a bias_rate above 0: the mean number of real experts among the k G choices
            of a token, at which the biases aim (LongCat-Flash). F counts this number. If not given: the number with
            equal loads, k G E G / (E G + zero_experts).
        router_scale: Standard deviation of the initial router weights, in units of 1/sqrt(d). If not given: 16
            for reinforce, 1 for the other routers; hash has no router weights.
        policy_weight: Weight of the policy gradient of reinforce.
        baseline_weight: Weight of the squared error of the baseline of reinforce.
        entropy_weight: Weight of the entropy bonus of reinforce.
        nucleus: For reinforce: draw from the most probable experts that together have this probability.
        reward_to_go: For reinforce: reward a choice by the log-probabilities of its token and all later tokens. The
            terms then grow, so multiply policy_weight by about 1/S and baseline_weight by about 1/S^2.
        hash: For hash and hash_gated: modulo, random, balanced, clustered, dispersed, multi, previous, position or
            bigram.
        grouping: How expert_choice and mixture_of_tokens group tokens: by position across sequences (position), or
            within a sequence (sequence). Groups within a sequence are not causal. So a causal model uses them only to
            train expert_choice; a masked model always uses them, also for mixture_of_tokens.
        group_size: Tokens in a group, for expert_choice by position and for mixture_of_tokens. It must divide the batch
            size, or the sequence length with grouping sequence. If not given: E.
        temperature: Temperature of the mixing weights of mixture_of_tokens.
        one_hot: For mixture_of_tokens: mixtures of one token each, for evaluation; they have no gradient.
        objective: What the model predicts: the next token (causal), or hidden tokens from all other tokens (masked; not
            for reinforce).
        mask_rate: Masked objective: the share of each sequence that is hidden. The number of hidden tokens is fixed;
            their positions are random.
        mask_token: Masked objective: the token id that replaces a hidden token.
        activation: Activation of experts and dense FFNs: gelu, relu or swiglu. gelu and relu have two matrices of
            width 4d; swiglu has three of width 3d.
        positions: Positions in attention: relative (adds a vector to each key, for its distance from the query) or
            rotary (rotates queries and keys).
        layout: Which blocks are routed, if R is their share: every (1/R)-th block (spread) or the last ones (upper).
            In a dense model: which blocks have the wider FFN of flop_increase.
        output_norm: Apply the norm to the output of a routed layer, before the residual sum.
        emit: For mixture_of_tokens, how the outputs of experts are divided among tokens: by the mixing weights
            (mixing), or by a softmax over the experts (experts).
        learned_temperature: For mixture_of_tokens: learn two factors of the temperature in each block, one for mixing
            and one for emitting.
        norm: Norm of the residual stream: LayerNorm (layer), or RMSNorm without a mean and an offset (rms).

    Raises:
        ValueError: the combination is invalid; the message names the field and the allowed values.
    """

    vocab_size: int = 32_000
    d_model: int = 512
    blocks: int = 6
    heads: int = 8
    kqv_size: int | None = None
    router: str = "dense"
    experts: int = 1
    k: int = 1
    routing_frequency: float = 0.5
    granularity: int = 1
    flop_increase: int = 1
    capacity_factor: float | None = None
    drop_order: str = "choice"
    gate: str | None = None
    normalisation: str | None = None
    sample_second: bool = False
    balance_weight: float | None = None
    z_weight: float = 0.0
    bias_rate: float = 0.0
    router_scale: float | None = None
    policy_weight: float = 0.01
    baseline_weight: float = 0.01
    entropy_weight: float = 0.0
    nucleus: float = 1.0
    reward_to_go: bool = False
    hash: str = "modulo"
    grouping: str = "position"
    group_size: int | None = None
    temperature: float = 1.0
    one_hot: bool = False
    objective: str = "causal"
    mask_rate: float = 0.15
    mask_token: int = 0
    activation: str = "gelu"
    positions: str = "relative"
    layout: str = "spread"
    output_norm: bool = False
    emit: str = "mixing"
    learned_temperature: bool = False
    balance_scope: str = "group"
    gate_scale: float = 1.0
    expert_groups: int = 1
    groups_per_token: int = 1
    group_score: str = "two_best"
    router_bias: bool = False
    shared_experts: int = 0
    latent_width: int = 0
    zero_experts: int = 0
    zero_kind: str = "identity"
    real_experts: float | None = None
    norm: str = "layer"

    def __post_init__(self):
        self._check_ranges(_COUNTS)
        self._read_routers()
        self._check_names(_NAMES)
        self._check_options()
        self._fill_in()
        self._check_names(_NAMES_FILLED_IN)
        self._check_ranges(_RANGES)
        _check_gate_scale(self.gate_scale)
        self._check_objective()
        if self.router == "dense":
            self._check_dense()
        else:
            self._check_routing()
        if self.router != "dense" or self.flop_increase > 1:
            object.__setattr__(self, "routing_frequency", self._whole_frequency())

    def _read_routers(self):
        """Check the router, or the list of routers, which gets its shortest form."""
        if self.router in ROUTERS:
            return
        if not isinstance(self.router, str) or not {",", ":"} & set(self.router):
            raise InputError(f"router is {self.router!r}; allowed: {', '.join(ROUTERS)}, or a list: hash:1,top_k:2")
        counts, blocks = router_counts(self.router), routed_blocks(self.blocks, self.routing_frequency)
        if (number := sum(number for _, number in counts)) != blocks:
            raise InputError(
                f"router lists {number} blocks, but {blocks} of the {self.blocks} blocks are routed (routing_frequency "
                f"{self.routing_frequency:g}); list {blocks}, such as {counts[0][0]}:{blocks}"
            )
        short = ",".join(f"{name}:{number}" for name, number in counts) if len(counts) > 1 else counts[0][0]
        object.__setattr__(self, "router", short)

    def _differs(self, name: str) -> bool:
        """Return whether an option that follows from the router differs between the blocks, and so stays None."""
        return name in _FILLED_IN and getattr(self, name) is None

    def _check_ranges(self, ranges):
        for name, (fits, needed) in ranges.items():
            if not (self._differs(name) or fits(getattr(self, name))):
                raise InputError(f"{name} is {getattr(self, name)}; it has to be {needed}")

    def _check_names(self, names):
        for name, allowed in names.items():
            if not (self._differs(name) or getattr(self, name) in allowed):
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")

    def _check_dense(self):
        if self.experts != 1 or self.k != 1 or self.granularity != 1:
            raise InputError(
                f"experts is {self.experts}, k {self.k}, granularity {self.granularity}; a dense model has 1 of each"
            )
        if self.flop_increase == 1 and self.routing_frequency != ModelConfig.routing_frequency:
            raise InputError(
                f"routing_frequency is {self.routing_frequency:g}; a dense model has no routed blocks, and it has "
                "wider blocks only if flop_increase is above 1"
            )
        if self.flop_increase == 1 and self.layout != "spread":
            raise InputError(f"layout is {self.layout!r}; a dense model with flop_increase 1 does not use it")

    def _whole_frequency(self):
        """Return R without its rounding error: n_r / L for "upper", 1 / period for "spread"."""
        routed = routed_blocks(self.blocks, self.routing_frequency)
        if self.layout == "upper":
            return routed / self.blocks
        if abs(self.routing_frequency * self.period - 1) > ROUNDING:
            raise InputError(
                f"routing_frequency is {self.routing_frequency:g}; 1 / routing_frequency has to be a whole number"
            )
        return 1 / self.period

    def _check_options(self):
        """Check that options of other routers keep their default, or the value that the default stands for."""
        for field in dataclasses.fields(self):
            value, usual = getattr(self, field.name), (field.default, self._default(field.name))
            if field.name in OPTIONS.difference(self.record.options) and value not in usual:
                routers = ", ".join(routers_with(field.name))
                raise InputError(f"{field.name} is {value!r}; it is an option of {routers}, not of {self.router}")

    def _default(self, name: str):
        """Return the value that `_fill_in` gives to a field left at None."""
        several = self.k * self.granularity > 1
        return {
            "capacity_factor": self.record.capacity_factor,
            "gate": self.record.gate,
            "normalisation": "sum" if several else "none",
            "balance_weight": 0.0 if self.bias_rate else 0.01,
            "router_scale": self.record.router_scale,
            "group_size": self.experts if self.record.grouped else 1,
            "real_experts": self.choices * self.expert_count / self.choosable,
        }.get(name)

    def _fill_in(self):
        """Set the fields whose default depends on other fields."""
        if self.kqv_size is None:
            if self.d_model % self.heads:
                raise InputError(f"heads {self.heads} does not divide d_model {self.d_model}; give kqv_size")
            object.__setattr__(self, "kqv_size", self.d_model // self.heads)
        if self.positions == "rotary" and self.kqv_size % 2:
            raise InputError(
                f"kqv_size is {self.kqv_size}; it has to be even, because rotary positions rotate pairs of entries"
            )
        if not isinstance(self.kqv_size, int) or self.kqv_size < 1 or self.d_model % 2:
            raise InputError(f"kqv_size {self.kqv_size} has to be at least 1, whole, and d_model {self.d_model} even")
        for name in _FILLED_IN:
            if getattr(self, name) is None:
                object.__setattr__(self, name, self._default(name))

    def _check_objective(self):
        """Check the mask token; reject options of the masked objective for a causal model."""
        if isinstance(self.mask_token, bool) or self.mask_token not in range(self.vocab_size):
            raise InputError(f"mask_token is {self.mask_token}; allowed: 0 to {self.vocab_size - 1}")
        for name in ("mask_rate", "mask_token"):
            if self.objective == "causal" and getattr(self, name) != getattr(ModelConfig, name):
                raise InputError(f"{name} is {getattr(self, name)}; it is an option of the masked objective")

    def _check_routing(self):
        _check_k(self.k, self.experts)
        if self.flop_increase != 1:
            raise InputError(f"flop_increase is {self.flop_increase}; it is for dense models; use a larger k instead")
        if self.ffn_width % self.granularity:
            times = self.ffn_width // self.d_model
            raise InputError(f"granularity is {self.granularity}; it has to divide {times} d_model = {self.ffn_width}")
        if self.record.policy and self.d_model < 8:
            raise InputError(f"d_model is {self.d_model}; the baseline of {self.router} needs at least 8")
        if self.zero_experts:
            self._check_zero_experts()
        elif (self.zero_kind, self.real_experts) != ("identity", self.choices):
            raise InputError("zero_kind and real_experts need zero_experts above 0")
        if self.router in ("top_k", "hash_gated"):
            self._check_top_k()
        elif self.gate not in (*GATES, None) and len(self.parts) == 1:
            raise InputError(
                f"gate is {self.gate!r}; {self.router} has {', '.join(GATES)}; top_k and hash_gated have it"
            )
        if len(self.parts) > 1:
            for part, _ in self.parts:
                part._check_routing()
            return
        if self.drop_order == "priority" and self.record.constant_gate:
            raise InputError(f"drop_order is 'priority'; {self.router} has no gates; allowed: choice, token")
        if self.hash == "bigram" and self.choices > 1:
            raise InputError(f"the bigram hash gives one expert per token, not k G = {self.choices}")
        if self.hash == "multi" and (self.k > 1 or self.granularity == 1):
            raise InputError(
                f"k is {self.k} and granularity {self.granularity}; the multi hash needs k 1 and granularity above 1"
            )
        if self.record.grouped:
            self._check_groups()

    def _check_top_k(self):
        """Check the gates, the groups and the options of GShard's second expert."""
        if self.choices == 1 and self.normalisation != "none":
            raise InputError(
                f"normalisation is {self.normalisation!r} for one expert per token: its gate would be 1, and the "
                "router would have no gradient; use none"
            )
        usual = (self.choices, self.gate, self.bias_rate) == (2, "softmax", 0) and self.normalisation != "none"
        if self.sample_second and not usual:
            raise InputError("sample_second needs two experts per token, softmax scores, normalised gates and no bias")
        if self.sample_second and (self.gate_scale, self.expert_groups) != (1, 1):
            raise InputError("sample_second needs gate_scale 1 and expert_groups 1")
        groups = self.expert_groups, self.groups_per_token, self.group_score
        _groups_of_experts(self.expert_count, self.choices, *groups)

    def _check_zero_experts(self):
        if len(self.parts) > 1 or self.sample_second or self.expert_groups > 1:
            raise InputError(
                "zero_experts needs the router top_k in all routed blocks, expert_groups 1 and no sample_second"
            )
        if not 0 < self.real_experts <= self.choices:
            raise InputError(f"real_experts is {self.real_experts}; it has to be above 0 and at most {self.choices}")
        if self.real_experts != self._default("real_experts") and not self.bias_rate:
            raise InputError(f"real_experts is {self.real_experts}; it needs bias_rate above 0, such as 0.01")

    def _check_groups(self):
        """Check the groups: k g / E must be whole for expert choice, and k must be 1 for a Mixture of Tokens."""
        if self.router == "mixture_of_tokens":
            if self.k != 1:
                raise InputError(f"k is {self.k}; mixture_of_tokens does not choose experts; use 1")
            if self.grouping == "sequence" and self.objective == "causal":
                raise InputError("grouping is 'sequence': a mixture then holds later tokens; use objective 'masked'")
            return
        if self.groups_by_position(training=False) and self.k * self.group_size % self.experts:
            raise InputError(
                f"k {self.k} times group_size {self.group_size} divided by experts {self.experts} is the number of "
                "tokens per expert; it has to be whole"
            )
        if self.grouping == "sequence" and self.objective == "causal":
            warnings.warn(
                "grouping is 'sequence': in training, the experts of a token depend on later tokens, so expert_choice "
                "is not causal; evaluation uses grouping 'position'",
                stacklevel=5,  # the line that made the configuration
            )

    def given(self) -> dict:
        """Return {field: value}, arguments of `ModelConfig`; None for a field that follows from other fields."""
        usual = {name: self._default(name) for name in _FILLED_IN} | {"kqv_size": self.d_model / self.heads}
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: None if name in usual and usual[name] == value else value for name, value in values.items()}

    @property
    def record(self) -> Router:
        """The record of the router: its name in tables, its options and their defaults."""
        return record_of(self.router)

    @property
    def parts(self) -> list[tuple["ModelConfig", int]]:
        """The routed blocks: [(the configuration with one router, the number of blocks that follow with it)]."""
        if self.router in ROUTERS:
            return [(self, self.num_routed)]
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return [
            (
                dataclasses.replace(self, router=name, **{o: usual[o] for o in OPTIONS - {*RECORD_OF[name].options}}),
                number,
            )
            for name, number in router_counts(self.router)
        ]

    def of_block(self, index: int) -> "ModelConfig":
        """Return the configuration with the router of the routed block `index`, counted from 0."""
        return [part for part, number in self.parts for _ in range(number)][index]

    @property
    def ffn_width(self) -> int:
        """The width f of a dense FFN: 4d, or 3d for SwiGLU. An expert has width f / G."""
        return (3 if self.activation == "swiglu" else 4) * self.d_model

    @property
    def period(self) -> int:
        """1/R: the distance between routed blocks in the layout "spread"."""
        return round(1 / self.routing_frequency)

    @property
    def num_routed(self) -> int:
        """n_r, the number of routed blocks; 0 for a dense model."""
        return 0 if self.router == "dense" else routed_blocks(self.blocks, self.routing_frequency)

    @property
    def num_wide(self) -> int:
        """The number of blocks with the wider FFN; 0 for a routed model."""
        wide = self.router == "dense" and self.flop_increase > 1
        return routed_blocks(self.blocks, self.routing_frequency) if wide else 0

    @property
    def expert_count(self) -> int:
        """E G, the number of experts of a routed block."""
        return self.experts * self.granularity

    @property
    def choosable(self) -> int:
        """The number of experts that a router chooses among: E G real and Z zero-computation experts."""
        return self.expert_count + self.zero_experts

    @property
    def choices(self) -> int:
        """k G, the number of experts of a token."""
        return self.k * self.granularity

    def top_k_options(self) -> dict:
        """Return {option: value} of `top_k_router` for this configuration."""
        names = ("normalisation", "gate_scale", "expert_groups", "groups_per_token", "group_score")
        return {"score": self.gate} | {name: getattr(self, name) for name in names}

    def groups_by_position(self, training: bool) -> bool:
        """Return whether a group is one position of g sequences.

        This is the case with grouping "position", and in every evaluation of a causal model.
        """
        return self.grouping == "position" or (self.objective == "causal" and not training)

    @property
    def has_bias(self) -> bool:
        """Whether the parameters contain a bias per expert. The load updates this bias, not a gradient."""
        return any(part.router == "quantile" or part.bias_rate > 0 for part, _ in self.parts)

    @property
    def has_table(self) -> bool:
        """Whether a router looks up token ids in a table."""
        return self.hash != "position" and any(part.router in ("hash", "hash_gated") for part, _ in self.parts)

    def is_routed(self, block: int) -> bool:
        """Whether block i, counted from 0, is routed: (i + 1) mod 1/R = 0, or i >= L - n_r for the layout "upper"."""
        return self.router != "dense" and self._is_special(block)

    def is_wide(self, block: int) -> bool:
        """Whether block i of a dense model has the wider FFN, by the rule of `is_routed`."""
        return self.num_wide > 0 and self._is_special(block)

    def _is_special(self, block):
        """Return whether block i is one of the R L blocks that are routed, or wider in a dense model."""
        if self.layout == "upper":
            return block >= self.blocks - routed_blocks(self.blocks, self.routing_frequency)
        return (block + 1) % self.period == 0

    def accounting(self, sequence_length: int) -> Accounting:
        """Return N, P, F and B at sequences of S tokens; see `accounting.count`."""
        kinds = [RECORD_OF[part.router].router_type for part, _ in self.parts]
        return count(
            self.d_model,
            self.blocks,
            self.heads,
            self.kqv_size,
            "Top-K" if "Top-K" in kinds else kinds[0],  # routers of a list count alike; Top-K has most options
            self.experts,
            self.k,
            self.routing_frequency,
            self.flop_increase,
            granularity=self.granularity,
            group_size=self.group_size,
            vocab_size=self.vocab_size,
            sequence_length=sequence_length,
            activation=self.activation,
            positions=self.positions,
            output_norm=self.output_norm,
            learned_temperature=self.learned_temperature,
            shared_experts=self.shared_experts,
            latent_width=self.latent_width,
            zero_experts=self.zero_experts,
            zero_kind=self.zero_kind,
            real_experts=self.real_experts if self.zero_experts else None,
            router_bias=self.router_bias,
            norm=self.norm,
        )


_listed = [f"{record.name} ({record.paper_name})" if record.paper_name else record.name for record in RECORDS]
ModelConfig.__doc__ = ModelConfig.__doc__.replace("{routers}", " or ".join((", ".join(_listed[:-1]), _listed[-1])))
ModelConfig.__doc__ = ModelConfig.__doc__.replace("{several}", " and ".join((", ".join(SEVERAL[:-1]), SEVERAL[-1])))
