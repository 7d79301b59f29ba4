"""Answers to the exercises of lesson 4."""

import numpy as np

from routelaws.reference.routers.sinkhorn import sinkhorn_plan, sinkhorn_router

z = np.array(
    [[8, 7, 1], [11, 7, 4], [6, 4, 2], [1, 4, -3], [0, 1, -1], [8, 2, 6]], float
)
training, evaluation = sinkhorn_router(z), sinkhorn_router(z, training=False)

# 1. If you add it to a token, nothing changes: its row is divided by its own sum, and
# its largest logit stays the largest.
token = z + 5 * (np.arange(6) == 2)[:, None]
assert (sinkhorn_router(token).expert == training.expert).all()
assert (sinkhorn_router(token, training=False).expert == evaluation.expert).all()
# If you add it to an expert, nothing changes in training, because its column is scaled
# to the same sum. In evaluation all tokens go to this expert.
favoured = z + 10 * (np.arange(3) == 2)
assert (sinkhorn_router(favoured).expert == training.expert).all()
assert (sinkhorn_router(favoured, training=False).expert == 2).all()
print("1. a token: nothing; an expert: nothing in training, everything in evaluation")

# 2. Every entry of the plan is 1/(T E). In each row all entries are equal, and ties go
# to the lower index: every token goes to expert 0. The plan is balanced, the choice is
# not. So a router must begin with random weights.
equal = sinkhorn_router(np.zeros((6, 3)))
np.testing.assert_allclose(equal.plan, np.full((6, 3), 1 / 18))
assert (equal.expert == 0).all() and equal.load[0] == 1
print("2. the plan is even, and every token goes to expert 0")

# 3. The plan is balanced, so with two tokens and two experts it is [[p, 1/2 - p], [1/2
# - p, p]]. Its form is exp(z + a + g), so it has the cross ratio of exp(z): p² / (1/2 -
# p)² = (8 · 1) / (1 · 2) = 4. So p = 2 (1/2 - p), and p = 1/3.
plan = sinkhorn_plan(np.log([[8.0, 1.0], [2.0, 1.0]]), tolerance=1e-14).plan
np.testing.assert_allclose(plan, [[1 / 3, 1 / 6], [1 / 6, 1 / 3]])
print("3.", plan.round(4).tolist())

# 4. A colder plan is nearer to whole tokens. A nearly whole token reacts less to a
# change of its expert's factor, so each step repairs less. (`simple_sinkhorn` and the
# reference take the same steps.)
sweeps = [sinkhorn_plan(factor * z, tolerance=1e-3).sweeps for factor in (1, 2, 4)]
assert sweeps == sorted(sweeps) and sweeps[0] < sweeps[2]
print("4. sweeps:", sweeps)
