"""mixlora 0.2.3, `MixLoraSparseMoe.eval()` with `jitter_noise`: the same tokens are routed differently in each call.

`forward` multiplies its argument by random numbers, in place, and ignores `self.training`. The configuration of an
adapter stores `jitter_noise`, so an adapter that was trained with jitter also has jitter in evaluation. The default is
0.
"""

import torch
from mixlora.config import MixLoraConfig
from mixlora.model import MixLoraSparseMoe

torch.manual_seed(0)
sizes = dict(num_experts_=8, top_k_=2, model_type_="llama", act_fn_="silu", dtype_=torch.float32, jitter_noise_=0.1)
layer, x = MixLoraSparseMoe(torch.nn.Identity(), MixLoraConfig(**sizes)).eval(), torch.randn(1, 400, 8)
layer.gate_, seen, before = torch.eye(8), [], x.clone()
layer.forward_fn_ = lambda mask, *rest: (seen.append(mask.clone()), [torch.zeros(1, 8)] * 8)[1]
layer(x.clone()), layer(x)
print(
    "tokens that change:",
    int((seen[0] != seen[1]).any(0).any(0).sum()),
    "of 400; argument changed:",
    bool((x != before).any()),
)
