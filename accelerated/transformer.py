"""See `routelaws.reference.transformer` for the model, its parameter tree and its choices.

What differs: everything runs under jit with `config` static. The blocks are scanned in groups of 1/R (one group: the
dense blocks, then the routed one), so compile time does not grow with depth. The relative logits come from one product
with all distances and a shift, not from a gathered [S, S] table. `compute_dtype` lowers the matrix products;
router logits, softmax, norms and the loss stay in float32.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import balance
from .accounting import ROUTER_TYPES, Accounting, count, routed_blocks
from .errors import InputError
from .experts import expert_ffn, routed_ffn
from .notation import Routing, log_sum_exp, softmax
from .routers.base import base_router
from .routers.hash_layer import hash_layer
from .routers.sinkhorn import GATES, sinkhorn_router
from .routers.top_k import top_k_router

ROUTERS = ("dense", "hash", "sinkhorn", "base", "top_k")
"""See reference."""

DEFAULT_CAPACITY_FACTOR = {"dense": math.inf, "hash": math.inf, "sinkhorn": 2.0, "base": 1.0, "top_k": 2.0}
"""See reference."""

DEFAULT_GATE = {"base": "sigmoid"}
"""See reference."""

NORM_EPSILON = 1e-5
"""See reference."""

TRUNCATION = 2.0
"""See reference."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """See reference. Hashable, so that it can be a static argument under jit."""

    vocab_size: int = 32_000
    d_model: int = 512
    num_blocks: int = 6
    num_heads: int = 8
    kqv_size: int | None = None
    router: str = "dense"
    num_experts: int = 1
    k: int = 1
    routing_frequency: float = 0.5
    capacity_factor: float | None = None
    gate: str | None = None
    balance_weight: float = 0.01
    z_weight: float = 0.0

    def __post_init__(self):
        for name in ("vocab_size", "d_model", "num_blocks", "num_heads", "num_experts", "k"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value}; it has to be a whole number of at least 1")
        if self.router not in ROUTERS:
            raise InputError(f"router is {self.router!r}; allowed: {', '.join(ROUTERS)}")
        if self.kqv_size is None:
            if self.d_model % self.num_heads:
                raise InputError(f"num_heads {self.num_heads} does not divide d_model {self.d_model}; give kqv_size")
            object.__setattr__(self, "kqv_size", self.d_model // self.num_heads)
        if self.kqv_size < 1 or self.d_model % 2:
            raise InputError(f"kqv_size {self.kqv_size} has to be at least 1 and d_model {self.d_model} even")
        if self.capacity_factor is None:
            object.__setattr__(self, "capacity_factor", DEFAULT_CAPACITY_FACTOR[self.router])
        if not self.capacity_factor > 0:
            raise InputError(f"capacity_factor is {self.capacity_factor}; it has to be above 0 (inf drops nothing)")
        if self.gate is None:
            object.__setattr__(self, "gate", DEFAULT_GATE.get(self.router, "softmax"))
        if self.gate not in GATES:
            raise InputError(f"gate is {self.gate!r}; allowed: {', '.join(GATES)}")
        self._check_routing()

    def _check_routing(self):
        if self.k > self.num_experts:
            raise InputError(f"k is {self.k}; it has to be between 1 and num_experts = {self.num_experts}")
        if self.router == "dense":
            if self.num_experts != 1:
                raise InputError(f"num_experts is {self.num_experts}; a dense model has 1")
            return
        if self.router in ("hash", "base") and self.k != 1:
            raise InputError(f"k is {self.k}; {self.router} gives each token 1 expert")
        for name in ("balance_weight", "z_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; it has to be a finite number of at least 0")
        routed_blocks(self.num_blocks, self.routing_frequency)
        if abs(1 / self.routing_frequency - self.period) > 1e-6:
            raise InputError(f"routing_frequency is {self.routing_frequency:g}; one over it has to be a whole number")

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
    """See reference."""

    logits: jax.Array  # [b, S, V]
    routing: Routing | None  # stacked over routed blocks
    dropped_fraction: jax.Array  # [n_r]
    auxiliary: jax.Array  # [n_r]


class Loss(NamedTuple):
    """See reference."""

    total: jax.Array  # []
    cross_entropy: jax.Array  # []
    output: Output


def parameter_shapes(config: ModelConfig) -> dict:
    """See reference."""
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

def init(key: jax.Array, config: ModelConfig) -> dict:
    """See reference; float32. All weights are drawn at once: a draw per leaf takes many times longer to compile."""
    shapes = parameter_shapes(config)
    leaves, structure = jax.tree.flatten_with_path(shapes, is_leaf=lambda node: isinstance(node, tuple))
    sizes = [math.prod(shape) if deviation else 0 for _, (shape, deviation) in leaves]
    normal = jax.random.truncated_normal(key, -TRUNCATION, TRUNCATION, (sum(sizes),))

    def leaf(path, shape, deviation, end, size):
        if deviation == 0:
            return jnp.ones(shape) if path[-1].key == "scale" else jnp.zeros(shape)
        return normal[end - size : end].reshape(shape) * deviation

    ends = np.cumsum(sizes).tolist()
    drawn = [leaf(path, *node, end, size) for (path, node), end, size in zip(leaves, ends, sizes, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def layer_norm(params: dict, x: jax.Array) -> jax.Array:
    """See reference."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return centred * scale * params["scale"] + params["offset"]


def sinusoids(sequence_length: int, d_model: int) -> np.ndarray:
    """See reference; a NumPy constant, computed in float64 at trace time."""
    angle = np.arange(sequence_length)[:, None] * 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def attention(params: dict, x: jax.Array) -> jax.Array:
    """See reference."""
    _, length, d_model = x.shape
    q, k, v = (_project(x, params[name]) for name in ("query", "key", "value"))  # [b, S, H, kqv]
    distances = jnp.asarray(sinusoids(length, d_model)[::-1], x.dtype)  # from S - 1 down to 0
    r = _project(distances, params["relative_key"])
    by_content = jnp.einsum("bihc,bjhc->bhij", q, k)
    by_distance = _shift(jnp.einsum("bihc,mhc->bhim", q, r))
    logits = (by_content + by_distance).astype(jnp.promote_types(x.dtype, jnp.float32)) / math.sqrt(q.shape[-1])
    causal = np.tril(np.ones((length, length), bool))
    weights = softmax(jnp.where(causal, logits, -jnp.inf)).astype(x.dtype)
    mixed = jnp.einsum("bhij,bjhc->bihc", weights, v)
    return _flat_product(mixed.reshape(*x.shape[:2], -1), params["output"].reshape(-1, d_model))


def _flat_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return x @ matrix for x [..., d]. One product of two matrices: XLA on CPU is up to three times slower on
    products with more axes."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[-1])


def _project(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Return [..., H, kqv] for x [..., d] and weights [d, H, kqv]."""
    d_model, heads, kqv = weights.shape
    return _flat_product(x, weights.reshape(d_model, heads * kqv)).reshape(*x.shape[:-1], heads, kqv)


def _shift(logits: jax.Array) -> jax.Array:
    """Turn [b, H, S, m] over distances S-1 … 0 into [b, H, S, S] over keys: entry (i, j) is that of distance i - j.

    One zero column on the left moves row i by i places when the array is read as [S + 1, S]; entries with j > i are
    not distances and are masked by the caller.
    """
    b, heads, length, _ = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return padded.reshape(b, heads, length + 1, length)[:, :, 1:]


def apply(
    params: dict,
    tokens: jax.Array,
    config: ModelConfig,
    *,
    training: bool = False,
    held: Routing | None = None,
    compute_dtype=None,
) -> Output:
    """See reference. A token out of range cannot raise under jit; it is clamped.

    Args:
        params: see reference.
        tokens: see reference.
        config: see reference; static.
        training: see reference; static.
        held: see reference.
        compute_dtype: dtype of the matrix products, such as `jnp.bfloat16`; that of the parameters if None.
    """
    dtype = params["embedding"].dtype if compute_dtype is None else compute_dtype
    embedding = params["embedding"].astype(dtype)
    h = jnp.take(embedding, tokens, axis=0, mode="clip") * math.sqrt(config.d_model)  # [b, S, d]
    if config.router == "dense":
        h, routing = _run_dense(h, params["blocks"], params["dense_ffn"]), None
        dropped = auxiliary = jnp.zeros(0)
    else:
        h, routing, dropped, auxiliary = _run_routed(h, params, tokens, config, training, held)
    x = layer_norm(_cast(params["final_norm"], dtype), h)
    return Output(_flat_product(x, embedding.T), routing, dropped, auxiliary)


def _run_dense(h: jax.Array, blocks: dict, ffns: dict) -> jax.Array:
    """Return the residual stream after a stack of dense blocks, whose parameters have a leading axis in common."""

    def block(h, layer):
        block, ffn = _cast(layer, h.dtype)
        h, x = _attend(block, h)
        output = expert_ffn(ffn["up"], ffn["down"], x.reshape(-1, x.shape[-1]))
        return h + output.reshape(h.shape), None

    return _scan(block, h, (blocks, ffns))[0]


def _scan(step, h: jax.Array, layers):
    """Scan over the leading axis of `layers`, but write a loop of two out: XLA on CPU copies what a loop keeps for the
    backward pass, which then costs more than the loop saves in compiling."""
    length = len(jax.tree.leaves(layers)[0])
    return jax.lax.scan(step, h, layers, unroll=length if length <= 2 else 1)


def _run_routed(h, params, tokens, config, training, held) -> tuple:
    """Return the residual stream after all groups of 1/R blocks, their routings, dropped shares and what they add."""

    def by_group(tree):
        return jax.tree.map(lambda leaf: leaf.reshape(config.num_routed, -1, *leaf.shape[1:]), tree)

    def group(h, layers):
        blocks, ffns, routed, held = layers
        if ffns is not None:
            h = _run_dense(h, jax.tree.map(lambda leaf: leaf[:-1], blocks), ffns)
        last = jax.tree.map(lambda leaf: leaf[-1], blocks)
        h, x = _attend(_cast(last, h.dtype), h)
        output, *rest = _routed_block(routed, x, tokens, config, training, held)
        return h + output, tuple(rest)

    stacked = (by_group(params["blocks"]), by_group(params.get("dense_ffn")), params["routed_ffn"], held)
    h, rest = _scan(group, h, stacked)
    return h, *rest


def _cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def _attend(block: dict, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the residual stream after attention, and its norm for the FFN."""
    h = h + attention(block["attention"], layer_norm(block["attention_norm"], h))
    return h, layer_norm(block["ffn_norm"], h)


def _routed_block(params, x, tokens, config, training, held):
    """See reference."""
    group = x.reshape(-1, config.d_model)  # [T, d]
    if config.router == "hash":
        routing = hash_layer(tokens.reshape(-1), config.num_experts)
        routing, added = (routing if held is None else held._replace(gate=routing.gate)), jnp.zeros(())
    else:
        wide = jnp.promote_types(x.dtype, jnp.float32)
        logits = group.astype(wide) @ params["router"].astype(wide)  # SCORE
        routing, added = _learned_routing(logits, config, training, held)
    capacity_factor = config.capacity_factor if training else math.inf
    experts = {name: params[name].astype(x.dtype) for name in ("up", "down")}
    output, dropped = routed_ffn(experts, group, routing.expert, routing.gate, capacity_factor)
    return output.reshape(x.shape), routing, dropped, added


def _learned_routing(logits, config, training, held):
    """See reference."""
    nothing = jnp.zeros((), logits.dtype)
    if config.router == "sinkhorn":
        return sinkhorn_router(logits, config.k, training=training, gate=config.gate, held=held), nothing
    if config.router == "base":
        return base_router(logits, training=training, gate=config.gate, held=held), nothing
    normalisation = "none" if config.k == 1 else "sum"
    routing = top_k_router(logits, config.k, score=config.gate, normalisation=normalisation, held=held)
    if not training:
        return routing, nothing
    uneven = balance.auxiliary_loss(logits, routing.expert, score=config.gate).loss
    return routing, config.balance_weight * uneven + config.z_weight * balance.z_loss(logits)


def loss(
    params: dict,
    tokens: jax.Array,
    config: ModelConfig,
    *,
    training: bool = True,
    held: Routing | None = None,
    compute_dtype=None,
) -> Loss:
    """See reference; `compute_dtype` as in `apply`."""
    output = apply(params, tokens[:, :-1], config, training=training, held=held, compute_dtype=compute_dtype)
    targets = tokens[:, 1:]
    logits = output.logits.astype(jnp.promote_types(output.logits.dtype, jnp.float32))
    log_z = log_sum_exp(logits, axis=-1)
    of_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    cross_entropy = (log_z - of_target).mean()
    return Loss(cross_entropy + output.auxiliary.sum(), cross_entropy, output)
