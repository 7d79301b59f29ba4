#!/usr/bin/env bash
# jax 0.10.2: the checkpoint policy "dots_saveable" saves the products of a dense FFN, and recomputes those of experts.
#
# `jax.checkpoint` recomputes a layer in the backward pass. `dots_saveable` and `dots_with_no_batch_dims_saveable` save
# the matrix products, which are most of the compute. A step through a gated FFN has 9 products, and 11 if a checkpoint
# recomputes gate and up. For a dense FFN, both policies give 9. For experts by `lax.ragged_dot`, both give 11, as if
# there were no policy. For experts by an einsum over E, `dots_saveable` gives 9 and the other one 11, because E is a
# batch dimension. `offload_dot_with_no_batch_dims` acts like the second. Nothing warns.
#
# So one policy trades memory for compute in a mixture, and not in its dense baseline. A comparison of their step times
# or of two kernels for experts measures the policy, too. Cause: the policies look for the operation `dot_general`, and
# `ragged_dot_general` is another one. The documentation does not list the operations. Write a policy that names both, or
# join `dots_saveable` with names of `checkpoint_name` by `save_from_both_policies`.
#
# Seen with jax 0.10.2 on Python 3.11. The script counts the products in the traced program, before any device. It fails
# if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2
cat > "$folder/policies.py" <<'PYTHON'
import re

import jax
import jax.numpy as jnp
from jax import checkpoint_policies as policies
from jax.ad_checkpoint import checkpoint_name

experts, tokens, width, hidden = 8, 64, 16, 32
sizes = jnp.full(experts, tokens // experts)
products = {
    "dense": lambda x, weights: x @ weights,
    "ragged_dot": lambda x, weights: jax.lax.ragged_dot(x, weights, sizes),
    "einsum": lambda x, weights: jnp.einsum("etd,edf->etf", x, weights),
}
shapes = {"dense": (tokens,), "ragged_dot": (tokens,), "einsum": (experts, tokens // experts)}


def ffn(weights, x, product):
    gate, up = (checkpoint_name(product(x, weights[name]), name) for name in ("gate", "up"))
    return product(jax.nn.silu(gate) * up, weights["down"])


def both_operations(operation, *_, **options):
    return operation.name in ("dot_general", "ragged_dot_general")


named = policies.save_only_these_names("gate", "up")
chosen = {
    "everything_saveable": policies.everything_saveable,
    "nothing_saveable": policies.nothing_saveable,
    "dots_saveable": policies.dots_saveable,
    "dots_with_no_batch_dims_saveable": policies.dots_with_no_batch_dims_saveable,
    "offload_dot_with_no_batch_dims": policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "a policy that names both operations": both_operations,
    "dots_saveable and names": policies.save_from_both_policies(policies.dots_saveable, named),
}
for label, policy in chosen.items():
    counts = []
    for name, product in products.items():
        stack = () if name == "dense" else (experts,)
        weights = {key: jnp.ones((*stack, width, hidden)) for key in ("gate", "up")}
        weights["down"] = jnp.ones((*stack, hidden, width))
        layer = jax.checkpoint(lambda weights, x, product=product: ffn(weights, x, product), policy=policy)
        step = jax.grad(lambda weights, x, layer=layer: jnp.sum(layer(weights, x) ** 2), argnums=(0, 1))
        program = str(jax.make_jaxpr(step)(weights, jnp.ones((*shapes[name], width))))
        counts.append(f"{name} {len(re.findall('= (?:ragged_)?dot_general', program))}")
    print(f"{label}: {', '.join(counts)}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/policies.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='everything_saveable: dense 9, ragged_dot 9, einsum 9
nothing_saveable: dense 11, ragged_dot 11, einsum 11
dots_saveable: dense 9, ragged_dot 11, einsum 9
dots_with_no_batch_dims_saveable: dense 9, ragged_dot 11, einsum 11
offload_dot_with_no_batch_dims: dense 9, ragged_dot 11, einsum 11
a policy that names both operations: dense 9, ragged_dot 9, einsum 9
dots_saveable and names: dense 9, ragged_dot 9, einsum 9'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
