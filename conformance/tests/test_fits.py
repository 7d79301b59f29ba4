"""Repeat the stored fits of the vectors by numpy.linalg and SciPy.

The test has its own formula of every law. A search starts at the law of the table. A fit is least squares of its
residuals, or the sum of Huber terms (SciPy's loss "huber" with scale delta).
"""

import math

import numpy as np
import pytest
from scipy import optimize

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.tests.checked import DOCUMENTS, agree, stored
from routelaws.conformance.tests.test_formulas import (
    Published,
    columns_of,
    effective,
    fine,
    first,
    hoffmann,
    joint,
    kaplan,
    second,
    sparse,
)
from routelaws.conformance.vectors import law_cases

TEN = math.log(10)
EXACT = dict(xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=2000)


# Straight lines.

LOG10 = "mean squared difference of log10 losses"
LEAST_SQUARES = "half the sum of squared differences of ln(-ln Q')"


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
    """Fit a line in ln(-ln Q') to the rows above the guess rate plus the gain."""
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


LINES = {
    "laws.dense.fit_dense": dense,
    "laws.log_linear.fit_per_size": per_size,
    "laws.log_linear.fit_separable": flat([0, 1, 3]),
    "laws.log_linear.fit_bilinear": flat([0, 1, 2, 3]),
    "laws.compute.fit_compute": compute,
    "laws.downstream.fit_direct": direct,
    "laws.downstream.fit_repeated": repeated,
}


# Searches.


def search(residuals, start, huber=None):
    """Return the unknowns with the least sum (half the sum of squares, or Huber's) and the derivatives there."""
    how = {} if huber is None else dict(loss="huber", f_scale=huber)
    found = optimize.least_squares(residuals, start, x_scale=np.maximum(np.abs(start), 1e-2), **how, **EXACT)
    again = optimize.least_squares(residuals, found.x, x_scale=np.maximum(np.abs(found.x), 1e-2), **how, **EXACT)
    steps = 1e-5 * np.maximum(np.abs(again.x), 1e-2)
    J = [(residuals(again.x + h) - residuals(again.x - h)) / (2 * h.max()) for h in np.diag(steps)]
    return again.x, again.cost, np.stack(J, axis=1)


def covariance(J, residual, turn, huber=None):
    """Return the residual variance of n - p times (JᵀJ)⁻¹ of the coefficients; for Huber see Huber (1981, 7.6)."""
    n, p = J.shape
    delta = math.inf if huber is None else huber
    inside = np.mean(np.abs(residual) <= delta)
    widening = (1 + p / n * (1 - inside) / inside) / inside
    variance = np.sum(np.clip(residual, -delta, delta) ** 2) / (n - p) * widening**2
    return variance * np.outer(turn, turn) * np.linalg.inv(J.T @ J)


def additive(function, columns, logged, begin):
    """Return the check of a law in ln L. The search uses logarithms of the coefficients `logged`."""

    def fit(g):
        return fitted(function, [g[name] for name in columns], g["loss"], logged, begin._asdict(), g.get("huber", 1e-3))

    return fit


def fitted(function, given, loss, logged, begin, huber):
    names = list(begin)
    in_logs = np.array([name in logged for name in names])

    def coefficients(theta):
        return Published(**dict(zip(names, np.where(in_logs, np.exp(np.where(in_logs, theta, 0)), theta), strict=True)))

    def residuals(theta):
        return np.log(function(coefficients(theta), *given) / loss)

    values = np.array(list(begin.values()))
    theta, cost, J = search(residuals, np.where(in_logs, np.log(np.abs(values)), values), huber)
    k, residual = coefficients(theta), residuals(theta)
    found = np.array([getattr(k, name) for name in names])
    spread = covariance(J, residual, np.where(in_logs, found, 1.0), huber)
    words = "half the sum of squared differences of ln losses" if huber is None else (
        f"sum of Huber terms of ln losses, delta = {huber:g}")  # fmt: skip
    return {f"coefficients.{name}": value for name, value in zip(names, found, strict=True)} | {
        "objective": cost, "rmsle": np.mean(residual**2) ** 0.5 / TEN, "covariance": spread, "rows": len(loss),
        "criterion": words, "status": "interior"}  # fmt: skip


def leverage_fit(g):
    A, G, C = g["activation"], np.log2(g["tian_granularity"]), np.log10(g["flops"])
    limit = g.get("A_max", math.inf)

    def residuals(theta):
        power = theta[0] + theta[1] * C + theta[2] * G**2 + theta[3] * G
        return power * np.log10(effective(A, math.exp(theta[4]), limit)) - np.log10(g["leverage"])

    theta, cost, J = search(residuals, np.array([1.25, -0.078125, 0.015625, -0.125, math.log(0.015625)]))
    mean = 2 * cost / len(A)
    names = ("a", "d", "gamma", "beta", "A_start", "A_max")
    values = [*theta[:4], math.exp(theta[4]), limit]
    return {f"coefficients.{name}": value for name, value in zip(names, values, strict=True)} | {
        "objective": mean, "rmsle": mean**0.5, "status": "interior", "rows": len(A),
        "covariance": covariance(J, residuals(theta), np.ones(5)),
        "criterion": "mean squared difference of log10 leverages"}  # fmt: skip


def utilisation_fit(g):
    F, B, y = np.log10(g["teraflops"]), g["utilisation"], np.log10(g["loss"])
    least = g.get("B_min", B.min())

    def residuals(theta):
        a, b, c, d, start, limit = theta
        e = np.log10(effective(B - least, math.exp(start), math.exp(limit)))
        return a * F + b * e + c * F * e + d - y

    theta, cost, J = search(residuals, np.array([-0.078125, -0.0625, 0.015625, 0.375, math.log(0.25), math.log(16.0)]))
    mean, values = 2 * cost / len(y), np.array([*theta[:4], *np.exp(theta[4:])])
    spread = np.zeros((7, 7))
    spread[:6, :6] = covariance(J, residuals(theta), np.array([1, 1, 1, 1, *values[4:]]))
    names = ("a", "b", "c", "d", "B_start", "B_max", "B_min")
    return {f"coefficients.{name}": value for name, value in zip(names, [*values, least], strict=True)} | {
        "objective": mean, "rmsle": mean**0.5, "status": "interior", "rows": len(y), "covariance": spread,
        "criterion": "mean squared difference of log10 losses", "curve.B_min": least,
        "curve.unit": least / 10}  # fmt: skip


def surprise_fit(form):
    """Fit the two sums of downstream accuracy, in ln(-ln Q')."""

    def fit(g):
        guess, huber = g.get("guess_rate", 0.0), g.get("huber")
        used = (g["accuracy"] > guess + g.get("least_gain", 0.05)) & (g["accuracy"] < 1)
        share = (g["accuracy"][used] - guess) / (1 - guess)
        y = np.log(-np.log(share))
        first_column = np.log(g["flops" if form == "ceiling" else "parameters"][used])
        second_column = 0 if form == "ceiling" else np.log(g["tokens"][used])
        centre = first_column.mean(), np.mean(second_column)

        def model(theta):
            last = theta[2] if form == "ceiling" else theta[2] - theta[3] * (second_column - centre[1])
            return np.logaddexp(theta[0] - theta[1] * (first_column - centre[0]), last)

        half = y.mean() - math.log(2)
        start = [half + 0.4, 0.3, half - 0.5] if form == "ceiling" else [half, 0.2, half, 0.2]
        theta, cost, J = search(lambda t: model(t) - y, np.array(start), huber)
        move = np.eye(len(theta))
        move[0, 1] = centre[0]
        if form == "ratio":
            move[2, 3] = centre[1]
        residual = model(theta) - y
        values = move @ theta
        values[[0, 2]] = np.exp(values[[0, 2]])
        misses = (np.exp(-np.exp(model(theta))) - share) * (1 - guess)
        spread = move @ covariance(J, residual, np.ones(len(theta)), huber) @ move.T
        if huber is not None:
            spread = np.full(spread.shape, np.nan)
        if form == "ceiling" and values[2] < BOUNDS["vectors.no_ceiling"].limit:  # the line alone
            line = direct(g)
            spread = np.full((3, 3), np.nan)
            spread[:2, :2] = line["covariance"]
            return line | {"coefficients.E": 0.0, "covariance": spread, "status": "no ceiling is seen"}
        names = ("A", "alpha", "E") if form == "ceiling" else ("A", "alpha", "B", "beta")
        return {f"coefficients.{name}": value for name, value in zip(names, values, strict=True)} | {
            "objective": cost, "rmsle": np.mean(residual**2) ** 0.5 / TEN, "rmse": np.mean(misses**2) ** 0.5,
            "covariance": spread, "rows": int(used.sum()), "used": used, "guess_rate": guess}  # fmt: skip

    return fit


def stage_1(g):
    if "flops" in g:
        slope, level = np.polyfit(np.log(g["flops"]), np.log(g["loss"]), 1)
        return Published(A=math.exp(level), alpha=-slope, B=0.0, beta=math.nan, E=0.0), [g["flops"]]
    columns = [g["parameters"], g["tokens"]]
    start = dict(A=60.0, alpha=0.2, B=100.0, beta=0.2, E=1.0)
    found = fitted(lambda k, *c: first(k, c), columns, g["loss"], "ABE", start, None)
    return Published(**{name: found[f"coefficients.{name}"] for name in ("A", "alpha", "B", "beta", "E")}), columns


def two_stages(g, link):
    k, columns = stage_1(g)
    loss, accuracy = g["loss"], g["accuracy"]
    if link == "linear":
        a, b = np.polyfit(loss, accuracy, 1)
        second_one = Published(a=a, b=b)
    else:
        begin = np.array([accuracy.max() - accuracy.min() + 0.1, -3.0, loss.mean(), accuracy.min() - 0.05])
        theta, _, _ = search(lambda t: second(Published(a=t[0], k=t[1], m=t[2], b=t[3]), loss) - accuracy, begin)
        second_one = Published(**dict(zip("akmb", theta, strict=True)))
    predicted = first(k, columns)
    return k, second_one, {
        "rmsle": np.mean(np.log10(predicted / loss) ** 2) ** 0.5, "rows": len(loss),
        "rmse": np.mean((second(second_one, loss) - accuracy) ** 2) ** 0.5,
        "chained_rmse": np.mean((second(second_one, predicted) - accuracy) ** 2) ** 0.5}  # fmt: skip


def two_stage(g):
    k, other, found = two_stages(g, g.get("link", "logistic"))
    return found | {f"stage_1.{name}": value for name, value in vars(k).items()} | {
        f"stage_2.{name}": value for name, value in vars(other).items()}  # fmt: skip


SEARCHES = {
    "laws.hoffmann.fit_hoffmann": additive(hoffmann, law_cases.PAIR, "abc", law_cases.HOFFMANN),
    "laws.hoffmann.fit_kaplan": additive(kaplan, law_cases.PAIR, ("N_c", "D_c"), law_cases.KAPLAN),
    "laws.fine_grained.fit_fine_grained": additive(
        fine, law_cases.FINE_COLUMNS, ("a", "b", "g", "c"), law_cases.FINE),
    "laws.joint.fit_joint": additive(
        joint, law_cases.JOINT_COLUMNS, ("a", "b", "c", "E_start", "E_max"), law_cases.JOINT),
    "laws.sparsity.fit_sparsity": additive(
        sparse, law_cases.SPARSE_COLUMNS, ("a", "b", "c", "d", "e"), law_cases.SPARSE),
    "laws.leverage.fit_leverage": leverage_fit,
    "laws.utilisation.fit_utilisation": utilisation_fit,
    "laws.downstream_sums.fit_ratio": surprise_fit("ratio"),
    "laws.downstream_sums.fit_ceiling": surprise_fit("ceiling"),
    "laws.two_stage.fit_two_stage": two_stage,
}  # fmt: skip


def test_every_fit_of_the_vectors_is_checked():
    """`accelerated/tests/test_laws_global.py` tests `fit_routed`."""
    checked = {*LINES, *SEARCHES, "laws.broken.fit_broken"}
    assert checked == {name for name in DOCUMENTS if ".fit_" in name} - {"laws.fitting.fit_routed"}


@pytest.mark.parametrize("name", LINES)
def test_line(name):
    for case in DOCUMENTS[name]["cases"]:
        found = LINES[name](case["inputs"])
        assert set(found) == {check["output"] for check in case["checks"]}
        agree(found, case, "vectors.line_again", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_search(name):
    for case in DOCUMENTS[name]["cases"]:
        found = SEARCHES[name](case["inputs"])
        answers = stored(case)
        agree({key: value for key, value in found.items() if key in answers}, case, "vectors.search_again", name)


@pytest.mark.slow
def test_broken_law():
    """Six unknowns for eight rows: SciPy's best of many starts equals the stored sum."""
    [case] = DOCUMENTS["laws.broken.fit_broken"]["cases"]
    g, answers = case["inputs"], stored(case)
    x = np.log(g["flops"]) - np.log(g["flops"]).mean()

    def residuals(t):
        with np.errstate(over="ignore"):
            curve = np.exp(-t[2] * x - t[5] * math.exp(t[4]) * np.logaddexp(0, (x - t[3]) / math.exp(t[4])))
        return np.nan_to_num(t[0] + t[1] * curve - g["accuracy"], nan=1e6, posinf=1e6, neginf=-1e6)

    starts = [[a, -a, c0, at, 0.0, c1] for a in (0.9, 0.3) for c0 in (0.05, 0.2) for at in (-3.0, 0.0, 3.0)
              for c1 in (-0.1, 0.2)]  # fmt: skip
    cost = min(optimize.least_squares(residuals, start, x_scale="jac", max_nfev=3000).cost for start in starts)
    assert answers["objective"] <= cost * (1 + BOUNDS["vectors.search_again"].limit), (answers["objective"], cost)
    assert cost <= answers["objective"] * (1 + BOUNDS["vectors.broken"].limit), (answers["objective"], cost)
    agree({"rmse": math.sqrt(2 * answers["objective"] / 8), "rows": 8}, case, "vectors.again", "broken")
