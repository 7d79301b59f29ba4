"""Answers to the exercises of lesson 7."""

import numpy as np

from routelaws.reference.balance import auxiliary_loss
from routelaws.reference.experts import dispatch, expert_capacity
from routelaws.reference.notation import softmax
from routelaws.reference.routers.top_k import top_k_router

z = np.array(
    [[8, 7, 1], [11, 7, 4], [6, 4, 2], [1, 4, -3], [0, 1, -1], [8, 2, 6]], float
)
T, E = z.shape

# 1. The chosen experts are all experts, so the probabilities sum to 1: the gates are
# the probabilities, the largest first. Every expert has the same share, so the loss is
# 1.
everybody = top_k_router(z, E, normalisation="sum")
np.testing.assert_allclose(everybody.gate, -np.sort(-softmax(z), axis=1))
np.testing.assert_allclose(auxiliary_loss(z, everybody.expert).loss, 1)
print("1. the gates are all probabilities, and the loss is 1")

# 2. All six tokens ask for expert 0, so C has to be 6. With k T / E = 4, C is 4c
# rounded up, which is 6 as soon as c is above 5/4.
routing = top_k_router(z, 2)
assert expert_capacity(T, E, 2, 1.25) == 5
assert not dispatch(routing.expert, E, 5).kept.all()
assert expert_capacity(T, E, 2, 1.26) == 6 and dispatch(routing.expert, E, 6).kept.all()
print("2. any c above 5/4")

# 3. With one choice there is no second round: "choice" and "token" both follow the
# text, and the last token comes last. With "priority" it can still displace an earlier
# token. (The gate must be the probability: a gate divided by itself is 1 for all
# tokens.)
draws, changed = np.random.default_rng(0), {"choice": 0, "token": 0, "priority": 0}
for _ in range(100):
    before = draws.normal(size=(8, E))
    after = before.copy()
    after[-1] = draws.normal(size=E)
    for order in changed:
        kept = []
        for logits in (before, after):
            found = top_k_router(logits, 1)
            priority = found.gate if order == "priority" else None
            placement = dispatch(found.expert, E, 2, order=order, priority=priority)
            kept.append(placement.kept[:-1])
        changed[order] += bool((kept[0] != kept[1]).any())
assert changed["choice"] == changed["token"] == 0 < changed["priority"]
print("3.", changed)

# 4. Nothing changes: all scores of a token move by the same number, so the order of its
# experts stays, and gates do not use the bias.
bias = np.array([0.0, 0.1, 0.2])
plain, moved = top_k_router(z, 2, bias=bias), top_k_router(z, 2, bias=bias + 5)
assert (plain.expert == moved.expert).all() and (plain.gate == moved.gate).all()
print("4. nothing")
