#!/usr/bin/env bash
# transformers 5.24.0: with its default configuration, a mixture trains without the balance loss that it configures.
#
# `router_aux_loss_coef` is above 0 by default, but the loss of the model contains the balance loss only if
# `output_router_logits` is True, also in training mode. Its default is False, and no warning says so. The coefficient
# alone, here 10, changes no loss of seven models.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
cat > "$folder/losses.py" <<'PYTHON'
import torch
import transformers

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    eos_token_id=1,
)
ids = torch.arange(16)[None]


def loss(name, **options):
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**sizes, **options)
    model = getattr(transformers, f"{name}ForCausalLM")(configuration).train()
    return float(model(input_ids=ids, labels=ids).loss.detach())


for name in ("Mixtral", "Qwen2Moe", "Qwen3Moe", "Olmoe", "GptOss", "Phimoe", "GraniteMoe"):
    default = getattr(transformers, f"{name}Config")()
    without, alone = loss(name, router_aux_loss_coef=0.0), loss(name, router_aux_loss_coef=10.0)
    both = loss(name, router_aux_loss_coef=10.0, output_router_logits=True)
    print(
        f"{name}: coefficient {default.router_aux_loss_coef} with output_router_logits {default.output_router_logits};"
        f" coefficient 10 changes the loss: {alone != without}; with output_router_logits: {both > without + 10}"
    )
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/losses.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(while read -r name coefficient; do
  echo "$name: coefficient $coefficient with output_router_logits False;" \
    "coefficient 10 changes the loss: False; with output_router_logits: True"
done <<'ROWS'
Mixtral 0.001
Qwen2Moe 0.001
Qwen3Moe 0.001
Olmoe 0.01
GptOss 0.001
Phimoe 0.001
GraniteMoe 0.001
ROWS
)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
