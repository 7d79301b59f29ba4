"""Answers to the exercises of lesson 1. Run it: `python tutorials/answers/01_a_routed_layer.py`."""

import numpy as np

from routelaws.reference.accounting import SIZES, count
from routelaws.reference.experts import dispatch, expert_capacity
from routelaws.reference.routers.top_k import switch_router

words = ["the", "cat", "sat", "down"]
x = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 0.5]])
w = np.array([[1.0, -1.0], [0.0, 1.0]])
routing = switch_router(x @ w)

# 1. Three tokens want expert 0, so C has to be 3. With T = 4 and E = 2, C is 2c rounded up, which is 3 as soon as c is
# above 1, however little. (It stays 3 up to c = 1.5.)
assert expert_capacity(4, 2, 1, 1.0) == 2
assert expert_capacity(4, 2, 1, 1.01) == 3
assert dispatch(routing.expert, 2, 3).kept.all()
print("1. any c above 1")

# 2. Expert 1 wins where its logit is the larger one: x2 - x1 > x1, that is, where the second number is more than twice
# the first. With 2.5 instead of 0.5 "down" goes to expert 1. Each expert then has two tokens, and no token is dropped.
moved = x.copy()
moved[3, 1] = 2.5
found = switch_router(moved @ w)
assert found.expert[:, 0].tolist() == [0, 0, 1, 1]
assert dispatch(found.expert, 2, 2).kept.all()
print("2. no token is dropped")

# 3. Every logit doubles. The larger one stays the larger one, so the experts and the load stay. The gates change: the
# softmax of a larger difference is nearer to 1.
doubled = switch_router(x @ (2 * w))
assert (doubled.expert == routing.expert).all() and (doubled.load == routing.load).all()
assert (doubled.gate > routing.gate).all()
print("3. the gates alone:", routing.gate[:, 0].round(3), "become", doubled.gate[:, 0].round(3))

# 4. A token meets the dense model and the router, since one expert is the feed-forward network of the dense model.
size = SIZES["1.3B"]
N, P, _, _ = count(*size[:4], "S-Base", 512)
routers = size.num_blocks // 2 * size.d_model * 512
share = (N + routers) / P
assert 0 < share < 0.01
print(f"4. {share:.2%} of {P / 1e9:.0f} billion parameters")
