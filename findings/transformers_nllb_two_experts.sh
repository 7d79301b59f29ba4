#!/usr/bin/env bash
# transformers 5.24.0: NLLB-MoE runs experts 0 and 1 for all tokens, whatever its router chooses.
#
# The router chooses among all 8 experts here, but only experts 0 and 1 get tokens and a gradient. Expert 1 runs each
# token with the gate of its first choice, and expert 0 with the gate of its second choice. So the released model, with
# 128 experts, uses 2 of them, and fine-tuning trains these two. Nothing warns. In 4.57.6 all 8 experts run.
#
# Cause: the router returns a mask [tokens, E] of zeros and ones. The layer of experts takes it for expert numbers, and
# passes it to `one_hot`, which makes 0 and 1 the numbers of the two experts.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0
cat > "$folder/experts.py" <<'PYTHON'
import torch
from transformers import NllbMoeConfig
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeSparseMLP

E, d = 8, 16
options = dict(num_experts=E, expert_capacity=256, moe_token_dropout=0.0, activation_dropout=0.0)  # nothing is dropped
layer = NllbMoeSparseMLP(NllbMoeConfig(d_model=d, **options), d)
torch.manual_seed(0)
for name, weight in layer.named_parameters():
    torch.nn.init.zeros_(weight) if name.endswith("bias") else torch.nn.init.normal_(weight)
tokens = torch.randn(4, 64, d)
two = layer.router.classifier(tokens).topk(2).indices
print("first choices:", two[..., 0].unique().tolist(), "second choices:", two[..., 1].unique().tolist())
layer(tokens).square().sum().backward()
run = [e for e in range(E) if any(p.grad is not None for p in layer.experts[f"expert_{e}"].parameters())]
print("experts with a gradient:", run)

with torch.no_grad():
    for e in range(E):  # expert e returns the unit vector e, so the output has the gates
        layer.experts[f"expert_{e}"].fc2.weight.zero_()
        layer.experts[f"expert_{e}"].fc2.bias.copy_(torch.eye(d)[e])
    gates, outputs = layer.router.classifier(tokens).topk(2).values.softmax(-1), layer(tokens)
    print("expert 1 has the gate of the first choice:", torch.allclose(outputs[..., 1], gates[..., 0], atol=1e-5))
    print("expert 0 has the gate of the second choice:", torch.allclose(outputs[..., 0], gates[..., 1], atol=1e-5))
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/experts.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='first choices: [0, 1, 2, 3, 4, 5, 6, 7] second choices: [0, 1, 2, 3, 4, 5, 6, 7]
experts with a gradient: [0, 1]
expert 1 has the gate of the first choice: True
expert 0 has the gate of the second choice: True'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
