"""BASE: tokens are shared out among the experts exactly, each expert getting as many as every other.

Lewis et al. 2021, "BASE Layers: Simplifying Training of Large, Sparse Models" (arXiv 2103.16716).

    1. SCORE    sₜₑ = hₜ · wₑ                                                            (the caller)
    2. SELECT   training:   the assignment a with the largest Σₜ sₜₐ₍ₜ₎ of all that are balanced  `balanced_assignment`
                evaluation: the expert with the largest sₜₑ; no balance, nothing dropped          `base_router`
    3. COMBINE  gate = sigmoid(sₜₑ) of the chosen expert, the only way of a gradient into wₑ

**Balanced** means T/E tokens for each expert. Where E does not divide T, it means ⌊T/E⌋ or ⌈T/E⌉ (our choice), and
which T mod E experts get the one more is part of the optimum.

**Prices.** Give each expert a price pₑ and let every token pay it. For any prices at all,

    Σₜ sₜₐ₍ₜ₎ = Σₜ (sₜₐ₍ₜ₎ − pₐ₍ₜ₎) + Σₑ nₑ pₑ  ≤  Σₜ maxₑ (sₜₑ − pₑ) + ⌊T/E⌋ Σₑ pₑ + (the T mod E largest pₑ)

for every balanced a, where nₑ are its loads. The right side knows nothing of a: it is a bound on all of them
(`dual_bound`). An assignment that reaches it is therefore an optimum, and the prices prove it: each token sits where
score minus price is best for it, and the experts with one token more are the dearest.

**How it is found.** Start with every token at its best expert: the best assignment for the loads that it has. While an
expert has too many tokens and another too few, move one token along each link of the cheapest chain of experts from
the one to the other; the link j → k costs the least score that a token of j loses by going to k. The assignment stays
the best one for its loads, so it is optimal when they are balanced. The places of the T mod E additional tokens are one
more node of the chains, the *reserve*: one token of each expert may be counted there, at no cost. What the cheapest
chains cost in the end gives the prices.

**Ties.** The objective is unique; where E divides T, so are the loads. There can be many optimal assignments: the one
returned gives token 0 the lowest index that any of them gives it, then token 1, and so on. Optimal prices are a whole
region, and one point of it is returned. To make "equal" a matter of fact, scores are rounded to whole multiples of a
power of two, which is at most 2⁻⁴⁹ of the largest score for up to 127 experts, and all sums are exact from there on.

The choice depends on every token of the group, later ones included: a training step leaks the future into the choice
of experts. Evaluation is causal and looks at each token alone. No gradient flows through the assignment.

The paper's output α f(h) + (1 − α) h, with gate α and an expert f(h) = h + FFN(LN(h)) that has its own residual, is
h + α FFN(LN(h)): what a pre-norm block with this gate computes anyway. For an f without a residual of its own, or a
stack of several, the mix with the identity is not a gate of the expert alone; no option offers it here.

What this file does not do: the shuffle of tokens between workers, which decides what a group is; dispatch (`experts`).
"""

from typing import NamedTuple

import numpy as np

from ..notation import Routing, check_finite, one_hot, top_k_indices
from .sinkhorn import gate_values

_FAR = 2**60  # longer than any chain, and twice it is still an int64


class Assignment(NamedTuple):
    """A balanced assignment and the proof of how good it is."""

    expert: np.ndarray  # [T] integers
    objective: float  # sum of the scores of the chosen experts
    prices: np.ndarray  # [E] in units of the scores, the least of them 0
    gap: float  # dual_bound of the prices less the objective: at least 0 but for rounding, 0 at an optimum


def balanced_assignment(scores: np.ndarray) -> Assignment:
    """Return the best of all assignments in which every expert has floor(T/E) or ceil(T/E) tokens.

    Args:
        scores: [T, E], finite.

    Returns:
        `Assignment`. Ties: see the docstring of the module.

    Raises:
        ValueError: a score is not finite.

    Example:
        All four prefer expert 0, or do not mind. Tokens 1 and 2 lose 2 each by leaving; the earlier one stays.

        >>> scores = np.array([[5.0, 1.0], [4.0, 2.0], [3.0, 1.0], [2.0, 2.0]])
        >>> found = balanced_assignment(scores)
        >>> found.expert.tolist(), found.objective, found.prices.tolist(), found.gap
        ([0, 0, 1, 1], 12.0, [2.0, 0.0], 0.0)

        The proof by hand: score less price is at best 3, 2, 1, 2, and two tokens pay 2 each: 8 + 4 = 12.
    """
    scores = check_finite("scores", scores)
    whole, unit = _whole_numbers(scores)
    num_tokens, num_experts = scores.shape
    expert = top_k_indices(whole, 1)[:, 0]
    in_reserve = np.zeros(num_experts, dtype=bool)  # which experts have one token more than floor(T/E)
    wanted = np.append(np.full(num_experts, num_tokens // num_experts), num_tokens % num_experts)
    while True:
        too_many = _loads(expert, in_reserve) - wanted  # [E + 1]; the last one is the reserve
        if not too_many.any():
            break
        _, chain = _cheapest_chain(_links(whole, expert, in_reserve), too_many > 0, too_many < 0)
        _move(whole, expert, in_reserve, chain)
    cost, _ = _cheapest_chain(_links(whole, expert, in_reserve), np.ones(num_experts + 1, dtype=bool))
    _settle_ties(whole, expert, in_reserve, -cost)
    objective = scores[np.arange(num_tokens), expert].sum()
    prices = (cost[:num_experts].max() - cost[:num_experts]) * unit
    return Assignment(expert, float(objective), prices, float(_gap(scores, expert, prices)))


def dual_bound(scores: np.ndarray, prices: np.ndarray, k: int = 1) -> float:
    """Return a number that no balanced assignment with k experts per token exceeds, whatever the prices.

    Args:
        scores: [T, E], finite.
        prices: [E], finite. Adding a constant to all of them changes nothing.
        k: experts per token, 1 <= k <= E; they are distinct.

    Returns:
        Σₜ (the k largest of sₜₑ − pₑ) + ⌊T k / E⌋ Σₑ pₑ + (the T k mod E largest pₑ).

    Raises:
        ValueError: an entry is not finite, or k is out of range.

    Example:
        >>> scores = np.array([[5.0, 1.0], [4.0, 2.0], [3.0, 1.0], [2.0, 2.0]])
        >>> dual_bound(scores, np.array([0.0, 0.0])), dual_bound(scores, np.array([2.0, 0.0]))
        (14.0, 12.0)
    """
    scores, prices = check_finite("scores", scores), check_finite("prices", prices)
    num_tokens, num_experts = scores.shape
    if not 1 <= k <= num_experts:
        raise ValueError(f"k is {k}; it has to be between 1 and num_experts = {num_experts}")
    everyone, more = divmod(num_tokens * k, num_experts)
    best = np.sort(scores - prices, axis=1)[:, ::-1]
    dearest = np.sort(prices)[::-1]
    return float(best[:, :k].sum() + everyone * prices.sum() + dearest[:more].sum())


def base_router(
    logits: np.ndarray, *, training: bool = True, gate: str = "sigmoid", held: Routing | None = None
) -> Routing:
    """Route a group of tokens by BASE, one expert each.

    Args:
        logits: [T, E], finite; the scores.
        training: select by the balanced assignment (not causal); otherwise the largest logit (causal, any group).
        gate: "sigmoid" (the authors' code) or "softmax" of the logits.
        held: a routing of the same group whose selection is used instead of a new one.

    Returns:
        `Routing` with k = 1; `plan` holds 1/T at each token's expert.

    Raises:
        ValueError: a logit is not finite, or the gate is unknown.

    Discontinuity: the selection jumps where two balanced assignments (training) or two logits of a token (evaluation)
    are equally good; see the docstring of the module for the ties.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> base_router(z).expert.ravel().tolist(), base_router(z, training=False).expert.ravel().tolist()
        ([0, 0, 1, 1], [0, 0, 0, 0])
    """
    logits = check_finite("logits", logits)
    num_tokens, num_experts = logits.shape
    # SELECT
    if held is None:
        expert = balanced_assignment(logits).expert[:, None] if training else top_k_indices(logits, 1)  # [T, 1]
        plan = one_hot(expert[:, 0], num_experts) / num_tokens  # [T, E]
        load = plan.sum(axis=0)  # [E]
        held = Routing(expert, None, load, plan, np.abs(load * num_experts - 1).max())
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def _whole_numbers(scores: np.ndarray) -> tuple[np.ndarray, float]:
    """Return whole numbers [T, E] and the unit, a power of two, of which they are multiples."""
    exponent = int(np.frexp(np.abs(scores).max(initial=0.0))[1])  # every |score| is below 2 ** exponent, or all are 0
    bits = 52 - max(0, scores.shape[1].bit_length() - 5)  # so that a chain of E + 1 links stays below _FAR
    exponent = max(exponent, bits - 1022)  # the unit has to be a normal number
    return np.rint(np.ldexp(scores, bits - exponent)).astype(np.int64), float(np.ldexp(1.0, exponent - bits))


def _gap(scores: np.ndarray, expert: np.ndarray, prices: np.ndarray) -> float:
    """Return dual_bound less the objective, as a sum of terms of which none is negative."""
    everyone, more = divmod(*scores.shape)
    value = scores - prices
    load = np.bincount(expert, minlength=len(prices))
    of_tokens = (value.max(axis=1) - value[np.arange(len(expert)), expert]).sum()
    return of_tokens + np.sort(prices)[::-1][:more].sum() - ((load - everyone) * prices).sum()


def _loads(expert: np.ndarray, in_reserve: np.ndarray) -> np.ndarray:
    """Return [E + 1]: the tokens of each expert less the one in the reserve, and how many the reserve holds."""
    load = np.bincount(expert, minlength=len(in_reserve)) - in_reserve
    return np.append(load, in_reserve.sum())


def _links(whole: np.ndarray, expert: np.ndarray, in_reserve: np.ndarray) -> np.ndarray:
    """Return [E + 1, E + 1]: what it costs to move one token from j to k, _FAR where nothing can be moved."""
    num_experts = len(in_reserve)
    cost = np.full((num_experts + 1, num_experts + 1), _FAR)
    for j in range(num_experts):
        mine = whole[expert == j]
        if len(mine):
            cost[j, :-1] = (mine[:, [j]] - mine).min(axis=0)
    cost[:-1, -1][~in_reserve] = 0
    cost[-1, :-1][in_reserve] = 0
    np.fill_diagonal(cost, 0)
    return cost


def _cheapest_chain(links: np.ndarray, sources: np.ndarray, targets: np.ndarray | None = None):
    """Return the cost of the cheapest chain to every node from any source, and the chain to the cheapest target.

    Bellman and Ford: links can be negative, but no closed chain is, since that would improve the assignment.
    """
    cost = np.where(sources, 0, _FAR)
    before = np.full(len(cost), -1)
    for _ in cost:
        through = cost[:, None] + links
        shorter = through.min(axis=0) < cost
        before = np.where(shorter, through.argmin(axis=0), before)
        cost = np.where(shorter, through.min(axis=0), cost)
    if targets is None:
        return cost, None
    chain = [int(np.where(targets, cost, 2 * _FAR).argmin())]
    while before[chain[0]] >= 0:
        chain.insert(0, int(before[chain[0]]))
    return cost, chain


def _move(whole: np.ndarray, expert: np.ndarray, in_reserve: np.ndarray, chain: list[int]) -> None:
    """Move, in place, one token along each link of a chain of nodes."""
    reserve = len(in_reserve)
    moves = []
    for j, k in zip(chain, chain[1:], strict=False):
        if k == reserve:
            in_reserve[j] = True
        elif j == reserve:
            in_reserve[k] = False
        else:
            mine = np.flatnonzero(expert == j)
            moves.append((mine[np.argmin(whole[mine, j] - whole[mine, k])], k))
    for token, k in moves:  # only now, so that no token is moved twice
        expert[token] = k


def _settle_ties(whole: np.ndarray, expert: np.ndarray, in_reserve: np.ndarray, prices: np.ndarray) -> None:
    """Go, in place, to the optimal assignment that gives token 0, then token 1, ... the lowest index.

    A token can go to another of its best experts if the tokens after it can make up for it at no cost: by a chain of
    links, each of which costs nothing at the prices, from that expert to the one that it leaves.
    """
    value = whole - prices[:-1]
    best = value.max(axis=1)
    for t in range(len(expert)):
        later, own = slice(t + 1, None), expert[t]
        for lower in np.flatnonzero(value[t, :own] == best[t]):
            links = _links(whole[later], expert[later], in_reserve)
            links = np.where(links < _FAR, links - prices[:, None] + prices, _FAR)
            cost, chain = _cheapest_chain(links, *np.eye(len(prices), dtype=bool)[[lower, own]])
            if cost[own] == 0:
                _move(whole[later], expert[later], in_reserve, chain)
                expert[t] = lower
                break
