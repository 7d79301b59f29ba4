#!/usr/bin/env bash
# transformers 5.24.0: a mixture loaded in int8 keeps all its experts in float32. In 4.57.6 they were int8.
#
# With `TorchAoConfig(Int8WeightOnlyConfig())`, `from_pretrained` quantises modules of the type `nn.Linear`. In 4.57.6
# each expert of Mixtral, Qwen3-MoE and OLMoE had three of them. In 5.24.0 the experts of a layer are one parameter
# [E, ., .] in no `nn.Linear`, so they keep their type, and no message says so. Attention is int8 in both releases. In a
# model such as Qwen3-30B-A3B, 95 % of the parameters are in experts, so the same line now saves almost no memory.
#
# Seen with torch 2.13.0, torchao 0.18.0 and accelerate 1.15.0 on Python 3.11, on a CPU. The script fails if the
# behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/int8.py" <<'PYTHON'
import sys

import torch
import transformers
from torchao.quantization import Int8WeightOnlyConfig

sizes = dict(
    hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, vocab_size=64, num_experts=8, num_local_experts=8, num_experts_per_tok=2,
    eos_token_id=1,
)
int8 = transformers.TorchAoConfig(Int8WeightOnlyConfig())
for name in ("Mixtral", "Qwen3Moe", "Olmoe"):
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes))
    model.save_pretrained(f"{sys.argv[1]}/{name}")
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/{name}", quantization_config=int8)
    counts = {}
    for part in (".experts.", "self_attn"):
        weights = [p for key, p in model.named_parameters() if part in key and p.ndim > 1]
        quantised = sum(p.numel() for p in weights if type(p) is not torch.nn.Parameter)
        counts[part] = f"{quantised} of {sum(p.numel() for p in weights)}"
    text = f"int8 weights of experts {counts['.experts.']}, of attention {counts['self_attn']}"
    print(f"{transformers.__version__} {name}: {text}")
PYTHON
seen=$(for version in 4.57.6 5.24.0; do
  "$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 torchao==0.18.0 accelerate==1.15.0 \
    "transformers==$version" 2> /dev/null
  "$folder/venv/bin/python" -W ignore "$folder/int8.py" "$folder" 2> "$folder/errors" || cat "$folder/errors"
done)
wanted=$(for row in "4.57.6 98304" "5.24.0 0"; do
  for name in Mixtral Qwen3Moe Olmoe; do
    echo "${row% *} $name: int8 weights of experts ${row#* } of 98304, of attention 16384 of 16384"
  done
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
