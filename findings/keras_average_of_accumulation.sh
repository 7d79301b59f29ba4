#!/usr/bin/env bash
# keras 3.15.1: with n steps of gradient accumulation, the moving average of the weights is updated n times per step.
#
# A linear model trains for 200 steps on 64 examples, in one batch or in n batches with `gradient_accumulation_steps=n`.
# The weights are the same, and so is their loss, 0.009. With `use_ema=True` and `ema_momentum=0.99`, the loss of the
# average is 0.80 for n = 1, 0.12 for n = 2, 0.026 for n = 4 and 0.014 for n = 8. It averages about 100 steps for n = 1,
# and 100 / n steps otherwise. Nothing warns. `fit` ends with the average as the weights, so two models that differ only
# in the batch that fits in memory end with different losses.
#
# Cause: the optimizer updates the average after each batch, also where it only accumulates the gradient. The rate and
# the bias correction of Adam count steps. Use `ema_momentum ** (1 / n)`; the losses then agree within 2 %.
#
# Seen with keras 3.15.1 and jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile keras==3.15.1 jax==0.10.2 numpy==2.4.6
cat > "$folder/average.py" <<'PYTHON'
import keras
import numpy as np

random = np.random.default_rng(0)
x = random.normal(size=(64, 8)).astype("float32")
y = x @ random.normal(size=(8, 1)).astype("float32")


def loss(n, **options):
    """Return the loss after 200 steps of n batches each."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=n if n > 1 else None, **options)
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=64 // n, shuffle=False, epochs=200, verbose=0)
    return model.evaluate(x, y, verbose=0)


for n in (1, 2, 4, 8):
    average, root = (loss(n, use_ema=True, ema_momentum=momentum) for momentum in (0.99, 0.99 ** (1 / n)))
    print(f"n = {n}: weights {loss(n):.3f}, their average {average:.2g}, with the root of the momentum {root:.2g}")
PYTHON
export KERAS_BACKEND=jax JAX_PLATFORMS=cpu KERAS_HOME="$folder"
seen=$("$folder/venv/bin/python" -W ignore "$folder/average.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='n = 1: weights 0.009, their average 0.8, with the root of the momentum 0.8
n = 2: weights 0.009, their average 0.12, with the root of the momentum 0.81
n = 4: weights 0.009, their average 0.026, with the root of the momentum 0.82
n = 8: weights 0.009, their average 0.014, with the root of the momentum 0.82'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
