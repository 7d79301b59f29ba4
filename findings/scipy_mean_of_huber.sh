#!/usr/bin/env bash
# scipy 1.17.1: L-BFGS-B stops far from the optimum and reports success, if a law is fitted to the mean Huber loss.
#
# Hoffmann's law is fitted to log losses by a Huber loss with the threshold 0.001. Here are 64 points with noise of
# 0.3 %, and 36 starts. Sum and mean of the losses have the same optimum. From the mean, no start finds it, although
# all 36 report success. The best one has twice the objective, and the exponents 0.28 and 0.23 instead of 0.345 and
# 0.283. From the sum, 1 start finds it; from 1,000 times the sum, 19 do.
#
# Cause: the default limits are absolute for an objective below 1. `gtol` 1e-5 limits the gradient, and `ftol` 2.2e-9
# the decrease over max(objective, 1). The mean Huber loss is 2e-6 at the optimum. So multiply the objective, or lower
# both limits: with 1e-12 and 1e-15, 24 starts find the optimum of the mean.
#
# Seen with scipy 1.17.1 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile scipy==1.17.1 numpy==2.4.6
cat > "$folder/scale.py" <<'PYTHON'
import itertools

import numpy as np
from scipy.optimize import minimize

N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(2e9, 2e11, 8)))


def terms(p):
    """ln A - a ln N, ln B - b ln D and ln E of L = E + A N^-a + B D^-b; p = ln A, ln B, ln E, a, b."""
    return np.stack([p[0] - p[3] * np.log(N), p[1] - p[4] * np.log(D), np.full(N.size, p[2])])


truth = np.array([6.0, 6.0, 0.5, 0.34, 0.28])
log_losses = np.log(np.exp(terms(truth)).sum(0)) + np.random.default_rng(0).normal(0, 0.003, N.size)


def objective(p, scale):
    """The sum of the Huber losses times `scale`, and its gradient."""
    logs = terms(p)
    predicted = np.logaddexp.reduce(logs)
    residual, weights = predicted - log_losses, np.exp(logs - predicted)
    clipped = np.clip(residual, -1e-3, 1e-3)
    slopes = weights @ clipped
    gradient = [*slopes, -(weights[0] * clipped) @ np.log(N), -(weights[1] * clipped) @ np.log(D)]
    return scale * (clipped * (residual - clipped / 2)).sum(), scale * np.array(gradient)


starts = list(itertools.product((0, 5, 10), (0, 5, 10), (0,), (0.1, 0.5), (0.1, 0.5)))
low = dict(gtol=1e-12, ftol=1e-15)
fits = {}
for name, scale, limits in (
    ("mean", 1 / N.size, {}), ("sum", 1, {}), ("1,000 x sum", 1000, {}), ("mean", 1 / N.size, low),
):
    fits[f"{name} {limits}"] = [
        minimize(objective, start, (scale,), method="L-BFGS-B", jac=True, options=limits) for start in starts
    ]
optimum = min(objective(fit.x, 1)[0] for fit in fits["1,000 x sum {}"])
for name, found in fits.items():
    sums = np.array([objective(fit.x, 1)[0] for fit in found])
    best, right = found[sums.argmin()].x, (sums < 1.01 * optimum).sum()
    counts = "no start" if right == 0 else "1 to 5 starts" if right <= 5 else "more starts"
    print(
        f"{name}: {counts} of 36 near the optimum, best objective above 1.5 optima {sums.min() > 1.5 * optimum},"
        f" best exponents off by more than 0.02 {np.abs(best[3:] - (0.345, 0.283)).max() > 0.02}"
    )
print("mean {}: success from all starts", all(fit.success for fit in fits["mean {}"]))
PYTHON
seen=$("$folder/venv/bin/python" "$folder/scale.py" 2> "$folder/errors" || cat "$folder/errors")
right='best objective above 1.5 optima False, best exponents off by more than 0.02 False'
wanted="mean {}: no start of 36 near the optimum, ${right//False/True}
sum {}: 1 to 5 starts of 36 near the optimum, $right
1,000 x sum {}: more starts of 36 near the optimum, $right
mean {'gtol': 1e-12, 'ftol': 1e-15}: more starts of 36 near the optimum, $right
mean {}: success from all starts True"
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
