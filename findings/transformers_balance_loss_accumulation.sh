#!/usr/bin/env bash
# transformers 5.24.0: with n steps of gradient accumulation, its Trainer multiplies the weight of the balance loss by n.
#
# The Trainer divides the loss of the tokens by the number of tokens of all n micro-batches and then sums the n losses.
# The model adds its balance loss to each of them, undivided. Here all rows are equal, so that the gradient of the router
# by the balance loss should not depend on n: with n = 8 it is 8 times as large. The gradient by the loss of the tokens
# stays the same.
#
# Seen with torch 2.13.0, transformers 5.24.0 and accelerate 1.15.0 on Python 3.11. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/accumulate.py" <<'PYTHON'
import sys

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_experts_per_tok=2,
)
tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(0))
rows = [dict(input_ids=tokens, labels=tokens)] * 8


def gradient(pieces, coefficient):
    """The gradient of the router's weight in one step of 8 rows, from one step of SGD with rate 1."""
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**sizes, router_aux_loss_coef=coefficient, output_router_logits=True)
    )
    weight = model.model.layers[0].mlp.gate.weight
    before = weight.detach().clone()
    arguments = TrainingArguments(
        sys.argv[1], max_steps=1, per_device_train_batch_size=8 // pieces, gradient_accumulation_steps=pieces,
        max_grad_norm=0, lr_scheduler_type="constant", report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", logging_strategy="no",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None)).train()
    return before - weight.detach()


tokens_alone = {n: gradient(n, 0.0) for n in (1, 8)}
balance = {n: gradient(n, 10.0) - tokens_alone[n] for n in (1, 8)}
for name, found in (("loss of the tokens", tokens_alone), ("balance loss", balance)):
    print(f"{name}: 8 steps of accumulation change the gradient by a factor of {found[8].norm() / found[1].norm():.2f}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/accumulate.py" "$folder/out" 2> "$folder/errors" | grep -v train_runtime) ||
  cat "$folder/errors"
wanted='loss of the tokens: 8 steps of accumulation change the gradient by a factor of 1.00
balance loss: 8 steps of accumulation change the gradient by a factor of 8.00'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
