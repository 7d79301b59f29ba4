"""mixture-of-experts 0.2.3, `Top2Gating.eval()`: the second expert is dropped at random, and "threshold" fails.

`second_policy_eval` is "random" by default. The policy "threshold" raises an error, because it multiplies a mask [b, T,
E] by a mask [b, T].
"""

import torch
from mixture_of_experts.mixture_of_experts import Top2Gating

torch.manual_seed(0)
gate, x = Top2Gating(8, num_gates=8).eval(), torch.randn(1, 400, 8)
first, second = (gate(x)[1].sum(3) for _ in range(2))
print("tokens that change:", int((first != second).any(2).sum()), "of 400")
try:
    Top2Gating(8, num_gates=8, second_policy_eval="threshold").eval()(x)
except RuntimeError as error:
    print("threshold:", error)
