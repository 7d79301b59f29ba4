"""transformers 5.24.0, `DeepseekV3TopkRouter`: if the groups have fewer than k experts, excluded experts are chosen.

Experts outside of the chosen groups have the score -inf. If the chosen groups have fewer than k experts, `topk` also
takes excluded experts. Neither the configuration nor the router checks n_routed_experts / n_group * topk_group >=
num_experts_per_tok.
"""

import torch
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

sizes = dict(hidden_size=8, n_routed_experts=8, n_group=4, topk_group=1, num_experts_per_tok=4)
router = DeepseekV3TopkRouter(DeepseekV3Config(**sizes))
torch.nn.init.eye_(router.weight)
_, gates, experts = router(torch.tensor([[9.0, 8, 0, 0, 0, 0, 0, 0]]))
print("one group of two experts, k = 4: experts", sorted(experts[0].tolist()))
