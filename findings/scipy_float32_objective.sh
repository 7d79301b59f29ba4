#!/usr/bin/env bash
# scipy 1.17.1: `minimize` of an objective in JAX returns its start and reports success. `least_squares` finds the law.
#
# JAX computes in float32 by default. Without a gradient, five methods of `minimize` return the start of a fit of
# 25 losses without noise, with the exponents 0.5 and 0.5, where the truth is 0.34 and 0.28. `success` is True. A search
# from a grid of starts, as for Chinchilla's law, then returns the best point of the grid. `least_squares` finds the truth
# with the same float32 function, and so does BFGS with the gradient of JAX, or with JAX in float64.
#
# Cause: both make the slopes from differences. `least_squares` takes a step that suits the type of the residuals. The
# default step of `minimize` suits float64: it is 1e-8 or 1.5e-8. In float32 the objective does not change over this step,
# so all slopes are 0. Issue 17636 of scipy reports it. The documents name the loss of precision for BFGS, as an error.
#
# Seen with scipy 1.17.1, jax 0.10.2 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile scipy==1.17.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/fit.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares, minimize

N, D = (values.ravel() for values in np.meshgrid(np.geomspace(1e8, 1e10, 5), np.geomspace(2e9, 2e11, 5)))
log_n, log_d, log_loss = np.log(N), np.log(D), np.log(1.69 + 406.4 / N**0.34 + 410.7 / D**0.28)
start = np.array([5.0, 5.0, 0.5, 0.5, 0.5])


@jax.jit
def residuals(x):
    a, b, e, alpha, beta = x
    terms = jnp.stack([a - alpha * log_n, b - beta * log_d, jnp.full(N.shape, e)])
    return jax.nn.logsumexp(terms, axis=0) - log_loss


@jax.jit
def objective(x):
    return jnp.square(residuals(x)).sum()


def describe(title, fit):
    where = "at the start" if np.array_equal(fit.x, start) else f"exponents {fit.x[3]:.2f} and {fit.x[4]:.2f}"
    print(f"{title}, {objective(start).dtype}: success {fit.success}, {where}")


for method in ("BFGS", "L-BFGS-B", "CG", "TNC", "SLSQP"):
    describe(method, minimize(objective, start, method=method))
fit = minimize(objective, start, method="BFGS", jac=jax.jit(jax.grad(objective)), options=dict(gtol=1e-4))
describe("BFGS with the gradient", fit)
describe("least_squares", least_squares(residuals, start))
jax.config.update("jax_enable_x64", True)
jax.clear_caches()
describe("BFGS", minimize(objective, start, method="BFGS"))
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/fit.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='BFGS, float32: success True, at the start
L-BFGS-B, float32: success True, at the start
CG, float32: success True, at the start
TNC, float32: success True, at the start
SLSQP, float32: success True, at the start
BFGS with the gradient, float32: success True, exponents 0.34 and 0.28
least_squares, float32: success True, exponents 0.34 and 0.28
BFGS, float64: success True, exponents 0.34 and 0.28'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
