"""Quantile balancing: a bias per expert, moved after each batch towards the value that balances the batch.

Each batch updates the bias, and the router uses the new bias for the next batch. The bias is a price, as in `base`.
Prices give a bound on every balanced choice, and the best choice reaches the smallest bound. The search for the prices
with this bound is the dual problem.

    1. SCORE    sₜₑ = xₜ · wₑ                                                            (the caller)
    2. SELECT   the k experts with the largest sₜₑ − βₑ, β from earlier batches           `quantile_router`
    3. COMBINE  gate = sigmoid(sₜₑ) of each chosen expert, without β
    4. LOSS     none; after a training batch β takes one step                             `quantile_bias`

**The problem.** Choose k experts for each token so that Σ s is largest, with ⌊T k / E⌋ or ⌈T k / E⌉ tokens for each
expert. Let n = ⌊T k / E⌋ and m = T k mod E. For any token prices α, expert prices β and one number γ, no such choice
has a larger Σ s than

    bound(α, β, γ) = k Σₜ αₜ + n Σₑ βₑ + m γ + Σₑ max(0, βₑ − γ) + Σₜₑ max(0, sₜₑ − αₜ − βₑ)

Why: a choice pays αₜ for each expert of token t, and βₑ for each token of expert e. The scores minus these payments add
up to at most the last sum. The token prices sum to k Σ αₜ. The expert prices sum to n Σ βₑ, plus one more βₑ for each
of the m experts with an extra token. Each of these βₑ is γ plus a remainder. The m terms γ sum to m γ, and the
remainders sum to at most Σₑ max(0, βₑ − γ). With the best α and γ the bound equals `base.dual_bound`(s, β, k).

**The step** minimises the bound over α, γ and β in turn, with the other two fixed. The minimum is an interval between
two of the sorted values, and the step goes to its middle:

    αₜ ← between the k-th and the (k+1)-th largest of sₜₑ − βₑ over e
    γ  ← between the m-th and the (m+1)-th largest of βₑ over e                          (where m > 0)
    βₑ ← between the n-th and the (n+1)-th largest of sₜₑ − αₜ over t                    (where m = 0)
         between the (n+1)-th and the (n+2)-th largest of γ and sₜₑ − αₜ over t          (where m > 0)

The bound never rises, and for any β no balanced choice exceeds it. Steps to the middle reach the optimum in nearly
every case (see the examples of `quantile_bias`). At the optimum the choice is the choice of BASE, up to ties. The bias
β does not change at k = E, where there is no choice.

Take one step per batch, and keep the bias from batch to batch. If a batch comes in parts (micro-batches or devices),
average the biases of the parts. This balances each part separately, not the whole batch. A constant added to β changes
no choice. The function returns β with mean 0 (our choice), so that β cannot drift.

A training step leaks nothing from its own batch. The bias comes from earlier batches, and the new bias is for the next
one. Evaluation uses the same choice with a fixed bias, and is causal. Scores are the raw logits (our choice). No
gradient flows through β or the choice.
"""

import numpy as np

from ..notation import (
    Routing,
    _available_experts,
    _check_bias,
    _check_group,
    _check_k,
    _check_logits,
    _equal_shares,
    _real_tokens,
    _route_available,
    _route_real_tokens,
    check_finite,
    top_k_indices,
)
from .sinkhorn import gate_values


def quantile_bias(
    scores: np.ndarray,
    bias: np.ndarray,
    k: int = 1,
    *,
    num_steps: int = 1,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return the bias after one or more steps on one batch.

    Args:
        scores: [T, E], finite, or −∞ for an expert that is not available; the raw router logits.
        bias: [E], finite; from the previous batch, zeros at the start.
        k: experts per token, 1 <= k <= E.
        num_steps: the number of steps on these scores; a router takes one.
        mask: [T] bool, True for a real token; the function ignores padded tokens, and T is the number of real tokens.

    Returns:
        [E] in units of the scores, with mean 0; at k = E, the unchanged bias. For k < E, `base.dual_bound`(scores,
        bias, k) never rises.

    Raises:
        ValueError: an argument is out of its range, no token is real, or fewer than k experts are available.

    Example:
        Tokens 0 to 2 prefer expert 0, and token 3 has equal scores. The step raises the relative price of expert 0 by
        2.25, and two tokens leave it:

        >>> scores = np.array([[5.0, 1.0], [4.0, 2.0], [3.5, 1.0], [2.0, 2.0]])
        >>> bias = quantile_bias(scores, np.zeros(2))
        >>> bias.tolist(), quantile_router(scores, bias).expert.ravel().tolist()
        ([1.125, -1.125], [0, 1, 0, 1])

        Twenty draws of normal scores. After 300 steps the bound equals the optimum in all of them:

        >>> from routelaws.reference.routers.base import balanced_assignment, dual_bound
        >>> def gap(scores):
        ...     bias = quantile_bias(scores, np.zeros(scores.shape[1]), num_steps=300)
        ...     return dual_bound(scores, bias) - balanced_assignment(scores).objective
        >>> draws = [np.random.default_rng(seed).standard_normal((17, 4)) for seed in range(20)]
        >>> sum(abs(gap(scores)) < 1e-9 for scores in draws)
        20

        A table of integer scores on which the steps stop short of the optimum:

        >>> round(float(gap(np.random.default_rng(67).integers(0, 4, (23, 8)).astype(float))), 6)
        1.0
    """
    _check_group("scores", scores)
    _check_bias(bias, np.shape(scores)[1])
    if mask is not None:
        scores = np.asarray(scores)[_real_tokens(mask, len(scores))]
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    scores, bias = _check_logits("scores", scores, k), check_finite("bias", bias).copy()
    available = _available_experts(scores)
    if available is not None:
        bias[available] = quantile_bias(scores[:, available], bias[available], k, num_steps=num_steps)
        return bias
    everyone, more = divmod(num_tokens * k, num_experts)
    if k == num_experts:
        return bias  # every token has every expert
    for _ in range(num_steps):
        alpha = _middle(scores - bias, k, axis=1)  # [T]
        candidates = scores - alpha[:, None]  # [T, E]
        if more:
            gamma = _middle(bias, more, axis=0)
            candidates = np.vstack([candidates, np.full(num_experts, gamma)])
        bias = _middle(candidates, everyone + (more > 0), axis=0)
        bias = bias - bias.mean()
    return bias


def quantile_router(
    logits: np.ndarray,
    bias: np.ndarray,
    k: int = 1,
    *,
    gate: str = "sigmoid",
    mask: np.ndarray | None = None,
    held: Routing | None = None,
) -> Routing:
    """Route a group of tokens by logits minus bias, in training and in evaluation.

    Args:
        logits: [T, E], finite, or −∞ for an expert that is not available.
        bias: [E], finite; see `quantile_bias`.
        k: experts per token, 1 <= k <= E.
        gate: "sigmoid" or "softmax" of the logits, without the bias.
        mask: [T] bool, True for a real token. Padded tokens get experts 0 … k−1 with gate 0, and count nowhere.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: an argument is out of its range, no token is real, or fewer than k experts are available.

    Discontinuity: the selection jumps where two entries of a row of logits - bias are equal; ties go to the lower
    index.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> quantile_router(z, np.array([0.75, -0.75])).expert.ravel().tolist()
        [0, 0, 1, 1]
    """
    _check_group("logits", logits)
    _check_bias(bias, np.shape(logits)[1])
    if mask is not None:
        options = dict(bias=bias, k=k, gate=gate)
        return _route_real_tokens(quantile_router, mask, logits, held=held, **options)
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    logits, bias = _check_logits("logits", logits, k, held=held), check_finite("bias", bias)
    available = _available_experts(logits)
    if available is not None:
        options = dict(per_expert={"bias": bias}, k=k, gate=gate)
        return _route_available(quantile_router, available, logits, held=held, **options)
    # SELECT
    if held is None:
        expert = top_k_indices(logits - bias, k)  # [T, k]
        held = _equal_shares(expert, num_experts)
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def _middle(values: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Return the midpoint between the rank-th and the next largest entry along an axis.

    Entries of −∞ count as the smallest finite entry, so that a bias stays finite (our choice).
    """
    values = np.maximum(values, values.min(axis=axis, keepdims=True, where=np.isfinite(values), initial=np.inf))
    ordered = -np.sort(-values, axis=axis)
    return (np.take(ordered, rank - 1, axis=axis) + np.take(ordered, rank, axis=axis)) / 2
