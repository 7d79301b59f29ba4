#!/usr/bin/env bash
# jax 0.10.2: `random.categorical` of bfloat16 logits draws the first of 256 equal experts far more often than the last.
#
# A router that samples its experts from its logits should draw equal experts equally often. In float32 it does. In
# bfloat16 the first eighth of the experts gets more draws than the last eighth: 12 % more for 16 experts, 50 % more for
# 64, and 5.9 times as many for 256. The load looks unbalanced although the policy is uniform. Nothing warns. The
# docstring names a bias of float32 for rare events alone.
#
# Cause: the function adds Gumbel noise of the type of the logits and takes `argmax`. In bfloat16 the noise has 128
# values, so the largest one is often a tie, and `argmax` gives ties to the lower index. Convert the logits to float32,
# or use `mode="high"`.
#
# Seen with jax 0.10.2 and numpy 2.4.6 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/draws.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

noise = jax.random.gumbel(jax.random.key(0), (2**20,), jnp.bfloat16)
print(f"bfloat16 noise: {len(np.unique(np.asarray(noise, np.float32)))} values")
for experts in (16, 64, 256):
    for dtype, mode in ((jnp.bfloat16, None), (jnp.bfloat16, "high"), (jnp.float32, None)):
        logits = jnp.zeros((2**17, experts), dtype)
        counts = jnp.bincount(jax.random.categorical(jax.random.key(1), logits, mode=mode), length=experts)
        ratio = counts[: experts // 8].sum() / counts[-experts // 8 :].sum()  # its standard error is about 1 %
        print(f"{experts} experts, {dtype.__name__}, mode {mode}: the first eighth over the last eighth {ratio:.1f}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/draws.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(echo "bfloat16 noise: 128 values"
for row in "16 1.1" "64 1.5" "256 5.9"; do
  echo "${row% *} experts, bfloat16, mode None: the first eighth over the last eighth ${row#* }"
  echo "${row% *} experts, bfloat16, mode high: the first eighth over the last eighth 1.0"
  echo "${row% *} experts, float32, mode None: the first eighth over the last eighth 1.0"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
