"""st-moe-pytorch 0.1.8, `TopNGating.eval()`: the second expert is dropped at random.

The draw `probs < gates / threshold` does not depend on `self.training`. `threshold_eval=0` turns the draw off for gates
of 1e-9 and more, because the threshold is at least 1e-9.
"""

import torch
from st_moe_pytorch.st_moe_pytorch import TopNGating

torch.manual_seed(0)
gate, x = TopNGating(8, num_gates=8).eval(), 5 * torch.randn(1, 400, 8)
first, second = (gate(x)[1].sum(3) for _ in range(2))
print("tokens that change:", int((first != second).any(2).sum()), "of 400")
