"""transformers 5.24.0, `MiniMaxM2TopKRouter` and others: a token whose logits are all near -90 gets NaN as its gates.

Below -88.8 the sigmoid is 0 in float32. The router divides the gates by their sum and adds no constant, so the result
is 0 / 0. `FlintTopKRouter`, `LagunaTopKRouter`, `MiniMaxM3VLTopKRouter`, `Step3p7TopKRouter`, and `group_expert_select`
of mlx-lm 0.32.2 do the same. The router of DeepSeek-V3 adds 1e-20.
"""

import torch
from transformers.models.minimax_m2 import MiniMaxM2Config
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter

router = MiniMaxM2TopKRouter(MiniMaxM2Config(hidden_size=8, num_local_experts=8, num_experts_per_tok=2))
torch.nn.init.eye_(router.weight)
for shift in (0, -60, -90):
    _, gates, _ = router(torch.arange(8.0)[None] / 8 + shift, torch.zeros(8))
    print(shift, gates.detach().tolist())
