"""Answers to the exercises of lesson 12."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lesson import needs
from routelaws.reference.accounting import SIZES
from routelaws.reference.laws import (
    BoundedFloorCoefficients,
    Quantity,
    predict_floored,
    student_quantile,
)
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

# 1. It is narrower, so it contains the truth less often than it claims. Student's
# quantile is larger than 2 because the scatter itself is estimated, from five numbers
# alone.
y = np.array([2.31, 2.28, 2.36, 2.30, 2.33])
error = y.std(ddof=1) / np.sqrt(5)
draws, kept = np.random.default_rng(0).normal(2.3, 0.03, (4000, 5)), []
for q in (2.0, student_quantile(0.95, 4)):
    half = q * draws.std(axis=1, ddof=1) / np.sqrt(5)
    kept.append(np.mean(abs(draws.mean(axis=1) - 2.3) <= half))
    low, high = y.mean() - q * error, y.mean() + q * error
    print(f"1. q = {q:.3f}: from {low:.3f} to {high:.3f}, coverage {kept[-1]:.1%}")
assert kept[0] < 0.91 < kept[1]

needs()
from routelaws.accelerated.laws import profile_intervals

four = {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104}
truth = RoutedCoefficients(**four, E_start=1.847, E_max=314.478)
sizes = [size.dense_parameters for size in SIZES.values()]
counts = [2**i for i in range(10)]
N, E = np.array([(size, count) for size in sizes for count in counts], float).T
exact = predict_loss(N, E, truth)
noise = np.random.default_rng(0).normal(0, 0.003, N.size)
asked = [Quantity("N_cutoff"), Quantity("slope", N=sizes[3])]


def widths(rows, scatter):
    """Return high / low of the cut-off, and high - low of the slope."""
    loss = exact * 10 ** (scatter * noise)
    cut, slope = profile_intervals(N[rows], E[rows], loss[rows], asked)
    return cut.high / cut.low, slope.high - slope.low


# 2. Both shrink. The interval of the slope shrinks to about a third. The interval of
# the cut-off also shrinks to about a third, as a power of ten, so the factor between
# its ends becomes about its own cube root.
before, after = widths(N > 0, 1.0), widths(N > 0, 1 / 3)
assert after[1] < 0.5 * before[1] and after[0] < before[0] ** 0.5
print(
    f"2. cut-off: a factor of {before[0]:.0f} becomes {after[0]:.1f}; slope: "
    f"{before[1]:.4f} becomes {after[1]:.4f}"
)

# 3. Both intervals become wider, the cut-off's interval more. The sizes span a shorter
# range, so the change of the slope with size is less certain, and the cut-off is
# further away.
fewer = widths(sizes[5] > N, 1.0)
assert fewer[0] > before[0] and fewer[1] > before[1]
print(f"3. cut-off: a factor of {fewer[0]:.0f}; slope: {fewer[1]:.4f}")

# 4. None. The true loss is above all intervals, because a law without a floor falls too
# far beyond the largest size. The intervals are right about the errors that they know.
floored = BoundedFloorCoefficients(-0.177, -0.112, 0.0024, 1.555, 2.6, 295.0, 1.444)
asked = [Quantity("prediction", N=1e10, E=64)]
true, draws, above = predict_floored(1e10, 64, floored), np.random.default_rng(0), 0
for _ in range(40):
    loss = predict_floored(N, E, floored) * 10 ** draws.normal(0, 0.003, N.size)
    [interval] = profile_intervals(N, E, loss, asked)
    above += true > interval.high
assert above == 40
print(f"4. the truth is above {above} of 40 intervals; the last ends at", end=" ")
print(f"{interval.high:.3f}, and the true loss is {true:.3f}")
