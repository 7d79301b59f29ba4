"""Answers to the exercises of lesson 6."""

import numpy as np

from routelaws.reference.notation import softmax
from routelaws.reference.routers.reinforce import policy_entropy

pi = softmax(np.array([0.0, 1.0, -1.0]))


def exact_gradient(pi, r):
    return pi * (r - pi @ r)


def variance(pi, r, b):
    each = (r - b)[:, None] * (np.eye(len(pi)) - pi)
    return float(pi @ ((each - exact_gradient(pi, r)) ** 2).sum(axis=1))


# 1. No expert is better than the value, so the gradient is zero. Without a baseline the
# estimates are still noise around zero, in proportion to the square of the reward. With
# the value as the baseline, every advantage and every estimate is zero.
level = np.full(3, -2.0)
noise = [variance(pi, level, b) for b in (0.0, level @ pi)]
np.testing.assert_allclose(1 + exact_gradient(pi, level), np.ones(3))
np.testing.assert_allclose(1 + noise[1], 1)
np.testing.assert_allclose(variance(pi, 3 * level, 0.0), 9 * noise[0])
print(
    f"1. gradient 0, variance {noise[0]:.3f} without a baseline, "
    f"{noise[1]:.3f} with the value as the baseline"
)

# 2. The gradient is the probability times (reward - value). Both policies have about
# the same second factor for the unlikely expert. But its probability is 0.01 instead of
# a third. So a policy that is sure of the wrong expert hardly learns: it rarely tries
# the right one. That is a reason for the entropy term.
r = np.array([-2.0, -1.0, -2.0])
sure = exact_gradient(np.array([0.98, 0.01, 0.01]), r)[1]
open_minded = exact_gradient(np.full(3, 1 / 3), r)[1]
assert 0 < sure < open_minded / 20
print(f"2. {sure:.4f} against {open_minded:.4f}")

# 3. Here the mean reward of the drawn expert is the reward itself. Every advantage is
# then zero, so the mean of the estimates is zero instead of the gradient. A baseline
# may depend on the token, but not on the draw.
r = np.log([0.4, 0.1, 0.2])
mean = pi @ ((r - r)[:, None] * (np.eye(3) - pi))
assert not mean.any() and np.abs(exact_gradient(pi, r)).max() > 0.2
print("3. mean of the estimates", mean, " gradient", exact_gradient(pi, r).round(3))

# 4. A small step along the direction makes the entropy larger. The direction is zero
# where all log-probabilities are equal, that is, for the even policy, whose entropy is
# the largest.
z = np.log(pi)
direction = pi * (pi @ z - z)
before, after = (policy_entropy(logits[None])[0] for logits in (z, z + 0.1 * direction))
assert after > before
even = np.full(3, 1 / 3)
assert not (even * (np.log(even)[0] - np.log(even))).any()
print(f"4. entropy {before:.4f}, after the step {after:.4f}, at most {np.log(3):.4f}")
