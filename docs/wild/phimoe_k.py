"""transformers 5.24.0, `PhimoeTopKRouter`: each token gets two experts, for any `num_experts_per_tok`.

`sparsemixer` has the argument `top_k`, but always makes two rounds.
"""

import torch
from transformers.models.phimoe import PhimoeConfig
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter

for k in (1, 2, 4):
    router = PhimoeTopKRouter(PhimoeConfig(hidden_size=8, num_local_experts=8, num_experts_per_tok=k)).eval()
    print("num_experts_per_tok", k, "experts of a token", router(torch.randn(3, 8))[2].shape[1])
