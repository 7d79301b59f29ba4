"""Answers to the exercises of lesson 14."""

import numpy as np

from routelaws.reference.laws import (
    Budget,
    fine_grained,
    hoffmann,
    hoffmann_optimum,
    joint,
    joint_optimum,
)

refit = hoffmann.PUBLISHED["besiroglu"].coefficients
printed = hoffmann.PUBLISHED["hoffmann"].coefficients

# 1. They do not. The refit stays near twenty, since its two exponents are nearly alike.
# With the printed coefficients D rises faster than N: at the larger budget they need
# four times as many tokens per parameter as the refit.
ratios = {}
for name, law in (("refit", refit), ("printed", printed)):
    best = [hoffmann_optimum(flops, law) for flops in (1e21, 1e25)]
    ratios[name] = [each.tokens / each.parameters for each in best]
    small, large = ratios[name]
    print(f"1. {name}: {small:.0f} and {large:.0f} tokens per parameter")
assert max(ratios["refit"]) < 25 and ratios["printed"][1] > 4 * ratios["refit"][1]

# 2. Very little, because the loss is flat around the lowest point. So you need not meet
# the best size exactly: a smaller model is cheaper to use and hardly worse.
best = hoffmann_optimum(1e21, refit)
for factor in (0.5, 2.0):
    size = factor * best.parameters
    extra = float(hoffmann.predict_hoffmann(size, 1e21 / (6 * size), refit)) - best.loss
    print(f"2. {factor} of the best size: {extra:.4f} nats more")
    assert 0 < extra < 0.02

# 3. It becomes smaller, because a token of inference costs in proportion to the active
# parameters. The loss is higher, as fewer FLOPs are left for training.
law = joint.PUBLISHED["joint"].coefficients
without, with_use = (
    joint_optimum(Budget(1e22, inference_tokens=tokens), 8, law)
    for tokens in (0.0, 1e12)
)
spent = with_use.active_parameters * (6 * with_use.tokens + 2 * 1e12)
np.testing.assert_allclose(spent, 1e22)
assert with_use.active_parameters < without.active_parameters / 2
assert with_use.loss > without.loss
print(
    f"3. {without.active_parameters:.2e} active parameters without use, "
    f"{with_use.active_parameters:.2e} with it"
)

# 4. They are equal if 14 d E G = 72 d², so G = 72 d/(14 E): it is proportional to the
# width.
for d in (1024, 4096):
    granularity = 72 * d / (14 * 64)
    flops = fine_grained.fine_grained_flops(d, 64, granularity)
    np.testing.assert_allclose(flops, 2 * 72 * d**3 / 64)
    print(f"4. width {d}: granularity {granularity:.0f}")
