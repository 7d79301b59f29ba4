"""Answers to the exercises of lesson 0."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lesson import small_model
from routelaws.reference.accounting import SIZES
from routelaws.reference.laws.routed import PRINTED, predict_loss
from routelaws.reference.transformer import loss

# 1. It stores 64 times the parameters. A token costs twice the work, because it uses
# two experts.
d = 512
dense_ffn = 2 * d * 4 * d
stored, used = 64 * dense_ffn, 2 * dense_ffn
assert (stored / dense_ffn, used / dense_ffn) == (64, 2)
print("1. 64 times the parameters, twice the work")

# 2. 32 experts: in the runs of section 2, the loss is then 2.827, below 2.849. The law
# that the paper printed for S-BASE (lesson 11) says the same.
experts = 2 ** np.arange(10)
small = predict_loss(SIZES["15M"].dense_parameters, experts, PRINTED["S-Base"])
large = predict_loss(SIZES["55M"].dense_parameters, 1, PRINTED["S-Base"])
assert experts[small < large].min() == 32
print(f"2. 32 experts: {small[5]:.3f} is below {large:.3f}")

# 3. The more tokens an expert has, the more the loss grows without it.
model = small_model()
ffn, loads, losses = model.params["routed_ffn"], model.loads[1, -1], []
for missing in ([], [loads.argmax()], [loads.argmin()]):
    down = ffn["down"].copy()
    down[:, missing] = 0
    params = model.params | {"routed_ffn": ffn | {"down": down}}
    losses.append(loss(params, model.text, model.config, training=False).cross_entropy)
grown = [each - losses[0] for each in losses[1:]]
assert grown[0] > grown[1] > 0
print(
    f"3. {grown[0]:.2f} nats without the most loaded expert, "
    f"{grown[1]:.2f} without the least loaded one"
)
