"""Answers to the exercises of lesson 1."""

import numpy as np

from routelaws.reference.accounting import SIZES, count
from routelaws.reference.experts import dispatch, expert_capacity
from routelaws.reference.routers.top_k import switch_router

x = np.array([[3.5, 0.5], [3.5, 2.0], [2.0, 1.0], [2.0, -1.5], [0.5, -0.5], [1.0, 3.0]])
w = np.array([[2.0, 2.0, 0.0], [2.0, 0.0, 2.0]])
routing = switch_router(x @ w)

# 1. Four tokens want expert 0, so C has to be 4. With T = 6 and E = 3, C is 2c rounded
# up, which is 4 as soon as c is above 1.5, however little.
assert expert_capacity(6, 3, 1, 1.5) == 3
assert not dispatch(routing.expert, 3, 3).kept.all()
assert expert_capacity(6, 3, 1, 1.51) == 4 and dispatch(routing.expert, 3, 4).kept.all()
print("1. any c above 1.5")

# 2. The logits are 2a + 2b, 2a and 2b for a token (a, b). Expert 2 wins over expert 0
# where a is below 0. With -1 instead of 1 "mat" goes to expert 2. Three tokens still
# want expert 0, so the third token, "sat", is dropped.
moved = x.copy()
moved[5, 0] = -1.0
found = switch_router(moved @ w)
assert found.expert[:, 0].tolist() == [0, 0, 0, 1, 1, 2]
kept = dispatch(found.expert, 3, 2).kept[:, 0]
assert kept.tolist() == [True, True, False, True, True, True]
print('2. "sat" alone')

# 3. Every logit doubles. The largest logit stays the largest, so the experts and the
# load do not change. The gates change: the softmax of larger differences is nearer to
# 1.
doubled = switch_router(x @ (2 * w))
assert (doubled.expert == routing.expert).all() and (doubled.load == routing.load).all()
assert (doubled.gate > routing.gate).all()
gates = routing.gate[:, 0].round(3), doubled.gate[:, 0].round(3)
print("3. only the gates:", gates[0], "become", gates[1])

# 4. A token uses the dense model and the router, because one expert is the feed-forward
# network of the dense model.
size = SIZES["1.3B"]
N, P, _, _ = count(*size[:4], "S-Base", 512)
routers = size.num_blocks // 2 * size.d_model * 512
share = (N + routers) / P
assert 0 < share < 0.01
print(f"4. {share:.2%} of {P / 1e9:.0f} billion parameters")
