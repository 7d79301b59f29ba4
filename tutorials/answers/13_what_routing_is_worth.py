"""Answers to the exercises of lesson 13."""

import numpy as np

from routelaws.reference.accounting import SIZES
from routelaws.reference.laws.routed import (
    RoutedCoefficients,
    effective_experts,
    effective_parameter_count,
    predict_loss,
    size_for_loss,
)

four = {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104}
law = RoutedCoefficients(**four, E_start=1.847, E_max=314.478)
sizes = {name: size.dense_parameters for name, size in SIZES.items()}

# 1. The first doubling gains more than the last, and both gain less than the doublings
# between. The gain depends on the ratio of the effective experts. At few experts
# E_start hides part of a doubling, and at many experts E_max hides part of it.
steps = {}
for few in 2 ** np.arange(1, 9):
    before, after = (
        effective_parameter_count(sizes["370M"], few * factor, law) for factor in (1, 2)
    )
    steps[int(few)] = float(after / before)
assert steps[2] > steps[256] and max(steps, key=steps.get) not in (2, 256)
shown = (f"{few} to {2 * few}: {step:.3f}" for few, step in steps.items())
print("1. worth of a doubling:", ", ".join(shown))

# 2. 1 / Ê = 1 / (E - 1 + s) + 1 / E_max. With Ê = 0.9 E_max the first term is (1/0.9 -
# 1) / E_max, so that E - 1 + s is nine times E_max. That is thousands of experts, far
# more than in any trained model: the last tenth is expensive.
s = 1 / (1 / law.E_start - 1 / law.E_max)
needed = 1 - s + 9 * law.E_max
np.testing.assert_allclose(
    effective_experts(needed, law.E_start, law.E_max), 0.9 * law.E_max
)
assert needed > 5 * 512
print(f"2. {needed:.0f} experts")

# 3. `size_for_loss` inverts the law. The factor between the two sizes is smaller than
# at the sizes of the lesson.
size = float(size_for_loss(64, predict_loss(5e9, 1, law), law))
np.testing.assert_allclose(effective_parameter_count(size, 64, law), 5e9)
assert sizes["1.3B"] < size < 5e9 / 2 and 5e9 / size < 3
print(f"3. {size / 1e9:.2f} billion parameters, a factor of {5e9 / size:.2f}")

# 4. It changes by nearly half, from one end to the other. Rounding in the third decimal
# matters, because c multiplies log N, which is about 9. In a fit the other numbers
# would move with c and compensate most of this. So the interval of lesson 13, section
# 7, is much narrower.
low, high = (
    effective_parameter_count(sizes["1.3B"], 64, law._replace(c=c))
    for c in (0.0095, 0.0085)
)
assert 1.2 < high / low < 3
print(
    f"4. from {low / 1e9:.2f} to {high / 1e9:.2f} billion parameters, "
    f"a factor of {high / low:.2f}"
)
