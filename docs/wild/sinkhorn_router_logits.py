"""sinkhorn-router-pytorch 0.0.14, `sinkhorn`: it takes the logarithm of raw logits, so negative ones are all the same.

`SinkhornRouter` passes the output of its gate, a matrix product, to `sinkhorn`, whose first line is
`log(t.clamp(min=1e-10))`. Logits below 0 become log(1e-10).
"""

import torch
from sinkhorn_router_pytorch import sinkhorn

logits = torch.tensor([[-1.0, -5.0], [-5.0, -1.0]])
print("negative logits:", sinkhorn(logits).tolist())
print("the same plus 6:", sinkhorn(logits + 6).tolist())
