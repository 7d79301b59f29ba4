#!/usr/bin/env bash
# transformers 4.57.6 and 5.24.0: whether AdamW moves an expert that got no token depends on the release and the model.
#
# In 4.57.6 each expert is a module. Mixtral and Qwen3-MoE run only the experts that have tokens, so the gradient of an
# idle expert is None, and AdamW skips it: no weight decay, no momentum, no count of the step. OLMoE of the same release
# runs idle experts on zero tokens, so the gradient is zero, and AdamW moves them. In 5.24.0 the experts of a layer are
# one parameter [E, ., .], so AdamW decays all of them in each step, and moves each one by its old momentum. The same
# code, weights and data therefore train other experts after the upgrade. No message says so.
#
# Here all tokens go to experts 0 and 1 in the first step, and to expert 0 in the second step.
#
# Seen with torch 2.13.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/idle.py" <<'PYTHON'
from importlib import import_module

import torch
import transformers

sizes = dict(hidden_size=8, intermediate_size=16, moe_intermediate_size=16, num_experts_per_tok=1)
for model, name in (("mixtral", "Mixtral"), ("qwen3_moe", "Qwen3Moe"), ("olmoe", "Olmoe")):
    kind = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), f"{name}SparseMoeBlock")
    layer = kind(getattr(transformers, f"{name}Config")(**sizes, num_experts=4, num_local_experts=4))
    torch.manual_seed(0)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    layer.gate.weight.data = torch.eye(4, 8)  # token e prefers expert e
    layer.gate.requires_grad_(False)
    optimizer = torch.optim.AdamW(layer.experts.parameters(), lr=0.01, weight_decay=0.1)

    def weights(expert):
        stacked = not isinstance(layer.experts, torch.nn.ModuleList)
        leaves = layer.experts.parameters() if stacked else layer.experts[expert].parameters()
        return torch.cat([(leaf[expert] if stacked else leaf).detach().flatten() for leaf in leaves]).clone()

    for tokens in ([0, 1], [0]):
        before = [weights(expert) for expert in range(4)]
        optimizer.zero_grad()
        output = layer(torch.eye(8)[None, tokens])
        (output[0] if isinstance(output, tuple) else output).square().sum().backward()
        optimizer.step()
    moved = [expert for expert in range(4) if not torch.equal(before[expert], weights(expert))]
    print(f"{transformers.__version__} {name}: the second step moves experts {moved}")
PYTHON
seen=$(for version in 4.57.6 5.24.0; do
  "$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 "transformers==$version" 2> /dev/null
  "$folder/venv/bin/python" -W ignore "$folder/idle.py" 2> "$folder/errors" || cat "$folder/errors"
done)
wanted='4.57.6 Mixtral: the second step moves experts [0]
4.57.6 Qwen3Moe: the second step moves experts [0]
4.57.6 Olmoe: the second step moves experts [0, 1, 2, 3]
5.24.0 Mixtral: the second step moves experts [0, 1, 2, 3]
5.24.0 Qwen3Moe: the second step moves experts [0, 1, 2, 3]
5.24.0 Olmoe: the second step moves experts [0, 1, 2, 3]'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
