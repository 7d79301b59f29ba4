"""deepspeed 0.19.8, `TopKGate.eval()`: the same tokens are routed differently in each call.

`use_rts` (k = 1, who is dropped) and `top2_2nd_expert_sampling` (k = 2, the second expert) are on by default and do not
depend on `self.training`.
"""

import torch
from deepspeed.moe.sharded_moe import TopKGate

torch.manual_seed(0)
x = torch.randn(200, 8)
for k in (1, 2):
    gate = TopKGate(8, 8, k=k, min_capacity=0).eval()
    first, second = (gate(x)[1].sum(2) for _ in range(2))
    print("k", k, "tokens that change:", int((first != second).any(1).sum()), "of 200")
