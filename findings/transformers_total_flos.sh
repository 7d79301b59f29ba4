#!/usr/bin/env bash
# transformers 5.24.0: `total_flos` of a mixture counts all its experts, also those that no token uses.
#
# The Trainer writes `total_flos` into `trainer_state.json`: 6 times the tokens times the parameters without embeddings.
# For a mixture these are the parameters of all E experts, and not of the k that a token runs. In a study over E, each
# step costs nearly the same, but `total_flos` grows with E. Here, with k = 2, it is 1.0, 2.6 and 8.4 times the compute
# for 2, 8 and 32 experts, so a plot of the loss over `total_flos` hides the gain of routing. With the sizes of
# Qwen3-30B-A3B (k = 8 of 128), it is 9.9 times the compute.
#
# Seen with torch 2.13.0, transformers 5.24.0 and accelerate 1.15.0 on Python 3.11. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/flos.py" <<'PYTHON'
import sys

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

small = dict(
    hidden_size=32, moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
    num_key_value_heads=2, head_dim=16, num_experts_per_tok=2,
)
large = dict(
    hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=48, num_attention_heads=32, vocab_size=151936,
    num_key_value_heads=4, head_dim=128, num_experts_per_tok=8, num_experts=128,
)


def used(model):
    """The parameters without embeddings that a token uses."""
    configuration = model.config
    leaves = dict(model.named_parameters())
    del leaves["model.embed_tokens.weight"]
    share = configuration.num_experts_per_tok / configuration.num_experts
    return sum(leaf.numel() * (share if ".experts." in name else 1) for name, leaf in leaves.items())


tokens = torch.arange(64)
for experts in (2, 8, 32):
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**small, num_experts=experts))
    arguments = TrainingArguments(
        sys.argv[1], max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        logging_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=[dict(input_ids=tokens, labels=tokens)] * 8)
    trainer.train()
    print(f"{experts} experts: total_flos over compute {trainer.state.total_flos / (6 * 8 * 64 * used(model)):.1f}")
with torch.device("meta"):
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**large))
counted = model.num_parameters(exclude_embeddings=True)  # the factor of `total_flos`
print(f"8 of 128 experts: total_flos over compute {counted / used(model):.1f}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/flos.py" "$folder/out" 2> "$folder/errors" | grep "over compute") ||
  cat "$folder/errors"
wanted='2 experts: total_flos over compute 1.0
8 experts: total_flos over compute 2.6
32 experts: total_flos over compute 8.4
8 of 128 experts: total_flos over compute 9.9'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
