"""Quantile balancing: a bias for each expert, moved to where the experts of a batch would be balanced.

The bias that one batch leaves is the one that the next batch is routed by. It is a price, as in `base`. There prices
give a bound on every balanced choice, and the best prices give the least bound, which the best choice reaches; to look
for these prices instead of the choice is called the dual problem. Several public codes of 2026 route so.

    1. SCORE    sₜₑ = xₜ · wₑ                                                            (the caller)
    2. SELECT   the k experts with the largest sₜₑ − βₑ, β from earlier batches           `quantile_router`
    3. COMBINE  gate = sigmoid(sₜₑ) of each chosen expert, without β; what gates do to the size of the output:
                see `sinkhorn`
    4. LOSS     none; after a training batch β takes one step                             `quantile_bias`

**The program.** Choose k experts for each token so that Σ s is largest, with ⌊T k / E⌋ or ⌈T k / E⌉ tokens for each
expert. Let n = ⌊T k / E⌋ and m = T k mod E. For any token prices α, expert prices β and one number γ, no such choice
exceeds

    bound(α, β, γ) = k Σₜ αₜ + n Σₑ βₑ + m γ + Σₑ max(0, βₑ − γ) + Σₜₑ max(0, sₜₑ − αₜ − βₑ)

Why: a choice pays αₜ for each of the k places of token t, and βₑ for each of the tokens of expert e, and what it gains
beyond both is at most the last sum. All α together are k Σ αₜ. All β together are n Σ βₑ, and βₑ once more for each of
the m experts with one token more; of that, γ is paid by each, m γ in all, and what is beyond γ is at most the sum
before the last. With the best α and γ the bound is `base.dual_bound`(s, β, k).

**The step** takes α, γ and β in turn, each to where the bound is least while the other two are held. The bound is least
on an interval between two of the sorted values, and the step goes to its middle:

    αₜ ← between the k-th and the (k+1)-th largest of sₜₑ − βₑ over e
    γ  ← between the m-th and the (m+1)-th largest of βₑ over e                          (where m > 0)
    βₑ ← between the n-th and the (n+1)-th largest of sₜₑ − αₜ over t                    (where m = 0)
         between the (n+1)-th and the (n+2)-th largest of γ and sₜₑ − αₜ over t          (where m > 0)

The bound never rises, and whatever β is, no balanced choice exceeds the bound. If the steps went to an end of the
intervals, they would stall where everything is tied. With the middles they end at the optimum in nearly every case (the
second example of `quantile_bias` counts); with tied whole scores they can stop short of it (the third example). At the
optimum the choice is that of BASE, up to ties. At k = E there is nothing to choose, and β stays.

There is one step per batch, and the bias is kept from batch to batch. Where a batch comes in parts (micro-batches, or
devices), the caller takes the mean of the biases of the parts. That is not the bias of all the tokens at once: each
part goes to where it would be balanced itself. Adding a constant to β changes no choice; β is returned with mean 0 (our
choice), so that it cannot wander.

What a training step leaks: nothing of its own batch, whose tokens are routed by the bias of earlier batches; the bias
that they leave is for the next one. Evaluation uses the same choice with the bias as it stands, and is causal. Scores
are the raw logits (our choice). No gradient flows through β or the choice.
"""

import numpy as np

from ..notation import (
    Routing,
    _admitted_experts,
    _check_bias,
    _check_group,
    _check_k,
    _equal_shares,
    _real_tokens,
    _route_admitted,
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
    expert_mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return the bias after steps on one batch.

    Args:
        scores: [T, E], finite; the raw router logits.
        bias: [E], finite; from the batch before, at first zeros.
        k: experts per token, 1 <= k <= E.
        num_steps: how many steps on these scores; a router takes one.
        mask: [T] bool, True for a real token; the others count for nothing, and T is the number of real ones.
        expert_mask: [E] bool, the experts that may be chosen; None for all. E is their number below.
            The bias of the others stays as it came (our choice).

    Returns:
        [E] in units of the scores, mean 0 (at k = E the bias as it came). For k < E, `base.dual_bound`(scores, bias, k)
        never rises.

    Raises:
        ValueError: an entry of a real token is not finite, k is out of range, there is no real token, or fewer than k
            experts may be chosen.

    Example:
        All four prefer expert 0, or do not mind. The step makes it dearer by 2.25, and two of them leave:

        >>> scores = np.array([[5.0, 1.0], [4.0, 2.0], [3.5, 1.0], [2.0, 2.0]])
        >>> bias = quantile_bias(scores, np.zeros(2))
        >>> bias.tolist(), quantile_router(scores, bias).expert.ravel().tolist()
        ([1.125, -1.125], [0, 1, 0, 1])

        By how much the bound is above the optimum after 300 steps, in how many of twenty draws of normal scores:

        >>> from routelaws.reference.routers.base import balanced_assignment, dual_bound
        >>> def gap(scores):
        ...     bias = quantile_bias(scores, np.zeros(scores.shape[1]), num_steps=300)
        ...     return dual_bound(scores, bias) - balanced_assignment(scores).objective
        >>> draws = [np.random.default_rng(seed).standard_normal((17, 4)) for seed in range(20)]
        >>> sum(abs(gap(scores)) < 1e-9 for scores in draws)
        20

        A table of whole scores on which the steps stop short of the optimum:

        >>> round(float(gap(np.random.default_rng(67).integers(0, 4, (23, 8)).astype(float))), 6)
        1.0
    """
    _check_group("scores", scores)
    _check_bias(bias, np.shape(scores)[1])
    if expert_mask is not None:
        admitted = _admitted_experts(expert_mask, len(bias), k)
        new, columns = np.array(bias, dtype=np.float64), np.asarray(scores)[:, admitted]
        new[admitted] = quantile_bias(columns, new[admitted], k, num_steps=num_steps, mask=mask)
        return new
    if mask is not None:
        scores = np.asarray(scores)[_real_tokens(mask, len(scores))]
    scores, bias = check_finite("scores", scores), check_finite("bias", bias)
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
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
    expert_mask: np.ndarray | None = None,
    held: Routing | None = None,
) -> Routing:
    """Route a group of tokens by their logits less the bias, in training and in evaluation alike.

    Args:
        logits: [T, E], finite.
        bias: [E], finite; see `quantile_bias`.
        k: experts per token, 1 <= k <= E.
        gate: "sigmoid" or "softmax" of the logits, in which the bias has no part.
        mask: [T] bool, True for a real token. The others get experts 0 … k−1 with gate 0, and count for nothing.
        expert_mask: [E] bool, the experts that may be chosen; None for all. E is their number below.
        held: a routing of the same group whose selection is used instead of a new one.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each chosen expert.

    Raises:
        ValueError: an entry of a real token is not finite, k is out of range, the gate is unknown, no token is real, or
            fewer than k experts may be chosen.

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
        options = dict(bias=bias, k=k, gate=gate, expert_mask=expert_mask)
        return _route_real_tokens(quantile_router, mask, logits, held=held, **options)
    if expert_mask is not None:
        options = dict(per_expert={"bias": bias}, k=k, gate=gate)
        return _route_admitted(quantile_router, expert_mask, logits, k, held=held, **options)
    logits, bias = check_finite("logits", logits), check_finite("bias", bias)
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    # SELECT
    if held is None:
        expert = top_k_indices(logits - bias, k)  # [T, k]
        held = _equal_shares(expert, num_experts)
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def _middle(values: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Return the middle between the rank-th and the next largest entry along an axis."""
    ordered = -np.sort(-values, axis=axis)
    return (np.take(ordered, rank - 1, axis=axis) + np.take(ordered, rank, axis=axis)) / 2
