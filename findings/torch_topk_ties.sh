#!/usr/bin/env bash
# torch 2.13.0: which of E equal scores `topk` returns depends on E, and `sort` and `argmax` return other ones.
#
# On a CPU, with k = 2: experts 6 and 5 of 8, 42 and 43 of 64, 0 and 1 of 128 and more. `sort(descending=True)` without
# `stable` agrees with neither. With scores in bfloat16, 2 to 7 % of the tokens of a router have ties for their last
# place, and a program that exports, shards or pads the experts then runs other experts.
#
# Seen with torch 2.13.0 (CPU) on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0
cat > "$folder/ties.py" <<'PYTHON'
import torch

for experts in (8, 16, 32, 64, 128, 256):
    equal = torch.zeros(experts)
    first = equal.sort(descending=True).indices[:2].tolist()
    print(f"E {experts}: topk {equal.topk(2).indices.tolist()}, sort {first}, argmax {equal.argmax()}")
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/ties.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='E 8: topk [6, 5], sort [0, 1], argmax 0
E 16: topk [10, 11], sort [0, 1], argmax 0
E 32: topk [22, 21], sort [16, 31], argmax 0
E 64: topk [42, 43], sort [48, 33], argmax 0
E 128: topk [0, 1], sort [80, 95], argmax 0
E 256: topk [0, 1], sort [176, 161], argmax 0'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
