"""The stored answers of fits that are straight lines, and of intervals by Student's t: by numpy.linalg and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from routelaws.conformance.tests.checked import DOCUMENTS, agree
from routelaws.conformance.tests.test_checked_formulas import columns_of, of_accuracy

LOG10 = "mean squared difference of log10 losses"
LEAST_SQUARES = "half the sum of squared differences of ln(-ln Q')"
TEN = math.log(10)


def student(level: float, freedom: int) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))


def line(X: np.ndarray, y: np.ndarray):
    """Return the solution, its covariance with the residual variance of n - p, and the residuals."""
    beta = np.linalg.lstsq(X, y, rcond=None)[0]
    residual = y - X @ beta
    return beta, residual @ residual / (len(y) - X.shape[1]) * np.linalg.inv(X.T @ X), residual


def two(x: np.ndarray) -> np.ndarray:
    return np.stack([np.ones(len(x)), x], axis=1)


def report(residual: np.ndarray, covariance: np.ndarray, status: str = "interior") -> dict:
    mean = np.mean(residual**2)
    return {"objective": mean, "rmsle": mean**0.5, "status": status, "rows": len(residual), "criterion": LOG10,
            "covariance": covariance}  # fmt: skip


def dense(g) -> dict:
    x, y = np.log10(g["dense_parameters"]), np.log10(g["loss"])
    (level, slope), spread, residual = line(two(x), y)
    found = {"line.intercept": level, "line.slope": slope}
    if slope > 0:
        nothing = {"coefficients.alpha": np.nan, "coefficients.N_c": np.nan}
        return found | nothing | report(residual, np.full((2, 2), np.nan), "loss does not fall with size")
    size = 10 ** (-level / slope)
    turn = np.array([[0, -1], [-size * TEN / slope, size * TEN * level / slope**2]])  # of (α, N_c) by (level, slope)
    found |= {"coefficients.alpha": -slope, "coefficients.N_c": size}
    return found | report(residual, turn @ spread @ turn.T)


def per_size(g) -> dict:
    size, e, y = g["dense_parameters"], np.log10(g["num_experts"]), np.log10(g["loss"])
    lined = [n for n in np.unique(size) if len(np.unique(e[size == n])) > 1]
    fits = [np.linalg.lstsq(two(e[size == n])[:, ::-1], y[size == n], rcond=None)[0] for n in lined]
    residual = np.concatenate([y[size == n] - b * e[size == n] - d for n, (b, d) in zip(lined, fits, strict=True)])
    variance = residual @ residual / (len(residual) - 2 * len(lined))
    designs = [two(e[size == n])[:, ::-1] for n in lined]
    spread = np.array([variance * np.linalg.inv(X.T @ X) for X in designs])
    left = len(np.unique(size)) - len(lined)
    status = f"no line at {left} of {left + len(lined)} sizes" if left else "interior"
    found = {
        "coefficients.sizes": lined,
        "coefficients.b": [b for b, _ in fits],
        "coefficients.d": [d for _, d in fits],
    }
    return found | report(residual, spread, status)


def flat(kept: list[int]):
    def fit(g) -> dict:
        X = columns_of(None, g["dense_parameters"], g["num_experts"])[:, kept]
        beta, spread, residual = line(X, np.log10(g["loss"]))
        names = [f"coefficients.{'abcd'[i]}" for i in kept]
        return dict(zip(names, beta, strict=True)) | report(residual, spread)

    return fit


def compute(g) -> dict:
    x, floor = np.log(g["flops"]), g.get("floor", 0.0)
    y = np.log(g["loss"] - floor)
    (level, slope), spread, residual = line(two(x - x.mean()), y)
    A = math.exp(level - slope * x.mean())
    misses = np.log10((floor + A * g["flops"] ** slope) / g["loss"])
    return {"coefficients.floor": floor, "coefficients.A": A, "coefficients.alpha": -slope, "centre": x.mean(),
            "objective": np.mean(residual**2), "rmsle": np.mean(misses**2) ** 0.5, "rows": len(x),
            "status": "interior" if slope < 0 else "loss does not fall with compute",
            "covariance": np.diag(np.diag(spread)),
            "criterion": "mean squared difference of ln(L - floor)"}  # fmt: skip


def accuracy(g, columns, names, theta_of, gain) -> dict:
    """A line in ln(-ln Q'), of the rows above the guess rate and the gain."""
    guess = g.get("guess_rate", 0.0)
    used = (g["accuracy"] > guess + g.get("least_gain", gain)) & (g["accuracy"] < 1)
    share = (g["accuracy"][used] - guess) / (1 - guess)
    y = np.log(-np.log(share))
    theta, spread, residual = line(columns[used], y)
    misses = (np.exp(-np.exp(columns[used] @ theta)) - share) * (1 - guess)
    found = {f"coefficients.{name}": value for name, value in zip(names, theta_of(theta), strict=True)}
    return found | {"objective": residual @ residual / 2, "rmsle": np.mean(residual**2) ** 0.5 / TEN,
                    "rmse": np.mean(misses**2) ** 0.5, "status": "interior", "covariance": spread,
                    "rows": int(used.sum()), "used": used, "criterion": LEAST_SQUARES,
                    "guess_rate": guess}  # fmt: skip


def direct(g) -> dict:
    X = np.stack([np.ones(len(g["flops"])), -np.log(g["flops"])], axis=1)
    return accuracy(g, X, ("A", "alpha"), lambda t: (math.exp(t[0]), t[1]), 0.05)


def repeated(g) -> dict:
    x, y = np.log(g["flops"]), np.log(g["attempts"])
    X = np.stack([np.ones(len(x)), x, y, x * y], axis=1)
    return accuracy(g, X, ("c", "alpha", "beta", "delta"), tuple, 0.0)


FITS = {
    "laws.dense.fit_dense": dense,
    "laws.log_linear.fit_per_size": per_size,
    "laws.log_linear.fit_separable": flat([0, 1, 3]),
    "laws.log_linear.fit_bilinear": flat([0, 1, 2, 3]),
    "laws.compute.fit_compute": compute,
    "laws.downstream.fit_direct": direct,
    "laws.downstream.fit_repeated": repeated,
}


@pytest.mark.parametrize("name", FITS)
def test_fit(name):
    for case in DOCUMENTS[name]["cases"]:
        found = FITS[name](case["inputs"])
        assert set(found) == {check["output"] for check in case["checks"]}
        agree(found, case, "vectors.line_again", name)


def of_linear(name: str):
    """The columns of a linear law, its names, and what is asked of it."""
    if name == "dense":
        return lambda N: np.stack([-np.log10(N), np.ones(len(N))], axis=1)
    kept = {"separable": [0, 1, 3], "bilinear": [0, 1, 2, 3]}.get(name)
    return lambda N, E: columns_of(None, N, E)[:, kept]


def fieller(beta, covariance, top, bottom, quantile):
    """Return the ends of all r for which top·β - r bottom·β is not rejected (a quadratic), rising."""
    y, x = np.array(top, dtype=float), np.array(bottom, dtype=float)
    a = (x @ beta) ** 2 - quantile**2 * x @ covariance @ x
    b = (y @ beta) * (x @ beta) - quantile**2 * y @ covariance @ x
    c = (y @ beta) ** 2 - quantile**2 * y @ covariance @ y
    assert a > 0
    return sorted([(b - math.sqrt(b * b - a * c)) / a, (b + math.sqrt(b * b - a * c)) / a])


def solved(g, name):
    X = of_linear(name)(*g["columns"])
    beta, covariance, _ = line(X, np.log10(g["loss"]))
    return beta, covariance, student(g.get("level", 0.95), X.shape[0] - X.shape[1])


def linear_ranges(name, names):
    def found(g) -> dict:
        beta, covariance, q = solved(g, name)
        half = q * np.sqrt(np.diag(covariance))
        rows = [(each, b, b - h, b + h) for each, b, h in zip(names, beta, half, strict=True)]
        if name == "dense":
            rows[1] = ("N_c", 10 ** (beta[1] / beta[0]), *(10**r for r in fieller(beta, covariance, (0, 1), (1, 0), q)))
            if np.isnan(g["fit"].coefficients.alpha):
                rows = [(each, np.nan, np.nan, np.nan) for each in names]
        if name == "bilinear":
            low, high = fieller(beta, covariance, (0, -1, 0, 0), (0, 0, 1, 0), q)
            rows.append(("N_cutoff", 10 ** (-beta[1] / beta[2]), 10**low, 10**high))
        return listed(rows)

    return found


def listed(rows, words=None, at=None) -> dict:
    name, value, low, high = zip(*rows, strict=True)
    none = [None] * len(rows)
    return {"*.name": name, "*.value": value, "*.low": low, "*.high": high, "*.at": none if at is None else at,
            "*.words": [""] * len(rows) if words is None else words}  # fmt: skip


def lines_of_sizes(g) -> dict:
    N, E = g["columns"]
    sizes = np.unique(N)
    X = np.stack([part for n in sizes for part in (np.log10(E) * (n == N), 1.0 * (n == N))], axis=1)
    beta, covariance, _ = line(X, np.log10(g["loss"]))
    half = student(g.get("level", 0.95), len(N) - X.shape[1]) * np.sqrt(np.diag(covariance))
    order = [*range(0, 2 * len(sizes), 2), *range(1, 2 * len(sizes), 2)]
    rows = [("bd"[i % 2], beta[i], beta[i] - half[i], beta[i] + half[i]) for i in order]
    return listed(rows, at=[*sizes, *sizes])


def prediction(g) -> dict:
    name = g["design"].name.rpartition(".")[2].removesuffix("_design")
    N = g["columns"][0]
    columns = list(g["columns"])
    at = [np.array([value]) for value in g["at"]]
    if name == "per_size":  # its line alone, with the variance of all lines
        here = g["at"][0] == N
        X = two(np.log10(columns[1]))
        sizes = np.unique(N)
        squares = sum(np.sum(line(X[n == N], np.log10(g["loss"][n == N]))[2] ** 2) for n in sizes)
        freedom = len(N) - 2 * len(sizes)
        beta, _, _ = line(X[here], np.log10(g["loss"][here]))
        x = np.array([1.0, np.log10(g["at"][1])])
        spread = squares / freedom
        leverage = x @ np.linalg.inv(X[here].T @ X[here]) @ x
    else:
        X = of_linear(name)(*columns)
        freedom = len(N) - X.shape[1]
        beta, _, residual = line(X, np.log10(g["loss"]))
        x = of_linear(name)(*at)[0]
        spread = residual @ residual / freedom
        leverage = x @ np.linalg.inv(X.T @ X) @ x
    q = student(g.get("level", 0.95), freedom)
    return both(x @ beta, q * math.sqrt(spread * leverage), q * math.sqrt(spread * (1 + leverage)), lambda v: 10**v)


def both(value, law, run, out) -> dict:
    ends = {f"{name}.{i}": out(value + s * half) for name, half in (("law", law), ("run", run))
            for i, s in enumerate((-1, 1))}  # fmt: skip
    return {"value": out(value)} | ends


def of_compute(g, flops, level, run):
    """ln(L - floor) is k.A C^-α with errors of the level at the centre and of α."""
    fit = g["fit"]
    k, x = fit.coefficients, np.log(flops) - fit.centre
    variance = fit.covariance[0, 0] + x**2 * fit.covariance[1, 1] + run * fit.covariance[0, 0] * fit.rows
    reach = np.exp(student(level, fit.rows - 2) * np.sqrt(variance))
    above = k.A * flops**-k.alpha
    return k.floor + above / reach, k.floor + above * reach, k.floor + above


def compute_ends(g) -> dict:
    low, high, _ = of_compute(g, g["flops"], g.get("level", 0.95), g.get("observation", True))
    return {"0": low, "1": high}


def compute_prediction(g) -> dict:
    (low, high, value), (least, most, _) = (of_compute(g, g["at"][0], 0.95, run) for run in (False, True))
    return {"value": value, "law.0": low, "law.1": high, "run.0": least, "run.1": most}


def compute_ranges(g) -> dict:
    fit = g["fit"]
    q = student(g.get("level", 0.95), fit.rows - 2)
    k, (level, alpha) = fit.coefficients, np.diag(fit.covariance)
    reach, half = math.exp(q * math.sqrt(level + fit.centre**2 * alpha)), q * math.sqrt(alpha)
    return listed([("A", k.A, k.A / reach, k.A * reach), ("alpha", k.alpha, k.alpha - half, k.alpha + half)])


def turned(function, theta):
    """Return the derivatives of a function by central differences."""
    steps = np.eye(len(theta)) * 1e-5
    return np.stack([(function(theta + h) - function(theta - h)) / 2e-5 for h in steps], axis=-1)


def of_fit(fit):
    """Return what a fit of accuracies says in ln A, α, ... : names, values, and the variance of each."""
    k = fit.coefficients._asdict()
    if fit.status == "no ceiling is seen":
        k.pop("E")
    return list(k), np.array([math.log(v) if name in "ABE" else v for name, v in k.items()])


def accuracy_ends(fit, columns, level, run):
    names, theta = of_fit(fit)

    def log_surprise(values):
        k = dict(zip(names, values, strict=True))
        total = np.exp(k["A"]) * columns[0] ** -k["alpha"] + (math.exp(k["E"]) if "E" in k else 0)
        return np.log(total)

    turn = turned(log_surprise, theta)
    covariance = fit.covariance[: len(theta), : len(theta)]
    variance = np.einsum("...i,ij,...j", turn, covariance, turn)
    freedom = fit.rows - len(theta)
    variance = variance + run * 2 * fit.objective / freedom
    reach = student(level, freedom) * np.sqrt(variance)
    share = [np.exp(-np.exp(log_surprise(theta) + sign * reach)) for sign in (1, -1)]
    return [fit.guess_rate + (1 - fit.guess_rate) * each for each in share]


def accuracy_interval(g) -> dict:
    ends = accuracy_ends(g["fit"], g["*columns"], g.get("level", 0.95), g.get("observation", False))
    return dict(zip("01", ends, strict=True))


def accuracy_prediction(g) -> dict:
    fit, at = g["fit"], [np.array(value) for value in g["at"]]
    law, run = (accuracy_ends(fit, at, 0.95, each) for each in (False, True))
    return {"value": of_accuracy(fit.coefficients, at, fit.guess_rate), "law.0": law[0], "law.1": law[1],
            "run.0": run[0], "run.1": run[1]}  # fmt: skip


def accuracy_ranges(g) -> dict:
    fit, rows = g["fit"], []
    names, theta = of_fit(fit)
    q = student(0.95, fit.rows - len(theta))
    for name, value, variance in zip(names, theta, np.diag(fit.covariance), strict=False):
        ends = [value + s * q * math.sqrt(variance) for s in (-1, 1)]
        rows.append((name, *(np.exp([value, *ends]) if name in "ABE" else (value, *ends))))
    if len(names) < len(fit.coefficients):
        rows.append(("E", 0.0, np.nan, np.nan))
    return {key: part for key, part in listed(rows).items() if key != "*.words"}


def lever_gradient(k, A, G, C):
    def logarithm(theta):
        a, d, gamma, beta, start = theta
        saturation = 0.0 if math.isinf(k.A_max) else 1 / k.A_max
        offset = 1 / (1 / np.exp(start) - saturation)
        g = np.log2(G)
        return (a + d * np.log10(C) + beta * g + gamma * g**2) * np.log10(1 / (1 / (A + offset) + saturation))

    theta = np.array([*k[:4], math.log(k.A_start)])
    return logarithm(theta), turned(logarithm, theta)


def lever_ends(fit, A, G, C, level, run):
    value, turn = lever_gradient(fit.coefficients, A, G, C)
    variance = np.einsum("...i,ij,...j", turn, fit.covariance, turn) + run * fit.objective * fit.rows / (fit.rows - 5)
    reach = student(level, fit.rows - 5) * np.sqrt(variance)
    return 10 ** (value - reach), 10 ** (value + reach), 10**value


def lever_interval(g) -> dict:
    point = (g["activation"], g["tian_granularity"], g["flops"])
    return dict(
        zip("01", lever_ends(g["fit"], *point, g.get("level", 0.95), g.get("observation", False)), strict=False)
    )


def lever_prediction(g) -> dict:
    (low, high, value), (least, most, _) = (lever_ends(g["fit"], *g["at"], 0.95, run) for run in (False, True))
    return {"value": value, "law.0": low, "law.1": high, "run.0": least, "run.1": most}


def lever_ranges(g) -> dict:
    fit, rows = g["fit"], []
    q = student(g.get("level", 0.95), fit.rows - 5)
    for name, value, variance in zip(fit.coefficients._fields, fit.coefficients, np.diag(fit.covariance), strict=False):
        half = q * math.sqrt(variance)
        last = name == "A_start"
        rows.append((name, value, *((value / math.exp(half), value * math.exp(half)) if last else
                                    (value - half, value + half))))  # fmt: skip
    return {key: part for key, part in listed(rows).items() if key != "*.words"}


def jackknifed(value, folds, level):
    folds = np.asarray(folds, dtype=float)
    if len(folds) < 2:
        return np.nan, np.nan
    reach = student(level, len(folds) - 1) * math.sqrt((len(folds) - 1) * np.var(folds))
    return value - reach, value + reach


def dense_folds(g):
    """Return log10 L = level + slope x of all rows and without each size, and the residuals."""
    x, y = np.log10(g["columns"][0]), np.log10(g["loss"])
    kept = [x != one for one in np.unique(x)]
    return line(two(x), y), [line(two(x[rows]), y[rows])[0] for rows in kept]


def jackknife_ranges(g) -> dict:
    ((level, slope), _, _), folds = dense_folds(g)
    alpha = (-slope, [-s for _, s in folds])
    size = (10 ** (-level / slope), [10 ** (-v / s) for v, s in folds])
    rows = [(name, value, *jackknifed(value, parts, g.get("level", 0.95)))
            for name, (value, parts) in (("alpha", alpha), ("N_c", size))]  # fmt: skip
    return listed(rows)


def jackknife_prediction(g) -> dict:
    (beta, _, residual), folds = dense_folds(g)
    x = np.array([1.0, np.log10(g["at"][0])])
    low, high = jackknifed(x @ beta, [x @ fold for fold in folds], 0.95)
    variance = residual @ residual / (len(residual) - 2)
    run = math.hypot(high - x @ beta, student(0.95, len(folds) - 1) * math.sqrt(variance))
    return both(x @ beta, high - x @ beta, run, lambda v: 10**v)


def left_out(g, groups=None) -> dict:
    X, y = of_linear(g["law"].name)(*g["columns"]), np.log10(g["loss"])
    groups = np.arange(len(y)) if groups is None else groups
    errors = np.zeros(len(y))
    for one in np.unique(groups):
        out = groups == one
        errors[out] = X[out] @ np.linalg.lstsq(X[~out], y[~out], rcond=None)[0] - y[out]
    return {"errors": errors, "rmsle": np.mean(errors**2) ** 0.5, "predicted": len(y), "folds": len(np.unique(groups))}


def resampled(g) -> dict:
    X, y, points = of_linear("bilinear")(*g["columns"]), np.log10(g["loss"]), of_linear("bilinear")(*g["points"])
    found = []
    for weights in g["weights"]:
        root = np.sqrt(weights)
        beta, _, rank, _ = np.linalg.lstsq(X * root[:, None], y * root, rcond=None)
        found.append(10 ** (points @ beta) if rank == X.shape[1] else np.full(len(points), np.nan))
    return {"": np.array(found)}


INTERVALS = {
    "laws.linear_intervals.dense_intervals": linear_ranges("dense", ("alpha", "N_c")),
    "laws.linear_intervals.separable_intervals": linear_ranges("separable", "abd"),
    "laws.linear_intervals.bilinear_intervals": linear_ranges("bilinear", "abcd"),
    "laws.linear_intervals.per_size_intervals": lines_of_sizes,
    "laws.linear_intervals.linear_prediction": prediction,
    "laws.compute.predict_interval": compute_ends,
    "laws.compute.compute_intervals": compute_ranges,
    "laws.compute.compute_prediction": compute_prediction,
    "laws.downstream.predict_interval": accuracy_interval,
    "laws.accuracy.accuracy_prediction": accuracy_prediction,
    "laws.accuracy.accuracy_ranges": accuracy_ranges,
    "laws.leverage.predict_interval": lever_interval,
    "laws.leverage.leverage_prediction": lever_prediction,
    "laws.leverage.leverage_intervals": lever_ranges,
    "laws.intervals.jackknife_ends": lambda g: dict(
        zip("01", jackknifed(g["value"], g["folds"], g["level"]), strict=True)),
    "laws.intervals.jackknife_intervals": jackknife_ranges,
    "laws.intervals.jackknife_prediction": jackknife_prediction,
    "laws.held_out.leave_one_out": left_out,
    "laws.held_out.leave_one_group_out": lambda g: left_out(g, g["groups"]),
    "laws.choosing.resampled_losses": resampled,
}  # fmt: skip


@pytest.mark.parametrize("name", INTERVALS)
def test_interval(name):
    for case in DOCUMENTS[name]["cases"]:
        found = INTERVALS[name](case["inputs"])
        assert {check["output"] for check in case["checks"]} - set(found) <= {"*.words"}
        agree(found, case, "vectors.line_again", name)
