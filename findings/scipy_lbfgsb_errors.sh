#!/usr/bin/env bash
# scipy 1.17.1: standard errors from `hess_inv` of L-BFGS-B are 40 to 3,000 times too large, at the right optimum.
#
# The inverse of the Hessian of a negative log-likelihood is the covariance of the coefficients, and `minimize` returns
# `hess_inv`. Here, a law is fitted to 64 losses with known noise by L-BFGS-B with the exact gradient. The fit reports
# success and reaches the optimum. But its standard errors depend on the start. From two starts, they are 40 to 3,000
# times the spread of the coefficients over 200 draws of the noise. From the optimum, each of them is 1. `hess_inv` of
# BFGS is right from the two starts, and is the identity from the optimum. The errors of `curve_fit` are right.
#
# Cause: L-BFGS-B puts its last ten steps into the identity. The curvatures of this law differ by a factor of 5 million,
# so the steps do not correct every direction. In coordinates with equal curvatures, the errors are right. The documents
# say that `hess_inv` "may be an approximation".
#
# Seen with scipy 1.17.1 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile scipy==1.17.1 numpy==2.4.6
cat > "$folder/errors.py" <<'PYTHON'
import numpy as np
from scipy.optimize import curve_fit, minimize

N, D = (values.ravel() for values in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(2e9, 2e11, 8)))
truth = np.array([np.log(406.4), np.log(410.7), np.log(1.69), 0.34, 0.28])
noise, random = 0.01, np.random.default_rng(0)


def law(_, a, b, e, alpha, beta):
    return np.exp(a) / N**alpha + np.exp(b) / D**beta + np.exp(e)


def slopes(_, a, b, e, alpha, beta):
    first, second = np.exp(a) / N**alpha, np.exp(b) / D**beta
    return np.stack([first, second, np.full(N.shape, np.exp(e)), -np.log(N) * first, -np.log(D) * second], axis=1)


draws = [law(None, *truth) + random.normal(0, noise, N.size) for _ in range(200)]
options = dict(sigma=np.full(N.shape, noise), absolute_sigma=True, jac=slopes, ftol=1e-14, xtol=1e-14)
fits = [curve_fit(law, N, losses, truth, **options) for losses in draws]
spread = np.std([coefficients for coefficients, _ in fits], axis=0)
best, covariance = fits[0]


def objective(x):
    """The negative logarithm of the likelihood of the first draw, and its gradient."""
    residuals = (law(None, *x) - draws[0]) / noise
    return residuals @ residuals / 2, slopes(None, *x).T @ residuals / noise


def describe(title, covariance):
    errors = np.sqrt(np.diag(covariance))
    ratios = errors / spread
    if np.allclose(errors, 1):
        text = "all 1"
    elif ratios.min() > 10:
        text = "more than 10 times too large"
    else:
        text = "right" if np.abs(ratios - 1).max() < 0.2 else f"{ratios.min():.1f} to {ratios.max():.1f} times the spread"
    print(f"{title}: standard errors {text}")


describe("curve_fit", covariance)
starts = {"afar": np.array([7, 7, 0.7, 0.4, 0.3]), "the truth": truth, "the optimum": best}
for method in ("BFGS", "L-BFGS-B"):
    for name, start in starts.items():
        fit = minimize(objective, start, jac=True, method=method, options=dict(gtol=0.01))
        distance = np.max(np.abs(fit.x - best) / spread)
        assert fit.success and distance < 0.1, (fit, distance)
        describe(f"{method} from {name}", fit.hess_inv if method == "BFGS" else fit.hess_inv.todense())

scale = np.linalg.cholesky(covariance)


def scaled(z):
    """The objective in coordinates in which all curvatures are 1."""
    value, gradient = objective(best + scale @ z)
    return value, scale.T @ gradient


fit = minimize(scaled, np.linalg.solve(scale, truth - best), jac=True, method="L-BFGS-B")
describe("L-BFGS-B from the truth, scaled", scale @ fit.hess_inv.todense() @ scale.T)
PYTHON
seen=$("$folder/venv/bin/python" "$folder/errors.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='curve_fit: standard errors right
BFGS from afar: standard errors right
BFGS from the truth: standard errors right
BFGS from the optimum: standard errors all 1
L-BFGS-B from afar: standard errors more than 10 times too large
L-BFGS-B from the truth: standard errors more than 10 times too large
L-BFGS-B from the optimum: standard errors all 1
L-BFGS-B from the truth, scaled: standard errors right'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
