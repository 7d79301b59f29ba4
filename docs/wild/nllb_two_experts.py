"""transformers 5.24.0, `NllbMoeSparseMLP`: experts 0 and 1 run for every token, whatever experts the router chooses.

The router returns a 0/1 mask [T, E]. `NllbMoeExperts.forward` reads this mask as expert numbers, so 0 selects expert 0
and 1 selects expert 1.
"""

import torch
from transformers.models.nllb_moe import NllbMoeConfig
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeSparseMLP

torch.manual_seed(0)
layer = NllbMoeSparseMLP(NllbMoeConfig(d_model=16, num_experts=8, expert_capacity=999), ffn_dim=32).eval()
output = layer(torch.randn(1, 500, 16))
(output[0] if isinstance(output, tuple) else output).sum().backward()
print([any(p.grad is not None for p in layer.experts[f"expert_{e}"].parameters()) for e in range(8)])
