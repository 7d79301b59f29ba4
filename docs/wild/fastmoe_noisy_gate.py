"""fastmoe 1.1.0, `NoisyGate.eval()`: the gate raises an error whenever k is less than the number of experts.

In evaluation, the noise is multiplied by `self.training`, so the noise is 0. `_prob_in_top_k` divides by the noise. For
the expert at the threshold, the result is 0 / 0, and `Normal.cdf` rejects NaN. The second line of the script replaces
the library's CUDA code, which the gate does not need.
"""

import sys

import torch

sys.modules["fmoe_cuda"] = torch
from fmoe.gates import NoisyGate  # noqa: E402

for k in (4, 2):
    try:
        experts, gates = NoisyGate(8, num_expert=4, world_size=1, top_k=k).eval()(torch.randn(3, 8))
        print("k", k, "experts of the first token", experts[:k].tolist())
    except ValueError as error:
        print("k", k, "raises", str(error).partition(" of the distribution")[0])
