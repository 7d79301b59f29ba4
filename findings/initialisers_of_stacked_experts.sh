#!/usr/bin/env bash
# jax 0.10.2, keras 3.15.1 and torch 2.13.0: initialisers give experts in one array too small weights, each its own.
#
# In a matrix with d inputs, "LeCun normal" weights have the standard deviation d^-1/2, so that outputs are as large as
# inputs. For E matrices in one array, jax and keras count E d inputs. The weights are E^-1/2 of the right size, so a
# study over E compares initialisations, too. torch reads [E, f, d] as a convolution with f d inputs: the weights are
# f^-1/2 of the right size for every E. Numbers below are the weights over the right size, which is 1.
#
# The orthogonal initialisers flatten the array, to [E d, f] in jax and keras and to [E, f d] in torch. No expert is
# orthogonal: all its singular values should be 1. Nothing warns. The remedy is to initialise expert by expert; jax also
# has `batch_axis=0`, except for `orthogonal`.
#
# Seen with these releases on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 keras==3.15.1 torch==2.13.0
cat > "$folder/scales.py" <<'PYTHON'
import jax
import keras
import numpy as np
import torch

d, f = 64, 256
torch.manual_seed(0)
key, lecun, orthogonal = jax.random.key(0), jax.nn.initializers.lecun_normal, jax.nn.initializers.orthogonal()


def in_torch(fill, shape, **options):
    return fill(torch.empty(shape), **options).numpy()


for E in (1, 4, 16):
    stack, transposed = (E, d, f), (E, f, d)  # torch has the outputs first
    kaiming = in_torch(torch.nn.init.kaiming_normal_, transposed, nonlinearity="linear")
    weights = {
        "jax": lecun()(key, stack), "jax batch_axis=0": lecun(batch_axis=0)(key, stack),
        "keras": keras.initializers.LecunNormal(0)(stack), "torch": kaiming,
    }
    print(f"{E} experts:", ", ".join(f"{name} {np.std(w) * d**0.5:.2f}" for name, w in weights.items()))
stacks = {
    "jax": orthogonal(key, (16, d, f)), "keras": keras.initializers.Orthogonal(1.0, 0)((16, d, f)),
    "torch": in_torch(torch.nn.init.orthogonal_, (16, f, d)),
}
for name, stack in stacks.items():
    spread = np.linalg.svd(np.asarray(stack[0]), compute_uv=False)
    print(f"orthogonal, {name}: singular values of an expert from {spread.min():.2f} to {spread.max():.2f}")
PYTHON
seen=$(JAX_PLATFORMS=cpu KERAS_BACKEND=jax "$folder/venv/bin/python" "$folder/scales.py" 2> "$folder/errors" ||
  cat "$folder/errors")
wanted='1 experts: jax 1.01, jax batch_axis=0 1.01, keras 1.01, torch 0.06
4 experts: jax 0.50, jax batch_axis=0 1.00, keras 0.50, torch 0.06
16 experts: jax 0.25, jax batch_axis=0 1.00, keras 0.25, torch 0.06
orthogonal, jax: singular values of an expert from 0.27 to 0.71
orthogonal, keras: singular values of an expert from 0.27 to 0.71
orthogonal, torch: singular values of an expert from 0.06 to 0.19'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
