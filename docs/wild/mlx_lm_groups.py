"""mlx-lm 0.32.2, `group_expert_select` with groups: experts outside of the chosen groups win if biases are negative.

The function gives these experts the score 0.0, not -inf. If the bias is below -1, the score of the other experts
(sigmoid plus bias) is below 0.0. DeepSeek-V3 models have such groups.
"""

import mlx.core as mx
from mlx_lm.models.deepseek_v3 import group_expert_select

logits = mx.array([[2.0, 1, 0, 0, -3, -3, -3, -3]])
for bias in (0.0, -1.0):
    experts, _ = group_expert_select(logits, mx.full((8,), bias), 2, 2, 1, 1.0, True)
    print("bias", bias, "experts", sorted(experts[0].tolist()))
