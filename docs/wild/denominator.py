"""transformers 5.24.0, `DeepseekV3TopkRouter` and others: at logits near -60 the gates sum to 0.000004, not 1.

The gates are divided by their sum plus 1e-20. The sigmoid of -60 is 1e-26, so the constant is larger than the sum.
"""

import torch
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

sizes = dict(hidden_size=8, n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=2)
router = DeepseekV3TopkRouter(DeepseekV3Config(**sizes, routed_scaling_factor=1.0))
torch.nn.init.eye_(router.weight)
for shift in (0, -30, -45, -60):
    print(shift, float(router(torch.arange(8.0)[None] / 8 + shift)[1].sum().detach()))
