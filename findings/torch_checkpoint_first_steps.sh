#!/usr/bin/env bash
# torch 2.13.0: `get_optimizer_state_dict` before the first step makes the first step of Adam a quarter too small.
#
# The function reads the state of an optimizer for a checkpoint. Called before training, to save step 0 or to get a
# template for loading, it changes the run. The first step of Adam and AdamW is 0.74 of the right one, the second 0.86.
# The first step of RAdam is 0.53. With `weight_decay`, the first moment of Adam starts at a tenth of the decay instead
# of 0. `get_state_dict` does the same. `optimizer.state_dict()` changes nothing. So two runs with one seed differ if
# only one of them saves its start. Nothing warns.
#
# Cause: an optimizer has no state before its first step. The function makes one by a step with zero gradients and the
# learning rate 0, and keeps it. The count of steps is then 1, so Adam corrects the bias of its moments for one step too
# many. `optimizer.state.clear()` after the call restores the right steps. Issue 164929 of pytorch reports it.
#
# Seen with torch 2.13.0 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > "$folder/steps.py" <<'PYTHON'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict


def steps(optimizer, read, **options):
    """Two steps of one weight whose gradient is 1, after `read` has read the state for a checkpoint."""
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = optimizer(layer.parameters(), lr=0.001, **options)
    read(layer, optimizer)
    weights = [0.0]
    for _ in range(2):
        layer.weight.grad = torch.ones(1, 1)
        optimizer.step()
        weights.append(layer.weight.item())
    return -torch.tensor(weights).double().diff()


reads = {
    "get_optimizer_state_dict": get_optimizer_state_dict,
    "get_state_dict": get_state_dict,
    "state_dict": lambda layer, optimizer: optimizer.state_dict(),
    "get_optimizer_state_dict and clear": lambda layer, optimizer: (
        get_optimizer_state_dict(layer, optimizer), optimizer.state.clear()
    ),
}
cases = [(torch.optim.AdamW, name) for name in reads]
cases += [(cls, "get_optimizer_state_dict") for cls in (torch.optim.Adam, torch.optim.RAdam)]
for cls, name in cases:
    ratio = steps(cls, reads[name]) / steps(cls, lambda layer, optimizer: None)
    print(f"{cls.__name__}, {name}: step 1 {ratio[0]:.2f}, 2 {ratio[1]:.2f} of the right one")
layer = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(layer.weight)
optimizer = torch.optim.Adam(layer.parameters(), weight_decay=0.1)
get_optimizer_state_dict(layer, optimizer)
state = optimizer.state[layer.weight]
print(f"Adam with weight decay: step {state['step']:.0f}, first moment {state['exp_avg'].item():.2f} before training")
PYTHON
seen=$("$folder/venv/bin/python" "$folder/steps.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='AdamW, get_optimizer_state_dict: step 1 0.74, 2 0.86 of the right one
AdamW, get_state_dict: step 1 0.74, 2 0.86 of the right one
AdamW, state_dict: step 1 1.00, 2 1.00 of the right one
AdamW, get_optimizer_state_dict and clear: step 1 1.00, 2 1.00 of the right one
Adam, get_optimizer_state_dict: step 1 0.74, 2 0.86 of the right one
RAdam, get_optimizer_state_dict: step 1 0.53, 2 0.70 of the right one
Adam with weight decay: step 1, first moment 0.01 before training'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
