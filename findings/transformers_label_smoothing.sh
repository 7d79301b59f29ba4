#!/usr/bin/env bash
# transformers 5.24.0: `label_smoothing_factor` switches the balance loss off.
#
# With `output_router_logits=True` the model adds its balance loss to its loss, and the Trainer trains on the sum. With
# `label_smoothing_factor=0.1` in its arguments, a coefficient of 10 changes no weight of the router. The model still
# computes the balance loss, its output `aux_loss` has it, and nothing warns. `eval_loss` lacks it, too.
#
# Cause: the Trainer takes the labels out of the batch before it calls the model, and computes the smoothed loss from
# the logits alone.
#
# Seen with torch 2.13.0, transformers 5.24.0 and accelerate 1.15.0 on Python 3.11. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/smoothing.py" <<'PYTHON'
import sys

import torch
import transformers

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    eos_token_id=1, output_router_logits=True,
)
tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(0))
rows = [dict(input_ids=tokens, labels=tokens)] * 8


def train(name, coefficient, smoothing):
    """The weight of the router after one step of SGD, and the loss of an evaluation before the step."""
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**sizes, router_aux_loss_coef=coefficient)
    model = getattr(transformers, f"{name}ForCausalLM")(configuration)
    arguments = transformers.TrainingArguments(
        sys.argv[1], max_steps=1, label_smoothing_factor=smoothing, max_grad_norm=0, lr_scheduler_type="constant",
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows, optimizers=(optimizer, None)
    )
    loss = trainer.evaluate()["eval_loss"]
    trainer.train()
    routers = [p.detach() for key, p in model.named_parameters() if key.endswith(("gate.weight", "router.weight"))]
    return routers[0], loss


for name in ("Mixtral", "Qwen3Moe", "Olmoe", "GptOss"):
    for smoothing in (0.0, 0.1):
        (router, loss), (without, loss_without) = (train(name, coefficient, smoothing) for coefficient in (10.0, 0.0))
        print(
            f"{name}, label smoothing {smoothing}: the balance loss changes"
            f" the router {not torch.equal(router, without)}, eval_loss {loss != loss_without}"
        )
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/smoothing.py" "$folder/out" 2> "$folder/errors" |
  grep "label smoothing") || cat "$folder/errors"
wanted=$(for name in Mixtral Qwen3Moe Olmoe GptOss; do
  echo "$name, label smoothing 0.0: the balance loss changes the router True, eval_loss True"
  echo "$name, label smoothing 0.1: the balance loss changes the router False, eval_loss False"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
