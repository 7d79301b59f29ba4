#!/usr/bin/env bash
# jax 0.10.2: `lax.top_k` ranks 0.0 above -0.0, so two equal scores are no tie, and the higher index wins.
#
# `lax.top_k` otherwise gives ties to the lower index. `argsort` and `argmax` of jax treat the two zeros as equal, and so
# do comparisons. So a router that takes the best expert by `argmax` and one that takes it by `top_k` with k = 1 send
# the same token to different experts. ReLU gates, masks by multiplication and negated scores make such zeros.
#
# Seen with jax 0.10.2 on Python 3.11, on a CPU, with and without jit. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2
cat > "$folder/zeros.py" <<'PYTHON'
import jax
import jax.numpy as jnp

scores = jnp.array([-0.0, 0.0, -0.0, 0.0])
top = lambda x: jax.lax.top_k(x, 4)[1]
print("top_k", top(scores).tolist(), jax.jit(top)(scores).tolist(), "of equal zeros", top(jnp.zeros(4)).tolist())
print("argsort", jnp.argsort(scores, descending=True).tolist(), "argmax", int(jnp.argmax(scores)))
PYTHON
export JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/zeros.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='top_k [1, 3, 0, 2] [1, 3, 0, 2] of equal zeros [0, 1, 2, 3]
argsort [0, 1, 2, 3] argmax 0'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
