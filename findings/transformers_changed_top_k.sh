#!/usr/bin/env bash
# transformers 5.24.0: a new `config.num_experts_per_tok` does not change k in the model, but is saved with it.
#
# After a model is built or loaded, `model.config.num_experts_per_tok = 1` leaves all logits as they were with k = 2, so an
# evaluation with other k gives the same loss for each k. `model.config.router_aux_loss_coef` has no effect either, while
# `model.config.output_router_logits` of the same configuration has. Nothing warns. `save_pretrained` then writes the
# new numbers, so the loaded model computes other logits and another loss than the model that was saved.
#
# Cause: layers copy k, and models copy the coefficient, when they are built. Give both to `from_pretrained`.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/change.py" <<'PYTHON'
import sys

import torch
import transformers

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    eos_token_id=1, router_aux_loss_coef=0.0,
)
ids = torch.arange(16)[None]


def differs(first, second):
    return bool((first - second).abs().max() > 1e-4)


for name in ("Mixtral", "Qwen2Moe", "Qwen3Moe", "Olmoe", "GptOss", "GraniteMoe"):
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    with torch.no_grad():
        model.config.output_router_logits = True
        before = model(ids, labels=ids)
        assert before.aux_loss is not None
        model.config.num_experts_per_tok = 1
        model.config.router_aux_loss_coef = 10.0
        after = model(ids, labels=ids)
        model.save_pretrained(f"{sys.argv[1]}/{name}")
        loaded = type(model).from_pretrained(f"{sys.argv[1]}/{name}").eval()(ids, labels=ids)
    for title, output in (("changed", after), ("saved and loaded", loaded)):
        print(
            f"{name}, {title}: other logits {differs(output.logits, before.logits)},"
            f" other loss {differs(output.loss, before.loss)}"
        )
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/change.py" "$folder" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for name in Mixtral Qwen2Moe Qwen3Moe Olmoe GptOss GraniteMoe; do
  echo "$name, changed: other logits False, other loss False"
  echo "$name, saved and loaded: other logits True, other loss True"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
