"""The paper's decoder-only language model, dense or routed: forward pass and complete training loss.

The model and our choices: `routelaws.reference.transformer`.

Differences from the reference: everything runs under jit with `config` static. If R is the share of routed blocks, the
program scans over groups of 1/R blocks (the dense blocks, then the routed block), so compile time does not grow with
depth. With the layout "upper", all dense blocks come first. For relative positions, one product computes q · r for all
distances, and each row is then shifted. So no [S, S] table of distances is gathered. `compute_dtype` lowers the
precision of the matrix products, their results, and the residual stream. Router logits, the softmax of attention, norms
with their scales and offsets, and the loss use float32. The output of a norm is rounded once, at its end.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.accounting import POSITIONS
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.transformer import (
    NORM_EPSILON,
    TRUNCATION,
    carry_bias,  # noqa: F401 - for users
    embedding_factor,
    parameter_shapes,
    sinusoids,
)

from . import cpu
from ._docstrings import describe_twins
from .errors import InputError
from .notation import ExpertChoice, Routing, _as_bool, _at_least_float32, _total, one_hot, top_k_indices
from .operations.attention import attend_rows
from .operations.attention_kernels import attend_by
from .operations.own_backward import dense_ffn, normalise, product, summed_log_probability
from .operations.shapes import ANY_FLOAT, sizes_of
from .operations.target import WRITTEN_OUT
from .parallel import Spread, in_block
from .routed_block import CallOptions, Policy, run_routed_block
from .routers.reinforce import policy_terms, reward_to_go

_SHARED_DRAWS = 1 << 20
"""Up to this many weights, models share compiled programs for drawing; more take longer to draw than to compile."""


class Output(NamedTuple):
    """The result of the forward pass. Fields of routed blocks are stacked: [n_r, ...].

    Attributes:
        logits: [b, S, V]
        routing: [n_r, T, ...] with T = b S; None for a dense model and for mixtures
        dropped_fraction: [n_r], share of assignments without a slot, or of tokens that no expert chose
        auxiliary: [n_r], each router's term of the training loss; `loss` adds the term of RL-R
        bias: [n_r, E G], the bias for the next batch (see `carry_bias`); None without a bias
        policy: RL-R: logits [n_r, T, E G] and value [n_r, T]
    """

    logits: jax.Array
    routing: Routing | ExpertChoice | None
    dropped_fraction: jax.Array
    auxiliary: jax.Array
    bias: jax.Array | None
    policy: Policy | None


class Credit(NamedTuple):
    """The learning signal of RL-R: constants for the gradient, which you can pass back as `held_credit`.

    Attributes:
        reward: [b, S], log-probability of the true next token, or the sum of these from this position on
        advantage: [n_r, b S], reward minus the estimate of the block's baseline
    """

    reward: jax.Array
    advantage: jax.Array


class Loss(NamedTuple):
    """The training loss and its parts.

    Attributes:
        total: the training objective: the cross-entropy plus the sum of `output.auxiliary`
        cross_entropy: nats per token
        output: result of the forward pass
        credit: RL-R only, in training
    """

    total: jax.Array
    cross_entropy: jax.Array
    output: Output
    credit: Credit | None


def init(key: jax.Array, config: ModelConfig) -> dict:
    """Draw initial parameters.

    Args:
        key: a JAX key. (The oracle draws weights with NumPy from the same distribution. Weights of one twin run in the
            other.)

    Returns:
        The parameter tree that `parameter_shapes` describes, float32.

    Differs from the reference: the function draws all weights at once, because one draw per leaf takes many times
    longer to compile. Outside jit, NumPy splits the draws, so that nothing is compiled for this. The weights outside
    jit and under jit are equal up to rounding. At XLA's optimization levels 1 and 3, they were equal bit by bit in all
    compared models.
    """
    shapes = parameter_shapes(config)
    leaves, structure = jax.tree.flatten_with_path(shapes, is_leaf=lambda node: isinstance(node, tuple))
    sizes = [math.prod(shape) if np.any(deviation) else 0 for _, (shape, deviation) in leaves]
    normal = _draw(key, sum(sizes))
    xp = np if isinstance(normal, np.ndarray) else jnp

    def leaf(path, shape, deviation, end, size):
        if not size:
            return (xp.ones if path[-1].key == "scale" else xp.zeros)(shape, normal.dtype)
        return normal[end - size : end].reshape(shape) * xp.asarray(deviation, normal.dtype)

    ends = np.cumsum(sizes).tolist()
    drawn = [leaf(path, *node, end, size) for (path, node), end, size in zip(leaves, ends, sizes, strict=True)]
    return jax.tree.unflatten(structure, drawn if xp is jnp else [owned(array) for array in drawn])


def owned(array: np.ndarray | jax.Array) -> jax.Array:
    """Return a copy whose memory a step can reuse if the copy is donated to it.

    On a CPU, JAX adopts an array of NumPy whose address is a multiple of 64, whatever `may_alias` says, and cannot
    reuse its memory.
    """
    return jax.device_put(jax.device_put(array), may_alias=False)


def _draw(key, number: int):
    """Return this many draws from the truncated normal distribution. Outside jit they are a NumPy array.

    Outside jit the function rounds a small number of draws up to a power of two, and discards the rest. So models of
    similar size share a compiled program. The weights do not change, because draw i of a Threefry key depends only on
    the key and i (JAX's "partitionable").
    """
    if isinstance(key, jax.core.Tracer):
        return _cut_normal(key, number)
    draws_by_index = jax.config.jax_threefry_partitionable and str(jax.random.key_impl(key)) == "threefry2x32"
    room = 1 << (number - 1).bit_length() if draws_by_index and number <= _SHARED_DRAWS else number
    return np.asarray(_cut_normal(key, room))[:number]


@functools.partial(jax.jit, static_argnums=1)
def _cut_normal(key, number):
    return jax.random.truncated_normal(key, -TRUNCATION, TRUNCATION, (number,))


def draw_noise(key: jax.Array, config: ModelConfig, batch_size: int, sequence_length: int):
    """Draw the random numbers that the routers need for one training batch.

    Args:
        key: a JAX key.

    Differs from the reference: the numbers are float32.
    """
    tokens = batch_size * sequence_length
    if config.record.policy:
        return jax.random.gumbel(key, (config.num_routed, tokens, config.expert_count))
    return jax.random.uniform(key, (config.num_routed, tokens)) if config.sample_second else None


def layer_norm(params: dict, x: jax.Array) -> jax.Array:
    """Return x with mean 0 and variance 1 over the last axis, times scale plus offset.

    Raises:
        ValueError: the shapes are inconsistent.

    Differs from the reference: the function computes in at least float32 and returns the dtype of x, because in
    bfloat16 a mean of 300 hides a spread of 1.
    """
    sizes_of("layer_norm", {f"{name} [d]": params[name] for name in params} | {"x [..., d]": x}, ())
    return normalise(params["scale"], params.get("offset"), x, NORM_EPSILON)


def rotary(x: jax.Array) -> jax.Array:
    """Rotate entries j and j + c/2 of position m by the angle m / 10000^(2j/c), in an array [..., S, c] with even c.

    Raises:
        ValueError: c is odd.

    Differs from the reference: the angles are float64 constants, and the rotation uses at least float32.
    """
    length, width = x.shape[-2:]
    if width % 2:
        raise InputError(f"x has shape {list(x.shape)}; [..., S, c] with an even c is needed, for pairs of entries")
    wide = _at_least_float32(x)
    angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    cos, sin = (jnp.asarray(of(angle), wide.dtype) for of in (np.cos, np.sin))
    u, v = wide[..., : width // 2], wide[..., width // 2 :]
    return jnp.concatenate([u * cos - v * sin, u * sin + v * cos], axis=-1).astype(x.dtype)


def attention(
    params: dict,
    x: jax.Array,
    *,
    causal: bool = True,
    mask: jax.Array | None = None,
    positions: str = "relative",
    axis_name: str | None = None,
) -> jax.Array:
    """Self-attention with relative or rotary positions.

    Args:
        axis_name: a mapped axis over which the heads are sharded: `params` has this member's heads. The function sums
            the outputs of all members. None without sharding.

    Raises:
        ValueError: `positions` is unknown, a matrix is missing, or the shapes are inconsistent.
    """
    _check_attention(params, x, positions)
    if not x.size * params["output"].size:  # no tokens, no width, or no heads
        return jnp.zeros_like(x)
    return _attention(params, x, causal=causal, mask=mask, positions=positions, axis_name=axis_name)


def _check_attention(params, x, positions):
    if positions not in POSITIONS:
        raise InputError(f"positions is {positions!r}; allowed: {', '.join(POSITIONS)}")
    names = ("query", "key", "value", *(["relative_key"] if positions == "relative" else []))
    if missing := [name for name in (*names, "output") if name not in params]:
        raise InputError(f"params lacks {', '.join(missing)}; it has {', '.join(params)}")
    arrays = {f"params: {name} [d, H, kqv]": params[name] for name in names}
    arrays |= {"params: output [H, kqv, d]": params["output"], "x [b, S, d]": x}
    sizes_of("attention", arrays, ANY_FLOAT)


def _attention(params, x, *, causal, mask, positions, axis_name, kernel="own"):
    b, length, d_model = x.shape
    _, heads, width = params["query"].shape
    matrices = [params[name].reshape(d_model, heads * width) for name in ("query", "key", "value")]
    projected = product(x.reshape(-1, d_model), jnp.concatenate(matrices, axis=1)).reshape(b, length, -1)
    relative = None
    if positions == "relative":
        distances = sinusoids(length, d_model, 0 if causal else 1 - length)[::-1]  # distances from S - 1 down
        matrix = params["relative_key"].reshape(d_model, heads * width)
        relative = jnp.asarray(distances, projected.dtype) @ matrix
    else:
        projected = _turned_rows(projected, heads)
    if kernel == "own" and mask is None:
        mixed = cpu.attention(attend_rows, projected, relative, heads, causal)
    else:
        mask = None if mask is None else _as_bool(mask)
        by = None if kernel == "own" else functools.partial(attend_by, kernel)
        mixed = attend_rows(projected, relative, heads, causal, mask, by)
    joined = product(mixed.reshape(-1, heads * width), params["output"].reshape(-1, d_model))
    return _total(joined.reshape(x.shape), axis_name)


def _turned_rows(projected, heads):
    """Return queries, keys and values [b, S, 3 H c], with `rotary` applied to queries and keys."""
    b, length, _ = projected.shape
    each = projected.reshape(b, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)  # [3, b, H, S, c]
    turned = jnp.concatenate([rotary(each[:2]), each[2:]])
    return turned.transpose(1, 3, 0, 2, 4).reshape(projected.shape)


def _flat_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return x @ matrix for x [..., d].

    This is one product of two matrices, because XLA on CPU is up to three times slower on products with more axes.
    """
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[1])


def apply(
    params: dict,
    tokens: jax.Array,
    config: ModelConfig,
    *,
    training: bool = False,
    noise: jax.Array | None = None,
    table: jax.Array | None = None,
    held: Routing | ExpertChoice | None = None,
    mask: jax.Array | None = None,
    compute_dtype=None,
    base_method: str = "host",
    spread: Spread | None = None,
    rematerialise: bool = False,
    attention: str = "own",
) -> Output:
    """Run the model.

    Args:
        compute_dtype: dtype of the matrix products, their results, and the residual stream, such as `jnp.bfloat16`;
            None uses the dtype of the parameters. Router logits, the softmax of attention, norms and the loss stay in
            float32.
        base_method: the assignment method of BASE in training (see `routers.base.balanced_assignment`).
        spread: the sharding of tokens, experts, heads and hidden units over devices, inside `jax.shard_map`; pass the
            parameters and tokens of one device. None without sharding.
        rematerialise: store only the input of each block for the backward pass, and recompute the rest of the block.
        attention: the attention kernel: "own", or a key of `attention_kernels.KERNELS`.

    Raises:
        ValueError: there is no token; see `routed_block`; or a mask is given with `spread`.

    Differs from the reference: under jit `config` and `training` are static. A token out of range raises no error. The
    function clamps it.
    """
    call = CallOptions(training, noise, table, held, mask, compute_dtype, base_method, spread, rematerialise, attention)
    return _run(params, tokens, config, call)[0]


def _run(params, tokens, config, call: CallOptions) -> tuple[Output, jax.Array, jax.Array]:
    """Return the output of `apply`, and the two factors of its logits: the vectors [b, S, d] and the embedding.

    If a caller uses the factors and not the logits, jit removes the product.
    """
    if jnp.ndim(tokens) != 2 or not jnp.size(tokens):
        raise InputError(f"tokens has shape {jnp.shape(tokens)}; [b, S] with at least one token is needed")
    params = _in_dtype(params, params["embedding"].dtype if call.compute_dtype is None else call.compute_dtype)
    embedding = params["embedding"]
    h = jnp.take(embedding, tokens, axis=0, mode="clip") * embedding_factor(config)  # [b, S, d]
    h, rest = _run_blocks(h, params, tokens, config, call)
    x = layer_norm(params["final_norm"], h)
    return Output(_flat_product(x, embedding.T), *rest), x, embedding


def _in_dtype(params: dict, dtype) -> dict:
    """Return the parameters with all matrices of products in another dtype; router, norms and bias keep theirs.

    A loop over blocks then stacks gradients in this dtype, and not in float32.
    """
    kept = ("norm", "router", "bias", "baseline", "log_temperature", "part")  # `part` of a `SummedWeight`

    def convert(path, leaf):
        place = jax.tree_util.keystr(path)
        return leaf if any(name in place for name in kept) else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(convert, params)


class _Special(NamedTuple):
    """The parts of routed or wide blocks except attention and norms, with a leading axis over the blocks."""

    ffn: dict
    noise: jax.Array | None = None
    held: Routing | ExpertChoice | None = None


class _Group(NamedTuple):
    """A group of 1/R blocks: attention and norms of all blocks, the FFNs of the dense blocks, and the last block."""

    blocks: dict
    dense: dict | None
    special: _Special


def _run_blocks(h: jax.Array, params: dict, tokens: jax.Array, config: ModelConfig, call: CallOptions) -> tuple:
    """Return the residual stream after all blocks, and the fields of `Output` except its logits."""
    mask, spread = call.mask, call.spread
    if spread is not None and mask is not None:
        raise InputError("a mask cannot be used in a model spread over devices: each device would take its own mean")
    seen = {"causal": config.objective == "causal", "mask": mask, "positions": config.positions}
    seen |= {"axis_name": None if spread is None else spread.model, "kernel": call.attention}

    def dense(ffn, x):
        done = dense_ffn(_cast(ffn, x.dtype), x.reshape(-1, config.d_model), config.activation)
        return _total(done.reshape(x.shape), seen["axis_name"])

    def routed(special, x, config):
        of_block = call._replace(noise=special.noise, held=special.held)
        done = run_routed_block(special.ffn, x, tokens, config, of_block)
        output = layer_norm(special.ffn["output_norm"], done.output) if config.output_norm else done.output
        return output, done[1:]

    def dense_block(h, layer):
        block, ffn = in_block(layer)
        h = _attend(block, h, seen)
        return h + dense(ffn, layer_norm(block["ffn_norm"], h)), None

    def special_block(h, layer, config=config):
        block, special = in_block(layer)
        h = _attend(block, h, seen)
        x = layer_norm(block["ffn_norm"], h)
        output, rest = routed(special, x, config) if config.num_routed else (dense(special.ffn, x), ())
        return h + output, rest

    kept = jax.checkpoint if call.rematerialise else lambda block: block
    dense_block, unroll = kept(dense_block), not call.rematerialise
    if config.num_routed:
        special = _Special(params["routed_ffn"], call.noise, call.held)
        parts = [(kept(functools.partial(special_block, config=part)), number) for part, number in config.parts]
        return _run_groups(h, params, special, config.layout, dense_block, parts, unroll)
    if config.num_wide:
        special = _Special(params["wide_ffn"])
        h, _ = _run_groups(h, params, special, config.layout, dense_block, [(kept(special_block), None)], unroll)
    else:
        h, _ = _scan(dense_block, h, (params["blocks"], params["dense_ffn"]), unroll)
    return h, (None, jnp.empty(0), jnp.empty(0), None, None)


def _scan(step, h: jax.Array, layers, unroll: bool):
    """Scan over the leading axis of `layers`. Unroll a short loop (see `WRITTEN_OUT`)."""
    length = len(jax.tree.leaves(layers)[0])
    return jax.lax.scan(step, h, layers, unroll=length if unroll and length <= WRITTEN_OUT else 1)


def _run_groups(h, params, special: _Special, layout: str, dense_block, parts: list, unroll: bool) -> tuple:
    """Return the residual stream after all groups of 1/R blocks, and the stacked results of the special blocks.

    Args:
        special: the last block of each group. In the layout "upper" all dense blocks come first, then groups of one.
        dense_block: (h, (block, FFN)) -> (h, None).
        parts: the functions (h, (block, `_Special`)) -> (h, rest), each with the number of special blocks that it runs.
    """
    num_groups, blocks, dense = len(jax.tree.leaves(special.ffn)[0]), params["blocks"], params.get("dense_ffn")

    def part(tree, which):
        return jax.tree.map(lambda leaf: leaf[which], tree)

    def by_group(tree):
        return jax.tree.map(lambda leaf: leaf.reshape(num_groups, -1, *leaf.shape[1:]), tree)

    if layout == "upper" and dense is not None:
        h, _ = _scan(dense_block, h, (part(blocks, slice(-num_groups)), dense), unroll)
        blocks, dense = part(blocks, slice(-num_groups, None)), None

    def run_group(h, group: _Group, special_block):
        if group.dense is not None:
            h, _ = _scan(dense_block, h, (part(group.blocks, slice(-1)), group.dense), unroll)
        return special_block(h, (part(group.blocks, -1), group.special))

    groups, first, rests = _Group(by_group(blocks), by_group(dense), special), 0, []
    for special_block, number in parts:  # one loop for each router
        of_part = groups if len(parts) == 1 else part(groups, slice(first, first + number))
        h, rest = _scan(functools.partial(run_group, special_block=special_block), h, of_part, unroll)
        rests.append(rest)
        first += number or 0
    return h, rests[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rests)


def _cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def _attend(block: dict, h: jax.Array, seen: dict) -> jax.Array:
    x = layer_norm(block["attention_norm"], h)
    return h + _attention(_cast(block["attention"], h.dtype), x, **seen)


def hidden_positions(uniforms: jax.Array, mask_rate: float) -> jax.Array:
    """Return which tokens the masked objective hides: the tokens with the smallest uniforms of each sequence."""
    if not 0 < mask_rate <= 1:
        raise InputError(f"mask_rate is {mask_rate}; it has to be above 0 and at most 1")
    number = min(uniforms.shape[1], max(1, math.floor(mask_rate * uniforms.shape[1] + 0.5)))
    return one_hot(top_k_indices(-uniforms, number), uniforms.shape[1]).sum(axis=1) > 0


def loss(
    params: dict,
    tokens: jax.Array,
    config: ModelConfig,
    *,
    training: bool = True,
    noise: jax.Array | None = None,
    table: jax.Array | None = None,
    held: Routing | ExpertChoice | None = None,
    held_credit: Credit | None = None,
    hidden: jax.Array | None = None,
    mask: jax.Array | None = None,
    compute_dtype=None,
    base_method: str = "host",
    spread: Spread | None = None,
    rematerialise: bool = False,
    attention: str = "own",
) -> Loss:
    """Return the mean cross-entropy plus, in training, the loss terms of the router.

    Args:
        compute_dtype, base_method: see `apply`.
        spread: see `apply`. The loss then covers the tokens of one device. The loss of the batch is the mean over the
            devices.
        rematerialise, attention: see `apply`.

    Raises:
        ValueError: `apply` raises this error; or `hidden` is missing, or it is given and the objective is causal.

    Differs from the reference: without a target the loss is NaN.
    """
    inputs, targets, counted = _task(tokens, config, hidden, mask)
    call = CallOptions(training, noise, table, held, mask, compute_dtype, base_method, spread, rematerialise, attention)
    output, x, embedding = _run(params, inputs, config, call)
    counts = jnp.ones(targets.shape, bool) if counted is None else counted
    total, log_probability = summed_log_probability(x, embedding, targets, counts)
    cross_entropy = -total / counts.sum(dtype=total.dtype)
    credit = None
    if config.record.policy and training:
        over = None if spread is None else spread.balanced_over()
        auxiliary, credit = _policy_loss(output, log_probability, config, held_credit, mask, over)
        output = output._replace(auxiliary=auxiliary)
    return Loss(cross_entropy + output.auxiliary.sum(), cross_entropy, output, credit)


def token_losses(
    params: dict, tokens: jax.Array, config: ModelConfig, *, hidden: jax.Array | None = None, **options
) -> tuple[jax.Array, Output]:
    """Return the cross-entropy of each predicted token, [b, S], and the output, routed as in evaluation.

    If a caller does not use the logits of the output, jit stores only a chunk of them.

    Args:
        hidden: see `loss`.
        options: table, compute_dtype, spread and attention of `loss`.
    """
    inputs, targets, _ = _task(tokens, config, hidden, None)
    output, x, embedding = _run(params, inputs, config, CallOptions(training=False, **options))
    return -summed_log_probability(x, embedding, targets, jnp.ones(targets.shape, bool))[1], output


def _task(tokens, config, hidden, mask):
    """Return the inputs, the targets, and the mask of counted positions (None for all): [b, S] each."""
    if (hidden is None) == (config.objective == "masked"):
        state = "missing" if hidden is None else "given"
        raise InputError(
            f"hidden is {state} and the objective is {config.objective}; only the objective masked takes hidden"
        )
    counted = None if mask is None else _as_bool(mask)
    if hidden is None:
        return tokens[:, :-1], tokens[:, 1:], counted
    hidden = jnp.asarray(hidden, bool)
    return jnp.where(hidden, config.mask_token, tokens), tokens, hidden if mask is None else hidden & counted


def _policy_loss(output, log_probability, config, held_credit, mask, axis_name):
    """Return the loss terms of each block's policy and baseline [n_r], and the credit."""
    reward = reward_to_go(log_probability) if config.reward_to_go else log_probability  # [b, S]
    reward = reward if held_credit is None else held_credit.reward  # `policy_terms` makes it a constant
    advantage = None if held_credit is None else held_credit.advantage
    options = ("policy_weight", "baseline_weight", "entropy_weight", "balance_weight", "nucleus")
    weights = {name: getattr(config, name) for name in options} | {"mask": mask if mask is None else mask.reshape(-1)}
    weights["axis_name"] = axis_name

    def of_block(logits, expert, value, advantage):
        return policy_terms(logits, expert, value, reward.reshape(-1), held_advantage=advantage, **weights)

    terms = jax.vmap(of_block)(output.policy.logits, output.routing.expert, output.policy.value, advantage)
    return terms.loss, Credit(reward, terms.advantage)


describe_twins(__name__)
