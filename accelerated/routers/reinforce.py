"""RL-R: the router is a policy over the experts and learns with REINFORCE.

Step by step, with sources and examples: `routelaws.reference.routers.reinforce`.

Differences from the reference: arrays of lower precision than float32 are converted to float32, and constants for the
gradient pass through `stop_gradient`. A row of logits with a non-finite entry raises no error. Its gates, plan,
log-probability and entropy are NaN, and so is the loss. A mask without a real token gives NaN, too. An expert that is
out of range or repeated raises no error either.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from routelaws.reference.notation import _check_k

from .._docstrings import describe_twins
from ..balance import auxiliary_loss
from ..errors import InputError
from ..notation import (
    Routing,
    _among,
    _as_bool,
    _at_least_float32,
    _check_group,
    _imbalance,
    _masked_rows,
    _or_nan,
    _padded_experts,
    _prepared,
    _real_gates,
    canonical_zero,
    one_hot,
    softmax,
    top_k_indices,
)


class PolicyTerms(NamedTuple):
    """The term that a routed block adds to the training loss, and its parts, each without its weight.

    Attributes:
        loss: [], policy_weight policy + baseline_weight baseline − entropy_weight entropy + balance_weight balance
        policy: [], −mean of advantage times log-probability
        baseline: [], mean squared difference of reward and value
        entropy: [], mean over tokens, in nats
        balance: [], 1 when all experts have the same load
        advantage: [T], the advantage in the policy term; a constant for the gradient; 0 for padding
    """

    loss: jax.Array
    policy: jax.Array
    baseline: jax.Array
    entropy: jax.Array
    balance: jax.Array
    advantage: jax.Array


def reinforce_router(
    logits: jax.Array,
    k: int = 1,
    *,
    gumbel: jax.Array | None = None,
    nucleus: float = 1.0,
    held: Routing | None = None,
    mask: jax.Array | None = None,
) -> Routing:
    """Draw the experts of each token from its policy, or take its most probable experts.

    Raises:
        ValueError: the logits are not [T, E], k or the nucleus is out of range, or the noise or a mask has the wrong
            shape.

    Differs from the reference: arrays have at least float32. A non-finite row of logits has NaN gates and a NaN plan,
    and a non-finite row of noise has NaN gates. No field carries a gradient.
    """
    _check_group("logits", logits)
    num_tokens, num_experts = logits.shape
    logits, valid, available = _prepared(jax.lax.stop_gradient(logits), k, mask, held=held)
    log_pi, chosen_by = log_policy(logits, k, nucleus), logits  # [T, E]
    # SELECT
    if held is None:
        if gumbel is not None:
            _check_shape("gumbel", gumbel, logits.shape)
            noise = _masked_rows(_among(_at_least_float32(jax.lax.stop_gradient(gumbel)), available, 0), mask)
            chosen_by, valid = log_pi + noise, valid & jnp.isfinite(noise).all(axis=1, keepdims=True)
        expert = top_k_indices(chosen_by, k)  # [T, k]
        counts = _masked_rows(one_hot(expert, num_experts).sum(axis=1), mask)
        plan = _masked_rows(jnp.exp(log_pi), mask)
        expert = _padded_experts(expert, mask)
        real = num_tokens if mask is None else _as_bool(mask).sum()
        load, plan = counts.sum(axis=0).astype(plan.dtype) / (real * k), plan / real
        held = Routing(expert, expert, load, plan, _imbalance(plan.sum(axis=0), available))
    # COMBINE
    gate = jnp.ones((num_tokens, k), logits.dtype) / k
    return held._replace(gate=_real_gates(gate, valid, mask))


def log_policy(logits: jax.Array, k: int = 1, nucleus: float = 1.0) -> jax.Array:
    """Return the logarithm of the policy: log softmax over the nucleus of each token, −∞ outside.

    Raises:
        ValueError: the logits are not [T, E], or k or the nucleus is out of range.

    Differs from the reference: the result has at least float32. A non-finite row gives NaN.
    """
    _check_group("logits", logits)
    logits = _nan_or_finite(logits, k)
    return _log_softmax(logits, _nucleus(logits, k, nucleus))


def _nucleus(logits, k, nucleus):
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    if not 0 < nucleus <= 1:
        raise InputError(f"nucleus is {nucleus}; it has to be above 0 and at most 1")
    if nucleus == 1:
        return jnp.ones(logits.shape, bool)
    logits = canonical_zero(jax.lax.stop_gradient(logits))
    ordered, order = jax.lax.top_k(logits, num_experts)
    probability = softmax(ordered)
    before = jnp.cumsum(probability, axis=1) - probability
    size = jnp.maximum((before < nucleus).sum(axis=1, keepdims=True), k)  # [T, 1]
    # A comparison with the last member of the nucleus needs no inverse permutation.
    lowest, last = (jnp.take_along_axis(values, size - 1, axis=1) for values in (ordered, order))
    inside = (logits > lowest) | ((logits == lowest) & (jnp.arange(num_experts) <= last))
    return inside | jnp.isnan(logits)


def log_probability(logits: jax.Array, expert: jax.Array, nucleus: float = 1.0) -> jax.Array:
    """Return the log-probability of drawing these experts in this order, without replacement.

    Raises:
        ValueError: expert is not [T, k], or k or the nucleus is out of range.

    Differs from the reference: the result has at least float32. A non-finite row gives NaN. The function does not check
    whether an expert is out of range or repeated. The function selects entries by comparison, because the gradient of a
    gather would be a scatter.
    """
    _check_shape("expert", expert, (len(logits), expert.shape[-1]))
    k = expert.shape[1]
    logits = _nan_or_finite(logits, k)
    left = _nucleus(logits, k, nucleus)
    total = jnp.zeros(len(logits), logits.dtype)
    for j in range(k):
        chosen = expert[:, j : j + 1] == jnp.arange(logits.shape[1])
        total += jnp.where(chosen, _log_softmax(logits, left), 0).sum(axis=1)
        left &= ~chosen
    return total


def policy_entropy(logits: jax.Array, k: int = 1, nucleus: float = 1.0) -> jax.Array:
    """Return −Σₑ πₜₑ log πₜₑ of each token, in nats: the entropy of one draw from the policy.

    Differs from the reference: the result has at least float32. A non-finite row gives NaN.
    """
    log_pi = log_policy(logits, k, nucleus)
    finite = jnp.where(log_pi == -jnp.inf, 0, log_pi)  # 0 log 0 is 0, like 1 log 1, also in the gradient
    return -(jnp.exp(finite) * finite).sum(axis=1)


def state_value(params: dict, x: jax.Array) -> jax.Array:
    """Return the baseline, value(x): an estimate of the expected reward in this state.

    Raises: nothing; non-finite inputs propagate to the value.
    """
    return jax.nn.relu(jax.lax.stop_gradient(x) @ params["hidden"]) @ params["out"]


def reward_to_go(reward: jax.Array) -> jax.Array:
    """Return the sum of the rewards from each position to the end of its sequence.

    Raises: nothing; non-finite rewards propagate to the sums.

    Differs from the reference: the sums have at least float32.
    """
    return jax.lax.cumsum(_at_least_float32(reward), axis=reward.ndim - 1, reverse=True)


def policy_terms(
    logits: jax.Array,
    expert: jax.Array,
    value: jax.Array,
    reward: jax.Array,
    *,
    policy_weight: float = 1e-2,
    baseline_weight: float = 1e-2,
    entropy_weight: float = 0.0,
    balance_weight: float = 1e-2,
    nucleus: float = 1.0,
    held_advantage: jax.Array | None = None,
    mask: jax.Array | None = None,
    axis_name=None,
) -> PolicyTerms:
    """Return the term that one routed block adds to the training loss.

    Args:
        axis_name: a mapped axis (`jax.vmap`, `jax.shard_map`), or a tuple of them, over which the tokens of the group
            are sharded; None without sharding. The balance loss then covers all tokens and is the same on every member.
            The other terms are means over a member's own tokens.

    Raises:
        ValueError: value, reward or held_advantage is not [T], expert is not [T, k], a mask has the wrong shape, or k
            or the nucleus is out of range.

    Differs from the reference: arrays have at least float32. Logits of NaN or +∞, and values or rewards that are not
    finite, make the loss non-finite, and a mask without a real token makes it NaN. The function does not check whether
    an expert is out of range or repeated.
    """
    _check_group("logits", logits)
    for name, values in (("value", value), ("reward", reward), ("held_advantage", held_advantage)):
        if values is not None:
            _check_shape(name, values, logits.shape[:1])
    logits = _masked_rows(logits, mask)
    value, reward = _at_least_float32(value), jax.lax.stop_gradient(_at_least_float32(reward))
    advantage = reward - value if held_advantage is None else _at_least_float32(held_advantage)
    advantage = _only_real(jax.lax.stop_gradient(advantage), mask)

    def mean(values):
        return values.mean() if mask is None else _only_real(values, mask).sum() / _as_bool(mask).sum()

    policy = -mean(advantage * log_probability(logits, expert, nucleus))
    baseline = mean(_only_real(reward - value, mask) ** 2)
    entropy = mean(policy_entropy(logits, expert.shape[1], nucleus))
    balance = auxiliary_loss(logits, expert, mask=mask, axis_name=axis_name).loss
    loss = policy_weight * policy + baseline_weight * baseline - entropy_weight * entropy + balance_weight * balance
    return PolicyTerms(loss, policy, baseline, entropy, balance, advantage)


def _check_shape(name, values, shape):
    if jnp.shape(values) != tuple(shape):
        raise InputError(f"{name} has shape {jnp.shape(values)}; needed: {tuple(shape)}")


def _nan_or_finite(logits, k):
    """Return the logits of `_prepared`, with NaN throughout a row that is not valid."""
    logits, valid, _ = _prepared(logits, k)
    return _or_nan(logits, valid)


def _log_softmax(logits, inside):
    return jax.nn.log_softmax(jnp.where(inside, logits, -jnp.inf), axis=1)


def _only_real(values, mask):
    return values if mask is None else jnp.where(mask, values, 0)


describe_twins(__name__)
