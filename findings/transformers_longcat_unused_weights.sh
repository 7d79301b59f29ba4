#!/usr/bin/env bash
# transformers 5.24.0: LongcatFlashExperts has gate and up weights for its identity experts, which compute nothing.
#
# `gate_up_proj` has n_routed_experts + zero_expert_num rows, `down_proj` has n_routed_experts. With the default
# configuration, 256 of 768 rows in each of 28 layers are unused: 180 billion parameters, a quarter of those of all
# experts. A small layer whose tokens choose identities has no gradient there.
#
# Seen with torch 2.13.0 and transformers 5.24.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.24.0
cat > "$folder/rows.py" <<'PYTHON'
import torch
from transformers import LongcatFlashConfig
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts

config = LongcatFlashConfig()
with torch.device("meta"):
    experts = LongcatFlashExperts(config)
rows, used = len(experts.gate_up_proj), len(experts.down_proj)
unused = config.num_layers * experts.gate_up_proj[used:].numel()
every = config.num_layers * sum(leaf.numel() for leaf in experts.parameters())
print(f"{rows} rows of gate_up_proj, {used} of down_proj: {unused / 1e9:.1f} of {every / 1e9:.1f} billion unused")
small = LongcatFlashExperts(
    LongcatFlashConfig(hidden_size=8, expert_ffn_hidden_size=4, n_routed_experts=2, zero_expert_num=2)
)
for weight in small.parameters():
    torch.nn.init.normal_(weight)
choices = torch.tensor([[0, 2], [3, 1], [2, 3]])
small(torch.randn(3, 8), choices, torch.ones(3, 2)).square().sum().backward()
print("gradient of each row:", [bool(row.any()) for row in small.gate_up_proj.grad])
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/rows.py" 2> "$folder/errors") || cat "$folder/errors"
wanted='768 rows of gate_up_proj, 512 of down_proj: 180.4 of 721.6 billion unused
gradient of each row: [True, True, False, False]'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
