#!/usr/bin/env bash
# optax 0.2.8: the norm of bfloat16 gradients stops growing at 256 equal arrays, so clipping by it clips too little.
#
# A model of 12 layers with 64 experts of 3 matrices has 2,304 arrays, if each matrix is an array of its own. Here, the
# norm of their gradients is 2.17. In float32, `optax.tree.norm` gives 2.17. In bfloat16, it gives 1.00. So
# `clip_by_global_norm(1.0)` changes nothing, and the step is 2.17 times too large. A log of the norm shows the same
# number for any larger model. With all experts in one array, the norm is 2.17 in bfloat16, too. Nothing warns.
#
# Cause: the sum of squares of one array is right, but the sums of the arrays are added one by one in bfloat16, where
# 256 + 1 is 256. Convert the gradients to float32 before the clip, or stack the experts.
#
# Seen with optax 0.2.8, jax 0.10.2 and numpy 2.4.6 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/norm.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import optax


def norms(gradients):
    """Return the norm that optax computes, and the norm of the clipped gradients in float64."""
    clipped, _ = optax.clip_by_global_norm(1.0).update(gradients, optax.EmptyState())
    exact = sum(float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(clipped)) ** 0.5
    return f"norm {float(optax.tree.norm(gradients)):.2f}, clipped at 1: {exact:.2f}"


random = np.random.default_rng(0)
for count in (192, 2304):
    float32 = [jnp.asarray(random.normal(0, 0.001, (32, 64)), jnp.float32) for _ in range(count)]
    bfloat16 = [leaf.astype(jnp.bfloat16) for leaf in float32]
    print(f"{count} arrays in float32: {norms(float32)}")
    print(f"{count} arrays in bfloat16: {norms(bfloat16)}")
    print(f"one stack of {count} in bfloat16: {norms([jnp.stack(bfloat16)])}")
ones = [jnp.ones(4, jnp.bfloat16)] * 300
norm = float(jax.jit(optax.tree.norm)(ones))
print(f"300 arrays with the norm 2, with jit: {norm:.1f} instead of {2 * 300**0.5:.1f}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/norm.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='192 arrays in float32: norm 0.63, clipped at 1: 0.63
192 arrays in bfloat16: norm 0.62, clipped at 1: 0.63
one stack of 192 in bfloat16: norm 0.63, clipped at 1: 0.63
2304 arrays in float32: norm 2.17, clipped at 1: 1.00
2304 arrays in bfloat16: norm 1.00, clipped at 1: 2.17
one stack of 2304 in bfloat16: norm 2.17, clipped at 1: 1.00
300 arrays with the norm 2, with jit: 32.0 instead of 34.6'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
