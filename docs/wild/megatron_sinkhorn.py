"""megatron-core 0.16.1 and 0.19.2, `sinkhorn`: it returns NaN for logits above 88, and does not return for some others.

`exp` overflows above 88. The loop has no limit on the number of its passes, and does not end for some finite logits.
This script shows the NaN alone.
"""

import torch
from megatron.core.transformer.moe.moe_utils import sinkhorn

print("NaN at 100:", bool(sinkhorn(torch.tensor([[100.0, 0.0], [0.0, 0.0]])).isnan().any()))
