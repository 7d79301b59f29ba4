"""fairscale 0.4.13, `Top2Gate.eval()`: the second expert is drawn at random.

`top2gating` adds Gumbel noise to the logits of the second choice and has no argument for evaluation.
"""

import torch
from fairscale.nn.moe.top2gate import Top2Gate

torch.manual_seed(0)
gate, x = Top2Gate(8, 8).eval(), torch.randn(400, 8)
first, second = (gate(x)[1].sum(2) for _ in range(2))
print("tokens that change:", int((first != second).any(1).sum()), "of 400")
