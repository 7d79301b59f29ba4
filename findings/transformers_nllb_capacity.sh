#!/usr/bin/env bash
# transformers 5.24.0: an evaluation of NLLB-MoE sets the capacity of its experts for the training that follows.
#
# In evaluation, an expert takes as many tokens as the batch has. The router stores this number in the attribute that
# also has the capacity of training, and no later step restores it. Here `expert_capacity` is 64. After an evaluation
# whose last batch has 8 tokens, training continues with a capacity of 8, and 75 % of 256 tokens lose their first
# choice. After a large batch, training drops no token. The number is in no state dict, so a resumed run has 64 again.
# `moe_eval_capacity_token_fraction=-1` avoids it. Release 4.57.6 behaves in the same way.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/capacity.py" <<'PYTHON'
import torch
from transformers import NllbMoeConfig
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeTop2Router

for fraction in (1.0, -1.0):
    torch.manual_seed(0)
    options = dict(num_experts=8, expert_capacity=64, moe_eval_capacity_token_fraction=fraction)
    router = NllbMoeTop2Router(NllbMoeConfig(d_model=16, **options))
    tokens = torch.randn(256, 16)
    print(f"moe_eval_capacity_token_fraction {fraction}")
    for evaluated in (None, 8, 4096):
        if evaluated:
            router.eval()(torch.randn(evaluated, 16))
        kept = router.train()(tokens)[0].any(-1).float().mean()
        capacity = router.expert_capacity
        print(f"  after an evaluation of {evaluated} tokens: capacity {capacity}, tokens with first choice {kept:.0%}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/capacity.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='moe_eval_capacity_token_fraction 1.0
  after an evaluation of None tokens: capacity 64, tokens with first choice 100%
  after an evaluation of 8 tokens: capacity 8, tokens with first choice 25%
  after an evaluation of 4096 tokens: capacity 4096, tokens with first choice 100%
moe_eval_capacity_token_fraction -1.0
  after an evaluation of None tokens: capacity 64, tokens with first choice 100%
  after an evaluation of 8 tokens: capacity 64, tokens with first choice 100%
  after an evaluation of 4096 tokens: capacity 64, tokens with first choice 100%'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
