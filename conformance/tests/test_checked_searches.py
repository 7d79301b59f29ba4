"""The stored answers that are searched: SciPy begins at the law that a table was made with, or holds an end fixed.

Every law is written out again; a fit is least squares of its residuals, or the sum of Huber terms (SciPy's is ours for
the loss "huber", with delta as its scale).
"""

import math

import numpy as np
import pytest
from scipy import optimize

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.tests.checked import DOCUMENTS, agree, stored
from routelaws.conformance.tests.test_checked_formulas import (
    Published,
    effective,
    fine,
    first,
    hoffmann,
    joint,
    kaplan,
    second,
    sparse,
)
from routelaws.conformance.tests.test_checked_lines import direct

TEN = math.log(10)
EXACT = dict(xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=2000)


def search(residuals, start, huber=None):
    """Return the unknowns where a sum is least, half the sum of squares or Huber's, and the derivatives there."""
    how = {} if huber is None else dict(loss="huber", f_scale=huber)
    found = optimize.least_squares(residuals, start, x_scale=np.maximum(np.abs(start), 1e-2), **how, **EXACT)
    again = optimize.least_squares(residuals, found.x, x_scale=np.maximum(np.abs(found.x), 1e-2), **how, **EXACT)
    steps = 1e-5 * np.maximum(np.abs(again.x), 1e-2)
    J = [(residuals(again.x + h) - residuals(again.x - h)) / (2 * h.max()) for h in np.diag(steps)]
    return again.x, again.cost, np.stack(J, axis=1)


def covariance(J, residual, turn, huber=None):
    """Residual variance of n - p times (JᵀJ)⁻¹, carried to the coefficients; by Huber (1981, 7.6) for his sum."""
    n, p = J.shape
    delta = math.inf if huber is None else huber
    inside = np.mean(np.abs(residual) <= delta)
    widening = (1 + p / n * (1 - inside) / inside) / inside
    variance = np.sum(np.clip(residual, -delta, delta) ** 2) / (n - p) * widening**2
    return variance * np.outer(turn, turn) * np.linalg.inv(J.T @ J)


def additive(function, columns, logged, begin):
    """Return the check of a law in ln L: the coefficients `logged` are searched by their logarithms."""

    def fit(g, huber=1e-3, columns=columns):
        huber = g.get("huber", huber)
        given = [g[name] for name in columns] if isinstance(columns, tuple) else columns(g)
        return fitted(function, given, g["loss"], logged, begin, huber)

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


CHINCHILLA = dict(a=400.0, alpha=0.34375, b=416.0, beta=0.28125, c=1.6875)
DENSE = ("dense_parameters", "tokens")
by_hoffmann = additive(hoffmann, DENSE, "abc", CHINCHILLA)


def in_log10(g):
    """The same fit: residuals in log10 are those in ln divided by ln 10, and Huber's sum by its square."""
    huber = None if g.get("huber") is None else g["huber"] * TEN
    *columns, loss = g["*columns_and_loss"]
    found = fitted(hoffmann, columns, loss, "abc", CHINCHILLA, huber)
    objective = found["objective"] / TEN**2 if huber else found["rmsle"] ** 2
    words = f"sum of Huber terms of log10 losses, delta = {g['huber']:g}" if huber else (
        "mean squared difference of log10 losses")  # fmt: skip
    return found | {"objective": objective, "criterion": words}


def by_one_start(g):
    return fitted(hoffmann, g["columns"], g["loss"], "abc", CHINCHILLA, 1e-3) | {"starts": 1, "reached": 1}


def in_joint(k, N, D, E):
    return joint(k, N, D, E)


JOINT = dict(a=36.0, alpha=-0.1875, delta=-0.234375, gamma=0.0078125, b=36.0, beta=-0.171875, omega=0.546875,
             zeta=-0.02734375, E_start=2.0, E_max=288.0, c=1.375)  # fmt: skip
SPARSE = dict(a=16384.0, alpha=0.59375, b=5456.0, beta=0.390625, c=0.453125, lam=-0.171875, d=17.0, delta=0.15625,
              gamma=0.15625, e=0.9375)  # fmt: skip
FINE = dict(a=18.0, alpha=0.125, b=30.0, beta=0.15625, g=2.0, gamma=0.5, c=0.5)


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
    """The two sums of downstream accuracy, in ln(-ln Q')."""

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


def stage_record(link):
    def fit(g):
        k, other, found = two_stages(g, link)
        values = vars(k) if "parameters" in g else {"A": k.A, "alpha": k.alpha}
        count = len(values) + len(vars(other))
        return {f"coefficients.{name}": value for name, value in (values | vars(other)).items()} | {
            "objective": found["rmse"] ** 2, "rmsle": math.nan, "rmse": found["chained_rmse"], "status": "interior",
            "covariance": np.full((count, count), np.nan), "rows": found["rows"], "guess_rate": 0.0,
            "used": np.ones(found["rows"], dtype=bool)}  # fmt: skip

    return fit


SEARCHES = {
    "laws.hoffmann.fit_hoffmann": by_hoffmann,
    "laws.hoffmann.fit_kaplan": additive(kaplan, DENSE, ("N_c", "D_c"), dict(
        alpha_N=0.078125, N_c=2.0**46, alpha_D=0.09375, D_c=2.0**44)),
    "laws.additive.fit_additive": by_one_start,
    "laws.smooth_intervals.fit_in_log10": in_log10,
    "laws.fine_grained.fit_fine_grained": additive(
        fine, ("total_parameters", "tokens", "granularity"), ("a", "b", "g", "c"), FINE),
    "laws.joint.fit_joint": additive(
        in_joint, ("active_parameters", "tokens", "num_experts"), ("a", "b", "c", "E_start", "E_max"), JOINT),
    "laws.sparsity.fit_sparsity": additive(
        sparse, ("total_parameters", "tokens", "sparsity"), ("a", "b", "c", "d", "e"), SPARSE),
    "laws.leverage.fit_leverage": leverage_fit,
    "laws.utilisation.fit_utilisation": utilisation_fit,
    "laws.downstream_sums.fit_ratio": surprise_fit("ratio"),
    "laws.downstream_sums.fit_ceiling": surprise_fit("ceiling"),
    "laws.two_stage.fit_two_stage": two_stage,
    "laws.two_stage.fit_two_stage_ratio": two_stage,
    "laws.accuracy.fit_stages_linear": stage_record("linear"),
    "laws.accuracy.fit_stages_logistic": stage_record("logistic"),
    "laws.accuracy.fit_stages_ratio": stage_record("logistic"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_search(name):
    for case in DOCUMENTS[name]["cases"]:
        found = SEARCHES[name](case["inputs"])
        answers = stored(case)
        agree({key: value for key, value in found.items() if key in answers}, case, "vectors.search_again", name)
