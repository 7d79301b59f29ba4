"""The best balanced assignment of tokens to experts as compiled loops: exact, in two steps.

1. `auction`: tokens bid for places at the experts; a full expert gives up the holder of its lowest bid. With a coarse
   increment, and prices that every eighth token has found before, this is over after a few bids per token. Only the
   prices are kept.
2. `solve`: from any prices, tokens go where score less price is best. That is the best assignment for its own loads,
   and only some tokens per expert are too many. Each is moved along a cheapest chain of experts; a chain needs only
   the cheapest token of each expert for each other one, [E, E] numbers that are kept up to date, so T appears in no
   search. The searches are Dijkstra's, since at the prices no link is negative.

What is assigned are whole numbers (see `routelaws.reference.routers.base`), so the result is exact and ties are ties.
"""

from typing import NamedTuple

import numpy as np

from .law_fit import _compiler, _jit

_jit_vector = _compiler(fastmath={"nnan", "nsz", "reassoc"})

FAR = 2**60  # longer than any chain
COARSE = 0.1  # the increment of the auction, in standard deviations of the scores; a matter of speed alone
MOST_BIDS = 8  # in each auction, per token of the group; a matter of speed alone
STRIDES = (8, 1)  # one auction of every eighth token, then one of all; a matter of speed alone
HIGHEST = 64.0  # prices of the auction are cut here, in units of the largest score, so that no sum can overflow


class Solution(NamedTuple):
    """A balanced assignment and the prices that prove it."""

    expert: np.ndarray  # [T] int32
    objective: float
    prices: np.ndarray  # [E] float64, the least of them 0
    gap: float


def assign(scores: np.ndarray) -> Solution:
    """Return the best balanced assignment of scores [T, E], float32 or float64, ties as in the reference.

    Where a score is not finite, token t gets expert t mod E, and the numbers are NaN.
    """
    num_tokens, num_experts = scores.shape
    largest = max(float(scores.max(initial=0.0)), -float(scores.min(initial=0.0)))
    if not np.isfinite(largest):
        nothing = np.full(num_experts, np.nan)
        return Solution(np.arange(num_tokens, dtype=np.int32) % np.int32(num_experts), np.nan, nothing, np.nan)
    bits = 52 - max(0, num_experts.bit_length() - 5)
    exponent = max(int(np.frexp(largest)[1]), bits - 1022)
    whole = np.empty(scores.shape, np.int64)
    near = np.empty(scores.shape, np.float32)
    deviation = whole_numbers(np.ascontiguousarray(scores), 2.0 ** (bits - exponent), 2.0**-bits, whole, near)
    everyone, more = divmod(num_tokens, num_experts)
    prices = np.zeros(num_experts + 1, np.int64)
    if num_experts > 1 and deviation > 0:
        found = np.zeros(num_experts, np.float32)
        for stride in STRIDES:
            some = np.ascontiguousarray(near[::stride])
            auction(some, found, -(-len(some) // num_experts), np.float32(COARSE * deviation), MOST_BIDS * num_tokens)
            found -= found.min()
        prices[:-1] = np.rint(np.minimum(found, HIGHEST).astype(np.float64) * 2.0**bits)
    expert = solve(whole, prices, everyone, more)
    prices = (prices[:-1] - prices[:-1].min()) * 2.0 ** (exponent - bits)
    objective = float(scores[np.arange(num_tokens), expert].sum(dtype=np.float64))
    return Solution(expert, objective, prices, measure_gap(scores, expert, prices))


def measure_gap(scores: np.ndarray, expert: np.ndarray, prices: np.ndarray) -> float:
    """Return the bound that prices [E] prove less the objective, as a sum of terms of which none is negative."""
    everyone, more = divmod(*scores.shape)
    surplus = np.bincount(expert, minlength=len(prices)) - everyone
    return float(_regret(scores, expert, prices) + np.sort(prices)[::-1][:more].sum() - (surplus * prices).sum())


@_jit
def _regret(scores, expert, prices):
    """Return what all tokens together could gain at these prices by going elsewhere."""
    total = 0.0
    for t in range(len(expert)):
        best = own = scores[t, expert[t]] - prices[expert[t]]
        for e in range(len(prices)):
            best = max(best, scores[t, e] - prices[e])
        total += best - own
    return total


@_jit
def whole_numbers(scores, scale, unit, whole, near):
    """Fill whole = scores times scale, rounded, and near = whole times unit; return the deviation of near."""
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


@_jit_vector
def _two_best(row, price, value):
    """Return the index of the largest row - price, that value, and the second largest; three loops without a branch."""
    nothing, size = np.float32(-3e38), row.size
    best = second = nothing
    for k in range(size):
        value[k] = row[k] - price[k]
        best = max(best, value[k])
    first = size - 1
    for k in range(size):
        first = min(first, k if value[k] == best else size)
    value[first] = nothing
    for k in range(size):
        second = max(second, value[k])
    return first, best, second


@_jit
def auction(near, price, places, increment, most):
    """Raise the prices [E] in place by an auction of `places` places at each expert, after at most `most` bids."""
    num_tokens, num_experts = near.shape
    held = np.zeros(num_experts, np.int64)
    bid = np.empty((num_experts, places), np.float32)  # of each expert a heap with the lowest bid first
    holder = np.empty((num_experts, places), np.int32)
    waiting = np.arange(num_tokens)
    value = np.empty(num_experts, np.float32)
    left = num_tokens
    for _ in range(most):
        if left == 0:
            break
        left -= 1
        t = waiting[left]
        e, best, second = _two_best(near[t], price, value)
        level = price[e] + (best - second) + increment
        if held[e] < places:
            at = held[e]
            held[e] += 1
            while at > 0 and bid[e, (at - 1) // 2] > level:
                bid[e, at], holder[e, at] = bid[e, (at - 1) // 2], holder[e, (at - 1) // 2]
                at = (at - 1) // 2
        else:
            waiting[left] = holder[e, 0]
            left += 1
            at = 0
            while 2 * at + 1 < places:
                below = 2 * at + 1
                if below + 1 < places and bid[e, below + 1] < bid[e, below]:
                    below += 1
                if bid[e, below] >= level:
                    break
                bid[e, at], holder[e, at] = bid[e, below], holder[e, below]
                at = below
        bid[e, at], holder[e, at] = level, t
        if held[e] == places:
            price[e] = bid[e, 0]


@_jit
def solve(whole, price, everyone, more):
    """Return the assignment [T] int32; `price` [E + 1] (the last is that of the reserve) ends as one that proves it."""
    num_tokens, reserve = whole.shape
    expert = np.empty(num_tokens, np.int32)
    surplus = np.full(reserve + 1, -everyone)  # tokens too many at each node
    surplus[reserve] = 0
    for t in range(num_tokens):
        own, best = 0, whole[t, 0] - price[0]
        for e in range(1, reserve):
            value = whole[t, e] - price[e]
            if value > best or (value == best and surplus[own] >= 0 and surplus[e] < surplus[own]):
                own, best = e, value
        expert[t] = own
        surplus[own] += 1
    links = np.full((reserve + 1, reserve + 1), FAR)
    cheapest = np.full((reserve + 1, reserve + 1), -1, np.int32)  # the token behind each link
    ring = np.full((2, num_tokens + reserve), -1, np.int32)  # next and previous: the tokens of e, from T + e
    for e in range(reserve):
        ring[:, num_tokens + e] = num_tokens + e
    for t in range(num_tokens - 1, -1, -1):  # from the last, so that of equals the last is the cheapest
        _join(t, expert[t], whole, links, cheapest, ring)
    price[reserve] = price[:reserve].max()
    links[:reserve, reserve] = 0
    for _ in range(more):  # the dearest experts have one token more
        dearest = -1
        for e in range(reserve):
            if links[e, reserve] == 0 and (dearest < 0 or price[e] > price[dearest]):
                dearest = e
        links[dearest, reserve], links[reserve, dearest] = FAR, 0
        price[reserve] = price[dearest]
        surplus[dearest] -= 1
    cost = np.empty(reserve + 1, np.int64)
    before = np.empty(reserve + 1, np.int64)
    while surplus.max() > 0:
        for node in range(reserve + 1):
            cost[node] = 0 if surplus[node] > 0 else FAR
        target = _cheapest_chain(links, price, surplus, cost, before, FAR)
        for node in range(reserve + 1):
            price[node] -= min(cost[node], cost[target])
        source = _move(target, expert, before, whole, links, cheapest, ring)
        surplus[source] -= 1
        surplus[target] += 1
    _settle_ties(expert, price, cost, before, whole, links, cheapest, ring)
    return expert


@_jit
def _join(t, e, whole, links, cheapest, ring):
    """Add token t to those of expert e."""
    head = whole.shape[0] + e
    after = ring[0, head]
    ring[0, head], ring[1, t], ring[0, t], ring[1, after] = t, head, after, t
    for k in range(whole.shape[1]):
        if whole[t, e] - whole[t, k] < links[e, k]:
            links[e, k], cheapest[e, k] = whole[t, e] - whole[t, k], t


@_jit
def _leave(t, e, whole, links, cheapest, ring):
    """Take token t from those of expert e; only the links that it stood for are searched anew."""
    ring[0, ring[1, t]], ring[1, ring[0, t]] = ring[0, t], ring[1, t]
    gone = np.empty(whole.shape[1], np.int64)
    count = 0
    for k in range(whole.shape[1]):
        if cheapest[e, k] == t:
            links[e, k], cheapest[e, k] = FAR, -1
            gone[count] = k
            count += 1
    if count == 0:
        return
    other = ring[0, whole.shape[0] + e]
    while other < whole.shape[0]:
        for i in range(count):
            k = gone[i]
            if whole[other, e] - whole[other, k] <= links[e, k]:
                links[e, k], cheapest[e, k] = whole[other, e] - whole[other, k], other
        other = ring[0, other]


@_jit
def _cheapest_chain(links, price, surplus, cost, before, limit):
    """Find the node with surplus < 0 that is cheapest to reach from those of cost 0; -1 if it costs more than `limit`.

    `cost` [E + 1], on entry 0 or FAR, ends right for every node that is cheaper than the one found, and not below
    that one's cost for the others; `before` holds the node before each, -1 at the start.
    """
    size = len(cost)
    done = np.zeros(size, np.bool_)
    before[:] = -1
    while True:
        j = -1
        for k in range(size):
            if not done[k] and (j < 0 or cost[k] < cost[j]):
                j = k
        if j < 0 or cost[j] > limit or cost[j] >= FAR:
            return -1
        if surplus[j] < 0:
            return j
        done[j] = True
        for k in range(size):
            if links[j, k] < FAR and not done[k]:
                through = cost[j] + links[j, k] - price[j] + price[k]
                if through < cost[k]:
                    cost[k], before[k] = through, j


@_jit
def _move(target, expert, before, whole, links, cheapest, ring):
    """Move one token along each link of the chain that ends at `target`; return where the chain starts."""
    reserve = whole.shape[1]
    k = target
    while before[k] >= 0:
        j = before[k]
        if k == reserve or j == reserve:  # the token of the other one is counted in the reserve from now on, or no more
            links[j, k], links[k, j] = FAR, 0
        else:
            t = cheapest[j, k]
            _leave(t, j, whole, links, cheapest, ring)
            _join(t, k, whole, links, cheapest, ring)
            expert[t] = k
        k = j
    return k


@_jit
def _settle_ties(expert, price, cost, before, whole, links, cheapest, ring):
    """Go to the optimal assignment that gives token 0, then token 1, ... the lowest index; see the reference.

    A token that is settled must not move again. It leaves the links only when a chain of no cost is found that might
    use it: without ties there is no such chain, and nothing has to be taken out.
    """
    wanted = np.zeros(len(cost), np.int64)
    settled = 0
    for t in range(len(expert)):
        own = expert[t]
        lower = 0
        while lower < own:
            if whole[t, lower] - price[lower] == whole[t, own] - price[own]:
                wanted[own] = -1
                cost[:] = FAR
                cost[lower] = 0
                found = _cheapest_chain(links, price, wanted, cost, before, 0)
                wanted[own] = 0
                if found >= 0 and settled <= t:
                    while settled <= t:
                        _leave(settled, expert[settled], whole, links, cheapest, ring)
                        settled += 1
                    continue  # the same search again, without them
                if found >= 0:
                    _move(own, expert, before, whole, links, cheapest, ring)
                    expert[t] = lower
                    break
            lower += 1
