#!/usr/bin/env bash
# transformers 5.24.0: the jitter of the router also changes the tokens that the experts read.
#
# Noise on the input of the router should change which experts a token gets, and not what they read. With
# `router_jitter_noise`, four layers multiply the tokens by the noise in place, so the experts and every other reader of
# that tensor see the noise, too. Here the weights of the router are 0 and all experts are equal, so routing cannot
# matter, and two passes in training still differ. Switch Transformers does so in float32 alone: for bfloat16 its router
# converts the tokens, which copies them, so the two types train by different rules.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/jitter.py" <<'PYTHON'
from importlib import import_module

import torch
import transformers

widths = dict(hidden_size=32, intermediate_size=32, d_model=32, d_ff=32, dropout_rate=0.0)
experts = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=1, expert_capacity=99, router_jitter_noise=0.1)
for model, name, kind in (
    ("mixtral", "Mixtral", "SparseMoeBlock"), ("minimax", "MiniMax", "SparseMoeBlock"),
    ("minimax_m2", "MiniMaxM2", "SparseMoeBlock"), ("switch_transformers", "SwitchTransformers", "SparseMLP"),
):
    kind = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name + kind)
    torch.manual_seed(0)
    one = torch.randn(32, 32) / 6
    tokens = torch.randn(1, 64, 32)
    for dtype in (torch.float32, torch.bfloat16):
        layer = kind(getattr(transformers, f"{name}Config")(**widths, **experts))
        for key, weight in layer.named_parameters():
            equal = one.repeat(weight.shape[-2] // 32, 1) if "experts" in key else torch.zeros_like(weight)
            weight.data.copy_(equal)
        layer.to(dtype).train()
        inputs = [tokens.to(dtype, copy=True) for _ in range(2)]
        first, second = (output[0] if isinstance(output, tuple) else output for output in map(layer, inputs))
        same = "equal" if torch.equal(first, second) else "differ"
        print(f"{name}, {dtype}: two passes {same}, the tokens changed {not torch.equal(*inputs)}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/jitter.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for name in Mixtral MiniMax MiniMaxM2 SwitchTransformers; do
  echo "$name, torch.float32: two passes differ, the tokens changed True"
  [ $name = SwitchTransformers ] && row="equal, the tokens changed False" || row="differ, the tokens changed True"
  echo "$name, torch.bfloat16: two passes $row"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
