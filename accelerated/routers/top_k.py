"""Top-k token choice: each token takes the k experts it scores highest.

Step by step, with sources and examples: `routelaws.reference.routers.top_k`.

Differences from the reference: logits of lower precision than float32 are converted to float32. A logit of NaN or +∞
raises no error: the gates of its token are NaN. A non-finite bias makes all gates NaN. Selections pass through
`stop_gradient`. With a mask without real tokens, plan and loads are NaN.
"""

import jax
import jax.numpy as jnp

from routelaws.reference.routers.top_k import (  # noqa: F401 - names for users
    GROUP_SCORES,
    NORMALISATIONS,
    SCORES,
    _check_gate_scale,
    _check_options,
    _groups_of_experts,
)

from .._docstrings import describe_twins
from ..errors import InputError
from ..notation import (
    Routing,
    _among,
    _at_least_float32,
    _check_bias,
    _check_group,
    _imbalance,
    _padded_experts,
    _prepared,
    _real_gates,
    _real_tokens,
    one_hot,
    softmax,
    top_k_indices,
)


def top_k_router(
    logits: jax.Array,
    k: int = 1,
    *,
    score: str = "softmax",
    normalisation: str = "none",
    bias: jax.Array | None = None,
    gate_scale: float = 1.0,
    expert_groups: int = 1,
    groups_per_token: int = 1,
    group_score: str = "two_best",
    allow_constant_gate: bool = False,
    held: Routing | None = None,
    mask: jax.Array | None = None,
) -> Routing:
    """Give each token the k experts that it scores highest.

    Raises:
        ValueError: the logits are not [T, E] or the bias is not [E], k is out of range, the score, the normalisation or
            the score of groups is unknown, the gate would be constant or its scale is not above 0 and finite, the
            groups do not divide E or can hold fewer than k experts, or a mask has the wrong shape.

    Differs from the reference: logits of lower precision than float32 are converted to float32. Wrong logits
    raise no error: the gates of their token are NaN, also if its groups have fewer than k available experts. All gates
    are NaN for a non-finite bias. With a mask without real tokens, plan and loads are
    NaN.
    """
    _check_group("logits", logits)
    if bias is not None:
        _check_bias(bias, jnp.shape(logits)[1])
    _check_options(k, logits.shape[1], score, normalisation, allow_constant_gate)
    _check_gate_scale(gate_scale)
    group = _groups_of_experts(logits.shape[1], k, expert_groups, groups_per_token, group_score)
    logits, valid, available = _prepared(logits, k, mask, held=held)
    if bias is not None:
        bias = _among(_at_least_float32(jax.lax.stop_gradient(bias)), available, 0)
        valid &= jnp.isfinite(bias).all()
    # SELECT
    if held is None:
        chosen_by = scores = jax.lax.stop_gradient(logits)
        if bias is not None or group is not None:
            scores = _scores(chosen_by, score)
        if bias is not None:
            chosen_by = scores = scores + bias
        if bias is not None or group is not None:
            chosen_by, scores = (jnp.where(jnp.isneginf(logits), -jnp.inf, v) for v in (chosen_by, scores))
        if group is not None:
            inside = _in_best_groups(scores, expert_groups, groups_per_token, group_score)
            chosen_by = jnp.where(inside, chosen_by, -jnp.inf)
            valid &= (chosen_by > -jnp.inf).sum(axis=1, keepdims=True) >= k
        expert = _padded_experts(top_k_indices(chosen_by, k), mask)  # [T, k]
        held = _routing(expert, _kept(expert, mask), logits, available)
    # COMBINE
    gate = gate_scale * chosen_gates(logits, held.expert, score, normalisation)
    return held._replace(gate=_real_gates(gate, valid, mask))


def _in_best_groups(scores, expert_groups, groups_per_token, group_score):
    """Return [T, E] bool, the experts in the groups that each token chooses; −∞ is an expert that is not available."""
    num_tokens, num_experts = scores.shape
    by_group = scores.reshape(num_tokens, expert_groups, -1)
    best = by_group.max(axis=2)
    if group_score == "two_best" and by_group.shape[2] > 1:
        second = jax.lax.top_k(by_group, 2)[0][..., 1]
        best = best + jnp.where(second == -jnp.inf, 0, second)
    chosen = top_k_indices(best, groups_per_token)  # [T, groups_per_token]
    inside = (chosen[:, :, None] == jnp.arange(expert_groups)).any(axis=1)  # [T, groups]
    return jnp.repeat(inside, num_experts // expert_groups, axis=1)


def _kept(expert, mask):
    if mask is None:
        return jnp.ones(expert.shape, bool)
    return jnp.broadcast_to(_real_tokens(mask, len(expert))[:, None], expert.shape)


def _routing(expert, kept, logits, available):
    num_experts = logits.shape[1]
    kept = kept.astype(logits.dtype)
    plan = (one_hot(expert, num_experts).astype(logits.dtype) * kept[:, :, None]).sum(axis=1) / kept.sum()
    load = plan.sum(axis=0)
    return Routing(expert, expert, load, plan, _imbalance(load, available))


def _log_scores(logits, score):
    if score == "sqrtsoftplus":  # log(1 + exp z) rounds to exp z below -40
        small = logits < -40
        return jnp.where(small, logits, jnp.log(jax.nn.softplus(jnp.where(small, 0, logits)))) / 2
    return jax.nn.log_sigmoid(logits) if score == "sigmoid" else logits


def _scores(logits, score):
    if score == "sqrtsoftplus":
        return jnp.exp(_log_scores(logits, score))
    return softmax(logits) if score == "softmax" else jax.nn.sigmoid(logits)


def chosen_gates(logits: jax.Array, expert: jax.Array, score: str, normalisation: str) -> jax.Array:
    """Return the gate of each chosen expert, [T, k]."""
    if normalisation == "none":
        return jnp.take_along_axis(_scores(logits, score), expert, axis=1)
    log_scores = logits if normalisation == "softmax" else _log_scores(logits, score)
    return softmax(jnp.take_along_axis(log_scores, expert, axis=1))


def switch_router(
    logits: jax.Array,
    *,
    held: Routing | None = None,
    mask: jax.Array | None = None,
) -> Routing:
    """Give each token its most probable expert, with that probability as its gate (Fedus et al. 2021).

    It is `top_k_router` with its defaults.

    Raises:
        ValueError: the logits are not [T, E], or a mask has the wrong shape.

    Differs from the reference: see `top_k_router`.
    """
    _check_group("logits", logits)
    return top_k_router(logits, held=held, mask=mask)


def gshard_router(
    logits: jax.Array,
    uniforms: jax.Array | None = None,
    *,
    held: Routing | None = None,
    mask: jax.Array | None = None,
) -> Routing:
    """Give each token its two best experts, and drop the second expert at random if its gate is small.

    Raises:
        ValueError: the logits are not [T, E], E < 2, or a mask has the wrong shape.

    Differs from the reference: see `top_k_router`. The function does not check the range of the uniforms. A NaN uniform
    makes the gates of its token NaN.
    """
    _check_group("logits", logits)
    if logits.shape[1] < 2:
        raise InputError(f"num_experts is {logits.shape[1]}; two experts per token need at least 2")
    logits, valid, available = _prepared(logits, 2, mask, held=held)
    if uniforms is not None:
        valid &= ~jnp.isnan(uniforms)[:, None]
    expert = top_k_indices(jax.lax.stop_gradient(logits), 2) if held is None else held.expert  # padding: the first
    gate = chosen_gates(logits, expert, "softmax", "softmax")  # [T, 2]
    gate = _real_gates(gate, valid, mask)
    # SELECT
    if held is None:
        kept = _kept(expert, mask)
        if uniforms is not None:
            kept = kept.at[:, 1].set(kept[:, 1] & ~(uniforms >= 2 * gate[:, 1]))  # true of NaN
        held = _routing(expert, kept, logits, available)
    # COMBINE
    kept = jnp.take_along_axis(held.plan, held.expert, axis=1) > 0
    return held._replace(gate=jnp.where(kept, gate, 0))


describe_twins(__name__)
