"""neuronx-distributed 0.18.0, `RouterSinkhorn` in training: logits above 88 send every token to expert 0.

`exp` overflows, so the plan is NaN, and its argmax is 0. The option `sinkhorn_tol` has no effect, because `forward`
does not pass it on. Name the file src/neuronx_distributed/modules/moe/routing.py of a checkout of the repository,
because the package index has only an empty version. Imports of parallel groups are replaced.
"""

import importlib.machinery
import sys
from unittest import mock

import torch

groups = mock.MagicMock(**{"parallel_state.get_expert_model_parallel_size.return_value": 1})
parts = {"": mock.MagicMock(), ".parallel_layers": groups, ".parallel_layers.parallel_state": groups.parallel_state}
sys.modules.update({f"neuronx_distributed{name}": part for name, part in parts.items()})
routing = importlib.machinery.SourceFileLoader("routing", sys.argv[1]).load_module()


def experts(logits, **options):
    router = routing.RouterSinkhorn(4, 1, 4, **options).train()
    router.linear_router.weight.data = torch.eye(4)
    return router(logits)[2].ravel().tolist()


print("experts for logits of 80 and of 100:", experts(80 * torch.eye(4)), experts(100 * torch.eye(4)))
print("an error is never below sinkhorn_tol=0, but nothing was raised:", experts(torch.eye(4), sinkhorn_tol=0.0))
