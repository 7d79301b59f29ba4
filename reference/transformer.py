"""The paper's decoder-only language model, dense or routed: forward pass and complete training loss.

Clark et al. 2022. The shapes follow from the released parameter counts; everything else is our choice.

    h = √d · embedding[token]                                                   `apply`, `embedding_factor`
    for each block i = 0 … L−1:
        h ← h + attention(norm(h))                                              `attention`
        h ← h + FFN(norm(h))            or, in routed blocks, Σⱼ gateⱼ · expertⱼ(norm(h))
    logits = norm(h) · embeddingᵀ                                               tied with the input
    loss = mean over tokens of −log softmax(logits)[next token]                 `loss`, in nats per token

Attention uses relative positions as in Transformer-XL, with a separate key projection and no bias vectors. Token i
attends to j ≤ i with logit queryᵢ · (keyⱼ + relative₍ᵢ₋ⱼ₎) / √kqv, where relative₍ₘ₎ is the projected sinusoid of the
distance m. Rotary positions (`ModelConfig.positions`) rotate queries and keys instead. Their scalar product then
depends on the positions only through i − j: see `rotary`.

The masked objective (`ModelConfig.objective`) hides some tokens of each sequence. The model reads a mask token instead
of each hidden token and attends in both directions (m from 1 − S to S − 1). It predicts the hidden tokens: loss = mean
over hidden tokens of −log softmax(logits)[the token itself]. Do not compare its losses with causal losses: the tasks
differ. (Our choice: each sequence has the same number of hidden tokens, and the mask token replaces all of them.)

A `mask` of the real tokens excludes padding on either side. No real token attends to padding, no router sees it, and no
loss counts it. The position hash and the previous-token hash still start at the beginning of the row.

Block i is routed iff (i + 1) mod 1/R = 0. In the layout "upper" the last R L blocks are routed instead. `routed_block`
describes each router. The loss terms of RL-R need the predictions, so `loss` adds these terms.

Parameters are nested dicts of arrays, with the blocks stacked on a leading axis: `parameter_shapes` lists them.

Our choices. Norms are LayerNorm or RMSNorm (`ModelConfig.norm`), before attention and before the FFN. The optional norm
on the output of a routed layer comes before the residual connection. A token without an expert gets the offset of the
norm. The default activation is GELU in its tanh form. There are no biases. Initial weights come from a normal
distribution with standard deviation 1/√fan_in, truncated at two deviations. Truncated weights have 0.88 times this
deviation (`TRUNCATION`). Weights of output projections are also divided by √(2L). Weights of routers are multiplied by
`router_scale`. In HASH and RL-R all gates are 1/k, so for `down` of a narrow expert fan_in is the width of the whole
expert. A wide FFN has no router, although the paper's table counts one, as for HASH.
"""

import math
from typing import NamedTuple

import numpy as np

from .configuration import ModelConfig
from .errors import InputError
from .experts import expert_ffn
from .notation import ExpertChoice, Routing, log_sum_exp, softmax
from .routed_block import Policy, routed_block
from .routers.reinforce import policy_terms, reward_to_go

NORM_EPSILON = 1e-5
"""Added to the variance in LayerNorm, and to the mean square in RMSNorm; our choice."""

TRUNCATION = 2.0
"""Initial weights come from a normal distribution truncated at this many standard deviations.

Truncation multiplies the standard deviation by 0.8796, and the program does not rescale: `parameter_shapes` lists the
deviations before truncation.
"""


class Output(NamedTuple):
    """The result of the forward pass. Fields of routed blocks are stacked: [n_r, ...]."""

    logits: np.ndarray  # [b, S, V]
    routing: Routing | ExpertChoice | None  # [n_r, T, ...] with T = b S; None for a dense model and for mixtures
    dropped_fraction: np.ndarray  # [n_r], share of assignments without a slot, or of tokens that no expert chose
    auxiliary: np.ndarray  # [n_r], each router's term of the training loss; `loss` adds the term of RL-R
    bias: np.ndarray | None  # [n_r, E G], the bias for the next batch (see `carry_bias`); None without a bias
    policy: Policy | None  # RL-R: logits [n_r, T, E G] and value [n_r, T]


class Credit(NamedTuple):
    """The learning signal of RL-R: constants for the gradient, which you can pass back as `held_credit`."""

    reward: np.ndarray  # [b, S], log-probability of the true next token, or the sum of these from this position on
    advantage: np.ndarray  # [n_r, b S], reward minus the estimate of the block's baseline


class Loss(NamedTuple):
    """The training loss and its parts."""

    total: float  # the training objective: the cross-entropy plus the sum of `output.auxiliary`
    cross_entropy: float  # nats per token
    output: Output  # result of the forward pass
    credit: Credit | None  # RL-R only, in training


def parameter_shapes(config: ModelConfig) -> dict:
    """Return the parameter tree with (shape, deviation) instead of arrays.

    Parameters are nested dicts of arrays. The L blocks are stacked on a leading axis. The FFNs of the n_r = R L routed
    blocks are stacked separately from the other FFNs:

        embedding                                  [V, d]
        blocks / attention_norm, ffn_norm          scale, offset [L, d]
        blocks / attention / query, key, value     [L, d, H, kqv]
        blocks / attention / relative_key          [L, d, H, kqv], not for rotary positions
        blocks / attention / output                [L, H, kqv, d]
        dense_ffn / up, down                       [L − n_r, d, 4d], [L − n_r, 4d, d]
        wide_ffn / up, down                        [n_r, d, X 4d], [n_r, X 4d, d], of a dense model with flop_increase X
        routed_ffn / up, down                      [n_r, E G, d, 4d/G], [n_r, E G, 4d/G, d]
        .../ linear                                next to each up, for SwiGLU; the width is 3d instead of 4d
        routed_ffn / router                        [n_r, d, E G], not for HASH alone
        routed_ffn / router_bias                   [n_r, E G], learned, added to the logits
        routed_ffn / shared / up, down             [n_r, d, s 4d/G], [n_r, s 4d/G, d], of s shared experts
        routed_ffn / bias                          [n_r, E G], of quantile and of top_k with a bias; no gradient
        routed_ffn / baseline / hidden, out        [n_r, d, d/8], [n_r, d/8], of RL-R
        routed_ffn / output_norm                   scale, offset [n_r, d], of a norm on the output of routed layers
        routed_ffn / log_temperature               [n_r, 2], learned, for mixing and for redistribution
        final_norm                                 scale, offset [d]; RMSNorm has no offsets

    With a list of routers, every routed block has the weights of all routers of the list. A block of HASH then has
    router weights that it does not use, as the accounting counts them (our choice).

    The deviation is the standard deviation of the initial weights before truncation at `TRUNCATION`. The weights have
    0.88 times this deviation. A deviation of 0 marks weights that are not random: scales start at 1; offsets, biases
    and logarithms of temperatures start at 0.
    """
    d, heads, kqv, blocks = config.d_model, config.heads, config.kqv_size, config.blocks
    special = config.num_routed + config.num_wide
    output_scale = 1 / math.sqrt(2 * blocks)
    projection = ((blocks, d, heads, kqv), d**-0.5)
    norm = _norm_shapes(config, blocks, d)
    projected = ("query", "key", "value") + (("relative_key",) if config.positions == "relative" else ())
    attention_weights = {name: projection for name in projected}
    attention_weights["output"] = ((blocks, heads, kqv, d), (heads * kqv) ** -0.5 * output_scale)
    tree = {
        "embedding": ((config.vocab_size, d), d**-0.5),
        "blocks": {"attention_norm": norm, "ffn_norm": norm, "attention": attention_weights},
        "final_norm": _norm_shapes(config, d),
    }
    if blocks > special:
        tree["dense_ffn"] = _ffn_shapes(config, (blocks - special,), config.ffn_width, output_scale)
    if config.num_wide:
        tree["wide_ffn"] = _ffn_shapes(config, (special,), config.ffn_width * config.flop_increase, output_scale)
    if config.num_routed:
        tree["routed_ffn"] = _routed_shapes(config, output_scale)
    return tree


def _norm_shapes(config, *shape):
    names = ("scale",) if config.norm == "rms" else ("scale", "offset")
    return dict.fromkeys(names, (shape, 0.0))


def _ffn_shapes(config, stacked, f, output_scale, fan_in=None, width=None):
    """Return (shape, deviation) of each matrix of FFNs with width f.

    Args:
        stacked: the axes before the axes of one FFN, such as (blocks,), or (blocks, experts).
        output_scale: an extra factor on the deviation of output projections.
        fan_in: the fan-in of `down`, for all blocks or for each; f if None.
        width: of the input and the output; d if None.
    """
    d = width or config.d_model
    tree = {"up": ((*stacked, d, f), d**-0.5)}
    if config.activation == "swiglu":
        tree["linear"] = tree["up"]
    tree["down"] = ((*stacked, f, d), (f if fan_in is None else fan_in) ** -0.5 * output_scale)
    return tree


def _routed_shapes(config, output_scale):
    """Return (shape, initial standard deviation) of each weight of the n_r routed blocks, stacked."""
    routed, d, experts = config.num_routed, config.d_model, config.expert_count
    narrow = config.ffn_width // config.granularity
    widths = [config.ffn_width if part.record.constant_gate else narrow for part, n in config.parts for _ in range(n)]
    fan_in = widths[0] if len(set(widths)) == 1 else np.reshape(widths, (-1, 1, 1, 1))
    latent = config.latent_width
    tree = _ffn_shapes(config, (routed, experts), narrow, 1 if latent else output_scale, fan_in, latent)
    if latent:
        tree["latent_down"] = ((routed, d, latent), d**-0.5)
        tree["latent_up"] = ((routed, latent, d), latent**-0.5 * output_scale)
    if config.router != "hash":
        tree["router"] = ((routed, d, config.choosable), d**-0.5 * config.router_scale)
    if config.router_bias:
        tree["router_bias"] = ((routed, config.choosable), 0.0)
    if config.zero_kind == "constant":
        zero = routed, config.zero_experts, d
        tree["constants"] = {"mix": ((*zero, 2), d**-0.5), "offset": (zero, 0.0)}
    if config.shared_experts:
        tree["shared"] = _ffn_shapes(config, (routed,), config.shared_experts * narrow, output_scale)
    if config.has_bias:
        tree["bias"] = ((routed, config.choosable), 0.0)
    if config.record.policy:
        tree["baseline"] = {"hidden": ((routed, d, d // 8), d**-0.5), "out": ((routed, d // 8), (d // 8) ** -0.5)}
    if config.output_norm:
        tree["output_norm"] = _norm_shapes(config, routed, d)
    if config.learned_temperature:
        tree["log_temperature"] = ((routed, 2), 0.0)
    return tree


def init(key: np.random.Generator, config: ModelConfig) -> dict:
    """Draw initial parameters.

    Args:
        key: the random generator. The accelerated twin takes a JAX key and draws other numbers from the same
            distribution.
        config: the model.

    Returns:
        The parameter tree that `parameter_shapes` describes, float64.

    Example:
        The deviation before truncation is 1/√64 here, and the weights have 0.88 times this deviation:

        >>> params = init(np.random.default_rng(0), ModelConfig(vocab_size=2000, d_model=64, blocks=1, heads=1))
        >>> round(float(params["embedding"].std() * 8), 2), round(float(np.abs(params["embedding"]).max() * 8), 2)
        (0.88, 2.0)
    """

    def draw(name, node):
        """Return the weights of the node `name` and of all nodes below it, drawn in the order of the names."""
        if isinstance(node, dict):
            return {child: draw(child, node[child]) for child in sorted(node)}
        shape, deviation = node
        if not np.any(deviation):
            return np.ones(shape) if name == "scale" else np.zeros(shape)
        values = key.standard_normal(shape)
        outside = np.abs(values) > TRUNCATION
        while outside.any():
            values[outside] = key.standard_normal(outside.sum())
            outside = np.abs(values) > TRUNCATION
        return values * deviation

    return draw("", parameter_shapes(config))


def draw_noise(key: np.random.Generator, config: ModelConfig, batch_size: int, sequence_length: int):
    """Draw the random numbers that the routers need for one training batch.

    Args:
        key: the random generator. The accelerated twin takes a JAX key, with the same distribution.
        config: the model.
        batch_size: b.
        sequence_length: S.

    Returns:
        For RL-R, Gumbel noise [n_r, b S, E G]. For GShard's second expert, uniforms in [0, 1), [n_r, b S]. For other
        routers, None.
    """
    tokens = batch_size * sequence_length
    if config.record.policy:
        return key.gumbel(size=(config.num_routed, tokens, config.expert_count))
    return key.random((config.num_routed, tokens)) if config.sample_second else None


def embedding_factor(config: ModelConfig) -> float:
    """Return the factor of the input embedding: √d, or with RMSNorm the power of two nearest to it.

    The embedding is also the output matrix. Most public models with RMSNorm store it with this factor, which then
    divides the scale of their final norm. A power of two loses no bit, so weights convert exactly (our choice).

    Example:
        >>> [embedding_factor(ModelConfig(d_model=d, norm=norm)) for d in (64, 128) for norm in ("layer", "rms")]
        [8.0, 8.0, 11.313708498984761, 16.0]
    """
    factor = math.sqrt(config.d_model)
    return 2.0 ** math.floor(math.log2(factor) + 0.5) if config.norm == "rms" else factor


def layer_norm(params: dict, x: np.ndarray) -> np.ndarray:
    """Return x with mean 0 and variance 1 over the last axis, times scale plus offset.

    Without an offset this is RMSNorm: x divided by the root of its mean square, times scale.

    Example:
        >>> np.round(layer_norm({"scale": np.array([1.0, 2.0])}, np.array([3.0, 4.0])), 4).tolist()
        [0.8485, 2.2627]
    """
    if "offset" not in params:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + NORM_EPSILON) * params["scale"]
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return centred / deviation * params["scale"] + params["offset"]


def sinusoids(sequence_length: int, d_model: int, first: int = 0) -> np.ndarray:
    """Return [S − first, d], a row of sinusoids for each distance m from `first` to S − 1.

    A row has the sines, then the cosines, of m / 10000^(2j/d) for j = 0 … d/2 − 1.
    """
    angle = np.arange(first, sequence_length)[:, None] * 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def rotary(x: np.ndarray) -> np.ndarray:
    """Rotate entries j and j + c/2 of position m by the angle m / 10000^(2j/c), in an array [..., S, c] with even c.

    The rotation maps a pair (u, v) to (u cos − v sin, u sin + v cos). The scalar product of a rotated query at i and a
    rotated key at j depends on i and j only through i − j.

    Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864). Like most public code, we pair entry j with entry j + c/2,
    not with its neighbour (our choice). A permutation of the projections' columns converts one form to the other.

    Example:
        Position 0 is not rotated; at position 1 the only pair is rotated by 1 radian:

        >>> np.round(rotary(np.array([[1.0, 0.0], [1.0, 0.0]])), 4).tolist()
        [[1.0, 0.0], [0.5403, 0.8415]]
    """
    length, width = x.shape[-2:]
    angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)  # [S, c/2]
    u, v = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([u * np.cos(angle) - v * np.sin(angle), u * np.sin(angle) + v * np.cos(angle)], axis=-1)


def attention(
    params: dict,
    x: np.ndarray,
    *,
    causal: bool = True,
    mask: np.ndarray | None = None,
    positions: str = "relative",
) -> np.ndarray:
    """Self-attention with relative or rotary positions.

    Args:
        params: query, key and value [d, H, kqv]; output [H, kqv, d]; for relative positions also relative_key [d, H,
            kqv]. kqv is the width of a head.
        x: [b, S, d].
        causal: whether position i depends only on positions up to i; otherwise it depends on all positions.
        mask: [b, S] bool, True for a real token; no other token attends to a padded token.
        positions: one of `configuration.POSITIONS`.

    Returns:
        [b, S, d].
    """
    if not x.size * params["output"].size:  # no tokens, no width, or no heads
        return np.zeros(x.shape)
    _, length, d_model = x.shape
    first = 0 if causal else 1 - length
    query, key, value = (np.einsum("bsd,dhc->bhsc", x, params[name]) for name in ("query", "key", "value"))
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]  # [S, S], i - j
    if positions == "rotary":
        logits = np.einsum("bhic,bhjc->bhij", rotary(query), rotary(key))
    else:
        relative = np.einsum("md,dhc->hmc", sinusoids(length, d_model, first), params["relative_key"])
        # Row m - first of `relative` is the key of distance m. A distance below `first` is masked; any row will do.
        by_pair = relative[:, np.maximum(distance, first) - first]  # [H, S, S, c], relative₍ᵢ₋ⱼ₎ at (i, j)
        by_content = np.einsum("bhic,bhjc->bhij", query, key)
        logits = by_content + np.einsum("bhic,hijc->bhij", query, by_pair)
    logits = logits / math.sqrt(query.shape[-1])
    seen = distance >= first
    if mask is not None:
        seen = seen & (mask[:, None, None, :] | (distance == 0))  # [b, 1, S, S]
    weights = softmax(np.where(seen, logits, -np.inf))
    return np.einsum("bhij,bhjc,hcd->bid", weights, value, params["output"])


def apply(
    params: dict,
    tokens: np.ndarray,
    config: ModelConfig,
    *,
    training: bool = False,
    noise: np.ndarray | None = None,
    table: np.ndarray | None = None,
    held: Routing | ExpertChoice | None = None,
    mask: np.ndarray | None = None,
) -> Output:
    """Run the model.

    Args:
        params: the tree that `parameter_shapes` describes.
        tokens: [b, S] integers in [0, V).
        config: the model.
        training: True routes as in training, False as in evaluation. Evaluation drops nothing, and is causal unless
            the objective is masked. It is independent of the rest of the batch, except for routers that see groups of
            sequences.
        noise: from `draw_noise`, for routers that draw at random in training.
        table: from `routed_block.hash_table`, for HASH; not needed for modulo, previous and position.
        held: `routing` of an earlier output for tokens of this shape; the model reuses its selections.
        mask: [b, S] bool, True for each real token (at least one); None if all are real. Ignore the logits of padded
            tokens.

    Returns:
        `Output`. The logits predict the next tokens; with the masked objective, the tokens themselves.

    Raises:
        ValueError: there is no token, a token is out of range, or `routed_block` raises this error.
    """
    _check_tokens(tokens)
    if tokens.size and not (0 <= tokens.min() and tokens.max() < config.vocab_size):
        raise InputError(f"tokens range from {tokens.min()} to {tokens.max()}; allowed: 0 to {config.vocab_size - 1}")
    h = params["embedding"][tokens] * embedding_factor(config)  # [b, S, d]
    routed, special = [], 0  # special: the number of routed or wide blocks so far
    seen = {"causal": config.objective == "causal", "mask": mask, "positions": config.positions}
    for i in range(config.blocks):
        block = _at(params["blocks"], i)
        h = h + attention(block["attention"], layer_norm(block["attention_norm"], h), **seen)
        x = layer_norm(block["ffn_norm"], h)
        if config.is_routed(i):
            here = {"noise": _at(noise, special), "held": _at(held, special), "table": table, "mask": mask}
            ffn = _at(params["routed_ffn"], special)
            done = routed_block(ffn, x, tokens, config.of_block(special), training=training, **here)
            routed.append(done)
            h = h + (layer_norm(ffn["output_norm"], done.output) if config.output_norm else done.output)
        else:
            ffn = _at(params["wide_ffn"], special) if config.is_wide(i) else _at(params["dense_ffn"], i - special)
            h = h + expert_ffn(**ffn, x=x, activation=config.activation)
        special += config.is_routed(i) or config.is_wide(i)
    return _output(layer_norm(params["final_norm"], h) @ params["embedding"].T, routed)


def _check_tokens(tokens: np.ndarray) -> None:
    if np.ndim(tokens) != 2 or not np.size(tokens):
        raise InputError(f"tokens has shape {np.shape(tokens)}; [b, S] with at least one token is needed")


def _output(logits: np.ndarray, routed: list) -> Output:
    """Return the logits and the results of the routed blocks, stacked in their order."""
    if not routed:
        return Output(logits, None, np.zeros(0), np.zeros(0), None, None)
    stacked = _stack(routed)  # a `BlockOutput` of arrays [n_r, ...]
    return Output(logits, stacked.routing, stacked.dropped_fraction, stacked.auxiliary, stacked.bias, stacked.policy)


def _at(tree, index: int):
    """Return the tree of one block from a tree of stacked blocks; None stays None."""
    if isinstance(tree, dict):
        return {name: _at(node, index) for name, node in tree.items()}
    if isinstance(tree, tuple):
        return type(tree)(*(_at(field, index) for field in tree))
    return None if tree is None else tree[index]


def _stack(trees: list):
    """Undo `_at`: stack the fields of the blocks' results."""
    if isinstance(trees[0], tuple):
        return type(trees[0])(*(_stack(list(fields)) for fields in zip(*trees, strict=True)))
    return None if trees[0] is None else np.stack(trees)


def carry_bias(params: dict, output: Output) -> dict:
    """Return the parameters with the updated bias of a training batch. Call it after every training step.

    Args:
        params: the tree that `parameter_shapes` describes.
        output: the output for that batch. Without a bias the parameters do not change.
    """
    if output.bias is None:
        return params
    return params | {"routed_ffn": params["routed_ffn"] | {"bias": output.bias}}


def hidden_positions(uniforms: np.ndarray, mask_rate: float) -> np.ndarray:
    """Return which tokens the masked objective hides: the tokens with the smallest uniforms of each sequence.

    Args:
        uniforms: [b, S], in [0, 1).
        mask_rate: the share of a sequence to hide, in (0, 1].

    Returns:
        [b, S] bool. Each sequence has S · mask_rate hidden tokens, rounded (halves up), and at least 1 (our choice).
        Ties go to the lower index.

    Raises:
        ValueError: the rate is outside (0, 1].

    Example:
        >>> hidden_positions(np.array([[0.5, 0.1, 0.9, 0.3]]), 0.5).tolist()
        [[False, True, False, True]]
    """
    if not 0 < mask_rate <= 1:
        raise InputError(f"mask_rate is {mask_rate}; it has to be above 0 and at most 1")
    hidden = np.zeros(uniforms.shape, bool)
    number = max(1, math.floor(mask_rate * uniforms.shape[1] + 0.5))
    np.put_along_axis(hidden, np.argsort(uniforms, axis=1, kind="stable")[:, :number], True, axis=1)
    return hidden


def loss(
    params: dict,
    tokens: np.ndarray,
    config: ModelConfig,
    *,
    training: bool = True,
    noise: np.ndarray | None = None,
    table: np.ndarray | None = None,
    held: Routing | ExpertChoice | None = None,
    held_credit: Credit | None = None,
    hidden: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> Loss:
    """Return the mean cross-entropy plus, in training, the loss terms of the router.

    The loss is a differentiable function of `params` if `held` is fixed (for RL-R `held_credit` too). No gradient flows
    into the input of RL-R's baseline.

    Args:
        params: the tree that `parameter_shapes` describes.
        tokens: [b, S + 1] integers in [0, V); the first S are inputs, the last S are targets. With the masked objective
            [b, S]; hidden tokens are targets, and the other tokens are inputs.
        config: the model.
        training, noise, table, held: see `apply`.
        held_credit: `credit` of an earlier loss for tokens of this shape; for RL-R.
        hidden: [b, S] bool, for the masked objective: the hidden tokens (see `hidden_positions`).
        mask: [b, S] bool, True for a position with a real input and a real target; the loss counts only these.

    Returns:
        `Loss`, in nats per token.

    Raises:
        ValueError: `hidden` is missing, or passed with the causal objective; there is no target; or `apply` raises this
            error.
    """
    inputs, targets, counted = _task(tokens, config, hidden, mask)
    options = {"training": training, "noise": noise, "table": table, "held": held, "mask": mask}
    output = apply(params, inputs, config, **options)
    log_total = log_sum_exp(output.logits, axis=-1)  # [b, S], log of the denominator of the softmax
    of_target = np.take_along_axis(output.logits, targets[..., None], axis=-1)[..., 0]
    log_probability = np.where(counted, of_target - log_total, 0)
    cross_entropy, credit = float(-log_probability.sum() / counted.sum()), None
    if config.record.policy and training:
        auxiliary, credit = _policy_loss(output, log_probability, config, held_credit, mask)
        output = output._replace(auxiliary=auxiliary)
    return Loss(cross_entropy + float(output.auxiliary.sum()), cross_entropy, output, credit)


def _task(tokens, config, hidden, mask):
    """Return the inputs, the targets and the mask of counted positions: [b, S] each."""
    if (hidden is None) == (config.objective == "masked"):
        state = "missing" if hidden is None else "given"
        raise InputError(
            f"hidden is {state} and the objective is {config.objective}; only the objective masked takes hidden"
        )
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if hidden is not None:
        inputs, targets = np.where(hidden, config.mask_token, tokens), tokens
    counted = np.ones(inputs.shape, bool) if hidden is None else np.asarray(hidden, bool)
    counted = counted if mask is None else counted & mask
    if not counted.any():
        raise InputError("no token has a target: all tokens are padding, or no real token is hidden")
    return inputs, targets, counted


def _policy_loss(output, log_probability, config, held_credit, mask):
    """Return the loss terms of each block's policy and baseline [n_r], and the credit."""
    reward = reward_to_go(log_probability) if config.reward_to_go else log_probability  # [b, S]
    reward = reward if held_credit is None else held_credit.reward
    options = ("policy_weight", "baseline_weight", "entropy_weight", "balance_weight", "nucleus")
    weights = {name: getattr(config, name) for name in options}
    weights["mask"] = None if mask is None else mask.reshape(-1)
    terms = []
    for i in range(config.num_routed):
        logits, value, expert = output.policy.logits[i], output.policy.value[i], output.routing.expert[i]
        advantage = None if held_credit is None else held_credit.advantage[i]
        terms.append(policy_terms(logits, expert, value, reward.reshape(-1), held_advantage=advantage, **weights))
    terms = _stack(terms)
    return terms.loss, Credit(reward, terms.advantage)
