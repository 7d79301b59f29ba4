"""BASE: tokens are shared out among the experts exactly, each expert getting as many as every other.

Lewis et al. 2021, "BASE Layers: Simplifying Training of Large, Sparse Models" (arXiv 2103.16716), where k = 1. More
experts per token are our choice; the program is that of `quantile`.

    1. SCORE    sₜₑ = hₜ · wₑ                                                            (the caller)
    2. SELECT   training:   of all balanced assignments, k experts each, the one with the     `balanced_assignment`
                            largest Σ sₜₑ over the chosen pairs
                evaluation: the k experts with the largest sₜₑ; no balance, nothing dropped   `base_router`
    3. COMBINE  gate = sigmoid(sₜₑ) of each chosen expert, the only way of a gradient into wₑ; what gates do to the
                size of the output: see `sinkhorn`

**Balanced** means T k/E tokens for each expert. Where E does not divide T k, it means ⌊T k/E⌋ or ⌈T k/E⌉ (our choice),
and which T k mod E experts get the one more is part of the optimum. The k experts of a token are distinct.

**Prices.** Give each expert a price pₑ and let every token pay those of its experts. For any prices at all,

    Σ sₜₑ = Σ (sₜₑ − pₑ) + Σₑ nₑ pₑ  ≤  Σₜ (the k largest sₜₑ − pₑ) + ⌊T k/E⌋ Σₑ pₑ + (the T k mod E largest pₑ)

for every balanced assignment, where the first two sums are over its pairs of token and expert, and nₑ are its loads.
The right side knows nothing of the assignment: it is a bound on all of them (`dual_bound`). An assignment that reaches
it is therefore an optimum, and the prices prove it: each token sits where score minus price is best for it, and the
experts with one token more are the dearest.

**How it is found.** Start with every token at its k best experts: the best assignment for the loads that it has. While
an expert has too many tokens and another too few, move one token along each link of the cheapest chain of experts from
the one to the other; the link j → l costs the least score that a token loses by going from j to l, of those that are at
j and not at l. The assignment stays the best one for its loads, so it is optimal when they are balanced. A token with
several experts may be moved by several links of a chain; they never share an expert. The places of the T k mod E
additional tokens are one more node of the chains, the *reserve*: one token of each expert may be counted there, at no
cost. What the cheapest chains cost in the end gives the prices.

**Ties.** The objective is unique; where E divides T k, so are the loads. There can be many optimal assignments: the one
returned gives token 0 the first set of experts that any of them gives it, in the order of a dictionary whose words are
the sets with their indices rising; then token 1, and so on. (At k = 1: the lowest index.) Within a token the experts
stand by falling score, equal ones by index. Optimal prices are a whole region, and one point of it is returned. To make
"equal" a matter of fact, scores are rounded to whole multiples of a power of two, which is at most 2⁻⁴⁹ of the largest
score for up to 127 experts, and all sums are exact from there on.

The choice depends on every token of the group, later ones included: a training step leaks the future into the choice
of experts. Evaluation is causal and looks at each token alone. No gradient flows through the assignment.

The paper's output α expert(h) + (1 − α) h, with gate α and an expert(h) = h + FFN(LN(h)) that has its own residual, is
h + α FFN(LN(h)): what a pre-norm block with this gate computes anyway. For an expert without a residual of its own, or
a stack of several, the mix with the identity is not a gate of the expert alone; no option offers it here. With k > 1
each expert has its own gate, and what they give is added up (our choice).

What this file does not do: the shuffle of tokens between workers, which decides what a group is; dispatch (`experts`).
"""

from typing import NamedTuple

import numpy as np

from ..notation import Routing, _real_tokens, _restore_padding, check_finite, one_hot, top_k_indices
from .sinkhorn import gate_values

_FAR = 2**60  # longer than any chain, and twice it is still an int64


class Assignment(NamedTuple):
    """A balanced assignment and the proof of how good it is."""

    expert: np.ndarray  # [T, k] integers, the experts of each token, largest score first; distinct within a row
    objective: float  # sum of the scores of the chosen experts
    prices: np.ndarray  # [E] in units of the scores, the least of them 0
    gap: float  # dual_bound of the prices less the objective: at least 0 but for rounding, 0 at an optimum


def balanced_assignment(scores: np.ndarray, k: int = 1, *, mask: np.ndarray | None = None) -> Assignment:
    """Return the best of all assignments in which every expert has floor(T k / E) or ceil(T k / E) tokens.

    Args:
        scores: [T, E], finite.
        k: experts per token, 1 <= k <= E; they are distinct.
        mask: [T] bool, True for a real token, at least one; by default all are. Padded tokens get experts 0 … k-1 and
            count nowhere: T above is the number of real ones, and their scores alone have to be finite.

    Returns:
        `Assignment`. Ties: see the docstring of the module.

    Raises:
        ValueError: a score is not finite, k is out of range, or no token is real.

    Example:
        All four prefer expert 0, or do not mind. Tokens 1 and 2 lose 2 each by leaving; the earlier one stays.

        >>> scores = np.array([[5.0, 1.0], [4.0, 2.0], [3.0, 1.0], [2.0, 2.0]])
        >>> found = balanced_assignment(scores)
        >>> found.expert.ravel().tolist(), found.objective, found.prices.tolist(), found.gap
        ([0, 0, 1, 1], 12.0, [2.0, 0.0], 0.0)

        The proof by hand: score less price is at best 3, 2, 1, 2, and two tokens pay 2 each: 8 + 4 = 12.
        Two of three experts for each of three tokens, so that each expert has two:

        >>> balanced_assignment(np.array([[3.0, 2.0, 0.0], [3.0, 2.0, 1.0], [3.0, 0.0, 0.0]]), 2).expert.tolist()
        [[0, 1], [1, 2], [0, 2]]
    """
    if mask is not None:
        real = _real_tokens(mask, len(scores))
        found = balanced_assignment(np.asarray(scores)[real], k)
        expert = np.tile(np.arange(k), (len(scores), 1))
        expert[real] = found.expert
        return found._replace(expert=expert)
    scores = check_finite("scores", scores)
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    whole, unit = _whole_numbers(scores)
    holds = one_hot(top_k_indices(whole, k), num_experts).sum(axis=1) > 0  # [T, E]: who is where
    in_reserve = np.zeros(num_experts, dtype=bool)  # which experts have one token more than floor(T k / E)
    wanted = np.append(np.full(num_experts, num_tokens * k // num_experts), num_tokens * k % num_experts)
    while True:
        too_many = _loads(holds, in_reserve) - wanted  # [E + 1]; the last one is the reserve
        if not too_many.any():
            break
        _, chain = _cheapest_chain(_links(whole, holds, in_reserve), too_many > 0, too_many < 0)
        _move(whole, holds, in_reserve, chain)
    cost, _ = _cheapest_chain(_links(whole, holds, in_reserve), np.ones(num_experts + 1, dtype=bool))
    _settle_ties(whole, holds, in_reserve, -cost)
    expert = top_k_indices(np.where(holds, scores, -np.inf), k)
    prices = (cost[:num_experts].max() - cost[:num_experts]) * unit
    return Assignment(expert, float(scores[holds].sum()), prices, float(_gap(scores, expert, prices)))


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
    _check_k(k, num_experts)
    everyone, more = divmod(num_tokens * k, num_experts)
    best = np.sort(scores - prices, axis=1)[:, ::-1]
    dearest = np.sort(prices)[::-1]
    return float(best[:, :k].sum() + everyone * prices.sum() + dearest[:more].sum())


def base_router(
    logits: np.ndarray,
    k: int = 1,
    *,
    training: bool = True,
    gate: str = "sigmoid",
    held: Routing | None = None,
    mask: np.ndarray | None = None,
) -> Routing:
    """Route a group of tokens by BASE.

    Args:
        logits: [T, E], finite; the scores.
        k: experts per token, 1 <= k <= E.
        training: select by the balanced assignment (not causal); otherwise the largest logits (causal, any group).
        gate: "sigmoid" (as the authors' code, in fairseq) or "softmax" of the logits, over all experts whatever k is.
        held: a routing of the same group whose selection is used instead of a new one.
        mask: [T] bool, True for a real token, at least one; by default all are. Padded tokens get experts 0 … k-1 with
            gate 0 and count nowhere.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each of a token's experts.

    Raises:
        ValueError: a logit is not finite, k is out of range, the gate is unknown, or no token is real.

    Discontinuity: the selection jumps where two balanced assignments (training) or two logits of a token (evaluation)
    are equally good; see the docstring of the module for the ties.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> base_router(z).expert.ravel().tolist(), base_router(z, training=False).expert.ravel().tolist()
        ([0, 0, 1, 1], [0, 0, 0, 0])
    """
    if mask is not None:
        real = _real_tokens(mask, len(logits))
        if held is not None:
            held = held._replace(expert=held.expert[real], plan=held.plan[real])
        return _restore_padding(base_router(logits[real], k, training=training, gate=gate, held=held), real)
    logits = check_finite("logits", logits)
    num_tokens, num_experts = logits.shape
    _check_k(k, num_experts)
    # SELECT
    if held is None:
        expert = balanced_assignment(logits, k).expert if training else top_k_indices(logits, k)  # [T, k]
        plan = one_hot(expert, num_experts).sum(axis=1) / (num_tokens * k)  # [T, E]
        load = plan.sum(axis=0)  # [E]
        held = Routing(expert, None, load, plan, np.abs(load * num_experts - 1).max())
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def _check_k(k: int, num_experts: int) -> None:
    if not 1 <= k <= num_experts:
        raise ValueError(f"k is {k}; it has to be between 1 and num_experts = {num_experts}")


def _whole_numbers(scores: np.ndarray) -> tuple[np.ndarray, float]:
    """Return whole numbers [T, E] and the unit, a power of two, of which they are multiples."""
    exponent = int(np.frexp(np.abs(scores).max(initial=0.0))[1])  # every |score| is below 2 ** exponent, or all are 0
    bits = 52 - max(0, scores.shape[1].bit_length() - 5)  # so that a chain of E + 1 links stays below _FAR
    exponent = max(exponent, bits - 1022)  # the unit has to be a normal number
    return np.rint(np.ldexp(scores, bits - exponent)).astype(np.int64), float(np.ldexp(1.0, exponent - bits))


def _gap(scores: np.ndarray, expert: np.ndarray, prices: np.ndarray) -> float:
    """Return dual_bound less the objective, as a sum of terms of which none is negative."""
    everyone, more = divmod(expert.size, len(prices))
    best = -np.sort(prices - scores, axis=1)[:, : expert.shape[1]]  # largest first
    own = -np.sort(-np.take_along_axis(scores - prices, expert, axis=1), axis=1)
    load = np.bincount(expert.ravel(), minlength=len(prices))
    return (best - own).sum() + np.sort(prices)[::-1][:more].sum() - ((load - everyone) * prices).sum()


def _loads(holds: np.ndarray, in_reserve: np.ndarray) -> np.ndarray:
    """Return [E + 1]: the tokens of each expert less the one in the reserve, and how many the reserve holds."""
    return np.append(holds.sum(axis=0) - in_reserve, in_reserve.sum())


def _links(whole: np.ndarray, holds: np.ndarray, in_reserve: np.ndarray) -> np.ndarray:
    """Return [E + 1, E + 1]: what it costs to move one token from j to l, _FAR where nothing can be moved."""
    num_experts = len(in_reserve)
    cost = np.full((num_experts + 1, num_experts + 1), _FAR)
    for j in range(num_experts):
        mine = holds[:, j]
        if mine.any():
            loss = whole[mine][:, [j]] - whole[mine]
            cost[j, :-1] = np.where(holds[mine], _FAR, loss).min(axis=0)  # nobody is twice at one expert
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


def _move(whole: np.ndarray, holds: np.ndarray, in_reserve: np.ndarray, chain: list[int]) -> None:
    """Move, in place, one token along each link of a chain of nodes."""
    reserve = len(in_reserve)
    moves = []
    for j, other in zip(chain, chain[1:], strict=False):
        if other == reserve:
            in_reserve[j] = True
        elif j == reserve:
            in_reserve[other] = False
        else:
            able = np.flatnonzero(holds[:, j] & ~holds[:, other])
            moves.append((able[np.argmin(whole[able, j] - whole[able, other])], j, other))
    for token, j, other in moves:  # only now, so that nobody is moved on whom this chain has just moved
        holds[token, [j, other]] = False, True


def _settle_ties(whole: np.ndarray, holds: np.ndarray, in_reserve: np.ndarray, prices: np.ndarray) -> None:
    """Go, in place, to the optimal assignment that gives token 0, then token 1, ... the first set of experts.

    A token can give up one of its experts for a lower one that is as good for it if the tokens after it can make up for
    that at no cost: by a chain of links, each of which costs nothing at the prices, from the one to the other.
    """
    value = whole - prices[:-1]
    for t, lower in np.ndindex(holds.shape):
        given_up = holds[t] & (value[t] == value[t, lower])
        given_up[: lower + 1] = False
        if holds[t, lower] or not given_up.any():
            continue
        later = slice(t + 1, None)
        links = _links(whole[later], holds[later], in_reserve)
        links = np.where(links < _FAR, links - prices[:, None] + prices, _FAR)
        cost, chain = _cheapest_chain(links, np.arange(len(prices)) == lower, np.append(given_up, False))
        if cost[chain[-1]] == 0:
            _move(whole[later], holds[later], in_reserve, chain)
            holds[t, [chain[-1], lower]] = False, True
