"""transformers 5.24.0, `NllbMoeTop2Router`, policy "random": the second gate loses its normalisation.

With `normalize_router_prob_before_dropping` both gates are divided by their sum. The policy then overwrites the second
gate with the plain probability.
"""

import torch
from transformers.models.nllb_moe import NllbMoeConfig
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeTop2Router

for policy in ("all", "random"):
    options = dict(second_expert_policy=policy, normalize_router_prob_before_dropping=True)
    router = NllbMoeTop2Router(NllbMoeConfig(d_model=4, num_experts=4, expert_capacity=99, **options)).eval()
    torch.nn.init.eye_(router.classifier.weight)
    torch.manual_seed(0)
    gates = router(torch.tensor([[1.0, 0.9, 0.0, -0.5]]))[1]
    print(policy, gates.detach().sort(descending=True).values[0, :2].tolist())
