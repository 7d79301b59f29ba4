#!/usr/bin/env bash
# keras-hub 0.32.0: the balance loss is a sum over the layers, is missing from `val_loss`, and can count padding.
#
# With the coefficient 1 and nearly perfect balance, L layers of Mixtral or Qwen3-MoE add L to the loss of training. In
# transformers, the same coefficient weights one number for the whole model, which is k with perfect balance. The
# converter takes the coefficient of a released Qwen3-MoE as it is. So Qwen3-30B-A3B, with L = 48 and k = 8, trains with
# 6 times the weight of transformers.
#
# The loss that `fit` prints contains the balance loss, but the loss of `evaluate` does not, so `val_loss` can be below
# `loss` for this reason alone. In Qwen3-MoE, the token that fills the padding changes the balance loss, although the
# padding mask excludes it. It does not change the loss of the tokens, nor the balance loss of Mixtral.
#
# Cause: each layer calls `add_loss` in training alone. Qwen3-MoE derives the mask of padding from the causal mask of its
# attention, in which each padded position still sees the tokens before it.
#
# Seen with keras-hub 0.32.0, keras 3.15.1 and jax 0.10.2 on Python 3.11, on a CPU. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile \
  keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 kagglehub sentencepiece tokenizers regex
"$folder/venv/bin/python" -m pip install --quiet --no-compile --no-deps keras-hub==0.32.0  # without TensorFlow
cat > "$folder/balance.py" <<'PYTHON'
import keras
import numpy as np
from keras_hub.models import MixtralBackbone, MixtralCausalLM, Qwen3MoeBackbone, Qwen3MoeCausalLM

sizes = dict(
    vocabulary_size=64, num_query_heads=2, num_key_value_heads=2, hidden_dim=32, intermediate_dim=32, num_experts=4,
    top_k=2,
)
qwen = dict(sizes, moe_intermediate_dim=16, head_dim=16, router_aux_loss_coefficient=1.0)
kinds = {
    "Mixtral": lambda layers: MixtralCausalLM(MixtralBackbone(num_layers=layers, router_aux_loss_coef=1.0, **sizes)),
    "Qwen3-MoE": lambda layers: Qwen3MoeCausalLM(Qwen3MoeBackbone(num_layers=layers, **qwen)),
}


def losses(name, layers, ids, used):
    """The loss of one batch in training and in evaluation, with the learning rate 0."""
    keras.utils.set_random_seed(0)
    model = kinds[name](layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=keras.optimizers.SGD(0.0), weighted_metrics=None, run_eagerly=True)
    batch = dict(token_ids=ids, padding_mask=used), ids, used.astype("float32")
    return np.array([np.ravel(run(*batch))[0] for run in (model.train_on_batch, model.test_on_batch)])


ids = np.random.default_rng(0).integers(0, 64, (8, 16))
for name in kinds:
    for layers in (1, 4):
        train, test = losses(name, layers, ids, np.ones_like(ids))
        print(f"{name}, {layers} layers: the loss in training is that of evaluation + {train - test:.0f}")
    padded, used = [ids.copy(), ids.copy()], np.ones_like(ids)
    padded[0][:, 4:], padded[1][:, 4:], used[:, 4:] = 1, 2, 0
    train, test = np.abs(losses(name, 1, padded[0], used) - losses(name, 1, padded[1], used)) > 1e-3
    print(f"{name}: another padding token changes the loss in training {train}, in evaluation {test}")
PYTHON
seen=$(KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/balance.py" 2> "$folder/errors" ||
  cat "$folder/errors")
wanted='Mixtral, 1 layers: the loss in training is that of evaluation + 1
Mixtral, 4 layers: the loss in training is that of evaluation + 4
Mixtral: another padding token changes the loss in training False, in evaluation False
Qwen3-MoE, 1 layers: the loss in training is that of evaluation + 1
Qwen3-MoE, 4 layers: the loss in training is that of evaluation + 4
Qwen3-MoE: another padding token changes the loss in training True, in evaluation False'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
