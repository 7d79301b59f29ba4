"""See `routelaws.reference.balance`.

What differs: logits below float32 are raised to float32, and shares, counts and the bias pass through `stop_gradient`.
Under jit nothing can raise because of a value: an expert index out of range is not counted, a logit that is not finite
is carried into the loss, and loads that are all 0 give NaN.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .errors import InputError
from .notation import log_sum_exp, softmax

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


def _at_least_float32(values: jax.Array) -> jax.Array:
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def expert_counts(expert: jax.Array, num_experts: int) -> jax.Array:
    """See reference; int32. A sum of one-hot rows: unlike a count by scattering it also runs on sharded tokens."""
    return jax.nn.one_hot(expert, num_experts, dtype=jnp.int32).sum(axis=(0, 1))


def mean_probability(logits: jax.Array, score: str = "softmax") -> jax.Array:
    """See reference."""
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    logits = _at_least_float32(logits)
    return softmax(jax.nn.log_sigmoid(logits) if score == "sigmoid" else logits).mean(axis=0)


def auxiliary_loss(
    logits: jax.Array,
    expert: jax.Array,
    *,
    dialect: str = "assignments",
    score: str = "softmax",
    held: AuxiliaryLoss | None = None,
) -> AuxiliaryLoss:
    """See reference."""
    value_at_balance(1, 1, dialect)  # says so when the dialect is unknown
    probability = mean_probability(logits, score)
    num_experts = len(probability)
    if held is None:
        num_tokens, k = expert.shape
        if dialect in ("assignments", "tokens"):
            counts, whole = expert_counts(expert, num_experts), num_tokens * (k if dialect == "assignments" else 1)
        else:
            counts, whole = expert_counts(expert[:, :1], num_experts), num_tokens
        share = counts.astype(probability.dtype) / whole
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


def z_loss(logits: jax.Array) -> jax.Array:
    """See reference."""
    return (log_sum_exp(_at_least_float32(logits), axis=1) ** 2).mean()


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
