#!/usr/bin/env bash
# torch 2.13.0: FLOP counters see no expert of a mixture that runs its experts by grouped products.
#
# A layer with 16 experts, k = 2, in transformers: the counter of torch, fvcore and the "aten" counter of ptflops count
# the chosen experts right if they run one by one ("eager") or by batched products. With "grouped_mm", the default
# of a model in transformers, all three count the router alone, 8 % of the FLOPs. Only fvcore logs that it skipped
# an operator. torchinfo and the "pytorch" counter of ptflops are wrong in all three cases.
#
# Cause: the counters have no formula for the operator `aten::_grouped_mm`. Counters that sum over modules see no
# `nn.Linear`, because the weights of all experts are one parameter [E, ., .].
#
# Seen with torch 2.13.0, transformers 5.24.0, fvcore 0.1.5.post20221221, ptflops 0.7.5 and torchinfo 1.8.0 on Python
# 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0 ptflops==0.7.5 \
  torchinfo==1.8.0 fvcore==0.1.5.post20221221
cat > "$folder/flops.py" <<'PYTHON'
import torch
import torchinfo
from fvcore.nn import FlopCountAnalysis
from ptflops import get_model_complexity_info
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

d, f, E, k, T = 64, 32, 16, 2, 128
router, experts = T * d * E, T * k * 3 * d * f  # multiply-adds, half the FLOPs
x = torch.randn(1, T, d, generator=torch.Generator().manual_seed(0))
for implementation in ("eager", "batched_mm", "grouped_mm"):
    configuration = Qwen3MoeConfig(hidden_size=d, moe_intermediate_size=f, num_experts=E, num_experts_per_tok=k)
    configuration._experts_implementation = implementation
    layer = Qwen3MoeSparseMoeBlock(configuration).eval()
    torch.manual_seed(0)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(x)
    counts = {"torch": counter.get_total_flops() // 2, "fvcore": FlopCountAnalysis(layer, x).total()}
    for backend in ("aten", "pytorch"):
        options = dict(as_strings=False, print_per_layer_stat=False, verbose=False)
        counts[f"ptflops {backend}"] = get_model_complexity_info(layer, (T, d), backend=backend, **options)[0]
    counts["torchinfo"] = torchinfo.summary(layer, input_data=x, verbose=0).total_mult_adds
    named = {router + experts: "right", router: "router alone"}
    print(f"{implementation}:", ", ".join(f"{key} {named.get(int(n), 'wrong')}" for key, n in counts.items()))
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/flops.py" 2> "$folder/errors" || cat "$folder/errors")
modules='ptflops pytorch wrong, torchinfo router alone'
wanted="eager: torch right, fvcore right, ptflops aten right, $modules
batched_mm: torch right, fvcore right, ptflops aten right, $modules
grouped_mm: torch router alone, fvcore router alone, ptflops aten router alone, $modules"
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
