"""An auction of slots at the experts, in compiled loops. `assignment` starts from its nearly optimal prices.

Tokens bid one at a time. A token bids for its best expert at the current prices. The bid is the price at which the next
best expert would be equally good, plus an increment. A full expert drops its lowest bid. Its price becomes the lowest
remaining bid.
"""

import numpy as np

from .compile import compiler, jit

jit_vector = compiler(fastmath={"nnan", "nsz", "reassoc"})

NOTHING = np.float32(-3e38)  # replaces a value; below all other values


@jit_vector
def _take(value, best):
    """Replace the first value equal to `best` by `NOTHING`. Return its index and the largest remaining value."""
    size = np.int32(value.size)  # a vector holds twice as many as with 64 bits
    first, second = size - np.int32(1), NOTHING
    for k in range(size):
        first = min(first, k if value[k] == best else size)
    value[first] = NOTHING
    for k in range(size):
        second = max(second, value[k])
    return first, second


@jit_vector
def _two_best(row, price, value):
    """Return the index of the largest value of row - price, this value, and the second largest value.

    `value` gets all values, with `NOTHING` instead of the largest.
    """
    best = NOTHING
    for k in range(row.size):
        value[k] = row[k] - price[k]
        best = max(best, value[k])
    first, second = _take(value, best)
    return first, best, second


@jit
def auction(near, price, k, places, increment, most):
    """Raise the prices [E] in place by an auction of `places` slots at each expert, after at most `most` bids.

    A token bids for all its missing slots at once. Each bid is the price at which the best remaining expert would be
    equally good, plus the increment. At the end, `near` [T, E] contains `NOTHING` at the experts of each token.
    """
    num_tokens, num_experts = near.shape
    if price.size != num_experts or not 1 <= k <= num_experts or num_tokens * k > places * num_experts:
        raise ValueError("near has to be [T, E] and price [E], with 1 <= k <= E and at least k T places")
    taken = np.zeros(num_experts, np.int64)
    bid = np.empty((num_experts, places), np.float32)  # a heap for each expert, lowest bid first
    holder = np.empty((num_experts, places), np.int32)
    clean = near.copy()
    waiting = np.arange(num_tokens)
    missing = np.full(num_tokens, k, np.int32)
    value = np.empty(num_experts, np.float32)
    wanted, worth = np.empty(k, np.int64), np.empty(k, np.float32)
    left, bids = num_tokens, 0
    while left and bids < most:
        left -= 1
        t = waiting[left]
        wanted[0], worth[0], rest = _two_best(near[t], price, value)
        for i in range(1, missing[t]):
            worth[i] = rest
            wanted[i], rest = _take(value, rest)
        for i in range(missing[t]):
            e = wanted[i]
            level = price[e] + (worth[i] - rest) + increment
            if taken[e] < places:
                _push(bid, holder, e, taken[e], level, t)
                taken[e] += 1
            else:
                other = holder[e, 0]
                near[other, e] = clean[other, e]
                if missing[other] == 0:
                    waiting[left] = other
                    left += 1
                missing[other] += 1
                _replace_lowest(bid, holder, e, level, t)
            near[t, e] = NOTHING
            if taken[e] == places:
                price[e] = bid[e, 0]
        bids += missing[t]
        missing[t] = 0


@jit
def _push(bid, holder, e, at, level, t):
    while at > 0 and bid[e, (at - 1) // 2] > level:
        bid[e, at], holder[e, at] = bid[e, (at - 1) // 2], holder[e, (at - 1) // 2]
        at = (at - 1) // 2
    bid[e, at], holder[e, at] = level, t


@jit
def _replace_lowest(bid, holder, e, level, t):
    places, at = bid.shape[1], 0
    while 2 * at + 1 < places:
        below = 2 * at + 1
        if below + 1 < places and bid[e, below + 1] < bid[e, below]:
            below += 1
        if bid[e, below] >= level:
            break
        bid[e, at], holder[e, at] = bid[e, below], holder[e, below]
        at = below
    bid[e, at], holder[e, at] = level, t
