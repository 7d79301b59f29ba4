#!/usr/bin/env bash
# transformers 5.24.0: four layers that each send all tokens to one expert can have the smallest balance loss.
#
# `load_balancing_loss_func` concatenates the logits of all layers before it multiplies loads and probabilities. Expert
# 0 of the first layer and expert 0 of the second layer then count as one expert. If each layer collapses to another
# number, the loss is that of perfect balance (1 at k = 1), so it pushes no token to another expert. The mean of the
# losses of single layers would be 4, the largest value for 4 experts.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11, for the function of Mixtral, Qwen3-MoE, OLMoE and
# GPT-OSS. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
cat > "$folder/layers.py" <<'PYTHON'
from importlib import import_module

import torch

collapsed = tuple(20.0 * torch.eye(4)[expert].repeat(32, 1) for expert in range(4))  # layer l prefers expert l
same = tuple(collapsed[0] for _ in range(4))
for name in ("mixtral", "qwen3_moe", "olmoe", "gpt_oss"):
    loss = import_module(f"transformers.models.{name}.modeling_{name}").load_balancing_loss_func
    whole, layers = loss(collapsed, 4, 1), [float(loss((each,), 4, 1)) for each in collapsed]
    print(f"{name}: all layers {whole:.3f}, each layer {set(layers)}, all layers at one expert {loss(same, 4, 1):.3f}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/layers.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for name in mixtral qwen3_moe olmoe gpt_oss; do
  echo "$name: all layers 1.000, each layer {4.0}, all layers at one expert 4.000"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
