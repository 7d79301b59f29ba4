"""One routed block, with any router: compute the vector that the block adds to each token.

Step by step, with sources and examples: `routelaws.reference.routed_block`.

Differences from the reference: groups run under `vmap`. Router logits have at least float32. The experts use the dtype
of x.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from routelaws.reference.configuration import ModelConfig
from routelaws.reference.routed_block import _check_noise, _hash_routing, _hash_table, _next_bias

from . import balance
from ._docstrings import describe_twins
from .experts import _matrices, routed_ffn, zero_computation
from .notation import ExpertChoice, Routing, _as_bool, _gathered, _prepared
from .operations.own_backward import dense_ffn
from .parallel import Spread, routed_ffn_on_devices
from .routers import hash_layer as hashes
from .routers.base import base_router
from .routers.expert_choice import expert_choice_ffn, expert_choice_router, group_by_position, ungroup_by_position
from .routers.mixture_of_tokens import group_within_sequence, mixture_of_tokens, ungroup_within_sequence
from .routers.quantile import quantile_bias, quantile_router
from .routers.reinforce import reinforce_router, state_value
from .routers.sinkhorn import sinkhorn_router
from .routers.top_k import gshard_router, top_k_router


class Policy(NamedTuple):
    """The data of a block that the loss of RL-R needs.

    Attributes:
        logits: [T, E G]
        value: [T], the baseline's estimate of the reward
    """

    logits: jax.Array
    value: jax.Array


class Replay(NamedTuple):
    """A held routing for routers that assign experts to tokens. Its gates are used, too.

    Each gate has its stored value. Its gradient is the gradient of the gate that the router computes for this expert.
    """

    routing: Routing


class CallOptions(NamedTuple):
    """The options of `transformer.apply`, in their order. `routed_block` and `decide` ignore some of them."""

    training: bool = False
    noise: jax.Array | None = None
    table: jax.Array | None = None
    held: Routing | ExpertChoice | Replay | None = None
    mask: jax.Array | None = None
    compute_dtype: jnp.dtype | None = None
    base_method: str = "host"
    spread: Spread | None = None
    rematerialise: bool = False
    attention: str = "own"


class Decision(NamedTuple):
    """The decision of a router that assigns experts to tokens, for one group.

    Attributes:
        routing: experts and gates of the tokens of the group
        auxiliary: the router's term of the training loss
        bias: [E G], for the next batch; None if the router has none
        policy: RL-R only
    """

    routing: Routing
    auxiliary: jax.Array | float = 0.0
    bias: jax.Array | None = None
    policy: Policy | None = None


class BlockOutput(NamedTuple):
    """The result of a routed block.

    Attributes:
        output: [b, S, d]
        routing: None for a Mixture of Tokens, which selects nothing
        dropped_fraction: share of assignments without a slot; expert choice: share of tokens that no expert chose
        auxiliary: the router's term of the training loss
        bias: [E G], for the next batch; None if the router has none
        policy: RL-R only
    """

    output: jax.Array
    routing: Routing | ExpertChoice | None
    dropped_fraction: jax.Array
    auxiliary: jax.Array
    bias: jax.Array | None
    policy: Policy | None


def routed_block(
    params: dict,
    x: jax.Array,
    tokens: jax.Array,
    config: ModelConfig,
    *,
    training: bool = False,
    noise: jax.Array | None = None,
    table: jax.Array | None = None,
    held: Routing | ExpertChoice | Replay | None = None,
    mask: jax.Array | None = None,
    base_method: str = "host",
    spread: Spread | None = None,
) -> BlockOutput:
    """Run a routed block.

    Args:
        base_method: the assignment method of BASE (see `routers.base.balanced_assignment`).
        spread: the sharding of tokens, experts and hidden units over devices; None without sharding.

    Raises:
        ValueError: the group size does not divide b (or S, for neighbours), noise or table is missing, or an expert
            mask is given with sharded experts.

    Differs from the reference: router logits have at least float32; the experts use the dtype of x. If no token is
    real, loads and losses are NaN. If `held` is a `Replay`, the block also reuses its gates.
    """
    call = CallOptions(training, noise, table, held, mask, base_method=base_method, spread=spread)
    return run_routed_block(params, x, tokens, config, call)


def run_routed_block(params, x, tokens, config, call: CallOptions) -> BlockOutput:
    """Return the result of `routed_block` with a record of its options."""
    if config.router == "mixture_of_tokens":
        done = _mixture_block(params, x, config, call)
    elif config.router == "expert_choice":
        done = _expert_choice_block(params, x, config, call)
    else:
        mask = None if call.mask is None else call.mask.reshape(-1)
        done = _token_choice_block(params, x, tokens, config, call._replace(mask=mask))
    if "bias" in params and done.bias is None:  # of another router in a list
        done = done._replace(bias=params["bias"])
    if config.shared_experts:
        done = done._replace(output=done.output + _shared(params["shared"], x, config, call.mask))
    return _whole(done, call.spread)


def _shared(matrices, x, config, mask):
    """Return the output of the shared experts, [b, S, d]; 0 for padding."""
    matrices = {name: matrix.astype(x.dtype) for name, matrix in matrices.items()}
    output = dense_ffn(matrices, x.reshape(-1, config.d_model), config.activation).reshape(x.shape)
    return output if mask is None else jnp.where(_as_bool(mask)[..., None], output, 0)


def _token_choice_block(params, x, tokens, config, call: CallOptions):
    """Run a block with a router that assigns experts to tokens."""
    group = x.reshape(-1, config.d_model)  # [T, d]
    asks, spread = call.mask, call.spread
    replay = call.held if isinstance(call.held, Replay) else None
    decided = _decide(params, group, tokens, config, call if replay is None else call._replace(held=replay.routing))
    routing = decided.routing
    if replay is not None:
        own, stored = routing.gate, jnp.asarray(replay.routing.gate, routing.gate.dtype)
        routing = routing._replace(gate=stored + (own - jax.lax.stop_gradient(own)))
    capacity_factor = config.capacity_factor if call.training else math.inf
    if config.sample_second:
        asks = routing.gate != 0
    expert = routing.expert
    if config.zero_experts:
        real = expert < config.expert_count
        asks = real if asks is None else asks[:, None] & real
        expert = jnp.where(real, expert, 0)
    send, experts = routed_ffn, _experts(params, x.dtype)
    inputs = group @ params["latent_down"].astype(x.dtype) if config.latent_width else group
    if spread is not None:
        over = {"axis_name": spread.experts, "group_axes": spread.batch, "ragged": spread.ragged}
        send = functools.partial(routed_ffn_on_devices, group=spread.group, native=spread.ragged, **over)
    output, dropped = send(
        experts,
        inputs,
        expert,
        routing.gate,
        capacity_factor,
        order=config.drop_order,
        mask=asks,
        activation=config.activation,
    )
    if config.latent_width:
        output = output @ params["latent_up"].astype(x.dtype)
    if config.zero_experts:
        constants = jax.tree.map(lambda leaf: leaf.astype(x.dtype), params.get("constants"))
        options = {"kind": config.zero_kind, "constants": constants}
        zero = zero_computation(group, routing.expert, routing.gate, config.expert_count, **options)
        parts = 1 if spread is None or spread.model is None else jax.lax.psum(1, spread.model)  # `_whole` adds them
        output, dropped = output + zero / parts, jnp.where(jnp.isnan(dropped), 0, dropped)
    added = jnp.asarray(decided.auxiliary, _wide(x.dtype))
    return BlockOutput(output.reshape(x.shape), routing, dropped, added, *decided[2:])


def _whole(done: BlockOutput, spread: Spread | None) -> BlockOutput:
    """Return the block's output. If hidden units are sharded, it is the sum of the devices' outputs."""
    if spread is None or spread.model is None:
        return done
    return done._replace(output=jax.lax.psum(done.output, spread.model))


def _experts(params, dtype):
    return {name: matrix.astype(dtype) for name, matrix in _matrices(params).items()}


def _wide(dtype):
    return jnp.promote_types(dtype, jnp.float32)


def _logits(params, group, biased=True):
    """Return [..., E G], the router's scores, in at least float32 for any dtype of the group.

    `biased` is False for a block whose router does not add the bias of another router in its list.

    The product uses all bits of its factors. By default GPUs use 10 bits and TPUs 7, and this changes the expert near a
    tie.
    """
    wide = _wide(group.dtype)
    logits = jnp.matmul(group.astype(wide), params["router"].astype(wide), precision="highest")
    return logits + params["router_bias"].astype(wide) if biased and "router_bias" in params else logits


def _mixture_block(params, x, config, call: CallOptions):
    groups, real, ungroup = _groups(x, call.mask, config, call.training)
    weights = _experts(params, x.dtype) | {"router": params["router"]}

    options = {"one_hot": config.one_hot, "activation": config.activation, "emit": config.emit}
    options |= {"axis_name": None if call.spread is None else call.spread.experts}
    temperature = config.temperature
    if config.learned_temperature:
        temperature, options["emit_temperature"] = config.temperature * jnp.exp(params["log_temperature"])

    def mix(group, real):
        return mixture_of_tokens(weights, group, temperature, mask=real, **options).output

    nothing = jnp.zeros((), _wide(x.dtype))
    output = ungroup(jax.vmap(mix)(groups, real)).astype(x.dtype)
    return BlockOutput(output, None, nothing, nothing, None, None)


def _groups(x, mask, config, training):
    """Return the groups [n, T, d], their real tokens (None for all), and the function that undoes the grouping."""
    length = x.shape[1]
    if config.groups_by_position(training):
        group, undo, size = group_by_position, ungroup_by_position, config.group_size
    else:
        group, undo = group_within_sequence, ungroup_within_sequence
        size = length if config.router == "expert_choice" else config.group_size
    real = None if mask is None else group(_as_bool(mask), size)
    return group(x, size), real, lambda grouped: undo(grouped, length)


def _expert_choice_block(params, x, config, call: CallOptions):
    groups, real, ungroup = _groups(x, call.mask, config, call.training)
    experts, options = _experts(params, x.dtype), {"activation": config.activation}
    options["axis_name"] = None if call.spread is None else call.spread.experts

    def choose(group, logits, held, real):
        choice = expert_choice_router(logits, config.choices, score=config.gate, held=held, mask=real)
        return expert_choice_ffn(experts, group, choice, **options), choice

    output, choice = jax.vmap(choose)(groups, _logits(params, groups), call.held, real)
    nothing = jnp.zeros((), _wide(x.dtype))
    unchosen = (choice.experts_per_token == 0).mean(dtype=nothing.dtype, where=real)
    return BlockOutput(ungroup(output).astype(x.dtype), choice, unchosen, nothing, None, None)


def decide(
    params: dict,
    group: jax.Array,
    tokens: jax.Array,
    config: ModelConfig,
    *,
    training: bool = False,
    noise: jax.Array | None = None,
    table: jax.Array | None = None,
    held: Routing | None = None,
    mask: jax.Array | None = None,
    base_method: str = "host",
    spread: Spread | None = None,
) -> Decision:
    """Return the decision of a router that assigns experts to the tokens of a group.

    Args:
        base_method: see `routed_block`.
        spread: see `routed_block`. The group is the tokens of one device or of all devices (`spread.group`). All
            devices share one bias. For quantile balancing it is the mean of the devices' biases, or the bias for all
            tokens. For top_k it follows from the loads of all devices.
    """
    call = CallOptions(training, noise, table, held, mask, base_method=base_method, spread=spread)
    return _decide(params, group, tokens, config, call)


def _decide(params, group, tokens, config, call: CallOptions) -> Decision:
    held, mask, training = call.held, call.mask, call.training
    if config.router == "hash":
        routing = _hash_routing(tokens, config, call.table, mask, hashes)
        routing = _mean_of_choices(routing, config, mask)
        return Decision(routing if held is None else held._replace(gate=routing.gate))
    if config.router == "hash_gated":
        routing = _hash_routing(tokens, config, call.table, mask, hashes) if held is None else held
        options = {"score": config.gate, "normalisation": config.normalisation, "gate_scale": config.gate_scale}
        return Decision(hashes.learned_gates(routing, _logits(params, group, config.router_bias), **options, mask=mask))
    logits = _logits(params, group, config.router_bias)  # SCORE
    together = None if call.spread is None else call.spread.balanced_over()
    options = {"gate": config.gate, "held": held, "mask": mask}
    if config.router == "sinkhorn":
        return Decision(sinkhorn_router(logits, config.choices, training=training, axis_name=together, **options))
    if config.router == "base":
        options |= {"axis_name": together, "method": call.base_method}
        return Decision(base_router(logits, config.choices, training=training, **options))
    if config.router == "quantile":
        routing = quantile_router(logits, params["bias"], config.choices, axis_name=together, **options)
        return Decision(routing, bias=_quantile_bias(params, logits, config, call))
    if config.router == "reinforce":
        return _decide_reinforce(params, group, logits, config, call)
    if config.router == "top_k":
        return _decide_top_k(params, logits, tokens, config, call)
    raise NotImplementedError(f"router {config.router!r} is not known here")


def _quantile_bias(params, logits, config, call: CallOptions):
    """Return the bias for the next batch; in the group "global", the scores of all devices give it."""
    if not call.training:
        return params["bias"]
    mask, spread = call.mask, call.spread
    over = None if spread is None else spread.batch
    if spread is not None and spread.group == "global":
        logits, mask, over = _gathered(logits, over), mask if mask is None else _gathered(mask, over), None
    return quantile_bias(logits, params["bias"], config.choices, axis_name=over, mask=mask)


def _decide_top_k(params, logits, tokens, config, call: CallOptions):
    """Return the decision of TOP-K for logits [T, E]: the selection, the losses to add, the bias of the next step."""
    held, mask, spread = call.held, call.mask, call.spread
    bias = params["bias"] if config.has_bias else None
    if config.sample_second:
        _check_noise(call.training, call.noise, held)
        routing = gshard_router(logits, call.noise if call.training else None, held=held, mask=mask)
    else:
        routing = top_k_router(logits, config.choices, bias=bias, **config.top_k_options(), held=held, mask=mask)
    if not call.training:
        return Decision(routing, 0.0, bias)
    if bias is not None:
        everyone = None if spread is None else spread.batch
        counts = balance.expert_counts(routing.expert, config.choosable, mask=mask, axis_name=everyone)
        available = _prepared(logits, mask=mask, axis_name=everyone)[2]
        new = _next_bias(balance, jnp.where(available, bias, -jnp.inf), counts, config)
        bias = jnp.where(available, new, jax.lax.stop_gradient(bias))
    options = {"dialect": "first_choice" if config.sample_second else "assignments", "score": config.gate}
    over = {"mask": mask, "axis_name": None if spread is None else spread.balanced_over()}
    if config.balance_scope == "sequence":  # each device has whole sequences
        uneven = balance.sequence_loss(logits, routing.expert, tokens.shape[1], **options, mask=mask).loss
    else:
        uneven = balance.auxiliary_loss(logits, routing.expert, **options, **over).loss
    added = config.balance_weight * uneven + config.z_weight * balance.z_loss(logits, **over)
    return Decision(routing, added, bias)


def _decide_reinforce(params, group, logits, config, call: CallOptions):
    _check_noise(call.training, call.noise, call.held)
    options = {"gumbel": call.noise if call.training else None, "nucleus": config.nucleus}
    routing = reinforce_router(logits, config.choices, held=call.held, mask=call.mask, **options)
    policy = Policy(logits, state_value(params["baseline"], group))
    return Decision(_mean_of_choices(routing, config, call.mask), policy=policy)


def _mean_of_choices(routing, config, mask):
    """Return the routing with gate 1/k at each of the k G experts of a token, and gate 0 for padding."""
    gate = jnp.where(jnp.isnan(routing.gate), routing.gate, 1 / config.k)
    return routing._replace(gate=gate if mask is None else jnp.where(mask[:, None], gate, 0))


def hash_table(
    config: ModelConfig,
    *,
    uniforms: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    embeddings: np.ndarray | None = None,
) -> np.ndarray:
    """Return the table of a hash model, from token id to experts."""
    return _hash_table(config, uniforms, counts, embeddings, hashes)


describe_twins(__name__)
