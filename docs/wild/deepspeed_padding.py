"""deepspeed 0.19.8, `TopKGate` with k = 2: `used_token` has no effect, so padding takes slots.

`forward` passes `used_token` to `top1gating` alone.
"""

import torch
from deepspeed.moe.sharded_moe import TopKGate

used = (torch.arange(200) < 100).long()
for k in (1, 2):
    gate = TopKGate(8, 8, k=k, eval_capacity_factor=8.0, min_capacity=0).eval()
    combine = gate(torch.randn(200, 8), used)[1]
    print("k", k, "padded tokens with a slot:", int((combine[100:] > 0).any(2).any(1).sum()), "of 100")
