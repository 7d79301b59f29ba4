"""Answers to the exercises of lesson 8."""

import math

import numpy as np

from routelaws.reference.experts import expert_ffn
from routelaws.reference.routers.expert_choice import expert_choice_router
from routelaws.reference.routers.mixture_of_tokens import mixture_of_tokens

z = np.array(
    [[8, 7, 1], [11, 7, 4], [6, 4, 2], [1, 4, -3], [0, 1, -1], [8, 2, 6]], float
)
T, E = z.shape

# 1. E experts take C tokens each. If c T / E is whole, this gives E C / T = c experts
# per token. C is at most T, so a c above E has no effect: at c = E every expert takes
# every token. An infinite c gives the same.
for c in (0.5, 1.0, 2.0, 3.0):
    assert expert_choice_router(z, c).experts_per_token.mean() == c
assert (expert_choice_router(z, math.inf).experts_per_token == E).all()
print("1. c, and at most E")

# 2. All weights are 1/g. Every expert gets the plain mean of the group, and all tokens
# get the same output: the sum of what the experts return, divided by g.
draws = np.random.default_rng(0)
params = {
    "up": draws.normal(size=(E, 4, 8)),
    "down": draws.normal(size=(E, 8, 4)),
    "router": draws.normal(size=(4, E)),
}
x = draws.normal(size=(T, 4))
found = mixture_of_tokens(params, x, math.inf).output
mean = x.mean(axis=0)
up, down = params["up"], params["down"]
expected = sum(expert_ffn(up[e], down[e], mean) for e in range(E)) / T
np.testing.assert_allclose(found, np.tile(expected, (T, 1)))
print("2. the same for all tokens of the group")

# 3. The outputs are swapped as well. A sum over the tokens of a group does not depend
# on their order.
order = [1, 0, 2, 3, 4, 5]
swapped = mixture_of_tokens(params, x[order]).output
np.testing.assert_allclose(swapped, mixture_of_tokens(params, x).output[order])
print("3. the outputs are swapped, and nothing else changes")

# 4. All experts. Each expert must take C = ceil(c / E) tokens, at least one, and there
# is one token.
for c in (0.5, 1.0, 2.0):
    alone = expert_choice_router(z[:1], c)
    assert alone.token.tolist() == [[0]] * E
print("4. every expert")
