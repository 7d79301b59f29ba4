"""BASE: assign tokens to experts exactly, the same number to each expert.

Lewis et al. 2021, "BASE Layers: Simplifying Training of Large, Sparse Models" (arXiv 2103.16716).

    1. SCORE    sₜₑ = hₜ · wₑ                                                            (the caller)
    2. SELECT   training:   the balanced assignment with the largest sum of scores        `balanced_assignment`
                evaluation: the expert with the largest sₜₑ; no balance, nothing dropped  `base_router`
    3. COMBINE  gate = sigmoid(sₜₑ) of each chosen expert, the only path of a gradient to wₑ

**The case of the paper.** Each token has one expert (k = 1), and E divides T. An assignment is balanced when every
expert has T/E tokens.

*The algorithm.* Put every token at its best expert. This assignment is the best of all assignments with the same loads,
but some experts have too many tokens and others too few. Moving token t from expert i to expert j costs sₜᵢ − sₜⱼ. So
each pair of experts has a cheapest token to move. A chain i → j → … → m moves the cheapest token of i to j, the
cheapest token of j to the next expert, and so on. Then i has one token less, m has one more, and the loads between do
not change. While an expert has too many tokens, take the cheapest chain from such an expert to an expert with too few.
After each chain the assignment is still the best one for its loads. It is the best balanced assignment once all loads
are T/E.

*Ties.* There can be many best assignments. The program returns the assignment that gives token 0 the lowest possible
expert, then token 1 the lowest remaining expert, and so on. `_first_of_the_best` tries each lower expert for a token,
rebalances the later tokens, and keeps the expert if the sum of scores is the same. The program rounds scores to integer
multiples of a power of two, so that sums are exact. For up to 127 experts this power is at most 2⁻⁴⁹ of the largest
score.

*The proof.* Give each expert a price pₑ, and let every token pay the price of its expert. For any prices,

    Σ sₜₑ  =  Σ (sₜₑ − pₑ) + T/E Σₑ pₑ  ≤  Σₜ maxₑ (sₜₑ − pₑ) + T/E Σₑ pₑ

for every balanced assignment. The first two sums are over its pairs of token and expert. The right side does not depend
on the assignment, so it bounds all of them (`dual_bound`). An assignment that reaches the bound is therefore optimal.
The prices prove it: each token is at the expert with its largest score minus price. The cheapest chains give such
prices. Let cₑ be the cost of the cheapest chain from any expert to e, 0 or less. Let t be a token at expert i. You can
extend a chain that ends at i by moving t from i to j, so cⱼ ≤ cᵢ + sₜᵢ − sₜⱼ. With pₑ = −cₑ this becomes sₜᵢ − pᵢ ≥ sₜⱼ
− pⱼ. The returned prices are shifted so that the smallest is 0.

**The general case** (our choice) adds two things to this problem.

*Several experts per token.* A token has a set of k distinct experts, and a move replaces one of them. To break ties,
the program compares sets in lexicographic order of their sorted indices. It returns the experts of a token in
decreasing order of score, equal scores by index.

*If E does not divide T k*, each expert gets ⌊T k/E⌋ or ⌈T k/E⌉ tokens. The optimisation also chooses which T k mod E
experts get one token more. So every expert offers ⌈T k/E⌉ slots. The program adds one extra token with score 0 at every
expert. The extra token takes the unused slots, at most one at each expert. In the bound, n = ⌊T k/E⌋:

    Σ sₜₑ  ≤  Σₜ (the k largest sₜₑ − pₑ) + n Σₑ pₑ + (the T k mod E largest pₑ)

The choice depends on every token of the group, including later tokens: a training step leaks the future into the choice
of experts. Evaluation is causal and routes each token by its own logits. No gradient flows through the assignment.

The paper's output is α expert(h) + (1 − α) h with gate α, where expert(h) = h + FFN(LN(h)) has its own residual. This
equals h + α FFN(LN(h)), the output of a pre-norm block with this gate. The two differ for an expert without its own
residual, and for a stack of experts. With k > 1 each expert has its own gate, and the block adds their outputs (our
choice).

Not in this file: the shuffle of tokens between workers, which forms the groups.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..notation import (
    Routing,
    _among_all,
    _available_experts,
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


class Assignment(NamedTuple):
    """A balanced assignment and the proof of its quality."""

    expert: np.ndarray  # [T, k] integers, the experts of each token, largest score first; distinct within a row
    objective: float  # sum of the scores of the chosen experts
    prices: np.ndarray  # [E] in units of the scores, the smallest is 0
    gap: float  # dual_bound of the prices minus the objective: at least 0 up to rounding, 0 at an optimum


def balanced_assignment(scores: np.ndarray, k: int = 1, *, mask: np.ndarray | None = None) -> Assignment:
    """Return the best of all assignments in which every expert has floor(T k / E) or ceil(T k / E) tokens.

    Args:
        scores: [T, E], finite, or −∞ for an expert that is not available.
        k: experts per token, 1 <= k <= E; they are distinct.
        mask: [T] bool, True for each real token (at least one); None for all. Padded tokens get experts 0 … k-1 and
            count nowhere. Their scores may be NaN. Above, T counts real tokens.

    Returns:
        `Assignment`. If several assignments are equally good, the result gives token 0 the lowest possible expert, then
        token 1 the lowest remaining expert, and so on.

    Raises:
        ValueError: a score is NaN or +∞, no balanced assignment avoids the scores of −∞, k is out of range, no token is
            real, or fewer than k experts are available.

    Example:
        Tokens 0 to 2 prefer expert 0, and token 3 has equal scores. Tokens 1 and 2 each lose 2 by moving; the earlier
        one stays.

        >>> scores = np.array([[5.0, 1.0], [4.0, 2.0], [3.0, 1.0], [2.0, 2.0]])
        >>> found = balanced_assignment(scores)
        >>> found.expert.ravel().tolist(), found.objective, found.prices.tolist(), found.gap
        ([0, 0, 1, 1], 12.0, [2.0, 0.0], 0.0)

        The proof by hand: the largest scores minus prices are 3, 2, 1 and 2. Two tokens pay 2 each: 8 + 4 = 12. Now
        give each of three tokens two of three experts, so that each expert has two tokens:

        >>> balanced_assignment(np.array([[3.0, 2.0, 0.0], [3.0, 2.0, 1.0], [3.0, 0.0, 0.0]]), 2).expert.tolist()
        [[0, 1], [1, 2], [0, 2]]
    """
    _check_group("scores", scores)
    if mask is not None:
        real = _real_tokens(mask, len(scores))
        assignment = balanced_assignment(np.asarray(scores)[real], k)
        expert = np.tile(np.arange(k), (len(scores), 1))
        expert[real] = assignment.expert
        return assignment._replace(expert=expert)
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    scores = _check_logits("scores", scores, k)
    available = _available_experts(scores)
    if available is not None:
        assignment = balanced_assignment(scores[:, available], k)
        prices = _among_all(assignment.prices, available, num_experts)
        return assignment._replace(expert=available[assignment.expert], prices=prices)
    values, unit = _whole_numbers(scores)
    holds = [set(row) for row in top_k_indices(values, k).tolist()]  # the experts of each token
    places = -(-num_tokens * k // num_experts)  # T k / E, rounded up
    # An extra token with score 0 at every expert takes the unused slots, if there are any.
    values = [*values.tolist(), [0] * num_experts]
    holds.append(set(range(places * num_experts - num_tokens * k)))
    if not _balance(values, holds, [places] * num_experts):
        raise InputError(f"scores: no assignment gives each expert at most {places} tokens without an entry of -inf")
    holds = _first_of_the_best(values, holds, places)
    cost, _ = _cheapest_chains(_cheapest_moves(values, holds), range(num_experts), num_experts)
    prices = np.array([max(cost) - each for each in cost]) * unit
    expert = np.zeros((num_tokens, k), dtype=np.int64)
    for t in range(num_tokens):
        expert[t] = sorted(holds[t], key=lambda e: (-scores[t, e], e))  # noqa: B023 (sorted at once)
    objective = float(np.take_along_axis(scores, expert, axis=1).sum())
    return Assignment(expert, objective, prices, dual_bound(scores, prices, k) - objective)


def dual_bound(scores: np.ndarray, prices: np.ndarray, k: int = 1) -> float:
    """Return an upper bound on the objective of every balanced assignment with k experts per token, for any prices.

    Args:
        scores: [T, E], finite, or −∞ for an expert that is not available.
        prices: [E], finite. A constant added to all prices changes nothing.
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
    num_tokens, num_experts = scores.shape
    _check_k(k, num_experts)
    scores, prices = _check_logits("scores", scores, k), check_finite("prices", prices)
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
        logits: [T, E], finite, or −∞ for an expert that is not available; the scores.
        k: experts per token, 1 <= k <= E.
        training: True selects by the balanced assignment (not causal), False by the largest logits (causal, any group).
        gate: "sigmoid" of the logits (as in the authors' code in fairseq), or "softmax" over all experts.
        held: an earlier routing of the same tokens; the router reuses its experts and computes new gates.
        mask: [T] bool, True for each real token (at least one); None for all. Padded tokens get experts 0 … k-1 with
            gate 0 and count nowhere.

    Returns:
        `Routing`; `plan` holds 1/(T k) at each of a token's experts.

    Raises:
        ValueError: an argument is out of its range, no token is real, or fewer than k experts are available.

    Discontinuity: the selection jumps where two balanced assignments (training) or two logits of a token (evaluation)
    tie. In training `balanced_assignment` breaks ties. In evaluation the lower index wins.

    Example:
        >>> z = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
        >>> base_router(z).expert.ravel().tolist(), base_router(z, training=False).expert.ravel().tolist()
        ([0, 0, 1, 1], [0, 0, 0, 0])
    """
    _check_group("logits", logits)
    options = dict(k=k, training=training, gate=gate)
    if mask is not None:
        return _route_real_tokens(base_router, mask, logits, held=held, **options)
    num_experts = logits.shape[1]
    _check_k(k, num_experts)
    logits = _check_logits("logits", logits, k, held=held)
    available = _available_experts(logits)
    if available is not None:
        return _route_available(base_router, available, logits, held=held, **options)
    # SELECT
    if held is None:
        expert = balanced_assignment(logits, k).expert if training else top_k_indices(logits, k)  # [T, k]
        held = _equal_shares(expert, num_experts)
    # COMBINE
    return held._replace(gate=gate_values(logits, held.expert, gate))


def _whole_numbers(scores: np.ndarray) -> tuple[np.ndarray, float]:
    """Return integers [T, E] and a unit, a power of two: integers times unit equal the scores, up to rounding.

    A score of −∞ stays −∞.

    The unit is as small as the 64-bit sums of the fast twin allow; Python integers here have no limit.
    """
    available = np.isfinite(scores)
    # Every available |score| is below 2 ** exponent, or all are 0.
    exponent = int(np.frexp(np.abs(scores).max(initial=0.0, where=available))[1])
    bits = 52 - max(0, scores.shape[1].bit_length() - 5)  # a chain of E links then costs less than 2 ** 60
    exponent = max(exponent, bits - 1022)  # the unit must be a normal number
    whole = np.rint(np.ldexp(np.where(available, scores, 0), bits - exponent)).astype(np.int64).astype(object)
    return np.where(available, whole, -np.inf), float(np.ldexp(1.0, exponent - bits))


def _balance(values: list, holds: list[set], wanted: list[int]) -> bool:
    """Move tokens along cheapest chains, in place, until every expert has the wanted number of tokens.

    On entry `holds` must be a best assignment for its own loads; on return it is a best assignment for the wanted
    loads.

    Args:
        values: [T][E] whole numbers, the scores.
        holds: [T] sets, the experts of each token.
        wanted: [E], the number of tokens that each expert must have.

    Returns:
        Whether such an assignment exists.
    """
    num_experts = len(wanted)
    while True:
        too_many = [load - want for load, want in zip(_loads(holds, num_experts), wanted, strict=True)]
        if not any(too_many):
            return True
        moves = _cheapest_moves(values, holds)
        cost, before = _cheapest_chains(moves, [e for e in range(num_experts) if too_many[e] > 0], num_experts)
        target = min((e for e in range(num_experts) if too_many[e] < 0), key=lambda e: cost[e])
        if cost[target] == math.inf:
            return False
        while before[target] is not None:  # walk from the end of the chain to its beginning
            source = before[target]
            _, t = moves[source, target]
            holds[t] = holds[t] - {source} | {target}
            target = source


def _loads(holds: list[set], num_experts: int) -> list[int]:
    return [sum(e in experts for experts in holds) for e in range(num_experts)]


def _cheapest_moves(values: list, holds: list[set]) -> dict:
    """Return {(i, j): (loss, t)}: t is the token that loses least by a move from expert i to j, and `loss` is its loss.

    A pair is missing if no token can make this move: every token at i is also at j.
    """
    moves = {}
    for t, (value, experts) in enumerate(zip(values, holds, strict=True)):
        outside = {e for e in range(len(value)) if value[e] > -math.inf} - experts
        for i, j in product(experts, outside):
            loss = value[i] - value[j]
            if (i, j) not in moves or loss < moves[i, j][0]:
                moves[i, j] = loss, t
    return moves


def _cheapest_chains(moves: dict, sources, num_experts: int) -> tuple[list, list]:
    """Return, for each expert, the cost of the cheapest chain of moves from any source to it, and the expert before it.

    The Bellman-Ford algorithm. A move can have a negative cost, but a closed chain cannot, since it would improve the
    assignment at the same loads. An expert that no chain reaches costs infinity.
    """
    cost = [0 if e in sources else math.inf for e in range(num_experts)]
    before = [None] * num_experts
    cheaper = True
    while cheaper:
        cheaper = False
        for (i, j), (loss, _) in moves.items():
            if cost[i] + loss < cost[j]:
                cost[j], before[j], cheaper = cost[i] + loss, i, True
    return cost, before


def _first_of_the_best(values: list, holds: list[set], places: int) -> list[set]:
    """Return the best assignment that comes first in lexicographic order, given any best assignment.

    Try each lower expert for each token. The token swaps a higher expert for this expert, if the program can rebalance
    the later tokens without a loss. One swap is enough at k > 1, because two best assignments differ by closed chains
    of moves, each of cost 0. The last entry of `holds` is the extra token, which takes the unused slots.
    """
    num_experts, best = len(values[0]), _total(values, holds)
    for t, e in product(range(len(holds) - 1), range(num_experts)):
        for higher in sorted(holds[t]):
            if higher <= e or e in holds[t]:
                continue
            settled, later = [*holds[:t], holds[t] - {higher} | {e}], holds[t + 1 :]
            taken = _loads(settled, num_experts)
            balanced = _balance(values[t + 1 :], later, [places - load for load in taken])
            if balanced and _total(values, settled + later) == best:
                holds = settled + later
    return holds


def _total(values: list, holds: list[set]) -> int:
    return sum(value[e] for value, experts in zip(values, holds, strict=True) for e in experts)
