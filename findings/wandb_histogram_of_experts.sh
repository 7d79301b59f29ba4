#!/usr/bin/env bash
# wandb 0.31.0: `wandb.Histogram` of expert numbers shows idle and overloaded experts in a perfectly balanced router.
#
# The default is 64 bins between the smallest and the largest number. 60 experts (Qwen1.5-MoE) leave 4 bins empty, which
# look like idle experts. More than 64 experts share bins. Of 96 experts, half of the bins have two. Of 160 (DeepSeek-V2),
# some have two and some three, so loads seem to differ by 50 %. Only multiples of 64 give equal bins. If the last 16 of
# 64 experts are idle, the chart ends at expert 47, and most of the 16 empty bins lie between busy experts.
#
# So charts of routers with different E differ by their bins, and an idle expert cannot be read from them. Count with
# `numpy.bincount(ids, minlength=E)`, or give `np_histogram=numpy.histogram(ids, bins=E, range=(0, E))`.
#
# Seen with wandb 0.31.0 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile wandb==0.31.0 numpy==2.4.6
cat > "$folder/bins.py" <<'PYTHON'
import numpy as np
import wandb


def describe(title, counts):
    counts = np.array(counts)
    used = counts[counts > 0]
    print(f"{title}: {len(counts)} bins, {(counts == 0).sum()} empty, largest / smallest load {used.max() / used.min():.1f}")


for experts in (60, 64, 96, 128, 160):
    ids = np.repeat(np.arange(experts), 1000)  # 1,000 tokens for each expert
    describe(f"{experts} equal experts", wandb.Histogram(ids).histogram)
ids = np.repeat(np.arange(48), 1000)
counts = np.array(wandb.Histogram(ids).histogram)
describe("64 experts, the last 16 idle", counts)
print("empty bins among the last 16:", (counts[-16:] == 0).sum())
ids = np.repeat(np.arange(60), 1000)
describe("60 experts, own bins", wandb.Histogram(np_histogram=np.histogram(ids, bins=60, range=(0, 60))).histogram)
PYTHON
seen=$("$folder/venv/bin/python" "$folder/bins.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='60 equal experts: 64 bins, 4 empty, largest / smallest load 1.0
64 equal experts: 64 bins, 0 empty, largest / smallest load 1.0
96 equal experts: 64 bins, 0 empty, largest / smallest load 2.0
128 equal experts: 64 bins, 0 empty, largest / smallest load 1.0
160 equal experts: 64 bins, 0 empty, largest / smallest load 1.5
64 experts, the last 16 idle: 64 bins, 16 empty, largest / smallest load 1.0
empty bins among the last 16: 4
60 experts, own bins: 60 bins, 0 empty, largest / smallest load 1.0'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
