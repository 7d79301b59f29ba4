#!/usr/bin/env bash
# lmfit 1.3.4: a floor that starts at its bound 0 stays there with six methods, and the fit reports success.
#
# The law is L = A N^-a + c with a bound c >= 0, and the points have no noise. A fit from c = 0, "no floor yet", ends at
# c = 0 with the exponent 0.13, where the truth is c = 1.7 and 0.34. `success` is True. It happens with nelder, lbfgsb,
# bfgs, cg, slsqp and tnc. From c = 0.1 the same six find the truth. leastsq, least_squares and powell find it from
# both starts. iminuit and SciPy's own L-BFGS-B find it from c = 0, too.
#
# Cause: lmfit replaces a bounded parameter by another one, with c = sqrt(x^2 + 1) - 1 here. At x = 0 the slope of c is
# 0, so no gradient moves it, and the first simplex of nelder is too small to. Start off the bound.
#
# Seen with lmfit 1.3.4, scipy 1.17.1, numpy 2.4.6 and iminuit 2.33.0 on Python 3.11. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile lmfit==1.3.4 scipy==1.17.1 numpy==2.4.6 iminuit==2.33.0
cat > "$folder/floor.py" <<'PYTHON'
import lmfit
import numpy as np
from iminuit import Minuit
from iminuit.cost import LeastSquares
from scipy.optimize import minimize

N = np.geomspace(1e6, 1e10, 12)
law = lambda N, A, a, c: A * N**-a + c
losses = law(N, 400.0, 0.34, 1.7)


def report(name, start, success, a, c):
    right = abs(c - 1.7) < 0.05 and abs(a - 0.34) < 0.01
    print(f"{name} from c = {start}: success {success}, {'right' if right else f'c = {c:.2f}, a = {a:.2f}'}")


for method in ("nelder", "lbfgsb", "bfgs", "cg", "slsqp", "tnc", "leastsq", "least_squares", "powell"):
    for start in (0, 0.1):
        bounds = dict(A=dict(value=100, min=0), a=dict(value=0.3, min=0, max=1), c=dict(value=start, min=0))
        parameters = lmfit.create_params(**bounds)
        fit = lmfit.minimize(lambda p: law(N, **p.valuesdict()) - losses, parameters, method=method)
        report(method, start, fit.success, fit.params["a"].value, fit.params["c"].value)
limits = [(0, None), (0, 1), (0, None)]
minuit = Minuit(LeastSquares(N, losses, 0.01, law), A=100, a=0.3, c=0)
minuit.limits = limits
minuit.migrad()
report("iminuit", 0, minuit.valid, minuit.values["a"], minuit.values["c"])
fit = minimize(
    lambda p: np.square(law(N, *p) - losses).sum(), (100, 0.3, 0), method="L-BFGS-B", bounds=limits,
    options=dict(ftol=1e-15, gtol=1e-10, maxiter=10000, maxfun=100000),
)
report("SciPy's L-BFGS-B", 0, fit.success, fit.x[1], fit.x[2])
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/floor.py" 2> "$folder/errors" || cat "$folder/errors")
wanted=$(for method in nelder lbfgsb bfgs cg slsqp tnc; do
  echo "$method from c = 0: success True, c = 0.00, a = 0.13"
  echo "$method from c = 0.1: success True, right"
done
for row in "leastsq 0" "leastsq 0.1" "least_squares 0" "least_squares 0.1" "powell 0" "powell 0.1" "iminuit 0" \
  "SciPy's L-BFGS-B 0"; do
  echo "${row% *} from c = ${row##* }: success True, right"
done)
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
