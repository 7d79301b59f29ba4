#!/usr/bin/env bash
# optax 0.2.8: with bfloat16 weights and the default b2 = 0.999, the second moment of Adam never falls.
#
# Here the gradient is 1 for 200 steps, then 0.001 for 9,800 steps, like that of an expert that loses most of its tokens.
# In float32, the second moment falls to 0.000011, and the step grows to 0.3 of the learning rate. In bfloat16, the
# second moment stays at 0.2. The step is 0.0023 of the learning rate, 130 times less, so the expert learns almost nothing
# for the rest of the run. A gradient that stays at 1 ends with a second moment of 0.5 instead of 1, so its steps are 1.4
# times too large. With b2 = 0.99, the second moment falls in both types, and the steps differ by at most 10 %. Nothing
# warns, and `mu_dtype=float32` does not help: it is for the first moment alone.
#
# Cause: the second moment has the type of the weights. A step takes 0.1 % off it, which is less than half the distance
# of two bfloat16 numbers, so the product is rounded back. Keep the weights in float32, or use b2 <= 0.99.
#
# Seen with optax 0.2.8 and jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/moment.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax


def last(name, decay, rest):
    """Take 200 steps with the gradient 1, then 9,800 with the gradient `rest`."""
    weight = jnp.zeros((), name)
    optimizer = optax.adam(1.0, b2=decay, mu_dtype=jnp.float32)

    def step(state, gradient):
        update, state = optimizer.update(gradient, state, weight)
        return state, -update

    gradients = jnp.where(jnp.arange(10_000) < 200, 1, rest).astype(name)
    state, steps = jax.lax.scan(step, optimizer.init(weight), gradients)
    return state[0].nu.astype("float32"), steps[-1].astype("float32")


for decay in (0.999, 0.99):
    for rest in (1, 0.001):
        for name in ("float32", "bfloat16"):
            moment, step = last(name, decay, rest)
            print(f"b2 = {decay}, gradient 1, then {rest}, {name}: second moment {moment:.2g}, last step {step:.2g}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/moment.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='b2 = 0.999, gradient 1, then 1, float32: second moment 1, last step 1
b2 = 0.999, gradient 1, then 1, bfloat16: second moment 0.5, last step 1.4
b2 = 0.999, gradient 1, then 0.001, float32: second moment 1.1e-05, last step 0.3
b2 = 0.999, gradient 1, then 0.001, bfloat16: second moment 0.2, last step 0.0023
b2 = 0.99, gradient 1, then 1, float32: second moment 1, last step 1
b2 = 0.99, gradient 1, then 1, bfloat16: second moment 0.84, last step 1.1
b2 = 0.99, gradient 1, then 0.001, float32: second moment 1e-06, last step 1
b2 = 0.99, gradient 1, then 0.001, bfloat16: second moment 9.6e-07, last step 1'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
