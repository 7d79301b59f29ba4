#!/usr/bin/env bash
# deepspeed 0.19.8 and fairscale 0.4.13: with k = 2, evaluation draws the second expert of each token at random.
#
# Two passes in evaluation mode send more than 80 % of random tokens to other experts, at 8 experts. So the loss of a
# held-out set is a random number, and generated text differs from run to run. With k = 3, deepspeed repeats itself.
# With k = 1, it draws which tokens stay when an expert is full; `use_rts=False` keeps the first ones. For k = 2,
# `top2_2nd_expert_sampling=False` switches the draws off, in training too. In fairscale nothing does.
#
# Cause: the gates of both libraries add Gumbel noise to the logits before the choice of the second expert, and ask
# nowhere whether the module trains. In deepspeed the noise of `noisy_gate_policy` is in training alone.
#
# Seen with deepspeed 0.19.8, fairscale 0.4.13 and torch 2.13.0 on Python 3.11, on a CPU. The script fails if the
# behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 deepspeed==0.19.8 fairscale==0.4.13
cat > "$folder/passes.py" <<'PYTHON'
import torch
from deepspeed.moe.sharded_moe import TopKGate
from fairscale.nn import Top2Gate

torch.manual_seed(0)
tokens = torch.randn(1024, 64)
gates = {
    "deepspeed, k = 1": TopKGate(64, 8, k=1),
    "deepspeed, k = 1, use_rts=False": TopKGate(64, 8, k=1, use_rts=False),
    "deepspeed, k = 2": TopKGate(64, 8, k=2),
    "deepspeed, k = 2, top2_2nd_expert_sampling=False": TopKGate(64, 8, k=2, top2_2nd_expert_sampling=False),
    "deepspeed, k = 3": TopKGate(64, 8, k=3),
    "fairscale, k = 2": Top2Gate(64, 8),
}
for name, gate in gates.items():
    gate.eval()
    with torch.no_grad():
        first, second = (gate(tokens)[2].any(-1) for _ in range(2))  # [tokens, E]: the experts that a token gets
    share = (first != second).any(-1).float().mean()
    text = "no token" if share == 0 else "over 80 % of the tokens" if share > 0.8 else "2 to 20 % of the tokens"
    print(f"{name}: a second pass gives other experts to {text}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/passes.py" 2> "$folder/errors" | grep "second pass") ||
  cat "$folder/errors"
wanted='deepspeed, k = 1: a second pass gives other experts to 2 to 20 % of the tokens
deepspeed, k = 1, use_rts=False: a second pass gives other experts to no token
deepspeed, k = 2: a second pass gives other experts to over 80 % of the tokens
deepspeed, k = 2, top2_2nd_expert_sampling=False: a second pass gives other experts to no token
deepspeed, k = 3: a second pass gives other experts to no token
fairscale, k = 2: a second pass gives other experts to over 80 % of the tokens'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
