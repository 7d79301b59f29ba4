"""sinkhorn-router-pytorch 0.0.14, `sinkhorn`: it takes logarithms of raw logits, so negative logits become equal.

`SinkhornRouter` passes the output of its gate, a matrix product, to `sinkhorn`. The first line of `sinkhorn` is
`log(t.clamp(min=1e-10))`, so logits below 0 become log(1e-10).
"""

import torch
from sinkhorn_router_pytorch import sinkhorn

logits = torch.tensor([[-1.0, -5.0], [-5.0, -1.0]])
print("negative logits:", sinkhorn(logits).tolist())
print("the same plus 6:", sinkhorn(logits + 6).tolist())
