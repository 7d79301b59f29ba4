#!/usr/bin/env bash
# transformers 5.24.0: with reentrant activation checkpointing, the balance loss is in the loss but has no gradient.
#
# The loss is the same to the last digit with and without checkpointing. But with `use_reentrant=True` the balance loss
# does not change the gradient of any router, even with a coefficient of 10, so the routers train without it. Nothing
# warns. With `use_reentrant=False`, the default of this release, the gradient is right.
#
# Cause: reentrant checkpointing runs each layer first without autograd. A hook stores the logits of the routers in that
# pass, and the model computes the balance loss from them. The second pass, which has autograd, comes too late.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/checkpointing.py" <<'PYTHON'
import torch
import transformers

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    eos_token_id=1, output_router_logits=True,
)
ids = torch.arange(32)[None]


def step(name, coefficient, **checkpointing):
    """The loss, and the gradient of all routers as one vector."""
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**sizes, router_aux_loss_coef=coefficient)
    model = getattr(transformers, f"{name}ForCausalLM")(configuration).train()
    if checkpointing:
        model.activation_checkpointing_enable(checkpointing)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    routers = [p for key, p in model.named_parameters() if key.endswith(("gate.weight", "router.weight"))]
    return float(loss.detach()), torch.cat([router.grad.flatten() for router in routers])


for name in ("Mixtral", "Qwen3Moe", "Olmoe", "GptOss"):
    for options in ({}, {"use_reentrant": False}, {"use_reentrant": True}):
        (loss, gradient), (alone, without) = (step(name, coefficient, **options) for coefficient in (10.0, 0.0))
        same = loss == step(name, 10.0)[0]
        print(
            f"{name} {options}: same loss as without checkpointing {same}; the balance loss changes the loss"
            f" {loss > alone + 10}, the routers' gradient {not torch.equal(gradient, without)}"
        )
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/checkpointing.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for name in Mixtral Qwen3Moe Olmoe GptOss; do
  for row in "{} True" "{'use_reentrant': False} True" "{'use_reentrant': True} False"; do
    echo "$name ${row% *}: same loss as without checkpointing True; the balance loss changes the loss True," \
      "the routers' gradient ${row##* }"
  done
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
