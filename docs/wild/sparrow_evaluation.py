"""sparrow-mlp 3.0.2, `MoELayer.eval()`: the same tokens are routed to different experts in each call.

`forward` draws the expert by `gumbel_softmax` and ignores `self.training`.
"""

import torch
from sparrow.config import SparrowConfig
from sparrow.layers import MoELayer

torch.manual_seed(0)
layer, x = MoELayer(SparrowConfig(hidden_dim=8)).eval(), torch.randn(400, 8)
first, second = (layer(x)[0] for _ in range(2))
print("tokens that change:", int((first != second).any(1).sum()), "of 400")
