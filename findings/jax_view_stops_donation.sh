#!/usr/bin/env bash
# jax 0.10.2 on CPU: a NumPy view of an array that somebody keeps makes a jitted step copy a donated array, silently.
#
# `np.asarray(x)` of a JAX array on a CPU copies nothing: it is a view. If the view is dropped before the step, the step
# reuses the memory of x and deletes x, as `donate_argnums` asks. If the view is still kept, for a log or a checkpoint in
# the background, the step allocates new memory, and x stays alive and readable. There is neither an error nor a warning,
# also where warnings are errors. So a training loop whose peak was one state has two, from the step after a checkpoint.
#
# `x.is_deleted()` after the step tells which case holds. `np.array(x)` copies, and does not stop the donation.
#
# Seen with jax 0.10.2 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/donation.py" <<'PYTHON'
import warnings

import jax
import jax.numpy as jnp
import numpy as np

warnings.simplefilter("error")
step = jax.jit(lambda state: state + 1, donate_argnums=0)
for kept, look in (("nothing", lambda state: None), ("np.array", np.array), ("np.asarray", np.asarray)):
    state = jnp.zeros(2**20)
    address, seen = state.unsafe_buffer_pointer(), look(state)
    after = step(state)
    reused = after.unsafe_buffer_pointer() == address
    print(f"kept {kept}: deleted {state.is_deleted()}, memory reused {reused}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/donation.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='kept nothing: deleted True, memory reused True
kept np.array: deleted True, memory reused True
kept np.asarray: deleted False, memory reused False'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
