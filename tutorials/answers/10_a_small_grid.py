"""Answers to the exercises of lesson 10."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lesson import needs

V, steps, b, S = 128, 400, 16, 16
draws = np.random.default_rng(0)
follows = np.zeros((V, V))
for word in range(V):
    follows[word, draws.choice(V, size=4, replace=False)] = [0.7, 0.1, 0.1, 0.1]


def write(batches):
    text = np.zeros((batches, b, S + 1), dtype=np.int32)
    text[..., 0] = draws.integers(V, size=(batches, b))
    for s in range(S):
        reached = follows[text[..., s]].cumsum(axis=-1)
        drawn = draws.random((batches, b, 1)) * reached[..., -1:]
        text[..., s + 1] = (drawn >= reached).sum(axis=-1)
    return text


text, validation = write(steps), write(16)
floor = -(0.7 * np.log(0.7) + 0.3 * np.log(0.1))

# 1. Four equal chances give -4 (1/4) log(1/4) = log 4. A single successor is certain:
# its loss is 0.
np.testing.assert_allclose(-sum(p * np.log(p) for p in [1 / 4] * 4), np.log(4))
print(f"1. {np.log(4):.4f} and 0")

# 2. The table of pairs is close to the language, because each word occurs hundreds of
# times. It is better than the models of width 8, but it needs a number for each pair of
# words. The models have fewer numbers.
counts = np.ones((V, V))
np.add.at(counts, (text[..., :-1].ravel(), text[..., 1:].ravel()), 1)
share = counts / counts.sum(axis=1, keepdims=True)
loss = -np.log(share[validation[..., :-1], validation[..., 1:]]).mean()
assert floor < loss < 1.2 and counts.size == V**2
print(f"2. loss {loss:.4f} with {counts.size} numbers")

# 3. No: the floor is the mean loss of the true probabilities, and all other
# probabilities have a larger mean loss. A model may be below it by luck on a finite
# text, or on text that it has memorised in training.
wrong = 0.9 * follows + 0.1 / V
for word in range(V):
    kept = follows[word] > 0
    assert -(follows[word][kept] * np.log(wrong[word][kept])).sum() > floor
print("3. no")

# 4. It is worse than HASH. HASH knows the expert of each word from the first step, and
# this language needs nothing else. S-BASE must learn a router while the experts learn.
# In evaluation it uses only the router's logits, without the plan of training.
needs("train")
from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.step import (
    initial_state,
    make_evaluate,
    make_train_steps,
)
from routelaws.reference.configuration import ModelConfig

found = {}
for router in ("hash", "sinkhorn"):
    model = ModelConfig(
        vocab_size=V, d_model=8, blocks=2, heads=1, router=router, experts=16
    )
    run = TrainConfig(model, sequence_length=S, batch_size=b, steps=steps)
    state, _ = make_train_steps(run)(initial_state(run), text, 0)
    found[router] = float(make_evaluate(run)(state.params, validation).loss.mean())
assert floor < found["hash"] < found["sinkhorn"]
losses = {router: round(loss, 3) for router, loss in found.items()}
print("4. validation losses:", losses)
