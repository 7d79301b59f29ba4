"""transformers 5.24.0, `AXK2TopkRouter` with groups: experts outside of the chosen groups win if biases are negative.

`apply_group_scoring` gives these experts the score 0.0, not -inf. If the bias is below -1, the score of the other
experts (sigmoid plus bias) is below 0.0. The default configuration has no groups.
"""

import torch
from transformers.models.axk2.configuration_axk2 import AXK2Config
from transformers.models.axk2.modeling_axk2 import AXK2TopkRouter

sizes = dict(hidden_size=8, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2)
router = AXK2TopkRouter(AXK2Config(**sizes))
torch.nn.init.eye_(router.weight)
for bias in (0.0, -1.0):
    router.e_score_correction_bias.fill_(bias)
    print("bias", bias, "experts", sorted(router(torch.tensor([[2.0, 1, 0, 0, -3, -3, -3, -3]]))[2][0].tolist()))
