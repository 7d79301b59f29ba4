"""neuronx-distributed 0.18.0, `RouterSinkhorn` in training: logits above 88 send every token to expert 0.

`exp` overflows, so the plan is NaN, and its argmax is 0. The option `sinkhorn_tol` has no effect, because `forward`
does not pass it on. Name the file src/neuronx_distributed/modules/moe/routing.py of a checkout of the repository,
because the package index has only an empty version. Imports of parallel groups are replaced.
"""

import importlib.util
import sys
from unittest import mock

import torch

parts = ["", ".parallel_layers", ".parallel_layers.mappings", ".parallel_layers.parallel_state"]
sys.modules.update({f"neuronx_distributed{part}": mock.MagicMock() for part in parts})
sys.modules["neuronx_distributed.parallel_layers.parallel_state"].get_expert_model_parallel_size.return_value = 1
spec = importlib.util.spec_from_file_location("routing", sys.argv[1])
routing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(routing)


def experts(logits, **options):
    size = logits.shape[1]
    router = routing.RouterSinkhorn(size, 1, size, **options).train()
    router.linear_router.weight.data = torch.eye(size)
    return router(logits)[2].ravel().tolist()


print("experts for logits of 80:", experts(80 * torch.eye(4)))
print("experts for logits of 100:", experts(100 * torch.eye(4)))
experts(torch.randn(64, 4), sinkhorn_iterations=1, sinkhorn_tol=0.0)
print("an error of at least 0 is not below sinkhorn_tol=0, but nothing was raised")
