"""transformers 5.24.0, `NllbMoeTop2Router`: training after an evaluation keeps the capacity of the evaluation.

In evaluation, `route_tokens` assigns `self.expert_capacity`. In training, it reads this attribute.
"""

import torch
from transformers.models.nllb_moe import NllbMoeConfig
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeTop2Router

config = NllbMoeConfig(d_model=8, num_experts=4, expert_capacity=64, moe_eval_capacity_token_fraction=1.0)
x = torch.randn(1, 400, 8)
for small_evaluation_first in (False, True):
    router = NllbMoeTop2Router(config).train()
    torch.nn.init.ones_(router.classifier.weight)  # every token prefers expert 0, then expert 1
    if small_evaluation_first:
        router.eval()(x[:, :5].reshape(-1, 8))
    _, gates, _ = router.train()(x.reshape(-1, 8))
    print("tokens with an expert:", int((gates > 0).any(-1).sum()))
