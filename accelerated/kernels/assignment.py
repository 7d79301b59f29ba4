"""The optimal balanced assignment of tokens to k experts each, in compiled loops: exact, in two steps.

1. `auction.auction`: tokens bid for slots at the experts. It takes a few bids per token: the increment is coarse, and
   the initial prices come from auctions of some tokens. Only the prices are used.
2. `solve`: each token goes to the expert with its best score minus price. The result is optimal for its loads, and each
   expert has only a few tokens too many. Each excess token moves along a shortest path of experts. A link from one
   expert to another is the cheapest move of a token between them. The program keeps the [E, E] table of links up to
   date, so the time of a search does not depend on T. At the prices, no link has a negative cost, so the searches use
   Dijkstra's algorithm.

Token t has k slots, t + i T for i from 0 to k - 1. Each slot has an expert. `own` holds the scores of the slots.
`whole` contains `HELD` at the current experts of a token, so loops need no test for these experts.

Scores are converted to whole numbers (see `routelaws.reference.routers.base`), so the result and ties are exact.
"""

from typing import NamedTuple

import numpy as np

from .auction import auction, jit_vector
from .compile import jit, jit_within

FAR = 2**60  # longer than any path
HELD = -(2**61)  # replaces the score of a current expert: a link to it is longer than any other link
COARSE = 0.1  # the increment of the auction, in standard deviations of the scores; affects only speed
MOST_BIDS = 8  # largest number of bids of an auction per slot; affects only speed
STRIDES = (16, 2)  # an auction of every 16th token, then of every second token; affects only speed
FEW, STRIDES_OF_FEW = 16, (8, 1)  # other strides if experts have fewer than FEW slots
HIGHEST = 64.0  # limit of the auction's prices, in units of the largest score, so that no sum can overflow


class Solution(NamedTuple):
    """A balanced assignment, and prices that prove it optimal."""

    expert: np.ndarray  # [T, k] int32
    objective: float
    prices: np.ndarray  # [E] float64, the smallest is 0
    gap: float


def assign(scores: np.ndarray, k: int = 1) -> Solution:
    """Return the optimal balanced assignment of scores [T, E], float32 or float64; order and ties as in the reference.

    If a score is not finite, or if T = 0, the numbers are NaN. Then token t gets expert t k mod E and the next k - 1
    experts.
    """
    scores = np.asarray(scores)
    if scores.ndim != 2 or scores.dtype not in (np.float32, np.float64) or not 1 <= k <= scores.shape[1]:
        raise ValueError(
            f"scores are {scores.dtype} {list(scores.shape)} and k is {k}; float32 or float64 [T, E] and 1 <= k <= E "
            "are needed"
        )
    num_tokens, num_experts = scores.shape
    largest = max(float(scores.max(initial=0.0)), -float(scores.min(initial=0.0)))
    if not np.isfinite(largest) or not num_tokens:
        nothing = np.full(num_experts, np.nan)
        dealt = np.arange(num_tokens * k, dtype=np.int32).reshape(num_tokens, k) % np.int32(num_experts)
        return Solution(dealt, np.nan, nothing, np.nan)
    bits = 52 - max(0, num_experts.bit_length() - 5)
    exponent = max(int(np.frexp(largest)[1]), bits - 1022)
    whole = np.empty(scores.shape, np.int64)
    near = np.empty(scores.shape, np.float32)
    deviation = whole_numbers(np.ascontiguousarray(scores), 2.0 ** (bits - exponent), 2.0**-bits, whole, near)
    everyone, more = divmod(num_tokens * k, num_experts)
    prices = np.zeros(num_experts + 1, np.int64)
    if num_experts > k and deviation > 0:
        found_prices = np.zeros(num_experts, np.float32)
        for stride in STRIDES if everyone >= FEW else STRIDES_OF_FEW:
            some = np.ascontiguousarray(near[::stride])
            places, most = -(-len(some) * k // num_experts), MOST_BIDS * num_tokens * k
            auction(some, found_prices, k, places, np.float32(COARSE * deviation), most)
            found_prices -= found_prices.min()
        prices[:-1] = np.rint(np.minimum(found_prices, HIGHEST).astype(np.float64) * 2.0**bits)
    expert = in_order(scores, solve(whole, prices, k, everyone, more))
    prices = (prices[:-1] - prices[:-1].min()) * 2.0 ** (exponent - bits)
    objective = float(np.take_along_axis(scores, expert, axis=1).sum(dtype=np.float64))
    return Solution(expert, objective, prices, measure_gap(scores, expert, prices))


def measure_gap(scores: np.ndarray, expert: np.ndarray, prices: np.ndarray) -> float:
    """Return the dual bound of prices [E] minus the objective, as a sum of non-negative terms."""
    num_tokens, num_experts = scores.shape
    if prices.shape != (num_experts,) or expert.ndim != 2 or len(expert) != num_tokens:
        raise ValueError(f"expert has shape {expert.shape} and prices {prices.shape}; [T, k] and [E] are needed")
    if expert.size and not (0 <= expert.min() and expert.max() < num_experts):
        raise ValueError(f"experts range from {expert.min()} to {expert.max()}; allowed: 0 to {num_experts - 1}")
    everyone, more = divmod(expert.size, len(prices))
    surplus = np.bincount(expert.ravel(), minlength=len(prices)) - everyone
    return float(_regret(scores, expert, prices) + np.sort(prices)[::-1][:more].sum() - (surplus * prices).sum())


@jit
def _regret(scores, expert, prices):
    """Return the total that the tokens would gain from their best experts at these prices."""
    total = 0.0
    k, num_experts = expert.shape[1], len(prices)
    held, free = np.empty(k), np.empty(num_experts)
    for t in range(len(expert)):
        if k == 1:
            e = expert[t, 0]
            total += _largest(scores[t], prices) - (scores[t, e] - prices[e])
            continue
        for e in range(num_experts):
            free[e] = scores[t, e] - prices[e]
        for i in range(k):
            held[i], free[expert[t, i]] = free[expert[t, i]], -np.inf
        best = free.max()
        while best > held.min():  # exchange the worst expert for the best other expert
            total += best - held.min()
            free[free.argmax()] = -np.inf
            held[held.argmin()] = best
            best = free.max()
    return total


@jit
def in_order(scores, slots):
    """Return experts [T, k] of slots [k T]. The experts of a token are sorted by descending score, then by index."""
    num_tokens, num_experts = scores.shape
    if num_tokens == 0 or slots.size % num_tokens or slots.min() < 0 or slots.max() >= num_experts:
        raise ValueError("slots have to be [k T], one at least, each at least 0 and below E")
    k = len(slots) // num_tokens
    expert = np.empty((num_tokens, k), np.int32)
    for t in range(num_tokens):
        for i in range(k):
            e, at = slots[i * num_tokens + t], i
            while at > 0:
                before = expert[t, at - 1]
                if scores[t, before] > scores[t, e] or (scores[t, before] == scores[t, e] and before < e):
                    break
                expert[t, at] = before
                at -= 1
            expert[t, at] = e
    return expert


@jit_vector
def whole_numbers(scores, scale, unit, whole, near):
    """Write whole = round(scores * scale) and near = whole * unit. Return the standard deviation of near."""
    if whole.shape != scores.shape or near.shape != scores.shape:
        raise ValueError("scores, whole and near have to be [T, E]")
    total, squares = 0.0, 0.0
    for t in range(scores.shape[0]):
        for e in range(scores.shape[1]):
            number = np.rint(scores[t, e] * scale)
            whole[t, e] = np.int64(number)
            near[t, e] = number * unit
            total += near[t, e]
            squares += near[t, e] * near[t, e]
    mean = total / scores.size
    return np.sqrt(max(squares / scores.size - mean * mean, 0.0))


@jit
def solve(whole, price, k, everyone, more):
    """Return the experts of all slots [k T] int32; overwrites `whole`.

    At the end, the prices in `price` [E + 1] prove that the assignment is optimal. The last price belongs to the
    reserve: the node of the `more` extra slots.
    """
    num_tokens, reserve = whole.shape
    if price.size != reserve + 1 or not 1 <= k <= reserve or everyone * reserve + more != k * num_tokens:
        raise ValueError("whole has to be [T, E] and price [E + 1], with 1 <= k <= E and k T places")
    if not 0 <= more < reserve:
        raise ValueError("`more` has to be at least 0 and below E")
    expert = np.empty(k * num_tokens, np.int32)
    own = np.empty(k * num_tokens, np.int64)
    surplus = np.full(reserve + 1, -everyone)  # excess tokens at each node
    surplus[reserve] = 0
    for t in range(num_tokens):
        for i in range(k):
            best = _largest(whole[t], price)
            chosen = -1
            for e in range(reserve):
                if whole[t, e] - price[e] == best:
                    if chosen < 0 or (surplus[chosen] >= 0 and surplus[e] < surplus[chosen]):
                        chosen = e
            _hold(t, i * num_tokens + t, chosen, whole, expert, own)
            surplus[chosen] += 1
    links = np.full((reserve + 1, reserve + 1), FAR)
    cheapest = np.full((reserve + 1, reserve + 1), -1, np.int32)  # the slot behind each link
    ring = np.full((2, len(expert) + reserve), -1, np.int32)  # linked lists of e's slots
    for e in range(reserve):
        ring[:, len(expert) + e] = len(expert) + e
    for t in range(num_tokens - 1, -1, -1):  # backwards, so that the last of equal tokens is the cheapest
        for i in range(k):
            _join(t, i * num_tokens + t, whole, expert, own, links, cheapest, ring)
    if more:  # else no token counts at the reserve
        links[:, reserve] = 0
    left = price[:reserve].copy()
    for _ in range(more):  # the experts with the highest prices have one more token
        dearest = left.argmax()
        price[reserve], left[dearest] = left[dearest], HELD
        links[dearest, reserve], links[reserve, dearest] = FAR, 0
        surplus[dearest] -= 1
    cost = np.empty(reserve + 1, np.int64)
    before = np.empty(reserve + 1, np.int64)
    while surplus.max() > 0:
        for node in range(reserve + 1):
            cost[node] = 0 if surplus[node] > 0 else FAR
        target = _cheapest_chain(links, price, surplus < 0, cost, before, FAR - 1)
        for node in range(reserve + 1):
            price[node] -= min(cost[node], cost[target])
        source = _move(target, before, whole, expert, own, links, cheapest, ring)
        surplus[source] -= 1
        surplus[target] += 1
    _settle_ties(price, cost, before, whole, expert, own, links, cheapest, ring)
    return expert


@jit_vector
def _largest(row, price):
    best = row[0] - price[0]
    for e in range(row.size):
        best = max(best, row[e] - price[e])
    return best


@jit
def _hold(t, slot, e, whole, expert, own):
    expert[slot], own[slot], whole[t, e] = e, whole[t, e], HELD


@jit
def _join(t, slot, whole, expert, own, links, cheapest, ring):
    e = expert[slot]
    head = len(expert) + e
    after = ring[0, head]
    ring[0, head], ring[1, slot], ring[0, slot], ring[1, after] = slot, head, after, slot
    score = own[slot]
    for k in range(whole.shape[1]):
        if score - whole[t, k] < links[e, k]:
            links[e, k], cheapest[e, k] = score - whole[t, k], slot


@jit
def _leave(slot, whole, expert, own, links, cheapest, ring):
    """Remove a slot from its expert, and search again for the links that used the slot."""
    e = expert[slot]
    ring[0, ring[1, slot]], ring[1, ring[0, slot]] = ring[0, slot], ring[1, slot]
    gone = np.empty(whole.shape[1], np.int64)
    count = 0
    for k in range(whole.shape[1]):
        if cheapest[e, k] == slot:
            gone[count] = k
            count += 1
    if count:
        _search(e, gone, count, whole, expert, own, links, cheapest, ring)


@jit
def _search(e, targets, count, whole, expert, own, links, cheapest, ring):
    """Find the cheapest slots of expert e for its links to the first `count` targets."""
    num_tokens, num_slots = whole.shape[0], len(expert)
    for i in range(count):
        k = targets[i]
        links[e, k], cheapest[e, k] = FAR, -1
    slot = ring[0, num_slots + e]
    while slot < num_slots:
        t, score = slot, own[slot]
        while t >= num_tokens:  # faster than a division
            t -= num_tokens
        for i in range(count):
            k = targets[i]
            if score - whole[t, k] <= links[e, k]:
                links[e, k], cheapest[e, k] = score - whole[t, k], slot
        slot = ring[0, slot]


@jit
def _cheapest_chain(links, price, wanted, cost, before, limit):
    """Find the `wanted` node with the cheapest path from the nodes of cost 0; -1 if all paths cost more than `limit`.

    On entry, `cost` [E + 1] is 0 or FAR. At the end, `cost` is exact for every node that is cheaper than the result.
    For other nodes it is at least the cost of the result. `before` contains each node's predecessor, and -1 for the
    first nodes of paths.
    """
    size = len(cost)
    open_ = cost.copy()  # FAR or more for finished nodes
    before[:] = -1
    while True:
        least = open_[0]
        for k in range(size):
            least = min(least, open_[k])
        if least > limit:
            return -1
        j = 0
        while open_[j] != least:
            j += 1
        if wanted[j]:
            return j
        open_[j] = 2 * FAR
        for k in range(size):  # without a branch, so that the compiler can vectorise
            through = cost[j] + links[j, k] - price[j] + price[k] if links[j, k] < FAR else 2 * FAR
            nearer = through < cost[k]
            cost[k] = through if nearer else cost[k]
            open_[k] = through if nearer else open_[k]
            before[k] = j if nearer else before[k]


@jit
def _move(target, before, whole, expert, own, links, cheapest, ring):
    reserve = whole.shape[1]
    k = target
    while before[k] >= 0:
        j = before[k]
        if k == reserve or j == reserve:  # the other slot's token enters or leaves the reserve
            links[j, k], links[k, j] = FAR, 0
        else:
            _move_slot(cheapest[j, k], k, whole, expert, own, links, cheapest, ring)
        k = j
    return k


@jit_within
def _move_slot(slot, k, whole, expert, own, links, cheapest, ring):
    """Move a token from the expert of one of its slots to expert k, and update the links."""
    t, j = slot % whole.shape[0], expert[slot]
    whole[t, j] = own[slot]
    score, whole[t, k] = whole[t, k], HELD
    _leave(slot, whole, expert, own, links, cheapest, ring)
    for other in range(t, len(expert), whole.shape[0]):
        e = expert[other]  # the other slot's token can no longer move to k, but it can move to j
        if other != slot:
            if cheapest[e, k] == other:
                _search(e, np.array([k]), 1, whole, expert, own, links, cheapest, ring)
            if own[other] - whole[t, j] < links[e, j]:
                links[e, j], cheapest[e, j] = own[other] - whole[t, j], other
    expert[slot], own[slot] = k, score
    _join(t, slot, whole, expert, own, links, cheapest, ring)


@jit
def _settle_ties(price, cost, before, whole, expert, own, links, cheapest, ring):
    """Choose the optimal assignment that gives token 0, then token 1, ... the lowest indices; see the reference.

    A settled token must not move again. The program removes settled tokens from the links only if it finds a path of
    cost 0. Without ties there is no such path.
    """
    num_tokens = whole.shape[0]
    k = len(expert) // num_tokens
    wanted = np.zeros(len(cost), np.bool_)
    settled = 0
    for t in range(num_tokens):
        worst = own[t] - price[expert[t]]
        highest = expert[t]
        for slot in range(t, len(expert), num_tokens):
            worst = min(worst, own[slot] - price[expert[slot]])
            highest = max(highest, expert[slot])
        lower = 0
        while lower != highest:
            if whole[t, lower] - price[lower] == worst:
                _mark(t, lower, worst, True, wanted, price, expert, own, num_tokens)
                cost[:] = FAR
                cost[lower] = 0
                found = _cheapest_chain(links, price, wanted, cost, before, 0)
                _mark(t, lower, worst, False, wanted, price, expert, own, num_tokens)
                if found != -1:
                    if settled <= t:
                        while settled <= t:
                            for slot in range(settled, len(expert), num_tokens):
                                _leave(slot, whole, expert, own, links, cheapest, ring)
                            settled += 1
                        continue  # repeat the search without settled tokens
                    _move(found, before, whole, expert, own, links, cheapest, ring)
                    slot = t
                    while expert[slot] != found:
                        slot += num_tokens
                    whole[t, found] = own[slot]
                    _hold(t, slot, lower, whole, expert, own)
                    if k == 1:
                        break
            lower += 1


@jit
def _mark(t, lower, worst, mark, wanted, price, expert, own, num_tokens):
    """Set `wanted` to `mark` for token t's experts above index `lower` with a score minus price of `worst`."""
    for slot in range(t, len(expert), num_tokens):
        if expert[slot] > lower and own[slot] - price[expert[slot]] == worst:
            wanted[expert[slot]] = mark
