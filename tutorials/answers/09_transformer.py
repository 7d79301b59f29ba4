"""Answers to the exercises of lesson 9."""

import numpy as np

from routelaws.reference import transformer
from routelaws.reference.configuration import ModelConfig

sizes = {"vocab_size": 12, "d_model": 8, "blocks": 2, "heads": 2}
config = ModelConfig(**sizes, router="sinkhorn", experts=4)
params = transformer.init(np.random.default_rng(0), config)
tokens = np.random.default_rng(1).integers(0, 12, size=(2, 7))

# 1. Block i, counted from 0, is routed if i + 1 is a multiple of 3: these are the third
# and the last block.
six = ModelConfig(blocks=6, router="sinkhorn", experts=4, routing_frequency=1 / 3)
assert [i for i in range(6) if six.is_routed(i)] == [2, 5]
print("1. blocks 2 and 5, counted from 0")

# 2. The logits of a position are the products of one vector with twelve equal vectors,
# so they are equal. Each token has the probability 1/12, so the loss is log 12.
alike = params | {"embedding": np.tile(params["embedding"][:1], (12, 1))}
found = transformer.loss(alike, tokens, config).cross_entropy
np.testing.assert_allclose(found, np.log(12))
print(f"2. {found:.4f} = log 12")

# 3. On none. Attention is the only part of the model in which positions meet. In
# evaluation, routers, norms and feed-forward networks look at each token by itself.
attention = params["blocks"]["attention"]
attention = attention | {"output": np.zeros_like(attention["output"])}
alone = params | {"blocks": params["blocks"] | {"attention": attention}}
inputs = tokens[:, :-1]
other = inputs.copy()
other[:, :-1] = (other[:, :-1] + 1) % 12
for tree, same in ((params, False), (alone, True)):
    last = [
        transformer.apply(tree, each, config).logits[:, -1] for each in (inputs, other)
    ]
    assert np.array_equal(*last) == same
print("3. none: the prediction depends only on the token at its own position")

# 4. It is 0: the loss does not use this expert, so it does not change when the expert's
# weights change. HASH with four experts sends token t to expert t mod 4. A text without
# the tokens 3, 7 and 11 leaves expert 3 idle.
hashed = ModelConfig(**sizes, router="hash", experts=4)
params = transformer.init(np.random.default_rng(0), hashed)
text = np.array([[0, 1, 2, 4, 5, 6, 8]])
before = transformer.loss(params, text, hashed)
moved = {name: values.copy() for name, values in params["routed_ffn"].items()}
for values in moved.values():
    values[0, 3] += 1
assert before.output.routing.load[0, 3] == 0
assert (
    transformer.loss(params | {"routed_ffn": moved}, text, hashed).total == before.total
)
print("4. 0: the loss does not depend on an expert without tokens")
