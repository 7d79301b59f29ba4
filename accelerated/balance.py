"""Balance: losses and a bias that keep the experts equally loaded, and statistics of the load.

Step by step, with sources and examples: `routelaws.reference.balance`.

Differences from the reference: logits of lower precision than float32 are converted to float32, and shares, counts and
the bias pass through `stop_gradient`. Under jit, the values of an array raise no error. An expert index that is out of
range or masked is not counted. The loss is NaN for a logit of NaN or +∞ and for loads that are all 0. It is also NaN
for a mask without real tokens.

With `axis_name` all tokens along a mapped axis (`jax.vmap`, `jax.shard_map`) are one group. Every member of the axis
returns the same shares, probabilities and loss.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from routelaws.reference.balance import DIALECTS, RECENTRE, SCORES, _check_budget, _number_of_sequences
from routelaws.reference.notation import _check_k

from ._docstrings import describe_twins
from .errors import InputError
from .notation import (
    _among,
    _as_bool,
    _at_least_float32,
    _check_group,
    _or_nan,
    _prepared,
    _real_tokens,
    _total,
    log_sum_exp,
    softmax,
)
from .routers.top_k import _log_scores


class AuxiliaryLoss(NamedTuple):
    """The auxiliary loss and its two factors. Pass the tuple to a later call as `held` to reuse its `share`.

    Attributes:
        loss: [], without its weight
        share: [E], shareₑ, counted as in the dialect; a constant for the gradient
        probability: [E], probₑ, the mean over tokens of the probability of each expert
    """

    loss: jax.Array
    share: jax.Array
    probability: jax.Array


class LoadStatistics(NamedTuple):
    """Statistics of how evenly the tokens load the experts.

    Attributes:
        max_over_mean: [], largest load divided by mean load: 1 at balance, E if one expert has all tokens
        entropy: [], entropy of the shares in nats: log E at balance, 0 if one expert has all tokens
        idle: [], share of the experts that received nothing
    """

    max_over_mean: jax.Array
    entropy: jax.Array
    idle: jax.Array


def _mean(values: jax.Array, mask: jax.Array | None, axis_name: str | None) -> jax.Array:
    """Return the mean of [T, ...] over the real tokens of this device, or of the whole mapped axis."""
    if mask is None:
        return values.mean(axis=0) if axis_name is None else jax.lax.pmean(values.mean(axis=0), axis_name)
    mask = _as_bool(mask)
    kept = jnp.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
    return _total(kept.sum(axis=0), axis_name) / _total(mask.sum(dtype=values.dtype), axis_name)


def expert_counts(
    expert: jax.Array, num_experts: int, *, mask: jax.Array | None = None, axis_name: str | None = None
) -> jax.Array:
    """Return [E] integers, the number of assignments to each expert.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding.

    Raises:
        ValueError: the mask has the wrong shape.

    Differs from the reference: the counts are int32. An index out of range is not counted. The function sums one-hot
    rows, because a scatter does not run on sharded tokens.
    """
    if mask is not None:
        expert = jnp.where(_real_tokens(mask, len(expert))[:, None], expert, num_experts)
    return _total(jax.nn.one_hot(expert, num_experts, dtype=jnp.int32).sum(axis=(0, 1)), axis_name)


def mean_probability(
    logits: jax.Array,
    score: str = "softmax",
    *,
    mask: jax.Array | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Return [E], the mean over tokens of the probability of each expert. The entries sum to 1.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding.

    Raises:
        ValueError: the score is unknown, or a mask has the wrong shape.

    Differs from the reference: logits below float32 are converted to float32. A logit of NaN or +∞ gives NaN, and so
    does a mask without a real token.
    """
    return _probability(logits, score, mask, axis_name)[0]


def _probability(logits, score, mask, axis_name):
    """Return the result of `mean_probability`, and the available experts, as `_prepared`."""
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    _check_group("logits", logits)
    logits, valid, available = _prepared(logits, 1, mask, axis_name=axis_name)
    probability = softmax(_log_scores(logits, score))
    return _mean(_or_nan(probability, valid), mask, axis_name), available


def auxiliary_loss(
    logits: jax.Array,
    expert: jax.Array,
    *,
    dialect: str = "assignments",
    score: str = "softmax",
    held: AuxiliaryLoss | None = None,
    mask: jax.Array | None = None,
    axis_name: str | None = None,
) -> AuxiliaryLoss:
    """Return the balance loss, which is large when experts with many tokens also have a high probability.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding.

    Raises:
        ValueError: the dialect or the score is unknown, or a mask has the wrong shape.

    Differs from the reference: a logit of NaN or +∞ or a mask without a real token makes the loss NaN. An index that is
    out of range or masked is not counted. With `axis_name` every member returns the loss of all tokens, so take the
    mean of the members, not the sum.
    """
    value_at_balance(1, 1, dialect)  # raises if the dialect is unknown
    probability, available = _probability(logits, score, mask, axis_name)
    num_experts = len(probability)
    if held is None:
        if dialect in ("first_choice", "gshard"):
            expert = expert[:, :1]
        num_tokens, k = expert.shape
        if not expert.size:
            raise InputError(f"expert has shape {expert.shape}; [T, k] with at least one choice is needed")
        counts = expert_counts(expert, num_experts, mask=mask, axis_name=axis_name)
        whole = _total(num_tokens if mask is None else _as_bool(mask).sum(), axis_name)
        share = counts.astype(probability.dtype) / (whole * (k if dialect == "assignments" else 1))
    else:
        share = held.share
    share = _among(jax.lax.stop_gradient(share), available, 0)
    num_experts = available.sum(dtype=jnp.int32)
    scale = jnp.ones_like(share[0]) / num_experts if dialect == "gshard" else num_experts
    return AuxiliaryLoss(scale * (share * probability).sum(), share, probability)


def merge_micro_batches(parts: AuxiliaryLoss, tokens: jax.Array, *, dialect: str = "assignments") -> AuxiliaryLoss:
    """Return the `auxiliary_loss` of a whole batch from those of its micro-batches.

    Raises:
        ValueError: the dialect is unknown.

    Differs from the reference: without a real token the loss is NaN. To keep the activations of one micro-batch at a
    time, compute the parts in `jax.lax.scan` over a function under `jax.checkpoint`.
    """
    value_at_balance(1, 1, dialect)  # raises if the dialect is unknown
    tokens = jnp.asarray(tokens)
    rows, weights = (tokens > 0)[:, None], tokens / tokens.sum()
    share, probability = (weights @ jnp.where(rows, field, 0) for field in (parts.share, parts.probability))
    scale = 1 / len(share) if dialect == "gshard" else len(share)
    share = jax.lax.stop_gradient(share)
    return AuxiliaryLoss(scale * (share * probability).sum(), share, probability)


def sequence_loss(
    logits: jax.Array,
    expert: jax.Array,
    sequence_length: int,
    *,
    dialect: str = "assignments",
    score: str = "softmax",
    held: AuxiliaryLoss | None = None,
    mask: jax.Array | None = None,
) -> AuxiliaryLoss:
    """Return the mean over sequences of the `auxiliary_loss` of each sequence.

    Differs from the reference: see `auxiliary_loss`.
    """
    _check_group("logits", logits)
    number = _number_of_sequences(len(logits), sequence_length)
    mask = None if mask is None else _real_tokens(mask, len(logits))

    def of_sequence(logits, expert, share, mask):
        constant = None if share is None else AuxiliaryLoss(None, share, None)
        options = {"dialect": dialect, "score": score, "held": constant}
        if mask is None:
            return auxiliary_loss(logits, expert, **options), True
        real = mask.any()  # a sequence without a real token uses logits 0 at all tokens; its loss is excluded
        logits = jnp.where(mask[:, None], logits, 0)
        return auxiliary_loss(logits, expert, mask=mask | ~real, **options), real

    parts = (
        value if value is None else value.reshape(number, sequence_length, *value.shape[1:])
        for value in (logits, expert, mask)
    )
    logits, expert, mask = parts
    losses, real = jax.vmap(of_sequence)(logits, expert, None if held is None else held.share, mask)
    share, probability = (jnp.where(real[:, None], each, 0) for each in losses[1:])
    return AuxiliaryLoss(jnp.where(real, losses.loss, 0).sum() / real.sum(), share, probability)


def value_at_balance(num_experts: int, k: int, dialect: str = "assignments") -> float:
    """Return the value of `auxiliary_loss` when every expert has the same share."""
    if dialect not in DIALECTS:
        raise InputError(f"dialect is {dialect!r}; allowed: {', '.join(DIALECTS)}")
    _check_k(1, num_experts)
    return {"tokens": float(k), "gshard": 1 / num_experts**2}.get(dialect, 1.0)


def z_loss(
    logits: jax.Array,
    *,
    mask: jax.Array | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Return the mean over tokens of (log Σₑ exp zₜₑ)², which keeps the logits small.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`) over which the tokens of the group are sharded; None
            without sharding.

    Raises:
        ValueError: a mask has the wrong shape.

    Differs from the reference: a logit of NaN or +∞, or a mask without a real token, gives NaN.
    """
    _check_group("logits", logits)
    logits, valid, _ = _prepared(logits, 1, mask)
    return _mean(_or_nan(log_sum_exp(logits, axis=1), valid[:, 0]) ** 2, mask, axis_name)


def update_bias(
    bias: jax.Array,
    counts: jax.Array,
    *,
    rate: float = 1e-3,
    recentre: str = "none",
) -> jax.Array:
    """Return the bias of the next step: higher for experts below the mean load, lower for experts above it.

    Raises:
        ValueError: the counts are not integers, the rate is a number that is negative or NaN, or `recentre` is unknown.

    Differs from the reference: the function does not check the values of counts or of a traced rate. E countₑ may not
    fit into 32 bits. So the function divides the sum of the counts by E, and compares each count with quotient and
    remainder.
    """
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise InputError(f"counts have dtype {counts.dtype}; integers are needed")
    if isinstance(rate, int | float) and not rate >= 0:  # `rate` may be traced, for example if it follows a schedule
        raise InputError(f"rate is {rate}; it has to be at least 0")
    if recentre not in RECENTRE:
        raise InputError(f"recentre is {recentre!r}; allowed: {', '.join(RECENTRE)}")
    bias = jax.lax.stop_gradient(_at_least_float32(bias))
    available = ~jnp.isneginf(bias)
    number = available.sum(dtype=jnp.int32)
    quotient, remainder = jnp.divmod(_among(counts, available, 0).sum(), number)
    # If the mean is not an integer, a count equal to the quotient is below the mean.
    below = (counts < quotient) | ((counts == quotient) & (remainder > 0))
    step = jnp.where(counts > quotient, -1, jnp.where(below, 1, 0)).astype(bias.dtype)
    if recentre == "step":
        step = step - _among(step, available, 0).sum() / number
    new = bias + rate * step
    if recentre == "bias":
        new = new - _among(new, available, 0).sum() / number
    return _among(new, available, bias)


def update_budget_bias(
    bias: jax.Array, counts: jax.Array, num_real: int, real_share: float, *, rate: float = 1e-3
) -> jax.Array:
    """Return the bias of the next step for a router with zero-computation experts (`experts.zero_computation`)."""
    _check_budget(real_share, rate)
    bias = jax.lax.stop_gradient(_at_least_float32(bias))
    real = jnp.arange(len(bias)) < num_real
    number = jnp.maximum((real & ~jnp.isneginf(bias)).sum(), 1)
    return jnp.where(real, bias + rate * (real_share / number - counts / counts.sum()), bias)


def load_statistics(load: jax.Array) -> LoadStatistics:
    """Return statistics of how evenly the tokens load the experts.

    Raises:
        ValueError: the loads are not [E].

    Differs from the reference: the function does not check the values of the loads. max_over_mean and entropy are NaN
    if all loads are 0, or if one is NaN.
    """
    if load.ndim != 1 or not load.size:
        raise InputError(f"load has shape {load.shape}; [E] with at least one expert is needed")
    whole = jnp.issubdtype(load.dtype, jnp.integer)
    load = load.astype(jnp.result_type(float) if whole else jnp.promote_types(load.dtype, jnp.float32))
    share = load / load.sum()
    entropy = (share * jnp.log(1 / jnp.where(share > 0, share, 1))).sum()
    return LoadStatistics(share.max() * len(load), entropy, (load == 0).mean(dtype=load.dtype))


describe_twins(__name__)
