"""Top-k token choice: each token takes the k experts it scores highest.

Switch (Fedus et al. 2021) at k = 1, GShard (Lepikhin et al. 2020) at k = 2, and variants of later models.

    1. SCORE    sₜₑ = softmax(zₜ)ₑ, over all experts, or σ(zₜₑ) or √log(1 + exp zₜₑ), one by one
    2. SELECT   the k experts with the largest sₜₑ + bₑ; the bias b enters only here        `top_k_router`
                at k = 1, without a bias, written out                                       `switch_router`
    3. COMBINE  gate = sₜₑ of each chosen expert                   normalisation "none"
                       sₜₑ / (sum of s over the chosen experts)                  "sum"
                       softmax of zₜ over the chosen experts                     "softmax"
                times a constant                                                 `gate_scale`
    4. LOSS     nothing here keeps the experts balanced; see `balance`

With "none" and softmax scores the output shrinks as the number of experts grows. The text of `sinkhorn` shows this in a
table.

For softmax scores "sum" and "softmax" are the same function: the sum over all experts cancels. "none" is softmax before
top-k; "softmax" is softmax after top-k.

Group-limited choice: the E experts form `expert_groups` equal groups of neighbours (for example one per node). A token
first chooses `groups_per_token` groups, then its k experts from these groups. The score of a group is the sum of its
two largest sₜₑ + bₑ ("two_best", DeepSeek-V3) or the largest ("best", DeepSeek-V2). Ties go to the group with the lower
index. The router never chooses an expert outside the chosen groups, even if all sums inside are negative.

DeepSeek-V3 uses sigmoid scores, a bias, "sum", groups by "two_best" and a scale of 2.5 (arXiv 2412.19437, equations 12
to 16). Its `n_group`, `topk_group` and `routed_scaling_factor` are `expert_groups`, `groups_per_token` and
`gate_scale`.

DeepSeek-V4 uses the root of the softplus (`score` "sqrtsoftplus"), a bias, "sum" and a scale of 1.5, without groups. It
grows as √z for large logits, where σ is flat. In its first routed blocks a table of token ids chooses the experts, and
the scores give only the gates: `hash_layer.learned_gates`. (transformers 5.24, `DeepseekV4TopKRouter` and
`DeepseekV4HashRouter`; both add 1e-20 to the sum.)

At k = 1 a gate normalised over the chosen experts is always 1. The task loss then gives the router no gradient, so it
keeps its initial weights. Some libraries do this by default. Here this is an error; `allow_constant_gate` permits it.

Without a bias the router compares logits. They have the same order as the scores and never saturate: in 32 bits σ(20)
and σ(30) are the same number. With a bias it must compare s + b, and ties go to the lower index.

No later token leaks, in training or in evaluation. The experts and gates of a token depend on that token alone (and, in
GShard's router, on its own random number). Other tokens have two effects in training. They fill the capacity. In some
drop orders (`experts`), even later tokens fill it. And the tokens of earlier steps change the bias.

The router ignores the logits of padded tokens.

GShard's router follows Algorithm 1 of Lepikhin et al. 2020. It divides the two gates by their sum. It keeps the second
expert if 2 · gate is above a uniform random number (line 19). It does not scale up the first gate when it drops the
second expert. In the algorithm a dropped second choice still takes a place in the queue of its expert (line 22). The
model here frees this place (our choice) (see `gshard_router`).
"""

import math

import numpy as np

from ..errors import InputError
from ..notation import (
    Routing,
    _available_experts,
    _check_bias,
    _check_group,
    _check_k,
    _check_logits,
    _equal_shares,
    _route_available,
    _route_real_tokens,
    check_finite,
    one_hot,
    softmax,
    top_k_indices,
)

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
"""Ways to turn logits into scores."""

NORMALISATIONS = ("none", "sum", "softmax")
"""Ways to turn the scores of the chosen experts into gates."""

GROUP_SCORES = ("two_best", "best")
"""Scores of a group of experts: the sum of its two best scores (or its only score), or its best score."""


def switch_router(
    logits: np.ndarray,
    *,
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Routing:
    """Give each token its most probable expert, with that probability as its gate (Fedus et al. 2021).

    Read this router first. It equals `top_k_router` with its defaults, in a simpler form.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.
        mask: [T] bool, the real tokens; None for all. Below, T counts real tokens.

    Returns:
        `Routing` with k = 1.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, or a mask has the wrong shape or is all
            False.

    Example:
        >>> found = switch_router(np.log([[1.0, 3.0], [0.5, 0.5]]))
        >>> found.expert.tolist(), found.gate.tolist()
        ([[1], [0]], [[0.75], [0.5]])
    """
    _check_group("logits", logits)
    if mask is not None:
        return _route_real_tokens(switch_router, mask, logits, held=held)
    logits = _check_logits("logits", logits, held=held)
    available = _available_experts(logits)
    if available is not None:
        return _route_available(switch_router, available, logits, held=held)
    num_tokens, num_experts = logits.shape
    # SELECT
    if held is None:
        expert = np.array([[int(np.argmax(row))] for row in logits])  # [T, 1]; if equal, the first
        plan = one_hot(expert[:, 0], num_experts) / num_tokens  # [T, E], 1/T at each token's expert
        load = plan.sum(axis=0)  # [E], the share of the tokens that each expert received
        held = Routing(expert, None, load, plan, np.abs(num_experts * load - 1).max())
    # COMBINE
    return held._replace(gate=np.take_along_axis(softmax(logits), held.expert, axis=1))


def top_k_router(
    logits: np.ndarray,
    k: int = 1,
    *,
    score: str = "softmax",
    normalisation: str = "none",
    bias: np.ndarray | None = None,
    gate_scale: float = 1.0,
    expert_groups: int = 1,
    groups_per_token: int = 1,
    group_score: str = "two_best",
    allow_constant_gate: bool = False,
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Routing:
    """Give each token the k experts that it scores highest.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available; the raw router logits z.
        k: experts per token, 1 <= k <= E.
        score: "softmax" over all experts, or of each logit "sigmoid" or "sqrtsoftplus", √log(1 + exp z).
        normalisation: the gate is the score ("none"), the score divided by the sum over the chosen experts ("sum"), or
            the softmax of the logits of the chosen experts ("softmax").
        bias: [E], finite, added to the scores for the choice and nowhere else (`balance.update_bias`); no gradient.
        gate_scale: the factor of every gate, above 0 and finite.
        expert_groups: the number of equal groups of neighbouring experts; divides E.
        groups_per_token: the number of groups from which a token takes its experts, 1 <= groups_per_token <=
            expert_groups.
        group_score: the score of a group is the sum of score and bias over its two best experts ("two_best"), or of its
            best expert ("best").
        allow_constant_gate: accept k = 1 with a normalisation other than "none", where every gate is 1.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.
        mask: [T] bool, the real tokens; None for all. Below, T counts real tokens.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: an argument is out of its range, the gate would be constant, the groups do not divide E or can hold
            fewer than k experts, no token is real, or fewer than k experts are available.

    Discontinuity: the selection jumps where the last chosen and the first rejected expert, or group, have equal scores;
    ties go to the lower index.

    Example:
        >>> z = np.log([[1.0, 3.0, 4.0]])
        >>> for normalisation in NORMALISATIONS:
        ...     np.round(top_k_router(z, 2, normalisation=normalisation).gate, 4).tolist()
        [[0.5, 0.375]]
        [[0.5714, 0.4286]]
        [[0.5714, 0.4286]]
        >>> top_k_router(z, 2, bias=np.array([0.5, 0.0, 0.0])).expert.tolist()  # of 0.625, 0.375 and 0.5
        [[0, 2]]

        Logits log(e − 1) and log(e⁴ − 1) have the softplus 1 and 4, so the scores 1 and 2:

        >>> z = np.log(np.expm1([[1.0, 4.0]]))
        >>> np.round(top_k_router(z, 2, score="sqrtsoftplus", normalisation="sum", gate_scale=1.5).gate, 4).tolist()
        [[1.0, 0.5]]

        Sigmoid scores 0.6, 0.1 | 0.4, 0.35 in two groups: the sums are 0.7 and 0.75, so expert 0 is not chosen:

        >>> z = np.log([[0.6 / 0.4, 0.1 / 0.9, 0.4 / 0.6, 0.35 / 0.65]])
        >>> found = top_k_router(z, 2, score="sigmoid", normalisation="sum", expert_groups=2, gate_scale=3.0)
        >>> found.expert.tolist(), np.round(found.gate, 4).tolist()
        ([[2, 3]], [[1.6, 1.4]])
    """
    _check_group("logits", logits)
    num_experts = np.shape(logits)[1]
    if bias is not None:
        _check_bias(bias, num_experts)
    _check_gate_scale(gate_scale)
    group = _groups_of_experts(num_experts, k, expert_groups, groups_per_token, group_score)
    options = dict(k=k, score=score, normalisation=normalisation, allow_constant_gate=allow_constant_gate)
    options |= dict(groups_per_token=groups_per_token, group_score=group_score)
    per_expert = dict(bias=bias, group=group)
    if mask is not None:
        routing = _route_real_tokens(_route_top_k, mask, logits, held=held, **options, **per_expert)
    else:
        routing = _route_top_k(logits, held=held, **options, **per_expert)
    return routing._replace(gate=gate_scale * routing.gate)


def _route_top_k(logits, k, *, bias, group, held=None, groups_per_token, group_score, **options):
    """Return the routing of real tokens. `group` [E] is the group of each expert, or None for a single group."""
    num_experts, score = logits.shape[1], options["score"]
    _check_options(k, num_experts, **options)
    logits = _check_logits("logits", logits, k, held=held)
    available = _available_experts(logits)
    if available is not None:
        options |= dict(per_expert=dict(bias=bias, group=group), held=held)
        options |= dict(k=k, groups_per_token=groups_per_token, group_score=group_score)
        return _route_available(_route_top_k, available, logits, **options)
    # SELECT
    if held is None:
        scores = _scores(logits, score) if bias is None else _scores(logits, score) + check_finite("bias", bias)
        scores = np.where(np.isneginf(logits), -np.inf, scores)
        chosen_by = logits if bias is None else scores
        if group is not None:
            inside = _in_best_groups(scores, group, groups_per_token, group_score)
            chosen_by = _check_logits("logits of the chosen groups", np.where(inside, chosen_by, -np.inf), k)
        held = _equal_shares(top_k_indices(chosen_by, k), num_experts)
    # COMBINE
    return held._replace(gate=chosen_gates(logits, held.expert, score, options["normalisation"]))


def _groups_of_experts(num_experts, k, expert_groups, groups_per_token, group_score):
    """Return [E] integers, the group of each expert; None for a single group."""
    if group_score not in GROUP_SCORES:
        raise InputError(f"group_score is {group_score!r}; allowed: {', '.join(GROUP_SCORES)}")
    if not 1 <= groups_per_token <= expert_groups:
        raise InputError(f"groups_per_token is {groups_per_token}; allowed: 1 to expert_groups, {expert_groups}")
    if num_experts % expert_groups:
        raise InputError(f"expert_groups is {expert_groups}; it has to divide the number of experts, {num_experts}")
    size = num_experts // expert_groups
    if expert_groups > 1 and groups_per_token * size < k:
        raise InputError(
            f"k is {k} and groups_per_token {groups_per_token}: the chosen groups hold {groups_per_token * size} "
            f"experts; allowed: k up to {groups_per_token * size}, or more groups_per_token"
        )
    return None if expert_groups == 1 else np.arange(num_experts) // size


def _in_best_groups(scores, group, groups_per_token, group_score):
    """Return [T, E] bool, the experts in the groups that each token chooses, from scores [T, E] and groups [E]."""
    names, number = np.unique(group), 2 if group_score == "two_best" else 1
    best = [-np.sort(-scores[:, group == name], axis=1)[:, :number] for name in names]
    # An expert that is not available adds nothing; a group without an available expert comes last.
    best = [np.where(np.isneginf(v) & ~np.isneginf(v[:, :1]), 0, v) for v in best]
    of_groups = np.stack([values.sum(axis=1) for values in best], axis=1)
    chosen = names[top_k_indices(of_groups, groups_per_token)]  # [T, groups_per_token], fewer where names are fewer
    return (group == chosen[:, :, None]).any(axis=1)


def _check_gate_scale(gate_scale):
    if not 0 < gate_scale < math.inf:
        raise InputError(f"gate_scale is {gate_scale}; it has to be above 0 and finite")


def _check_options(k, num_experts, score, normalisation, allow_constant_gate):
    _check_k(k, num_experts)
    if score not in SCORES:
        raise InputError(f"score is {score!r}; allowed: {', '.join(SCORES)}")
    if normalisation not in NORMALISATIONS:
        raise InputError(f"normalisation is {normalisation!r}; allowed: {', '.join(NORMALISATIONS)}")
    if k == 1 and normalisation != "none" and not allow_constant_gate:
        raise InputError(
            f"k is 1 and normalisation is {normalisation!r}: every gate would be 1 and give the router no gradient; "
            f"allowed: 'none', or allow_constant_gate=True"
        )


def _log_scores(logits, score):
    """Return the log of each score, or z for the softmax: log softmax(z) and a constant in each row."""
    if score == "sqrtsoftplus":  # log(1 + exp z) rounds to exp z below -40
        return np.where(logits < -40, logits, np.log(np.logaddexp(0, np.maximum(logits, -40)))) / 2
    return -np.logaddexp(0, -logits) if score == "sigmoid" else logits


def _scores(logits, score):
    """Return sₜₑ, [T, E]."""
    return softmax(logits) if score == "softmax" else np.exp(_log_scores(logits, score))


def chosen_gates(logits: np.ndarray, expert: np.ndarray, score: str, normalisation: str) -> np.ndarray:
    """Return the gate of each chosen expert, [T, k].

    The function normalises over the chosen experts in log space, so the sum cannot be 0 for very small scores.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        expert: [T, k].
        score: one of `SCORES`.
        normalisation: the gate is the score ("none"), the score divided by the sum over the chosen experts ("sum"), or
            the softmax of the logits of the chosen experts ("softmax").

    Example:
        >>> z = np.array([[-900.0, -901.0, 0.0]])
        >>> np.round(chosen_gates(z, np.array([[0, 1]]), "sigmoid", "sum"), 4).tolist()
        [[0.7311, 0.2689]]
    """
    if normalisation == "none":
        return np.take_along_axis(_scores(logits, score), expert, axis=1)
    log_scores = logits if normalisation == "softmax" else _log_scores(logits, score)
    return softmax(np.take_along_axis(log_scores, expert, axis=1))


def gshard_router(
    logits: np.ndarray,
    uniforms: np.ndarray | None = None,
    *,
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Routing:
    """Give each token its two best experts, and drop the second expert at random if its gate is small.

    The two gates are divided by their sum. The router keeps the second expert if the token's uniform is below twice the
    expert's gate: with probability min(1, 2 gate). A dropped expert stays in `expert` with gate 0. `plan` and `load`
    exclude it. The `plan` of a `held` routing is 0 at dropped experts. In `experts.routed_ffn` a dropped expert still
    takes a slot, as in the paper's algorithm. The mask `gate != 0` frees the slot. The model uses this mask (our
    choice, as in the authors' released code).

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available, E >= 2.
        uniforms: [T] in [0, 1), one draw per token; None keeps all second experts, as in evaluation.
        held: an earlier routing of the same tokens; the router reuses its experts, also where it dropped the second
            one, and computes new gates.
        mask: see `top_k_router`; the router ignores the uniforms of padded tokens.

    Returns:
        `Routing` with k = 2; `plan` holds the same mass at each kept assignment.

    Raises:
        ValueError: a logit is NaN or +∞, a token has too few available experts, a uniform is outside [0, 1), E < 2, a
            mask has the wrong shape, or no token is real.

    Source: Lepikhin et al. 2020, Algorithm 1; the factor 2 is in its line 19. Evaluation without draws is our choice.

    Example:
        Gates 3/4 and 1/4: the router keeps the second expert with probability 1/2.

        >>> z = np.log([[3.0, 1.0], [3.0, 1.0]])
        >>> np.round(gshard_router(z, np.array([0.49, 0.51])).gate, 4).tolist()
        [[0.75, 0.25], [0.75, 0.0]]
    """
    _check_group("logits", logits)
    if mask is not None:
        options = dict(per_token={"uniforms": uniforms})
        return _route_real_tokens(gshard_router, mask, logits, held=held, **options)
    num_tokens, num_experts = logits.shape
    if num_experts < 2:
        raise InputError(f"num_experts is {num_experts}; two experts per token need at least 2")
    logits = _check_logits("logits", logits, 2, held=held)
    available = _available_experts(logits)
    if available is not None:
        return _route_available(gshard_router, available, logits, held=held, uniforms=uniforms)
    if uniforms is not None and not np.all((np.asarray(uniforms) >= 0) & (np.asarray(uniforms) < 1)):
        raise InputError("uniforms have to be at least 0 and below 1")
    expert = top_k_indices(logits, 2) if held is None else held.expert
    gate = chosen_gates(logits, expert, "softmax", "softmax")  # [T, 2]
    # SELECT
    if held is None:
        kept = np.ones((num_tokens, 2), dtype=bool)
        if uniforms is not None:
            kept[:, 1] = uniforms < 2 * gate[:, 1]
        held = _equal_shares(expert, num_experts, kept)
    # COMBINE
    kept = np.take_along_axis(held.plan, held.expert, axis=1) > 0
    return held._replace(gate=np.where(kept, gate, 0.0))
