#!/usr/bin/env bash
# torch 2.13.0: rows that no expert owns are uninitialised memory in `F.grouped_mm`, and 0 in `jax.lax.ragged_dot`.
#
# `offs` marks where the rows of each expert end. Rows beyond the last end are padding, such as dropped tokens. Their
# output has whatever was in memory, and so has their gradient after the backward pass, even if the loss ignores them
# and the incoming gradient is 0 there. The docstring says that such elements are ignored. Multiplying by a mask of 0
# does not help, because that memory can contain NaN. `masked_fill` of the rows before and after the product helps. The
# gradient of the weights is right. jax 0.10.2 returns 0 for such rows and their gradient.
#
# To see it on each run, the script lets torch fill uninitialised memory with NaN (`use_deterministic_algorithms`).
#
# Seen with torch 2.13.0 and jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 jax==0.10.2 jaxlib==0.10.2
cat > "$folder/rows.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import torch

torch.use_deterministic_algorithms(True)
E, each, d, f = 4, 8, 32, 16
owned, rows = E * each, 2 * E * each  # the second half of the rows has no expert


def with_torch(dtype):
    x = torch.ones(rows, d, dtype=dtype, requires_grad=True)
    experts = torch.ones(E, d, f, dtype=dtype, requires_grad=True)
    ends = torch.arange(1, E + 1, dtype=torch.int32) * each
    y = torch.nn.functional.grouped_mm(x, experts, offs=ends)
    y[:owned].sum().backward()
    return [leaf.detach().float().numpy() for leaf in (y, x.grad, experts.grad)]


def with_jax(dtype):
    x, experts = jnp.ones((rows, d), dtype), jnp.ones((E, d, f), dtype)
    dot = lambda x, experts: jax.lax.ragged_dot(x, experts, jnp.full(E, each))
    gradients = jax.grad(lambda *leaves: dot(*leaves)[:owned].sum(), argnums=(0, 1))(x, experts)
    return [np.asarray(leaf, np.float32) for leaf in (dot(x, experts), *gradients)]


def describe(values):
    """The only value of the array."""
    (value,) = np.unique(values)
    return f"{value:g}".replace("nan", "NaN")


for library, run, types in (("torch", with_torch, torch), ("jax", with_jax, jnp)):
    for name in ("float32", "bfloat16"):
        y, x_gradient, experts_gradient = run(getattr(types, name))
        print(
            f"{library}, {name}: rows of experts {describe(y[:owned])}, other rows {describe(y[owned:])},"
            f" their gradient {describe(x_gradient[owned:])}, gradient of experts {describe(experts_gradient)}"
        )
PYTHON
export JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" -W ignore "$folder/rows.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for row in "torch NaN" "jax 0"; do
  for name in float32 bfloat16; do
    value=${row#* }
    echo "${row% *}, $name: rows of experts 32, other rows $value, their gradient $value, gradient of experts 8"
  done
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
