#!/usr/bin/env bash
# optax 0.2.8: Adafactor mixes the second moments of experts as soon as there are more experts than columns or rows.
#
# Adafactor keeps means over rows and columns of the squared gradient of a matrix. For the experts [E, d, f] of a layer,
# optax takes the two largest axes for rows and columns. Up to E = min(d, f) these are d and f, and each expert moves as
# if it were alone. With more experts, one of the two axes is E, and the update of expert 0 depends on the gradients of
# the other experts. A study over E then compares two optimizers. No docstring names the axes. torch.optim.Adafactor
# always takes the last two.
#
# Seen with optax 0.2.8, jax 0.10.2 and torch 2.13.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 torch==2.13.0
cat > "$folder/axes.py" <<'PYTHON'
import jax.numpy as jnp
import numpy as np
import optax
import torch


def with_optax(gradient):
    optimizer = optax.scale_by_factored_rms()
    params = jnp.zeros(gradient.shape)
    update, _ = optimizer.update(jnp.asarray(gradient), optimizer.init(params), params)
    return np.asarray(update)


def with_torch(gradient):
    weight = torch.nn.Parameter(torch.zeros(gradient.shape))
    weight.grad = torch.from_numpy(gradient)
    torch.optim.Adafactor([weight], lr=1.0, d=1e9).step()  # d clips the mean size of the update; here it does not
    return -weight.detach().numpy() * 1e3


random = np.random.default_rng(0)
for shape in ((64, 256, 128), (128, 256, 128), (256, 256, 128), (512, 256, 128)):
    gradient = random.standard_normal(shape, np.float32)
    for name, update in (("optax", with_optax), ("torch", with_torch)):
        same = np.allclose(update(gradient)[0], update(gradient[0]), rtol=1e-4, atol=1e-6)
        print(f"{list(shape)}: expert 0 moves in the stack as it does alone: {name} {same}")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/axes.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for row in "64 True" "128 True" "256 False" "512 False"; do
  echo "[${row% *}, 256, 128]: expert 0 moves in the stack as it does alone: optax ${row#* }"
  echo "[${row% *}, 256, 128]: expert 0 moves in the stack as it does alone: torch True"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
