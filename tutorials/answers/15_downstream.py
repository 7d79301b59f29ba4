"""Answers to the exercises of lesson 15."""

import numpy as np

from routelaws.reference.laws import fit_ceiling
from routelaws.reference.laws.tasks.downstream import (
    CeilingCoefficients,
    DirectCoefficients,
    RepeatedCoefficients,
    fit_direct,
    normalise,
    predict_accuracy,
    predict_interval,
)

truth, guess_rate, asked = DirectCoefficients(A=12000.0, alpha=0.2), 0.25, 2000
C = 10 ** np.linspace(18, 22, 17)
small, large = C <= 1.1e20, C > 1.1e20
Q_true = predict_accuracy(truth, C, guess_rate=guess_rate)
Q = np.random.default_rng(0).binomial(asked, Q_true) / asked

# 1. Take the guesses out. With two choices a guess is right one time in two, with four
# choices one time in four. So the model knows more of the quiz with four choices,
# though its accuracy there is lower.
two, four = float(normalise(0.7, 1 / 2)), float(normalise(0.6, 1 / 4))
assert two < four
print(f"1. it knows {two:.3f} of the quiz with two choices", end=" ")
print(f"and {four:.3f} of the quiz with four")

# 2. The accuracy above guessing is multiplied by 0.95, so its surprise falls to E = -ln
# 0.95 and not to 0. The law with a ceiling recovers this exactly, because the table has
# no noise. The direct law has no ceiling. Below the cut it fits well: it hides E in a
# slope that is slightly flatter than the true one. Above the cut it predicts more than
# the largest runs reach, and for much larger runs more than any run can reach.
spoilt = 0.95 * (Q_true - guess_rate) + guess_rate
direct = fit_direct(C[small], spoilt[small], guess_rate).coefficients
ceiling = fit_ceiling(C[small], spoilt[small], guess_rate).coefficients
off = [
    np.abs(predict_accuracy(law, C[large], guess_rate=guess_rate) - spoilt[large]).max()
    for law in (direct, ceiling)
]
np.testing.assert_allclose(
    ceiling, CeilingCoefficients(*truth, -np.log(0.95)), rtol=1e-6
)
assert off[1] < off[0] / 1000 and direct.alpha < truth.alpha
assert predict_accuracy(direct, C[-1], guess_rate=guess_rate) > spoilt[-1]
assert (
    predict_accuracy(direct, 1e28, guess_rate=guess_rate)
    > 0.95 * (1 - guess_rate) + guess_rate
)
print(
    f"2. largest errors: direct {off[0]:.4f}, with a ceiling {off[1]:.4f}; "
    f"ceiling of Q' {np.exp(-ceiling.E):.4f}"
)

# 3. The interval grows with the distance from the runs that were fitted. Both hold the
# truth here; on average 95 of a hundred such intervals do.
fit = fit_direct(C[small], Q[small], guess_rate)
widths = []
for far in (1e21, 1e22):
    low, high = predict_interval(fit, far)
    assert low < predict_accuracy(truth, far, guess_rate=guess_rate) < high
    widths.append(high - low)
    print(f"3. {far:.0e} FLOPs: from {low:.3f} to {high:.3f}")
assert widths[0] < widths[1]

# 4. Find the k where pass@k at a tenth of the compute reaches pass@1 at the full
# compute. At k = 1 the logarithm is c + alpha ln C; with a tenth of C it is larger by
# -alpha ln 10. Each unit of ln k changes it by beta + delta ln C, which is below 0
# here. Divide. Larger models gain more from each attempt, so they need fewer attempts.
law = RepeatedCoefficients(c=9.0, alpha=-0.18, beta=0.9, delta=-0.025)
attempts = []
for whole in (1e20, 1e21, 1e22):
    k = np.exp(law.alpha * np.log(10) / (law.beta + law.delta * np.log(whole / 10)))
    np.testing.assert_allclose(
        predict_accuracy(law, whole / 10, k), predict_accuracy(law, whole, 1.0)
    )
    attempts.append(float(k))
    print(f"4. one attempt at {whole:.0e} FLOPs is worth {k:.1f} at a tenth")
assert attempts == sorted(attempts, reverse=True)
