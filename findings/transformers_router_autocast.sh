#!/usr/bin/env bash
# transformers 5.24.0: routers that convert to float32 before their matrix product still compute in bfloat16.
#
# Some routers (of DeepSeek-V3, GLM-4.5) convert tokens and weights to float32, to keep the order of close logits. With
# `bf16=True`, the Trainer runs the model under `torch.autocast`, which converts both arguments of `F.linear` back. The
# logits are bfloat16: 12 % of 4,096 random tokens get other experts than in float32, and eight logits from 1 to 1.003
# are all equal. Only `torch.autocast(..., enabled=False)` around the product keeps float32.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/autocast.py" <<'PYTHON'
import inspect
from importlib import import_module

import torch
import transformers

for model, name in (("deepseek_v3", "DeepseekV3"), ("glm4_moe", "Glm4Moe"), ("solar_open", "SolarOpen")):
    sizes = dict(hidden_size=256, n_routed_experts=64, num_experts_per_tok=6, n_group=1, topk_group=1)
    kind = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), f"{name}TopkRouter")
    router = kind(getattr(transformers, f"{name}Config")(**sizes))
    torch.manual_seed(0)
    torch.nn.init.normal_(router.weight, std=0.02)
    tokens = torch.randn(4096, 256)
    close = torch.zeros(1, 256)
    close[0, 0] = 1
    router.weight.data[:8, 0] = 1 + torch.arange(8) / 2048
    print(name, "converts to float32:", "self.weight.type(torch.float32)" in inspect.getsource(kind.forward))
    outputs = {}
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs[autocast] = router(tokens)[2].sort(-1).values
            logits = router(close)[0]
        print(f"  autocast {autocast}: {logits.dtype}, {len(logits[0, :8].unique())} different logits of 8")
    share = float((outputs[False] != outputs[True]).any(-1).float().mean())
    print("  between 5 and 20 % of tokens get other experts:", 0.05 < share < 0.2)
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/autocast.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for name in DeepseekV3 Glm4Moe SolarOpen; do
  echo "$name converts to float32: True"
  echo "  autocast False: torch.float32, 8 different logits of 8"
  echo "  autocast True: torch.bfloat16, 1 different logits of 8"
  echo "  between 5 and 20 % of tokens get other experts: True"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
