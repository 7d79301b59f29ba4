#!/usr/bin/env bash
# jax 0.10.2: a token with expert -1 (padding, no expert) loads expert 0, the last expert or no expert.
#
# Four usual ways to count the tokens of each expert raise no error and differ. `bincount` clips -1 to 0, `.at[].add`
# reads it as the last index, and `segment_sum` and `one_hot` leave it out. A number that is too large (4 of 4 experts)
# is left out by all four. Loads, capacities and balance losses follow these counts.
#
# Seen with jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2
cat > "$folder/counts.py" <<'PYTHON'
import jax
import jax.numpy as jnp

for nobody in (-1, 4):
    expert = jnp.array([0, 2, nobody, nobody])
    counts = {
        "bincount": jnp.bincount(expert, length=4),
        "at[].add": jnp.zeros(4, int).at[expert].add(1),
        "segment_sum": jax.ops.segment_sum(jnp.ones(4, int), expert, 4),
        "one_hot": jax.nn.one_hot(expert, 4, dtype=int).sum(0),
    }
    print(nobody, *(f"{name} {count.tolist()}" for name, count in counts.items()), sep="; ")
PYTHON
export JAX_PLATFORMS=cpu
seen=$("$folder/venv/bin/python" "$folder/counts.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='-1; bincount [3, 0, 1, 0]; at[].add [1, 0, 1, 2]; segment_sum [1, 0, 1, 0]; one_hot [1, 0, 1, 0]
4; bincount [1, 0, 1, 0]; at[].add [1, 0, 1, 0]; segment_sum [1, 0, 1, 0]; one_hot [1, 0, 1, 0]'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
