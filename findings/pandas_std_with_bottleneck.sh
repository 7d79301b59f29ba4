#!/usr/bin/env bash
# pandas 3.1.1: once bottleneck is installed, the standard deviation of float32 router entropies is 9 times too large.
#
# A balanced router over 8 experts has an entropy near log 8 for each token, with a small spread. For 1,000,000 tokens
# in float32, `Series.std`, `DataFrame.std`, `var` and `describe` give 8.7 times the true spread; for 4,000,000 tokens,
# 22 times. Without the package bottleneck, the same lines are right. `pandas[performance]` installs it, and so may any
# other package. `mean`, `sem` and `groupby(...).std()` are right with it. Nothing warns. So two machines with the same
# pandas can disagree on which router has the larger spread.
#
# Cause: pandas gives `std` and `var` to bottleneck, which adds in float32 one by one, where NumPy adds in pairs. Its
# mean is off by more than the spread. For this reason, pandas does not give it the mean. See issue 57505 of pandas and
# the open issues 443 and 462 of bottleneck. Convert to float64, or set the option "compute.use_bottleneck" to False.
#
# Seen with pandas 3.1.1, numpy 2.4.6 and bottleneck 1.6.1 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile pandas==3.1.1 numpy==2.4.6
cat > "$folder/spread.py" <<'PYTHON'
import numpy as np
import pandas as pd

random = np.random.default_rng(0)
for tokens in (1_000_000, 4_000_000):
    logits = random.normal(0, 0.1, (tokens, 8)).astype(np.float32)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    entropies = -(probabilities * np.log(probabilities)).sum(axis=1)
    truth = entropies.std(ddof=1, dtype=np.float64)
    column = pd.Series(entropies)
    spreads = {
        "std": column.std(), "DataFrame.std": column.to_frame().std()[0], "var": column.var() ** 0.5,
        "describe": column.describe()["std"], "float64": column.astype(float).std(), "sem": column.sem() * tokens**0.5,
        "groupby": column.groupby(np.zeros(tokens)).std()[0],
    }
    with pd.option_context("compute.use_bottleneck", False):
        spreads["option"] = column.std()
    ratios = {name: float(spread / truth) for name, spread in spreads.items()}
    right = [name for name, ratio in ratios.items() if abs(ratio - 1) < 0.01]
    wrong = [name for name, ratio in ratios.items() if ratio > 5]
    print(f"{tokens} tokens, right: {', '.join(right)}; more than 5 times too large: {', '.join(wrong) or 'none'}")
PYTHON
for package in "" bottleneck==1.6.1; do
  if [ "$package" ]; then "$folder/venv/bin/python" -m pip install --quiet --no-compile "$package"; fi
  echo "with pandas${package:+ and $package}:"
  "$folder/venv/bin/python" "$folder/spread.py"
done > "$folder/seen" 2> "$folder/errors" || cat "$folder/errors" >> "$folder/seen"
wanted=$(while IFS=: read -r packages right wrong; do
  echo "with $packages:"
  for tokens in 1000000 4000000; do
    echo "$tokens tokens, right: ${right}float64, sem, groupby, option; more than 5 times too large: $wrong"
  done
done <<'ROWS'
pandas:std, DataFrame.std, var, describe, :none
pandas and bottleneck==1.6.1::std, DataFrame.std, var, describe
ROWS
)
cat "$folder/seen"
[ "$(cat "$folder/seen")" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
