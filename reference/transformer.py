"""The paper's decoder-only language model, dense or routed: forward pass and whole training loss.

Clark et al. 2022. The shapes follow from the released parameter counts; what the counts leave open is our choice.

    h = √d · embedding[token]                                                   `apply`
    for each block i = 0 … L−1:
        h ← h + attention(norm(h))                                              `attention`
        h ← h + FFN(norm(h))            or, in routed blocks, Σⱼ gateⱼ · expertⱼ(norm(h))
    logits = norm(h) · embeddingᵀ                                               tied with the input
    loss = mean over tokens of −log softmax(logits)[next token]                 `loss`, in nats per token

Attention has relative positions in the manner of Transformer-XL, with a key projection of their own and no bias
vectors: token i attends to j ≤ i with logit (qᵢ · kⱼ + qᵢ · r₍ᵢ₋ⱼ₎) / √kqv, where r_m is the projection of a sinusoid
of the distance m.

Block i is routed iff (i + 1) mod 1/R = 0. A routed block sends all b·S tokens of the batch to its router as one group,
sequence by sequence.

Parameters are nested dicts of arrays. Blocks are stacked on a leading axis, dense and routed FFNs apart:

    embedding                                  [V, d]
    blocks / attention_norm, ffn_norm          scale, offset [L, d]
    blocks / attention / query, key, value     [L, d, H, kqv]
    blocks / attention / relative_key          [L, d, H, kqv]
    blocks / attention / output                [L, H, kqv, d]
    dense_ffn / up, down                       [L − n_r, d, 4d], [L − n_r, 4d, d]
    routed_ffn / up, down                      [n_r, E, d, 4d], [n_r, E, 4d, d]
    routed_ffn / router                        [n_r, d, E], not for HASH
    final_norm                                 scale, offset [d]

Our choices: pre-norm LayerNorm, GELU (tanh form), no biases, truncated-normal initialisation with standard deviation
1/√fan_in, output projections divided by √(2L) on top.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from . import balance
from .accounting import ROUTER_TYPES, Accounting, count, routed_blocks
from .experts import expert_ffn, routed_ffn
from .notation import Routing, log_sum_exp, softmax
from .routers.base import base_router
from .routers.hash_layer import hash_layer
from .routers.sinkhorn import GATES, sinkhorn_router
from .routers.top_k import top_k_router

ROUTERS = ("dense", "hash", "sinkhorn", "base", "top_k")
"""Routers that this model can be built with."""

DEFAULT_CAPACITY_FACTOR = {"dense": math.inf, "hash": math.inf, "sinkhorn": 2.0, "base": 1.0, "top_k": 2.0}
"""Slots of an expert in units of its fair share, in training; our choice. Evaluation drops nothing for any router.

A fair share is all that BASE needs: its assignment is balanced, so that nothing is dropped.
"""

DEFAULT_GATE = {"base": "sigmoid"}
"""Where a router's gate is not a softmax by default."""

NORM_EPSILON = 1e-5
"""Added to the variance in LayerNorm; our choice."""

TRUNCATION = 2.0
"""Initial weights are drawn from a normal distribution cut at this many standard deviations."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes the function a model computes, apart from its weights.

    Raises:
        ValueError: the combination means no model; the message names the field and what is allowed.
    """

    vocab_size: int = 32_000
    """V."""
    d_model: int = 512
    """d; even, for the sinusoids."""
    num_blocks: int = 6
    """L."""
    num_heads: int = 8
    """H."""
    kqv_size: int | None = None
    """Width of one head; d / H where not given."""
    router: str = "dense"
    """One of `ROUTERS`."""
    num_experts: int = 1
    """E."""
    k: int = 1
    """Experts per token; 1 for hash and base."""
    routing_frequency: float = 0.5
    """R, the share of blocks that are routed; 1/R and R L have to be whole."""
    capacity_factor: float | None = None
    """Slots of an expert in training, in units of k T / E; inf drops nothing; `DEFAULT_CAPACITY_FACTOR` if None."""
    gate: str | None = None
    """Gate of S-BASE and BASE, score of top_k: "softmax" or "sigmoid"; if None "sigmoid" for base, else "softmax"."""
    balance_weight: float = 0.01
    """Of the balance loss of top_k, which is 1 where all experts have the same load."""
    z_weight: float = 0.0
    """Of the z-loss of top_k's logits."""

    def __post_init__(self):
        for name in ("vocab_size", "d_model", "num_blocks", "num_heads", "num_experts", "k"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value}; it has to be a whole number of at least 1")
        if self.router not in ROUTERS:
            raise ValueError(f"router is {self.router!r}; allowed: {', '.join(ROUTERS)}")
        if self.kqv_size is None:
            if self.d_model % self.num_heads:
                raise ValueError(f"num_heads {self.num_heads} does not divide d_model {self.d_model}; give kqv_size")
            object.__setattr__(self, "kqv_size", self.d_model // self.num_heads)
        if self.kqv_size < 1 or self.d_model % 2:
            raise ValueError(f"kqv_size {self.kqv_size} has to be at least 1 and d_model {self.d_model} even")
        if self.capacity_factor is None:
            object.__setattr__(self, "capacity_factor", DEFAULT_CAPACITY_FACTOR[self.router])
        if not self.capacity_factor > 0:
            raise ValueError(f"capacity_factor is {self.capacity_factor}; it has to be above 0 (inf drops nothing)")
        if self.gate is None:
            object.__setattr__(self, "gate", DEFAULT_GATE.get(self.router, "softmax"))
        if self.gate not in GATES:
            raise ValueError(f"gate is {self.gate!r}; allowed: {', '.join(GATES)}")
        self._check_routing()

    def _check_routing(self):
        if self.k > self.num_experts:
            raise ValueError(f"k is {self.k}; it has to be between 1 and num_experts = {self.num_experts}")
        if self.router == "dense":
            if self.num_experts != 1:
                raise ValueError(f"num_experts is {self.num_experts}; a dense model has 1")
            return
        if self.router in ("hash", "base") and self.k != 1:
            raise ValueError(f"k is {self.k}; {self.router} gives each token 1 expert")
        for name in ("balance_weight", "z_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it has to be a finite number of at least 0")
        routed_blocks(self.num_blocks, self.routing_frequency)
        if abs(1 / self.routing_frequency - self.period) > 1e-6:
            raise ValueError(f"routing_frequency is {self.routing_frequency:g}; one over it has to be a whole number")

    @property
    def period(self) -> int:
        """1/R: every how many blocks one is routed."""
        return round(1 / self.routing_frequency)

    @property
    def num_routed(self) -> int:
        """n_r, the number of routed blocks; 0 for a dense model."""
        return 0 if self.router == "dense" else routed_blocks(self.num_blocks, self.routing_frequency)

    def is_routed(self, block: int) -> bool:
        """Whether block i, counted from 0, is routed: (i + 1) mod 1/R = 0."""
        return self.router != "dense" and (block + 1) % self.period == 0

    def accounting(self, sequence_length: int) -> Accounting:
        """Return N, P, F and B at sequences of S tokens; see `accounting.count`."""
        return count(
            self.d_model, self.num_blocks, self.num_heads, self.kqv_size, ROUTER_TYPES[self.router],
            self.num_experts, self.k, self.routing_frequency,
            vocab_size=self.vocab_size, sequence_length=sequence_length,
        )  # fmt: skip


class Output(NamedTuple):
    """What the forward pass returns."""

    logits: np.ndarray  # [b, S, V]
    routing: Routing | None  # fields stacked over routed blocks: [n_r, T, ...] with T = b S; None for a dense model
    dropped_fraction: np.ndarray  # [n_r], share of assignments that found no slot
    auxiliary: np.ndarray  # [n_r], what each routed block's router adds to the training loss; 0 for all but top_k


class Loss(NamedTuple):
    """The training loss and what it was made of."""

    total: float  # what is minimised in training: the cross-entropy and the sum of `output.auxiliary`
    cross_entropy: float  # nats per token
    output: Output


def parameter_shapes(config: ModelConfig) -> dict:
    """Return the parameter tree with (shape, initial standard deviation) in place of arrays.

    A standard deviation of 0 marks norm parameters: scales start at 1, offsets at 0.
    """
    d, heads, kqv, blocks = config.d_model, config.num_heads, config.kqv_size, config.num_blocks
    f, routed, experts = 4 * d, config.num_routed, config.num_experts
    output_scale = 1 / math.sqrt(2 * blocks)
    projection = ((blocks, d, heads, kqv), d**-0.5)
    norm = {"scale": ((blocks, d), 0.0), "offset": ((blocks, d), 0.0)}
    attention_weights = {name: projection for name in ("query", "key", "value", "relative_key")}
    attention_weights["output"] = ((blocks, heads, kqv, d), (heads * kqv) ** -0.5 * output_scale)
    tree = {
        "embedding": ((config.vocab_size, d), d**-0.5),
        "blocks": {"attention_norm": norm, "ffn_norm": norm, "attention": attention_weights},
        "final_norm": {"scale": ((d,), 0.0), "offset": ((d,), 0.0)},
    }
    if blocks > routed:
        tree["dense_ffn"] = {
            "up": ((blocks - routed, d, f), d**-0.5),
            "down": ((blocks - routed, f, d), f**-0.5 * output_scale),
        }
    if routed:
        tree["routed_ffn"] = {
            "up": ((routed, experts, d, f), d**-0.5),
            "down": ((routed, experts, f, d), f**-0.5 * output_scale),
        }
        if config.router != "hash":
            tree["routed_ffn"]["router"] = ((routed, d, experts), d**-0.5)
    return tree


def init(key: np.random.Generator, config: ModelConfig) -> dict:
    """Draw initial parameters.

    Args:
        key: the generator that is drawn from. (The accelerated twin takes a JAX key: the same distribution, other
            numbers. Weights of one twin run in the other.)
        config: the model.

    Returns:
        The parameter tree of the module docstring, float64.
    """

    def draw(name, node):
        if isinstance(node, dict):
            return {child: draw(child, node[child]) for child in sorted(node)}
        shape, deviation = node
        if deviation == 0:
            return np.ones(shape) if name == "scale" else np.zeros(shape)
        values = key.standard_normal(shape)
        while (outside := np.abs(values) > TRUNCATION).any():
            values[outside] = key.standard_normal(outside.sum())
        return values * deviation

    return draw("", parameter_shapes(config))


def layer_norm(params: dict, x: np.ndarray) -> np.ndarray:
    """Return x with mean 0 and variance 1 over the last axis, times scale plus offset."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return centred / deviation * params["scale"] + params["offset"]


def sinusoids(sequence_length: int, d_model: int) -> np.ndarray:
    """Return [S, d]: row m encodes the distance m as sin and cos of m / 10000^(2j/d) for j = 0 … d/2 − 1."""
    angle = np.arange(sequence_length)[:, None] * 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def attention(params: dict, x: np.ndarray) -> np.ndarray:
    """Causal self-attention with relative positions.

    Args:
        params: query, key, value and relative_key [d, H, kqv]; output [H, kqv, d].
        x: [b, S, d].

    Returns:
        [b, S, d]. Position i depends on positions up to i only.
    """
    _, length, d_model = x.shape
    q, k, v = (np.einsum("bsd,dhc->bhsc", x, params[name]) for name in ("query", "key", "value"))
    r = np.einsum("md,dhc->hmc", sinusoids(length, d_model), params["relative_key"])
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]  # [S, S], i - j
    by_content = np.einsum("bhic,bhjc->bhij", q, k)
    by_distance = np.einsum("bhic,hijc->bhij", q, r[:, np.maximum(distance, 0)])
    logits = (by_content + by_distance) / math.sqrt(q.shape[-1])
    weights = softmax(np.where(distance >= 0, logits, -np.inf))
    return np.einsum("bhij,bhjc,hcd->bid", weights, v, params["output"])


def apply(
    params: dict, tokens: np.ndarray, config: ModelConfig, *, training: bool = False, held: Routing | None = None
) -> Output:
    """Run the model.

    Args:
        params: the tree of the module docstring.
        tokens: [b, S] integers in [0, V).
        config: the model.
        training: route as in training (S-BASE: by the balanced plan, with a capacity); otherwise as in evaluation
            (by the logits, nothing dropped), which is causal and independent of the rest of the batch.
        held: `routing` of an earlier output for tokens of this shape; its selections are used instead of new ones.

    Returns:
        `Output`.

    Raises:
        ValueError: a token is out of range.
    """
    if tokens.size and not (0 <= tokens.min() and tokens.max() < config.vocab_size):
        raise ValueError(f"tokens reach from {tokens.min()} to {tokens.max()}; allowed: 0 to {config.vocab_size - 1}")
    h = params["embedding"][tokens] * math.sqrt(config.d_model)  # [b, S, d]
    routings, dropped, auxiliary = [], [], []
    for i in range(config.num_blocks):
        block = _at(params["blocks"], i)
        h = h + attention(block["attention"], layer_norm(block["attention_norm"], h))
        x = layer_norm(block["ffn_norm"], h)
        if config.is_routed(i):
            r = len(routings)
            held_here = None if held is None else Routing(*(field[r] for field in held))
            output, routing, share, added = _routed_block(
                _at(params["routed_ffn"], r), x, tokens, config, training, held_here
            )
            routings.append(routing)
            dropped.append(share)
            auxiliary.append(added)
        else:
            dense = _at(params["dense_ffn"], i - len(routings))
            output = expert_ffn(dense["up"], dense["down"], x)
        h = h + output
    logits = layer_norm(params["final_norm"], h) @ params["embedding"].T
    stacked = Routing(*(np.stack(field) for field in zip(*routings, strict=True))) if routings else None
    return Output(logits, stacked, np.array(dropped), np.array(auxiliary))


def _at(tree: dict, index: int) -> dict:
    """Return the tree of one block from a tree of stacked blocks."""
    return {name: _at(node, index) if isinstance(node, dict) else node[index] for name, node in tree.items()}


def _routed_block(params, x, tokens, config, training, held):
    """Return the output [b, S, d] of a routed FFN, its routing, the share dropped, and what the router adds."""
    group = x.reshape(-1, config.d_model)  # [T, d]
    if config.router == "hash":
        routing = hash_layer(tokens.reshape(-1), config.num_experts)
        routing, added = (routing if held is None else held._replace(gate=routing.gate)), 0.0
    else:
        routing, added = _learned_routing(group @ params["router"], config, training, held)  # SCORE
    capacity_factor = config.capacity_factor if training else math.inf
    output, dropped = routed_ffn(params, group, routing.expert, routing.gate, capacity_factor)
    return output.reshape(x.shape), routing, dropped, added


def _learned_routing(logits, config, training, held):
    """Return the routing of a group by its logits [T, E], and what is added to the training loss."""
    if config.router == "sinkhorn":
        return sinkhorn_router(logits, config.k, training=training, gate=config.gate, held=held), 0.0
    if config.router == "base":
        return base_router(logits, training=training, gate=config.gate, held=held), 0.0
    # A gate that is normalised over one expert would be 1, and its router without a gradient.
    normalisation = "none" if config.k == 1 else "sum"
    routing = top_k_router(logits, config.k, score=config.gate, normalisation=normalisation, held=held)
    if not training:
        return routing, 0.0
    uneven = balance.auxiliary_loss(logits, routing.expert, score=config.gate).loss
    return routing, config.balance_weight * uneven + config.z_weight * balance.z_loss(logits)


def loss(
    params: dict, tokens: np.ndarray, config: ModelConfig, *, training: bool = True, held: Routing | None = None
) -> Loss:
    """Return the mean next-token cross-entropy and, in training, whatever the router adds to it.

    With `held` fixed this is a differentiable function of `params`. Without it, it is not: a selection can jump.

    Args:
        params: the tree of the module docstring.
        tokens: [b, S + 1] integers in [0, V); the first S are inputs, the last S are targets.
        config: the model.
        training: see `apply`.
        held: see `apply`.

    Returns:
        `Loss`, in nats per token.
    """
    output = apply(params, tokens[:, :-1], config, training=training, held=held)
    targets = tokens[:, 1:]
    log_z = log_sum_exp(output.logits, axis=-1)
    of_target = np.take_along_axis(output.logits, targets[..., None], axis=-1)[..., 0]
    cross_entropy = float((log_z - of_target).mean())
    return Loss(cross_entropy + float(output.auxiliary.sum()), cross_entropy, output)
