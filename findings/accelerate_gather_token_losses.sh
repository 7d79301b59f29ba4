#!/usr/bin/env bash
# accelerate 1.15.0: `gather_for_metrics` keeps 2 of the 128 token losses of a last batch that has 2 sequences.
#
# The function collects the results of an evaluation from all processes. Here, 66 sequences of 64 tokens come in batches
# of 16, and the loss of each token is in one axis, [sequences x tokens]. Four batches are complete. Of the last one,
# two numbers stay, so the held-out loss is 3.00 where the right one is 3.06. It happens with one process, too, where
# there is nothing to collect. In an axis [experts], such as the load of 8 experts, the last batch keeps 2 experts.
# A shape [sequences, tokens] is right, and so is a last batch that is full. Nothing warns.
#
# Cause: with several processes, the last batch is filled up by repeated samples. The function cuts them off, and takes
# the first axis for samples, in every tensor. The documents say that it drops duplicates "if on a distributed system".
# Use `gather` of sums and counts, or keep the samples in the first axis.
#
# Seen with accelerate 1.15.0 and torch 2.13.0 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 accelerate==1.15.0
cat > "$folder/losses.py" <<'PYTHON'
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 1
data = torch.full((66, 64), 3.0)  # the loss of each token of 66 sequences
data[64:] = 5
gathered = {"[sequences, tokens]": [], "[sequences x tokens]": []}
for losses in accelerator.prepare(DataLoader(data, batch_size=16)):
    gathered["[sequences, tokens]"].append(accelerator.gather_for_metrics(losses))
    gathered["[sequences x tokens]"].append(accelerator.gather_for_metrics(losses.flatten()))
    loads = accelerator.gather_for_metrics(torch.ones(8))
print(f"right: {data.numel()} tokens, loss {data.mean():.2f}")
for shape, batches in gathered.items():
    tokens = torch.cat([losses.flatten() for losses in batches])
    print(f"{shape}: {len(tokens)} tokens, loss {tokens.mean():.2f}, last batch {batches[-1].numel()}")
print(f"loads of 8 experts in the last batch: {len(loads)}")
PYTHON
seen=$("$folder/venv/bin/python" "$folder/losses.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='right: 4224 tokens, loss 3.06
[sequences, tokens]: 4224 tokens, loss 3.06, last batch 128
[sequences x tokens]: 4098 tokens, loss 3.00, last batch 2
loads of 8 experts in the last batch: 2'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
