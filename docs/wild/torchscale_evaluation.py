"""torchscale 0.3.0, `Top2Gate.eval()`: the second expert is drawn at random.

`second_expert_policy` is "sampling" by default and does not depend on `self.training`. `top2gating` also counts tokens
by `torch.histc` of integers, which does not work on a CPU. The counts are only logged, so this script counts floats.
"""

import torch
from torchscale.component.xmoe.routing import Top2Gate

histogram = torch.histc
torch.histc = lambda counts, **options: histogram(counts.float(), **options)
torch.manual_seed(0)
gate, x = Top2Gate(8, 8).eval(), torch.randn(400, 8)
first, second = (gate(x)[1].sum(2) for _ in range(2))
print("tokens that change:", int((first != second).any(1).sum()), "of 400")
