#!/usr/bin/env bash
# jax 0.10.2 on CPU: `lax.ragged_dot` over E experts computes and stores E times what is needed.
#
# Rows sorted by expert times the weights [E, d, f] need the FLOPs of one matrix product, whatever E is. The compiled
# program for a CPU copies the rows E times, with zeros for the other experts, and multiplies [rows, E d] by [E d, f].
# With 64 experts it has 65 times the FLOPs and 72 times the memory of the rows; a gradient has 66 and 330 times. No
# warning says so. So a mixture on a CPU costs as much as running every expert on every token, and the FLOPs and bytes of
# this program tell nothing about a machine with a grouped product.
#
# Zero times infinity is NaN: if one expert has infinite weights, all rows are NaN, even if no token uses this expert.
#
# Seen with jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2
cat > "$folder/ragged.py" <<'PYTHON'
import jax
import jax.numpy as jnp

rows, d, f = 1024, 64, 128
for E in (1, 8, 64):
    arguments = jnp.ones((rows, d)), jnp.ones((E, d, f)), jnp.full(E, rows // E)
    for name, function in (
        ("product", jax.lax.ragged_dot),
        ("gradient", jax.grad(lambda *arguments: jnp.square(jax.lax.ragged_dot(*arguments)).sum(), argnums=(0, 1))),
    ):
        compiled = jax.jit(function).lower(*arguments).compile()
        flops = compiled.cost_analysis()["flops"] / (2 * rows * d * f * (3 if name == "gradient" else 1))
        memory = compiled.memory_analysis().temp_size_in_bytes / (rows * d * 4)
        print(f"{E} experts, {name}: {flops:.0f} times the FLOPs, {memory:.0f} times the memory of the rows")

experts = jnp.ones((4, 8, 8)).at[3].set(jnp.inf)
product = jax.lax.ragged_dot(jnp.ones((6, 8)), experts, jnp.array([2, 2, 2, 0]))
print("an idle expert with infinite weights: NaN in", int(jnp.isnan(product).any(1).sum()), "of 6 rows")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/ragged.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='1 experts, product: 1 times the FLOPs, 1 times the memory of the rows
1 experts, gradient: 1 times the FLOPs, 5 times the memory of the rows
8 experts, product: 8 times the FLOPs, 9 times the memory of the rows
8 experts, gradient: 8 times the FLOPs, 43 times the memory of the rows
64 experts, product: 65 times the FLOPs, 72 times the memory of the rows
64 experts, gradient: 66 times the FLOPs, 330 times the memory of the rows
an idle expert with infinite weights: NaN in 6 of 6 rows'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
