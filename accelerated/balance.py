"""See `routelaws.reference.balance`.

What differs: logits below float32 are raised to float32, and shares, counts and the bias pass through `stop_gradient`.
Under jit nothing can raise because of a value: an expert index out of range is not counted, a logit that is not finite
is carried into the loss, and loads that are all 0, or a mask without real tokens, give NaN.

With `axis_name` the statistics are those of all tokens along a mapped axis (`jax.vmap`, `jax.shard_map`): every member
of it returns the same shares, probabilities and loss, those of one group that holds all of their tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .errors import InputError
from .notation import _at_least_float32, _masked_rows, _real_tokens, _total, log_sum_exp, softmax

DIALECTS = ("assignments", "tokens", "first_choice", "gshard")
"""See reference."""

SCORES = ("softmax", "sigmoid")
"""See reference."""

RECENTRE = ("none", "step", "bias")
"""See reference."""


class AuxiliaryLoss(NamedTuple):
    """See reference."""

    loss: jax.Array  # []
    share: jax.Array  # [E]
    probability: jax.Array  # [E]


class LoadStatistics(NamedTuple):
    """See reference."""

    max_over_mean: jax.Array  # []
    entropy: jax.Array  # []
    idle: jax.Array  # []


def _mean(values: jax.Array, mask: jax.Array | None, axis_name: str | None) -> jax.Array:
    """Return the mean of [T, ...] over the real tokens, of the whole mapped axis if there is one."""
    if mask is None:
        return values.mean(axis=0) if axis_name is None else jax.lax.pmean(values.mean(axis=0), axis_name)
    mask = jnp.asarray(mask, bool)
    kept = jnp.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
    return _total(kept.sum(axis=0), axis_name) / _total(mask.sum(dtype=values.dtype), axis_name)


def expert_counts(
    expert: jax.Array, num_experts: int, *, mask: jax.Array | None = None, axis_name: str | None = None
) -> jax.Array:
    """See reference; int32. A sum of one-hot rows: unlike a count by scattering it also runs on sharded tokens."""
    if mask is not None:
        expert = jnp.where(_real_tokens(mask, len(expert))[:, None], expert, num_experts)
    return _total(jax.nn.one_hot(expert, num_experts, dtype=jnp.int32).sum(axis=(0, 1)), axis_name)


def mean_probability(
    logits: jax.Array, score: str = "softmax", *, mask: jax.Array | None = None, axis_name: str | None = None
) -> jax.Array:
    """See reference."""
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    logits = _masked_rows(_at_least_float32(logits), mask)
    return _mean(softmax(jax.nn.log_sigmoid(logits) if score == "sigmoid" else logits), mask, axis_name)


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
    """See reference. With `axis_name` every member has the loss of the whole: take their mean, not their sum."""
    value_at_balance(1, 1, dialect)  # says so when the dialect is unknown
    probability = mean_probability(logits, score, mask=mask, axis_name=axis_name)
    num_experts = len(probability)
    if held is None:
        if dialect in ("first_choice", "gshard"):
            expert = expert[:, :1]
        num_tokens, k = expert.shape
        counts = expert_counts(expert, num_experts, mask=mask, axis_name=axis_name)
        whole = _total(num_tokens if mask is None else jnp.asarray(mask, bool).sum(), axis_name)
        share = counts.astype(probability.dtype) / (whole * (k if dialect == "assignments" else 1))
    else:
        share = held.share
    share = jax.lax.stop_gradient(share)
    scale = 1 / num_experts if dialect == "gshard" else num_experts
    return AuxiliaryLoss(scale * (share * probability).sum(), share, probability)


def value_at_balance(num_experts: int, k: int, dialect: str = "assignments") -> float:
    """See reference."""
    if dialect not in DIALECTS:
        raise InputError(f"dialect is {dialect!r}; allowed: {', '.join(DIALECTS)}")
    return {"tokens": float(k), "gshard": 1 / num_experts**2}.get(dialect, 1.0)


def z_loss(logits: jax.Array, *, mask: jax.Array | None = None, axis_name: str | None = None) -> jax.Array:
    """See reference."""
    logits = _masked_rows(_at_least_float32(logits), mask)
    return _mean(log_sum_exp(logits, axis=1) ** 2, mask, axis_name)


def update_bias(bias: jax.Array, counts: jax.Array, *, rate: float = 1e-3, recentre: str = "none") -> jax.Array:
    """See reference. E countₑ may not fit into 32 bits, so each count is compared with quotient and remainder."""
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise InputError(f"counts have dtype {counts.dtype}; integers are needed")
    if isinstance(rate, int | float) and not rate >= 0:  # a schedule may give a traced one
        raise InputError(f"rate is {rate}; it has to be at least 0")
    if recentre not in RECENTRE:
        raise InputError(f"recentre is {recentre!r}; allowed: {', '.join(RECENTRE)}")
    bias = jax.lax.stop_gradient(_at_least_float32(bias))
    quotient, remainder = jnp.divmod(counts.sum(), len(counts))
    # Where the mean is not whole, a count equal to the quotient is below it.
    below = (counts < quotient) | ((counts == quotient) & (remainder > 0))
    step = jnp.where(counts > quotient, -1, jnp.where(below, 1, 0)).astype(bias.dtype)
    if recentre == "step":
        step = step - step.mean()
    bias = bias + rate * step
    return bias - bias.mean() if recentre == "bias" else bias


def load_statistics(load: jax.Array) -> LoadStatistics:
    """See reference."""
    whole = jnp.issubdtype(load.dtype, jnp.integer)
    load = load.astype(jnp.result_type(float) if whole else jnp.promote_types(load.dtype, jnp.float32))
    share = load / load.sum()
    entropy = (share * jnp.log(1 / jnp.where(share > 0, share, 1))).sum()
    return LoadStatistics(share.max() * len(share), entropy, (load == 0).mean(dtype=load.dtype))
