"""Answers to the exercises of lesson 3."""

import itertools

import numpy as np

from routelaws.reference.routers.base import (
    balanced_assignment,
    base_router,
    dual_bound,
)

# 1. Token 0 at expert 0 and token 1 at expert 1 give 3 + 1 = 4; the other choice gives
# 1 + 2 = 3. With the prices (p, 0) token 0 is left with 3 - p or 1, and token 1 with 2
# - p or 1. Token 0 wishes for expert 0 up to p = 2, token 1 for expert 1 from p = 1 on.
# So prices prove it exactly if their difference is between 1 and 2.
two = np.array([[3.0, 1.0], [2.0, 1.0]])
assert balanced_assignment(two).expert[:, 0].tolist() == [0, 1]
for p in np.arange(0, 3.25, 0.25):
    assert (dual_bound(two, np.array([p, 0.0])) == 4) == (1 <= p <= 2)
print("1. token 0 to expert 0, token 1 to expert 1; prices (p, 0) with p from 1 to 2")

# 2. In training nothing moves: every balanced choice gets 5 for each of the two slots,
# so the best stays the best. The old prices with 5 more for expert 2 prove it.
# Subtracting 2 from all three prices proves it too. Many prices prove it, and the
# reference returns other prices. In evaluation, no token wanted expert 2 before; now it
# has three tokens.
s = np.array(
    [[8, 7, 1], [11, 7, 4], [6, 4, 2], [1, 4, -3], [0, 1, -1], [8, 2, 6]], float
)
raised = s + [0, 0, 5]
before, after = balanced_assignment(s), balanced_assignment(raised)
assert (before.expert == after.expert).all()
assert after.objective == before.objective + 10
for prices in (before.prices + [0, 0, 5], before.prices + [0, 0, 5] - 2, after.prices):
    assert dual_bound(raised, prices) == after.objective
assert (base_router(raised, training=False).expert[:, 0] == 2).sum() == 3
evaluation = base_router(raised, training=False).expert[:, 0]
print(f"2. prices {before.prices} become {after.prices}  evaluation: {evaluation}")

# 3. Both experts leave a token the same amount, so it bids nothing above the price. The
# first expert fills up. From then on it rejects one token after the other, and its
# price stays 0. Expert 1 stays empty for ever. A step above 0 makes expert 0 dearer
# with every bid, until expert 1 is better.
for step, bids_allowed in ((0.0, 1000), (0.01, 1000)):
    p, bids, free, count = np.zeros(2), [[], []], [0, 1, 2, 3], 0
    while free and count < bids_allowed:
        t, count = free.pop(0), count + 1
        left = 1.0 - p  # all scores are 1
        e = left.argmax()
        bid = p[e] + left.max() - left.min() + step
        bids[e] = sorted([*bids[e], (bid, t)], reverse=True)
        free, bids[e] = free + [t for _, t in bids[e][2:]], bids[e][:2]
        p[e] = bids[e][-1][0] if len(bids[e]) == 2 else 0.0
    assert (len(free) > 0) == (step == 0)
    print(f"3. step {step}: {count} bids", end=", ")
    print(f"{len(free)} tokens without a slot, prices {p}")

# 4. Each expert has two tokens; only the expert that pays best has a third token. The
# tokens then pay at most 2 times the sum of all prices plus the largest price.
seven = np.vstack([s, [5.0, 5.0, 5.0]])
shares = [
    c
    for c in itertools.product(range(3), repeat=7)
    if sorted(np.bincount(c, minlength=3)) == [2, 2, 3]
]
best = max(seven[np.arange(7), list(c)].sum() for c in shares)
found, draws = balanced_assignment(seven), np.random.default_rng(0)
assert found.objective == best and found.gap == 0
for _ in range(100):
    p = draws.normal(size=3, scale=3)
    bound = (seven - p).max(axis=1).sum() + 2 * p.sum() + p.max()
    np.testing.assert_allclose(dual_bound(seven, p), bound)
    assert bound >= best
print("4. the bound has 2 times the sum of the prices and once the largest", end="; ")
print(f"best {best:.0f}, gap {found.gap}")
