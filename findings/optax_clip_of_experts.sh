#!/usr/bin/env bash
# optax 0.2.8: `adaptive_grad_clip` shrinks the gradients of all stacked experts where one expert has a large gradient.
#
# The clip bounds the norm of a gradient by 0.1 times the norm of its weights, for each unit. In an array
# [inputs, outputs], a unit is a column. For experts in one array [E, inputs, outputs], the documents of `unitwise_norm`
# name all three axes, but the code sums over the first one. So it takes the norm of one weight over all experts, and not
# of a column of one expert.
#
# Here expert 0 of 4 has a gradient of 1,000. The others have 0.05, which needs no clip. Clipped one by one, or under
# `vmap`, the others keep 0.05. In one array they get 0.00001, so 3 of 4 experts stop, and expert 0 gets twice its bound.
# Nothing warns. Use `vmap`, a list with an array for each expert, or `axis=1` for these arrays alone.
#
# Seen with optax 0.2.8 and jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/clip.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

weights = jnp.ones((4, 3, 2))  # [experts, inputs, outputs]


def clipped(gradients, weights, axis=None):
    clip = optax.adaptive_grad_clip(0.1, axis=axis)
    return clip.update(gradients, clip.init(weights), weights)[0]


def describe(title, gradients):
    print(f"{title}:", *(f"{expert.mean():.2g}" for expert in gradients))


gradients = jnp.full((4, 3, 2), 0.05).at[0].set(1000)
describe("gradients of the experts", gradients)
describe("clipped one by one", map(clipped, gradients, weights))
describe("clipped under vmap", jax.vmap(clipped)(gradients, weights))
describe("clipped in one array", clipped(gradients, weights))
describe("clipped in one array with axis=1", clipped(gradients, weights, axis=1))
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/clip.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='gradients of the experts: 1e+03 0.05 0.05 0.05
clipped one by one: 0.1 0.05 0.05 0.05
clipped under vmap: 0.1 0.05 0.05 0.05
clipped in one array: 0.2 1e-05 1e-05 1e-05
clipped in one array with axis=1: 0.1 0.05 0.05 0.05'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
