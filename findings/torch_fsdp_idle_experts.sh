#!/usr/bin/env bash
# torch 2.13.0: `fully_shard` (FSDP2) adds gradients of different experts, if the ranks run different experts.
#
# Each expert is a module, as in Mixtral of transformers 4.57. Rank 0 has tokens for experts 0 and 1, rank 1 for experts
# 0 and 2. FSDP2 adds the gradient of expert 1 on rank 0 to the gradient of expert 2 on rank 1. Half of each expert trains
# on this sum, and its other half gets no gradient. Nothing warns. DDP with `find_unused_parameters=True` averages each
# expert by itself, and so does FSDP2 if the experts of a layer are one parameter [E, ., .].
#
# Cause: a rank joins the gradients that it has, in the order of the parameters, and the ranks sum what they joined. Only
# the sizes must agree. `set_reduce_scatter_unused_params(True)` joins zeros for idle experts, and is off by default. Its
# docstring says that a mixture needs it because of mismatched collectives, and does not mention wrong sums. If the ranks
# run different numbers of experts, the step hangs (issue 158719 of pytorch).
#
# Seen with torch 2.13.0 on Python 3.11, with two processes on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > "$folder/ranks.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

E, width = 4, 2


class Modules(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(E))

    def forward(self, tokens, ids):
        return torch.cat([self.experts[e](tokens[ids == e]) for e in ids.unique().tolist()])


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.Parameter(torch.ones(E, width, width))

    def forward(self, tokens, ids):
        return torch.einsum("td,tfd->tf", tokens, self.experts[ids])


def value(gradient):
    """The first number of a gradient: all of its numbers are equal."""
    return "none" if gradient is None else f"{gradient.flatten()[0]:g}"


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    tokens, ids = ((1.0, [0, 1]), (3.0, [0, 2]))[rank]
    batch = torch.full((2, width), tokens), torch.tensor(ids)

    def gradients(layer):
        layer(*batch).sum().backward()
        weights = [parameter.grad for parameter in layer.parameters()]
        if len(weights) == 1:  # the stack, which has its first two experts on rank 0
            weights = weights[0].full_tensor()
        return [value(w.to_local() if hasattr(w, "to_local") else w) for w in weights]

    lines = {}
    lines["DDP"] = gradients(DistributedDataParallel(Modules(), find_unused_parameters=True))
    lines["FSDP2, a stack"] = gradients(fully_shard(Stack(), mesh=mesh))
    lines["FSDP2, modules"] = gradients(fully_shard(Modules(), mesh=mesh))
    layer = fully_shard(Modules(), mesh=mesh)
    layer.set_reduce_scatter_unused_params(True)
    lines["FSDP2, modules, with zeros"] = gradients(layer)
    for name, line in lines.items():
        for turn in range(2):
            if turn == rank and (rank == 0 or "modules" in name):
                print(f"{name}, rank {rank}: gradients of experts 0 to 3: {' '.join(line)}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
PYTHON
seen=$(OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder" 2> "$folder/errors" ||
  cat "$folder/errors")
wanted='DDP, rank 0: gradients of experts 0 to 3: 2 0.5 1.5 none
FSDP2, a stack, rank 0: gradients of experts 0 to 3: 2 0.5 1.5 0
FSDP2, modules, rank 0: gradients of experts 0 to 3: 2 2 none none
FSDP2, modules, rank 1: gradients of experts 0 to 3: 2 none 2 none
FSDP2, modules, with zeros, rank 0: gradients of experts 0 to 3: 2 0.5 1.5 0
FSDP2, modules, with zeros, rank 1: gradients of experts 0 to 3: 2 0.5 1.5 0'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
