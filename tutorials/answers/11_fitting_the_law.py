"""Answers to the exercises of lesson 11."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lesson import fitted_runs
from routelaws.reference.accounting import SIZES
from routelaws.reference.laws import (
    BoundedFloorCoefficients,
    fit_floored,
    fit_routed,
    floored_cutoff,
    predict_floored,
)
from routelaws.reference.laws.routed import (
    RoutedCoefficients,
    cutoff,
    predict_loss,
)

four = {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104}
truth = RoutedCoefficients(**four, E_start=1.847, E_max=314.478)
sizes = [size.dense_parameters for size in SIZES.values()]
counts = [2**i for i in range(10)]
N, E = np.array([(size, count) for size in sizes for count in counts], float).T
noise = np.random.default_rng(0).normal(0, 0.003, N.size)
loss = predict_loss(N, E, truth) * 10**noise

# 1. The slope in log E_hat is b + c log N. It is 0 at N = 10 to the power -b/c. A
# change of c that rounding hides moves this size by half an order of magnitude or more,
# and the size is far above every trained size. So a law with three decimals does not
# determine this size.
sizes_of_no_gain = [cutoff(truth), cutoff(truth._replace(c=truth.c + 0.0005))]
assert 10 * max(sizes) < sizes_of_no_gain[1] < sizes_of_no_gain[0] / 3
print("1.", " and ".join(f"{size:.1e}" for size in sizes_of_no_gain), "parameters")

# 2. Most information about E_max is gone: the lines of the remaining rows hardly bend
# at many experts. The fitted number is far from the true one, although the law fits the
# remaining rows as well as before.
few = E <= 64
fit, all_rows = fit_routed(N[few], E[few], loss[few]), fit_routed(N, E, loss)
off, off_before = (
    abs(np.log(each.coefficients.E_max / truth.E_max)) for each in (fit, all_rows)
)
assert off > off_before and fit.rmsle < 1.2 * all_rows.rmsle
found = [round(each.coefficients.E_max) for each in (all_rows, fit)]
print(f"2. E_max {found[0]} from all rows, {found[1]} without those ({fit.status})")

# 3. Yes. The noise made the lowest point move along the valley.
exact = fit_routed(N, E, predict_loss(N, E, truth))
assert [f"{x:.3f}" for x in exact.coefficients] == [f"{x:.3f}" for x in truth]
print("3.", [round(number, 3) for number in exact.coefficients])

# 4. The same curve as for the real runs: the law without a floor is too low at the
# smallest and largest size and too high between them. Its cut-off is near 1e12, though
# the law that made the table has none below 1e40. So a cut-off of the fitted law shows
# that the floor is missing, and not that experts stop helping.
runs = fitted_runs("S-Base")
law = fit_floored(BoundedFloorCoefficients, *runs).coefficients
made = predict_floored(*runs[:2], law)
wrong = fit_routed(*runs[:2], made).coefficients
residuals = np.log10(made / predict_loss(*runs[:2], wrong))
means = np.array([residuals[runs[0] == size].mean() for size in sizes])
assert (means[[0, 5]] > 0.002).all() and (means[2:5] < 0).all()
assert cutoff(wrong) < 2e12 and floored_cutoff(law) > 1e40
print(
    "4. residuals", " ".join(f"{100 * (10**each - 1):+.2f} %" for each in means), end=""
)
print(f"; cut-off {cutoff(wrong):.0e} instead of {floored_cutoff(law):.0e}")
