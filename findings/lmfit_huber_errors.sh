#!/usr/bin/env bash
# lmfit 1.3.4: the standard errors of a Huber fit are several times too large; those of SciPy's curve_fit are right.
#
# Laws are fitted to log losses by a Huber loss with the threshold 0.001. lmfit passes `loss="huber"` and `f_scale` to
# SciPy, and finds the same optimum as `curve_fit`. But with residuals of 0.01, its `stderr` is 2.7 times the spread of
# the slope over 100 draws of the noise. The factor grows with the noise. It does not show in the fit report.
#
# Cause: SciPy returns a Jacobian in which points beyond the threshold have almost no weight. lmfit inverts its square,
# then multiplies by the mean square of all residuals, which has these points in full. `curve_fit` multiplies by the
# Huber loss instead, and the two effects cancel.
#
# Seen with lmfit 1.3.4, scipy 1.17.1 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet lmfit==1.3.4 scipy==1.17.1 numpy==2.4.6
cat > "$folder/huber.py" <<'PYTHON'
import lmfit
import numpy as np
from scipy.optimize import curve_fit

log_n = np.linspace(-3, 3, 240)  # log parameters, centred; log loss = 1 - 0.1 log_n + noise
huber = dict(loss="huber", f_scale=1e-3, xtol=1e-12, ftol=1e-12, gtol=1e-12)
for noise in (0.001, 0.003, 0.01, 0.02):
    random, slopes, errors = np.random.default_rng(0), [], []
    for _ in range(100):
        log_loss = 1 - 0.1 * log_n + random.normal(0, noise, log_n.size)
        fit = lmfit.models.LinearModel().fit(
            log_loss, x=log_n, slope=0, intercept=1, method="least_squares", fit_kws=huber
        )
        best, covariance = curve_fit(lambda x, a, b: a + b * x, log_n, log_loss, (1, 0), method="trf", **huber)
        assert abs(fit.params["slope"].value - best[1]) < 1e-6
        slopes.append(best[1])
        errors.append((fit.params["slope"].stderr, covariance[1, 1] ** 0.5))
    lmfit_ratio, scipy_ratio = np.median(errors, 0) / np.std(slopes)
    print(f"noise {noise}: standard error over spread: lmfit {lmfit_ratio:.1f}, curve_fit {scipy_ratio:.1f}")
PYTHON
seen=$("$folder/venv/bin/python" "$folder/huber.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='noise 0.001: standard error over spread: lmfit 1.2, curve_fit 1.1
noise 0.003: standard error over spread: lmfit 1.6, curve_fit 1.1
noise 0.01: standard error over spread: lmfit 2.7, curve_fit 1.1
noise 0.02: standard error over spread: lmfit 3.7, curve_fit 1.0'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
