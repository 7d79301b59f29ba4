"""deepspeed 0.19.8, `TopKGate.eval()`: the same tokens are routed differently in each call.

With k = 1, `use_rts` draws the dropped tokens. With k = 2, `top2_2nd_expert_sampling` draws the second expert. Both
options are on by default and do not depend on `self.training`.
"""

import torch
from deepspeed.moe.sharded_moe import TopKGate

torch.manual_seed(0)
x = torch.randn(200, 8)
for k in (1, 2):
    gate = TopKGate(8, 8, k=k, min_capacity=0).eval()
    first, second = (gate(x)[1].sum(2) for _ in range(2))
    print("k", k, "tokens that change:", int((first != second).any(1).sum()), "of 200")
