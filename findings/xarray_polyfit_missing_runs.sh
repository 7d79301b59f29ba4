#!/usr/bin/env bash
# xarray 2026.9.0: `polyfit(cov=True)` counts missing runs as points, so the standard error of an exponent is too small.
#
# A table of log losses [router, size] has NaN where a router has no run. `polyfit` along the sizes skips them, and its
# exponents are right. Here, one router has all 9 sizes, and the other one lacks the 4 largest. Over 1,000 draws of the
# noise, the standard error of the first is 0.97 times the spread of its exponent. That of the second is 0.27 times the
# spread, so its 95 % interval holds the truth in 52 % of draws. The router with fewer runs looks as well measured as
# the other one. The same happens to a router alone, and with `skipna=True`. Nothing warns.
#
# Cause: the covariance is that of all 9 sizes, times the sum of the squared residuals over 9 - 2. The documentation says
# that `polyfit` does as NumPy does, and skips invalid values. `dropna` along the sizes before `polyfit` gives the right
# error, one router at a time. So does `curvefit` with a line, for all routers at once.
#
# Seen with xarray 2026.9.0, scipy 1.17.1 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile xarray==2026.9.0 scipy==1.17.1 numpy==2.4.6
cat > "$folder/exponents.py" <<'PYTHON'
import numpy as np
import scipy.stats
import xarray as xr

random = np.random.default_rng(0)
truth, start = -0.05, {"level": 1.0, "slope": 0.0}
log_n = np.linspace(-2, 2, 9)  # log10 of the size, centred


def line(x, level, slope):
    return level + slope * x


def polyfit(table, **options):
    return table.polyfit("log_n", 1, cov=True, **options).polyfit_covariance[0, 0]


slopes, variances = [], {}
for draw in range(1000):
    losses = 1 + truth * log_n + random.normal(0, 0.003, (2, 9))
    losses[1, 5:] = np.nan
    table = xr.DataArray(losses, dims=("router", "log_n"), coords={"log_n": log_n})
    slopes.append(table.polyfit("log_n", 1).polyfit_coefficients.sel(degree=1))
    found = {
        "polyfit, 9 runs": polyfit(table)[0],
        "polyfit, 5 runs": polyfit(table)[1],
        "polyfit, 5 runs, skipna": polyfit(table[1], skipna=True),
        "polyfit, 5 runs, dropna": polyfit(table[1].dropna("log_n")),
    }
    best, covariance = np.polyfit(log_n[:5], losses[1, :5], 1, cov=True)
    assert np.isclose(slopes[-1][1], best[0]) and np.isclose(found["polyfit, 5 runs, dropna"], covariance[0, 0])
    if draw < 20:
        fit = table.curvefit("log_n", line, p0=start)
        assert np.isclose(fit.curvefit_covariance[1, 1, 1], covariance[0, 0], rtol=1e-4)
    for name, variance in found.items():
        variances.setdefault(name, []).append(float(variance))
slopes = np.array(slopes)
for name, values in variances.items():
    router, runs = (0, 9) if "9 runs" in name else (1, 5)
    errors = np.sqrt(values)
    ratio = np.sqrt(np.mean(values)) / slopes[:, router].std()
    reach = scipy.stats.t.ppf(0.975, runs - 2) * errors
    held = np.mean(abs(slopes[:, router] - truth) < reach)
    print(f"{name}: standard error over spread {ratio:.2f}, 95 % interval holds the truth in {held:.0%}")
PYTHON
seen=$("$folder/venv/bin/python" "$folder/exponents.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='polyfit, 9 runs: standard error over spread 0.97, 95 % interval holds the truth in 95%
polyfit, 5 runs: standard error over spread 0.27, 95 % interval holds the truth in 52%
polyfit, 5 runs, skipna: standard error over spread 0.27, 95 % interval holds the truth in 52%
polyfit, 5 runs, dropna: standard error over spread 0.99, 95 % interval holds the truth in 95%'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
