#!/usr/bin/env bash
# jax 0.10.2 on CPU: `jax.device_put(x, may_alias=False)` copies no array of NumPy whose address is a multiple of 64.
#
# The documentation says "If False, `x` will be copied".
# An array whose address is a multiple of 64 is adopted. Two things follow, and nothing warns:
# - A later write to x changes the JAX array, such as a buffer of batches that a reader fills again.
# - A jitted step cannot reuse the memory of the adopted array, although it is donated and `is_deleted()` says True. So a
#   training loop that starts from `device_put` of NumPy's zeros, or of a checkpoint, holds its state twice. NumPy's
#   allocator decides for each array, so runs of one command peak at different memory by chance: in one training loop,
#   restored weights were adopted in a third of the runs, all or none.
#
# `jax.device_put(jax.device_put(x), may_alias=False)` and `jnp.array(x)` copy: the first compiles nothing.
#
# Seen with jax 0.10.2 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/adopted.py" <<'PYTHON'
import warnings

import jax
import jax.numpy as jnp
import numpy as np

warnings.simplefilter("error")
step = jax.jit(lambda state: state + 1, donate_argnums=0)


def array(beyond):
    """Return zeros whose address is this number of bytes beyond a multiple of 64."""
    several = np.zeros(2**20 + 32, np.float32)
    return several[-several.ctypes.data % 64 // 4 + beyond // 4 :][: 2**20]


WAYS = {
    "device_put(x, may_alias=False)": lambda x: jax.device_put(x, may_alias=False),
    "device_put(device_put(x), may_alias=False)": lambda x: jax.device_put(jax.device_put(x), may_alias=False),
    "jnp.array(x)": jnp.array,
}
seen = {}
for name, way in WAYS.items():
    for beyond in (0, 4):
        numbers = array(beyond)
        state = way(numbers)
        state.block_until_ready()
        numbers[0] = 7.0
        written, place = float(state[0]), state.unsafe_buffer_pointer()
        after = step(state)
        reused = after.unsafe_buffer_pointer() == place
        print(f"{name}, {beyond} bytes beyond: x[0] = {written:g} after a write, reused {reused}, {state.is_deleted()=}")
        seen[name, beyond] = written, reused, state.is_deleted()

adopted, copied = (7.0, False, True), (0.0, True, True)
first, *others = WAYS
assert seen[first, 0] == adopted and seen[first, 4] == copied
assert all(seen[name, beyond] == copied for name in others for beyond in (0, 4))
PYTHON
"$folder/venv/bin/python" "$folder/adopted.py"
