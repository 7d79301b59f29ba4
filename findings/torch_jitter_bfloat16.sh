#!/usr/bin/env bash
# torch 2.13.0: `uniform_(0.99, 1.01)` in bfloat16 has four values and none above 1, so jitter makes all tokens smaller.
#
# Routers multiply tokens by such noise, for example Mixtral with `router_jitter_noise=0.01` in transformers. In float32
# the factors have the mean 1. In bfloat16 they are 0.9883, 0.9922, 0.9961 and 1, with the mean 0.994. So training in
# bfloat16 makes the tokens of each such layer 0.6 % smaller, which evaluation does not do. With 0.1, the mean is
# 0.9976. Draw and multiply the factors in float32.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/jitter.py" <<'PYTHON'
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    for size in (0.01, 0.1):
        noise = torch.empty(2**20, dtype=dtype).uniform_(1 - size, 1 + size).double()
        values = noise.unique()
        text = values.tolist() if len(values) < 9 else "many values"
        print(f"{dtype}, {size}: {text}, mean {noise.mean():.4f}, above 1 {(noise > 1).double().mean():.0%}")
for dtype in (torch.float32, torch.bfloat16):
    layer = MixtralSparseMoeBlock(MixtralConfig(hidden_size=64, intermediate_size=8, router_jitter_noise=0.01))
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    tokens = torch.ones(1, 4096, 64, dtype=dtype)
    layer.to(dtype).train()(tokens)  # changes its input in place
    print(f"Mixtral in {dtype}: tokens of 1 become {tokens.double().mean():.4f} on average")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/jitter.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='torch.float32, 0.01: many values, mean 1.0000, above 1 50%
torch.float32, 0.1: many values, mean 1.0000, above 1 50%
torch.bfloat16, 0.01: [0.98828125, 0.9921875, 0.99609375, 1.0], mean 0.9940, above 1 0%
torch.bfloat16, 0.1: many values, mean 0.9976, above 1 47%
Mixtral in torch.float32: tokens of 1 become 1.0000 on average
Mixtral in torch.bfloat16: tokens of 1 become 0.9940 on average'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
