"""Answers to the exercises of lesson 5."""

import numpy as np

from routelaws.reference.balance import update_bias
from routelaws.reference.routers.base import balanced_assignment, dual_bound
from routelaws.reference.routers.quantile import quantile_bias, quantile_router


def after(scores, steps):
    return quantile_bias(scores, np.zeros(scores.shape[1]), num_steps=steps)


group = np.random.default_rng(12).normal(size=(32, 4)) + np.array([1.0, 0.5, 0.0, -0.5])

# 1. If you add 3 to a token, nothing changes in any step: its price alpha rises by 3
# too, and the candidates are scores minus alpha. If you add 3 to an expert, its exact
# price rises by 3, because every balanced choice gains the same. One step from zeros
# does not reach these prices: it computes the token prices with the old bias.
token = group + 3 * (np.arange(32) == 5)[:, None]
expert = group + 3 * (np.arange(4) == 2)
np.testing.assert_allclose(after(token, 1), after(group, 1))
shift = 3 * (np.arange(4) == 2) - 3 / 4  # the mean stays 0
best = balanced_assignment(expert).objective
assert np.abs(after(expert, 1) - after(group, 1) - shift).max() > 0.1
for bias in (after(expert, 60), after(group, 60) + shift):
    np.testing.assert_allclose(dual_bound(expert, bias), best)
print("1. a token: nothing; an expert: its price rises by 3 in the end")

# 2. No: each half is balanced by itself. The loads of the whole batch are nearly even,
# but not exactly.
halves = group.reshape(2, 16, 4)
mean = np.mean([after(half, 60) for half in halves], axis=0)
counts = [
    np.bincount(quantile_router(group, bias).expert[:, 0], minlength=4)
    for bias in (after(group, 60), mean)
]
assert np.ptp(counts[0]) == 0 < np.ptp(counts[1])
print(
    "2. tokens of each expert: whole batch", counts[0], " mean of the halves", counts[1]
)

# 3. Each batch moves the bias by 0.1, so it takes at least 20 batches, and 2000 with u
# = 0.001. Here an expert gets all tokens all the time.
bias, batches = np.zeros(2), 0
while bias[0] > -2 + 0.05:
    bias, batches = update_bias(bias, np.array([10, 0]), rate=0.1), batches + 1
assert batches == 20
print(f"3. {batches} batches")

# 4. Yes: the step then uses other ranks and one more number, gamma (see the docstring
# of the module). The bound of the bias comes down to the best choice.
seven = np.random.default_rng(2).normal(size=(7, 3))
bias = after(seven, 100)
np.testing.assert_allclose(
    dual_bound(seven, bias), balanced_assignment(seven).objective
)
counts = np.bincount(quantile_router(seven, bias).expert[:, 0], minlength=3)
assert sorted(counts) == [2, 2, 3]
print("4. tokens of each expert:", counts)
