"""The stored ends of profile intervals, resamples and folds of the bounded law, budgets and the next run, by SciPy.

An end is right where the least sum of squares of all laws that say it is RSS_min (1 + q²/(n - p)), q Student's.
"""

import math

import numpy as np
import pytest
from scipy import optimize

from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.tests.checked import DOCUMENTS, agree, stored
from routelaws.conformance.tests.test_checked_formulas import (
    ABNAR,
    Published,
    effective,
    fine,
    hoffmann,
    joint,
    kaplan,
    law,
    printed,
    sparse,
)
from routelaws.conformance.tests.test_checked_lines import fieller, line, of_linear, student
from routelaws.conformance.tests.test_checked_searches import CHINCHILLA, EXACT

STIFF = 1e4
"""Weight of a row that says what a law has to say: it then does, to some 1e-9."""


def least(residuals, start, target=None, value=0.0):
    """Return the unknowns where the sum of squares is least, of all laws that say `value`, and the sum."""

    def rows(theta):
        return residuals(theta) if target is None else np.append(residuals(theta), STIFF * (target(theta) - value))

    theta = np.array(start, dtype=float)
    for _ in range(3):
        theta = optimize.least_squares(rows, theta, x_scale=np.maximum(np.abs(theta), 1e-2), **EXACT).x
    return theta, float(np.sum(residuals(theta) ** 2))


def check_ends(residuals, best, target, ends, value, limit, where):
    """Raise unless the fit says the value, and the least sum at either end is at its limit."""
    theta, squares = best
    scale = max(abs(value), *(abs(end - value) for end in ends))
    assert abs(target(theta) - value) <= BOUNDS["vectors.search_again"].limit * scale, where
    for end in ends:
        _, reached = least(residuals, theta, target, end)
        excess = (reached / squares - 1) / (limit - 1)
        assert abs(excess - 1) <= BOUNDS["vectors.excess"].limit, (where, end, excess)


# Laws that add terms.


def of_hoffmann(columns, loss):
    return lambda t: np.log(hoffmann(unpack(t, CHINCHILLA, "abc"), *columns) / loss)


KAPLAN = dict(alpha_N=0.078125, N_c=2.0**46, alpha_D=0.09375, D_c=2.0**44)


def of_kaplan(columns, loss):
    return lambda t: np.log(kaplan(unpack(t, KAPLAN, ("N_c", "D_c")), *columns) / loss)


def unpack(theta, names, logged):
    return Published(**{name: math.exp(t) if name in logged else t for name, t in zip(names, theta, strict=True)})


def begin(names, logged):
    return [math.log(value) if name in logged else value for name, value in names.items()]


def parts(g):
    """Columns and loss of a table, however they are named."""
    if "columns" in g:
        return g["columns"], g["loss"]
    return [g["dense_parameters"], g["tokens"]], g["loss"]


def check_additive(name, case):
    g, answers = case["inputs"], stored(case)
    columns, loss = parts(g)
    form, names, logged = (kaplan, KAPLAN, ("N_c", "D_c")) if "kaplan" in name else (hoffmann, CHINCHILLA, "abc")
    residuals = (of_kaplan if "kaplan" in name else of_hoffmann)(columns, loss)
    best = least(residuals, begin(names, logged))
    freedom = len(loss) - len(names)
    level = g.get("level", 0.95)
    limit = 1 + student(level, freedom) ** 2 / freedom
    if g.get("at") is not None:

        def says(t):
            return float(np.log(form(unpack(t, names, logged), *(np.ravel(x)[0] for x in g["at"]))))

        first = "" if "value" in answers else "*."
        low, high = (answers["law.0"], answers["law.1"]) if not first else (answers["*.low"][0], answers["*.high"][0])
        value = answers["value"] if not first else answers["*.value"][0]
        check_ends(residuals, best, says, np.log([low, high]), math.log(value), limit, name)
        if not first:  # one more run: the scatter of the rows is added to each half
            more = student(level, freedom) * math.sqrt(best[1] / freedom)
            run = [value * math.exp(s * math.hypot(math.log(end / value), more)) for s, end in ((-1, low), (1, high))]
            agree({"run.0": run[0], "run.1": run[1]}, case, "vectors.search_again", name)
        elif "*.name" in answers:
            assert answers["*.name"].tolist() == ["prediction"] and answers["*.level"].tolist() == [level]
        return
    assert answers["*.name"].tolist() == list(names)
    for i, each in enumerate(names):
        ends = [answers["*.low"][i], answers["*.high"][i]]
        ends = np.log(ends) if each in logged else ends
        value = math.log(answers["*.value"][i]) if each in logged else answers["*.value"][i]
        known = [end for end in ends if np.isfinite(end)]
        check_ends(residuals, best, lambda t, i=i: t[i], known, value, limit, (name, each))


ADDITIVE = ("laws.hoffmann.hoffmann_intervals", "laws.hoffmann.kaplan_intervals", "laws.additive.additive_intervals",
            "laws.smooth_intervals.smooth_ranges", "laws.smooth_intervals.smooth_prediction")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ADDITIVE)
def test_additive_profiles(name):
    for case in DOCUMENTS[name]["cases"]:
        check_additive(name, case)


# The bounded law.


def of_routed(N, E, loss):
    """Residuals in log10 at (a, b, c, d, ln E_start, ln E_max)."""
    n, y = np.log10(N), np.log10(loss)

    def residuals(t):
        e = np.log10(effective(E - 1, math.exp(t[4]), math.exp(t[5])))
        return t[0] * n + t[1] * e + t[2] * n * e + t[3] - y

    return residuals


TRUTH = [-0.0703125, -0.125, 0.0078125, 1.0625, math.log(1.5), math.log(256.0)]


def says(name, N=math.nan, E=math.nan):
    """What the bounded law says of a quantity, on the scale on which it is held."""
    n = math.log10(N) if N > 0 else 0.0
    place = {"a": 0, "b": 1, "c": 2, "d": 3, "E_start": 4, "E_max": 5}

    def log_loss(t, count):
        e = math.log10(effective(count - 1, math.exp(t[4]), math.exp(t[5])))
        return t[0] * n + t[1] * e + t[2] * n * e + t[3]

    if name in place:
        return lambda t: t[place[name]]
    return {
        "prediction": lambda t: log_loss(t, E),
        "observation": lambda t: log_loss(t, E),
        "gain": lambda t: log_loss(t, E) - log_loss(t, 1.0),
        "slope": lambda t: t[1] + t[2] * n,
        "N_cutoff": lambda t: -t[1] / t[2],
        "effective_parameters": lambda t: n + (log_loss(t, E) - log_loss(t, 1.0))
        / (t[0] + t[2] * t[4] / math.log(10)),
    }[name]  # fmt: skip


def scaled(name, value):
    if name in ("E_start", "E_max"):
        return np.log(value)
    return np.log10(value) if name in ("prediction", "observation", "N_cutoff", "effective_parameters") else value


def check_routed(table, asked, values, lows, highs, level, start=TRUTH):
    """Raise unless both ends of each quantity (name, N, E) are at the limit."""
    residuals = of_routed(*table)
    best, freedom = least(residuals, start), len(table[2]) - 6
    limit = 1 + student(level, freedom) ** 2 / freedom
    for (name, N, E), value, low, high in zip(asked, values, lows, highs, strict=True):
        target = says(name, N, E)
        ends, wanted = scaled(name, np.array([low, high])), scaled(name, value)
        if name == "observation":  # the new run is one row more, not held
            for end in ends:
                squares = least(lambda t, e=end, f=target: np.append(residuals(t), f(t) - e), best[0])
                reached = float(np.sum(residuals(squares[0]) ** 2) + (target(squares[0]) - end) ** 2)
                excess = (reached / best[1] - 1) / (limit - 1)
                assert abs(excess - 1) <= BOUNDS["vectors.excess"].limit, (name, end, excess)
            continue
        check_ends(residuals, best, target, ends, wanted, limit, name)


@pytest.mark.slow
def test_profile_intervals():
    [case] = DOCUMENTS["laws.uncertainty.profile_intervals"]["cases"]
    g, answers = case["inputs"], stored(case)
    table = g["dense_parameters"], g["num_experts"], g["loss"]
    asked = [(one.name, one.N, one.E) for one in g["quantities"]]
    check_routed(table, asked, answers["*.value"], answers["*.low"], answers["*.high"], 0.95)
    # By hand: N = 2^31 is beyond the table, as are an effective size and a cutoff above 2^30, and E_max above 128.
    agree({"*.extrapolated": [True, True, False, False, True, False, True, False, True, False, True, True],
           "*.level": [0.95] * 12}, case, "vectors.again", "profiles")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slope_interval", "gain_interval"])
def test_profiles_at_sizes(name):
    [case] = DOCUMENTS["laws.uncertainty." + name]["cases"]
    g, answers = case["inputs"], stored(case)
    what = name.removesuffix("_interval")
    asked = [(what, N, g.get("experts", math.nan)) for N in g["at"]]
    table = g["dense_parameters"], g["num_experts"], g["loss"]
    check_routed(table, asked, answers[what], answers["low"], answers["high"], g.get("level", 0.95))
    agree({"at": g["at"], "extrapolated": [False, True]}, case, "vectors.again", name)


def check_records(name, table, asked, scale=None, start=TRUTH):
    """Raise unless the ranges of a file are those of the quantities."""
    [case] = [one for one in DOCUMENTS["laws.bounded_intervals." + name]["cases"] if one["name"] == "95 %"]
    answers, scale = stored(case), np.ones(len(asked)) if scale is None else np.array(scale)
    lists = (np.atleast_1d(answers[f"*.{key}" if "*.low" in answers else key]) / scale for key in
             ("value", "low", "high"))  # fmt: skip
    check_routed(table, asked, *lists, 0.95, start)
    return answers


def routed_table():
    g = DOCUMENTS["laws.bounded_intervals.routed_intervals"]["cases"][0]["inputs"]
    return (*g["columns"], g["loss"])


NAMES = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")


@pytest.mark.slow
def test_intervals_of_the_routed_law():
    table = routed_table()
    found = check_records("routed_intervals", table, [(name, math.nan, math.nan) for name in NAMES])
    assert found["*.name"].tolist() == list(NAMES) and found["*.at"] == [None] * 7
    slopes = check_records("routed_slopes", table, [("slope", N, math.nan) for N in np.unique(table[0])])
    assert slopes["*.at"].tolist() == np.unique(table[0]).tolist() and set(slopes["*.name"].tolist()) == {"slope"}
    worth = check_records("routed_dense_equivalent", table, [("effective_parameters", 2.0**31, 16.0)])
    assert worth["at"] == 2.0**31 and worth["words"] == "pinned down, extrapolated"


def predicted(name, table, N, E, start=TRUTH):
    [case] = DOCUMENTS["laws.bounded_intervals." + name]["cases"]
    answers = stored(case)
    asked = [(what, N, E) for what in ("prediction", "observation")]
    lows, highs = ([answers[f"{what}.{i}"] for what in ("law", "run")] for i in (0, 1))
    check_routed(table, asked, [answers["value"]] * 2, lows, highs, 0.95, start)


@pytest.mark.slow
def test_prediction_of_the_routed_law():
    predicted("routed_prediction", routed_table(), 2.0**31, 16.0)


@pytest.mark.slow
def test_intervals_of_the_law_in_utilisation():
    """The law in (F, B) is the one in (F, E') with E' = 1 + (B - B_min)/u, a and d taken at B̂ = 1."""
    g = DOCUMENTS["laws.bounded_intervals.utilisation_intervals"]["cases"][0]["inputs"]
    (F, B), unit = g["columns"], g["columns"][1].min() / 10
    table, u = (F, 1 + (B - B.min()) / unit, g["loss"]), math.log10(unit)
    a, b, c, d = -0.078125, -0.0625, 0.015625, 0.375
    start = [a + c * u, b, c, d + b * u, math.log(0.25 / unit), math.log(16.0 / unit)]
    limit = [("b", *[math.nan] * 2), ("c", *[math.nan] * 2), ("E_start", *[math.nan] * 2), ("E_max", *[math.nan] * 2),
             ("N_cutoff", *[math.nan] * 2)]  # fmt: skip
    [case] = DOCUMENTS["laws.bounded_intervals.utilisation_intervals"]["cases"]
    answers, kept, scale = stored(case), [1, 2, 4, 5, 6], np.array([1, 1, unit, unit, 1])
    check_routed(table, limit, *(answers[f"*.{key}"][kept] / scale for key in ("value", "low", "high")), 0.95, start)
    residuals, freedom = of_routed(*table), len(F) - 6
    best = least(residuals, start)
    for i, target in ((0, lambda t: t[0] - t[2] * u), (3, lambda t: t[3] - t[1] * u)):
        ends = [answers["*.low"][i], answers["*.high"][i]]
        top = 1 + student(0.95, freedom) ** 2 / freedom
        check_ends(residuals, best, target, ends, answers["*.value"][i], top, "ad"[i > 0])
    assert answers["*.name"].tolist() == ["a", "b", "c", "d", "B_start", "B_max", "F_cutoff"]
    slopes = check_records("utilisation_slopes", table, [("slope", N, 0.0) for N in np.unique(F)], start=start)
    assert slopes["*.at"].tolist() == np.unique(F).tolist()
    predicted("utilisation_prediction", table, 4.0, 1 + (2.0 - B.min()) / unit, start)


def values_of(table, asked):
    """Return the quantities of a fit to a table, each on the scale on which it is held."""
    theta, _ = least(of_routed(*table), TRUTH)
    return np.array([says(one.name, one.N, one.E)(theta) for one in asked])


def back(asked, values):
    kinds = {"E_start": np.exp, "E_max": np.exp}
    tens = ("prediction", "N_cutoff", "effective_parameters")
    return [kinds.get(one.name, (lambda v: 10**v) if one.name in tens else float)(v)
            for one, v in zip(asked, values, strict=True)]  # fmt: skip


def by_folds(table, groups, asked, level):
    """Return the ends of jackknife intervals: logarithms for E_start, E_max, sizes and losses."""
    names = np.unique(groups)
    whole = values_of(table, asked)
    folds = [values_of([column[groups != one] for column in table], asked) for one in names]
    reach = student(level, len(names) - 1) * np.sqrt((len(names) - 1) * np.var(folds, axis=0))
    return back(asked, whole), back(asked, whole - reach), back(asked, whole + reach)


@pytest.mark.slow
def test_folds_of_the_bounded_law():
    [case] = DOCUMENTS["laws.resampling.jackknife"]["cases"]
    g = case["inputs"]
    table = [g["dense_parameters"], g["num_experts"], g["loss"]]
    value, low, high = by_folds(table, g["groups"], g["quantities"], 0.95)
    agree({"intervals.*.value": value, "intervals.*.low": low, "intervals.*.high": high}, case,
          "vectors.search_again", "jackknife")  # fmt: skip
    [case] = DOCUMENTS["laws.bounded_intervals.routed_by_size"]["cases"]
    _, low, high = by_folds(table, table[0], [Published(name="prediction", N=2.0**31, E=16.0)], 0.95)
    agree({"0": low[0], "1": high[0]}, case, "vectors.search_again", "by size")


@pytest.mark.slow
def test_resamples_of_the_bounded_law():
    """Of four values at 50 % the ends are 3/4 of a place from either end, rounded outwards: the least and greatest."""
    [case] = DOCUMENTS["laws.resampling.bootstrap"]["cases"]
    g = case["inputs"]
    table = [g["dense_parameters"], g["num_experts"], g["loss"]]
    draws = [w.astype(int) for w in g["weights"] if w.any()]
    found = [values_of([np.repeat(column, w) for column in table], g["quantities"]) for w in draws]
    found = np.array([back(g["quantities"], each) for each in found])
    agree({"intervals.*.low": found.min(axis=0), "intervals.*.high": found.max(axis=0), "undetermined": 1,
           "intervals.*.value": back(g["quantities"], values_of(table, g["quantities"])),
           "undefined": [0] * 6}, case, "vectors.search_again", "bootstrap")  # fmt: skip


# Budgets.


def lowest(function, low, high):
    """Return where a function of one number is least between two, found in its logarithm."""
    tried = np.linspace(math.log(low), math.log(high), 400)
    start = int(np.argmin([function(math.exp(x)) for x in tried]))
    ends = tried[max(start - 1, 0)], tried[min(start + 1, 399)]
    found = optimize.minimize_scalar(lambda x: function(math.exp(x)), bounds=ends, method="bounded",
                                     options=dict(xatol=1e-12))  # fmt: skip
    return math.exp(found.x)


def best_hoffmann(g):
    N = lowest(lambda N: hoffmann(law(g), N, g["flops"] / 6 / N), 1e3, g["flops"] / 1e3)
    D = g["flops"] / 6 / N
    return {"parameters": N, "tokens": D, "flops": g["flops"], "loss": hoffmann(law(g), N, D)}


def fine_costs(d, expansion, granularity):
    """Training FLOPs of one token, all parameters and active ones."""
    return ((72 * d**2 + 14 * d * expansion * granularity) * d / 64, (4 + 8 * expansion) * d**3 / 64, 12 * d**3 / 64)


def best_fine(g, flops=None):
    flops, found = g.get("flops", flops), []
    for G in g.get("granularities", [1, 2, 4, 8, 16, 32, 64, 128, 256]):

        def loss(d, G=G):
            work, size, _ = fine_costs(d, g["expansion"], G)
            return fine(law(g), size, flops / work, G)

        d = lowest(loss, 64, flops ** (1 / 3))
        work, size, active = fine_costs(d, g["expansion"], G)
        found.append({"d_model": d, "total_parameters": size, "active_parameters": active, "tokens": flops / work,
                      "granularity": G, "flops": flops, "loss": loss(d)})  # fmt: skip
    return min(found, key=lambda one: one["loss"])


def fine_of_active(g):
    def over(x):
        return best_fine(g, math.exp(x))["active_parameters"] / g["active_parameters"] - 1

    work = optimize.brentq(over, 40, 56, xtol=1e-10)
    return best_fine(g, math.exp(work))


def best_joint(g, count=None):
    budget, count = g["budget"], g.get("num_experts", count)
    vocabulary = g.get("vocab_size", 50257)

    def costs(d):
        active = 2 * d * vocabulary + 13 * d**3 / 64
        total = 2 * d * vocabulary + (4 + 9 * count) * d**3 / 64
        cache = 2 * budget.cached_tokens * d * d / 64
        D = (budget.flops / active - 2 * budget.inference_tokens) / 6
        return active, total, D, budget.bytes_per_number * (total + cache)

    most = optimize.brentq(lambda d: costs(d)[2] - 1, 64, 1e7)
    if costs(most)[3] > budget.memory:
        most = optimize.brentq(lambda d: costs(d)[3] - budget.memory, 64, most, xtol=1e-12)
    loss = lambda d: joint(law(g), costs(d)[0], costs(d)[2], count)  # noqa: E731
    d = min((lowest(loss, 64, most), most), key=loss)
    active, total, D, memory = costs(d)
    return {"num_experts": count, "d_model": d, "active_parameters": active, "total_parameters": total, "tokens": D,
            "memory": memory, "loss": loss(d)}  # fmt: skip


def joint_optima(g):
    found = sorted((best_joint(g, count) for count in g["expert_counts"]), key=lambda one: one["loss"])
    return {f"*.{name}": [one[name] for one in found] for name in found[0]}


def best_sparse(g):
    S, always = g["sparsity"], g.get("always_active", 0.0)
    used = always + (1 - always) * (1 - S)
    P = lowest(lambda P: sparse(law(g, ABNAR), P, g["flops"] / 6 / (P * used), S), 1e6, 1e14)
    D = g["flops"] / 6 / (P * used)
    return {"total_parameters": P, "tokens": D, "loss": sparse(law(g, ABNAR), P, D, S)}


OPTIMA = {
    "laws.planning.hoffmann_optimum": best_hoffmann,
    "laws.planning.fine_grained_optimum": best_fine,
    "laws.planning.fine_grained_for_active": fine_of_active,
    "laws.planning.joint_optimum": best_joint,
    "laws.planning.joint_optima": joint_optima,
    "laws.planning.printed_joint_optimum": printed,
    "laws.sparsity.sparsity_optimum": best_sparse,
}


@pytest.mark.parametrize("name", [name for name in OPTIMA if "for_active" not in name])
def test_optimum(name):
    for case in DOCUMENTS[name]["cases"]:
        agree(OPTIMA[name](case["inputs"]), case, "vectors.optimum_again", name)


@pytest.mark.slow
def test_optimum_of_a_size():
    [case] = DOCUMENTS["laws.planning.fine_grained_for_active"]["cases"]
    agree(fine_of_active(case["inputs"]), case, "vectors.optimum_again", "for_active")


# The next run, by the intervals of lines.


def interval(g, columns, loss):
    name = g["law"].name
    X = of_linear(name)(*columns)
    beta, spread, _ = line(X, np.log10(loss))
    q = student(g.get("level", 0.95), len(loss) - X.shape[1])
    asked = g["asked"]
    if asked.name == "N_c":
        low, high = (10**end for end in fieller(beta, spread, (0, 1), (1, 0), q))
        return low, high, math.log10(high / low)
    x = of_linear(name)(*(np.array([v]) for v in asked.at))[0] if asked.at else np.eye(4)["abcd".index(asked.name)]
    half, out = q * math.sqrt(x @ spread @ x), (lambda v: 10**v) if asked.at else float
    low, high = out(x @ beta - half), out(x @ beta + half)
    return low, high, high - low


def test_next_runs():
    for case in DOCUMENTS["laws.next_run.next_runs"]["cases"]:
        g, found = case["inputs"], []
        [N] = g["columns"]
        beta = line(of_linear("dense")(N), np.log10(g["loss"]))[0]
        for [run] in g["candidates"]:
            says = 10 ** (of_linear("dense")(np.array([run])) @ beta)
            found.append((run, *interval(g, [np.append(N, run)], np.append(g["loss"], says))))
        at, low, high, width = zip(*sorted(found, key=lambda one: one[-1]), strict=True)
        agree({"*.low": low, "*.high": high, "*.width": width}, case, "vectors.line_again", "next_runs")
        assert np.ravel(stored(case)["*.at"]).tolist() == list(at)
    for case in DOCUMENTS["laws.next_run.interval_of"]["cases"]:
        g = case["inputs"]
        agree(
            dict(zip("012", interval(g, g["columns"], g["loss"]), strict=True)), case, "vectors.line_again", "interval"
        )


def test_comparison_of_forms():
    """Squared errors less those of the best, the mean, and its error by the sums of the groups."""
    [case] = DOCUMENTS["laws.held_out.compare_forms"]["cases"]
    g, names = case["inputs"], ("separable", "bilinear", "per-size")
    N, E = g["columns"]["dense_parameters"], g["columns"]["num_experts"]
    y, answers = np.log10(g["loss"]), stored(case)
    for key, groups in (("leave_one_out", np.arange(len(y))), ("leave_one_group_out", g["groups"])):
        errors = np.full((3, len(y)), np.nan)
        for one in np.unique(groups):
            out = groups == one
            for i, name in enumerate(names[:2]):
                X = of_linear(name)(N, E)
                errors[i, out] = X[out] @ np.linalg.lstsq(X[~out], y[~out], rcond=None)[0] - y[out]
            if key == "leave_one_out":
                here = ~out & (N == N[out])
                errors[2, out] = np.polyval(np.polyfit(np.log10(E[here]), y[here], 1), np.log10(E[out])) - y[out]
        root = np.array([np.sqrt(np.mean(each**2)) for each in errors])
        best = int(np.nanargmin(root))
        d = errors**2 - errors[best] ** 2
        excess = d.mean(axis=1)
        sums = np.array([(d - excess[:, None])[:, groups == one].sum(axis=1) for one in np.unique(groups)])
        error = np.sqrt(len(sums) / (len(sums) - 1) * np.sum(sums**2, axis=0)) / len(y)
        words = ["predicts nothing" if np.isnan(r) else "best" if i == best else
                 "worse" if excess[i] > error[i] else "as good as the best" for i, r in enumerate(root)]  # fmt: skip
        found = {"excess": excess, "standard_error": error, "verdict": words, "held_out.rmsle": root,
                 "held_out.errors": errors, "name": names, "held_out.predicted": np.sum(~np.isnan(errors), axis=1),
                 "held_out.folds": [len(sums)] * 3}  # fmt: skip
        for output, value in found.items():
            kept, wanted = np.array(value), np.array(answers[f"{key}.*.{output}"])
            if kept.dtype.kind == "U":
                assert kept.tolist() == wanted.tolist()
                continue
            scale = BOUNDS["vectors.line_again"].limit * np.nanmax(np.abs(wanted))
            same = (np.isnan(kept.astype(float)) & np.isnan(wanted.astype(float))) | (np.abs(kept - wanted) <= scale)
            assert same.all(), (key, output, kept, wanted)


@pytest.mark.slow
def test_broken_laws():
    """Six unknowns for eight rows: of many starts SciPy's best is no better than the stored sum, and as good."""
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
    [record] = DOCUMENTS["laws.accuracy.fit_broken_record"]["cases"]
    agree({"objective": answers["objective"], "rmse": answers["rmse"], "rmsle": math.nan, "rows": 8, "guess_rate": 0.0,
           "used": np.ones(8, dtype=bool), "covariance": np.full((6, 6), np.nan), "status": "interior"},
          record, "vectors.again", "record")  # fmt: skip
