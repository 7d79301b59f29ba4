"""litgpt 0.5.13, `GroupedTopkRouter`: experts outside of the chosen groups win if biases are negative.

The router gives these experts the score 0.0, not -inf. If the bias is below -1, the score of the other experts (sigmoid
plus bias) is below 0.0.
"""

import torch
from litgpt import Config
from litgpt.model import GroupedTopkRouter

sizes = dict(n_embd=8, n_head=1, n_layer=1, n_expert=8, n_expert_per_token=2, norm_topk_prob=True)
groups = dict(n_expert_groups=2, n_topk_groups=1, n_topk_scores_per_group=2, mlp_class_name="LLaMAMoE")
router = GroupedTopkRouter(Config(**sizes, **groups, intermediate_size=8, moe_intermediate_size=8))
router.weight.data = torch.eye(8)
for bias in (0.0, -1.0):
    router.e_score_correction_bias.fill_(bias)
    print("bias", bias, "experts", sorted(router(torch.tensor([[2.0, 1, 0, 0, -3, -3, -3, -3]]))[1][0].tolist()))
