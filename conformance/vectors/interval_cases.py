"""The cases of the vectors for intervals, resampling and held-out errors.

A fit that goes in is rounded to 30 binary digits. That makes it the same on most machines: a search in a flat valley
ends elsewhere, by 1e-8, where a processor adds up in another order.
"""

import math

import numpy as np

from routelaws.conformance.vectors.checks import Later, answers, call
from routelaws.conformance.vectors.files import Named
from routelaws.conformance.vectors.fit_cases import (
    ACCURACY,
    BUDGETS,
    CAPPED,
    COMPUTE_LOSS,
    FIELDS,
    HOFFMANN_TABLE,
    KAPLAN_TABLE,
    LEVER_TABLE,
    QUARTER,
    UTILISATION_TABLE,
)
from routelaws.conformance.vectors.law_cases import BILINEAR, BOUNDED, BY_FORMULA, CLOSED, DENSE, FLOPS, E, N, noisy
from routelaws.reference.laws.uncertainty import Interval, Quantity

BY_STUDENT = "Student's t of SciPy with the covariance of the normal equations"
BY_PROFILE = "each end held fixed, the least sum found by SciPy is at the limit"
BY_LEAVING = "each fold by numpy.linalg.lstsq"
BY_HAND = "the rule, by hand"
ENDS = "Values and both ends within their bound."
DENSE_N = 2.0 ** np.array([20, 22, 25, 27, 30])
DENSE_LOSS = noisy(
    call("laws.dense.predict_loss", dict(dense_parameters=DENSE_N, coefficients=DENSE)), 1, scatter=0.001
)
PLANE_LOSS = noisy(
    call("laws.log_linear.predict_loss", dict(dense_parameters=N, num_experts=E, coefficients=BILINEAR)), 2, 0.001
)
BOUNDED_LOSS = noisy(
    call("laws.routed.predict_loss", dict(dense_parameters=N, num_experts=E, coefficients=BOUNDED)), 10, 0.0005
)
ROUTED = dict(dense_parameters=N, num_experts=E, loss=BOUNDED_LOSS)


def rounded(value, digits: int = 30):
    """Return a record with its floats rounded to so many binary digits."""
    if hasattr(value, "_fields"):
        return type(value)(*(rounded(part, digits) for part in value))
    if not isinstance(value, (float, np.ndarray)) or np.asarray(value).dtype.kind != "f":
        return value
    fraction, exponent = np.frexp(value)
    near = np.ldexp(np.round(fraction * 2.0**digits) / 2.0**digits, exponent)
    return near if isinstance(value, np.ndarray) else float(near)


def fit_of(path: str, **inputs):
    return rounded(call(path, inputs))


def linear_intervals() -> list[Later]:
    path = "laws.linear_intervals."
    dense = fit_of("laws.dense.fit_dense", dense_parameters=DENSE_N, loss=DENSE_LOSS)
    rising = dict(dense_parameters=DENSE_N, loss=DENSE_LOSS[::-1])
    given = dict(fit=dense, columns=[DENSE_N], loss=DENSE_LOSS)
    rises = dict(fit=fit_of("laws.dense.fit_dense", **rising), columns=[DENSE_N], loss=rising["loss"])
    cases = {name: [] for name in ("per_size", "separable", "bilinear")}
    found = []
    for name in cases:
        table = dict(dense_parameters=N, num_experts=E, loss=PLANE_LOSS)
        fit = fit_of(f"laws.log_linear.fit_{name}", **table)
        asked = dict(fit=fit, columns=[N, E], loss=PLANE_LOSS)
        pair = dict(dense_parameters=N[[0, 3, 7]], num_experts=E[[0, 3, 7]])
        cases[name] = asked | dict(design=Named("public", f"{path}{name}_design"), at=[2.0**30, 64.0])
        found += [
            answers(f"{path}{name}_design", FIELDS, BY_FORMULA,
                    {"three rows": dict(fit=fit) | pair}, CLOSED),
            answers(f"{path}{name}_intervals", ENDS, BY_STUDENT,
                    {"95 %": asked, "50 %": asked | dict(level=0.5)},
                    "vectors.end" if name == "bilinear" else "vectors.line"),
        ]  # fmt: skip
    cases["dense"] = given | dict(design=Named("public", path + "dense_design"), at=[2.0**33])
    cases["bilinear, 50 %"] = cases["bilinear"] | dict(level=0.5)
    return [
        *found,
        answers(path + "dense_design", FIELDS, BY_FORMULA,
                {"three rows": dict(fit=dense, dense_parameters=DENSE_N[:3])}, CLOSED),
        answers(path + "dense_intervals", ENDS, BY_STUDENT,
                {"95 %": given, "50 %": given | dict(level=0.5), "rises": rises}, "vectors.line"),
        answers(path + "linear_prediction", ENDS, BY_STUDENT, cases, "vectors.line"),
    ]  # fmt: skip


def first_order_intervals() -> list[Later]:
    """Intervals by a covariance: compute, accuracies, leverage."""
    compute = fit_of("laws.compute.fit_compute", flops=FLOPS, loss=COMPUTE_LOSS, floor=1.5)
    given = dict(fit=compute, columns=[FLOPS], loss=COMPUTE_LOSS)
    lever = fit_of("laws.leverage.fit_leverage", **LEVER_TABLE)
    columns = list(LEVER_TABLE.values())[:3]
    levered = dict(fit=lever, columns=columns, measured=LEVER_TABLE["leverage"])
    point = dict(activation=np.array([0.03125, 0.125]), tian_granularity=np.array([12.0, 8.0]),
                 flops=np.array([2.0**70, 2.0**63]))  # fmt: skip
    fits = {
        "direct": fit_of("laws.downstream.fit_direct", flops=BUDGETS, accuracy=ACCURACY, **QUARTER),
        "ceiling": fit_of("laws.downstream_sums.fit_ceiling", flops=BUDGETS, accuracy=CAPPED),
        "no ceiling": fit_of("laws.downstream_sums.fit_ceiling", flops=BUDGETS, accuracy=ACCURACY, **QUARTER),
    }
    budgets = {"*columns": [np.array([2.0**66, 2.0**80])]}
    return [
        answers("laws.compute.predict_interval", ENDS, BY_STUDENT, {
            "a run": dict(fit=compute, flops=np.array([1e21, 1e23])),
            "the law, 80 %": dict(fit=compute, flops=np.array([1e21, 1e23]), level=0.8, observation=False)}, CLOSED),
        answers("laws.compute.compute_intervals", ENDS, BY_STUDENT,
                {"95 %": given, "80 %": given | dict(level=0.8)}, "vectors.line"),
        answers("laws.compute.compute_prediction", ENDS, BY_STUDENT, {"95 %": given | dict(at=[1e21])}, CLOSED),
        answers("laws.leverage.predict_interval", ENDS, BY_STUDENT, {
            "the law": dict(fit=lever) | point,
            "a run, 80 %": dict(fit=lever, level=0.8, observation=True) | point}, CLOSED),
        answers("laws.leverage.leverage_intervals", ENDS, BY_STUDENT,
                {"95 %": levered, "80 %": levered | dict(level=0.8)}, CLOSED),
        answers("laws.leverage.leverage_prediction", ENDS, BY_STUDENT,
                {"95 %": levered | dict(at=[0.03125, 12.0, 2.0**70])}, CLOSED),
        answers("laws.downstream.predict_interval", ENDS, BY_STUDENT, {
            f"{name}, {words}": {"fit": fit} | budgets | dict(level=level, observation=observation)
            for name, fit in fits.items()
            for words, level, observation in (("the law", 0.95, False), ("a run, 80 %", 0.8, True))}, CLOSED),
        answers("laws.accuracy.predict_fitted", FIELDS, BY_FORMULA,
                {name: {"fit": fit} | budgets for name, fit in fits.items()}, CLOSED),
        answers("laws.accuracy.accuracy_ranges", ENDS, BY_STUDENT,
                {name: dict(fit=fit, columns=[BUDGETS], accuracy=ACCURACY) for name, fit in fits.items()}, CLOSED),
        answers("laws.accuracy.accuracy_prediction", ENDS, BY_STUDENT,
                {name: dict(fit=fit, columns=[BUDGETS], accuracy=ACCURACY, at=[2.0**80]) for name, fit in fits.items()},
                CLOSED),
    ]  # fmt: skip


def profiles() -> list[Later]:
    """Intervals of laws that add terms."""
    hoffmann = HOFFMANN_TABLE | dict(huber=None)
    kaplan = KAPLAN_TABLE | dict(huber=None)
    logs = {"fit": Named("public", "laws.hoffmann.fit_hoffmann"), "*columns_and_loss": list(HOFFMANN_TABLE.values())}
    # A search in a flat valley: machines that round otherwise find places 1e-8 apart.
    fit = rounded(call("laws.smooth_intervals.fit_in_log10", logs), digits=16)
    columns, loss, at = list(HOFFMANN_TABLE.values())[:2], HOFFMANN_TABLE["loss"], [2.0**33, 2.0**38]
    by_name = dict(intervals=Named("public", "laws.hoffmann.hoffmann_intervals"), fit=fit, columns=columns, loss=loss)
    points = [np.array([value]) for value in at]
    names = (
        (True, 1.8, 1.7, 1.9), (True, 400.0, 100.0, 2000.0), (False, 0.3, -0.1, 0.7), (True, 0.5, 0.0, 1.2),
        (True, 0.5, 0.0, math.inf), (True, 0.5, 0.25, math.inf), (True, 4.0, 3.0, 7.0), (False, -1.0, -1.25, -0.75),
        (False, 1.0, 0.125, 1.875),
    )  # fmt: skip
    return [
        answers("laws.hoffmann.hoffmann_intervals", ENDS, BY_PROFILE,
                {"coefficients": hoffmann, "one point, 80 %": hoffmann | dict(level=0.8, at=points)}, PROFILE),
        answers("laws.hoffmann.kaplan_intervals", ENDS, BY_PROFILE,
                {"one point": kaplan | dict(at=points)}, PROFILE),
        answers("laws.additive.additive_intervals", ENDS, BY_PROFILE,
                {"one point": dict(law=Named("public", "laws.hoffmann.HOFFMANN"), columns=columns, loss=loss,
                                   huber=None, at=points)}, PROFILE),
        answers("laws.smooth_intervals.smooth_prediction", ENDS, BY_PROFILE,
                {"95 %": by_name | dict(at=at, level=0.95)}, PROFILE),
        answers("laws.smooth_intervals.smooth_ranges", ENDS, BY_PROFILE,
                {"95 %": by_name | dict(positive=["a", "b", "c"], level=0.95)}, PROFILE),
        answers("laws.smooth_intervals.words", "The same words.", BY_HAND,
                {f"{p}, {v}, {low}, {high}": dict(positive=p, value=v, low=low, high=high)
                 for p, v, low, high in names}, CLOSED),
    ]  # fmt: skip


PROFILE = {"": "vectors.end", "level": CLOSED}
ASKED = (
    Quantity("prediction", N=2.0**31, E=16.0), Quantity("observation", N=2.0**31, E=16.0),
    Quantity("gain", N=2.0**27, E=64.0), Quantity("slope", N=2.0**27), Quantity("effective_parameters", 2.0**27, 32.0),
    Quantity("a"), Quantity("b"), Quantity("c"), Quantity("d"), Quantity("E_start"), Quantity("E_max"),
    Quantity("N_cutoff"),
)  # fmt: skip


def bounded_intervals() -> list[Later]:
    path, columns = "laws.bounded_intervals.", [N, E]
    fit = fit_of("laws.fitting.fit_routed", **ROUTED)
    given = dict(fit=fit, columns=columns, loss=BOUNDED_LOSS)
    by_use = fit_of("laws.utilisation.fit_utilisation", **UTILISATION_TABLE)
    used = dict(fit=by_use, columns=list(UTILISATION_TABLE.values())[:2], loss=UTILISATION_TABLE["loss"])
    sizes = dict(at=np.array([2.0**27, 2.0**32]))
    pair = dict(dense_parameters=N[[0, 3, 7]], num_experts=E[[0, 3, 7]])
    by_columns = dict(zip(("teraflops", "utilisation"), (column[[0, 3, 7]] for column in used["columns"]), strict=True))
    far, near = dict(at=[2.0**31, 16.0]), dict(at=[4.0, 2.0])
    formula = BY_FORMULA
    return [
        answers("laws.uncertainty.profile_intervals", ENDS, BY_PROFILE,
                {"95 %": ROUTED | dict(quantities=list(ASKED))}, PROFILE, ("quantity",)),
        answers("laws.uncertainty.slope_interval", ENDS, BY_PROFILE, {"two sizes": ROUTED | sizes}, PROFILE),
        answers("laws.uncertainty.gain_interval", ENDS, BY_PROFILE,
                {"to 8 experts, 80 %": ROUTED | sizes | dict(experts=8.0, level=0.8)}, PROFILE),
        answers(path + "routed_intervals", ENDS, BY_PROFILE, {"95 %": given}, PROFILE),
        answers(path + "routed_slopes", ENDS, BY_PROFILE, {"95 %": given}, PROFILE),
        answers(path + "routed_prediction", ENDS, BY_PROFILE, {"95 %": given | far}, PROFILE),
        answers(path + "routed_dense_equivalent", ENDS, BY_PROFILE,
                {"95 %": given | far, "one expert": given | dict(at=[2.0**31, 1.0])}, PROFILE),
        answers(path + "utilisation_intervals", ENDS, BY_PROFILE, {"95 %": used}, PROFILE),
        answers(path + "utilisation_slopes", ENDS, BY_PROFILE, {"95 %": used}, PROFILE),
        answers(path + "utilisation_prediction", ENDS, BY_PROFILE, {"95 %": used | near}, PROFILE),
        answers(path + "utilisation_cutoff", FIELDS, formula, {"one fit": dict(fit=by_use)}, CLOSED),
        answers(path + "routed_design", FIELDS, formula, {"three rows": dict(fit=fit) | pair}, CLOSED),
        answers(path + "utilisation_design", FIELDS, formula, {"three rows": dict(fit=by_use) | by_columns}, CLOSED),
        answers(path + "scaled_columns", FIELDS, formula,
                {"three rows": dict(curve=by_use.curve) | by_columns}, CLOSED),
        answers(path + "routed_by_size", ENDS, "each fold by SciPy's search, SciPy's t",
                {"three sizes": given | far}, PROFILE),
    ]  # fmt: skip


def resampled() -> list[Later]:
    path = "laws.resampling."
    uniforms = np.array([[0.0, 0.3, 0.35, 0.99], [0.25, 0.5, 0.75, 0.74]])
    groups = np.array([2.0, 5.0, 5.0, 3.0, 2.0, 7.0])
    weights = np.ones((5, N.size))
    weights[0, [1, 8]], weights[1, [3, 11]], weights[2, [0, 14]], weights[3, [6, 7]] = (0, 2), (2, 0), (0, 3), (2, 0)
    weights[4] = 0
    asked = [one for one in ASKED if one.name not in ("observation", "d", "a", "b", "c", "N_cutoff")]
    resamples = ROUTED | dict(weights=weights, quantities=asked)
    path_held, columns = "laws.held_out.", [N, E]
    bilinear = dict(law=Named("law", "bilinear"), columns=columns, loss=PLANE_LOSS)
    forms = [Named("law", name) for name in ("separable", "bilinear", "per-size")]
    dense = dict(law=Named("law", "dense"), columns=[DENSE_N], loss=DENSE_LOSS)
    fit = fit_of("laws.dense.fit_dense", dense_parameters=DENSE_N, loss=DENSE_LOSS)
    jackknifed = dense | dict(fit=fit)
    folds = dict(value=2.0, folds=np.array([1.5, 2.25, 2.5, 1.875]))
    table = dict(columns=dict(dense_parameters=N, num_experts=E), loss=PLANE_LOSS, groups=N)
    draws = np.ones((3, N.size))
    draws[0, :5], draws[1, 5:], draws[2, [0, 1]] = 2, 0, (3, 0)
    return [
        answers(path + "bootstrap_weights", "The same counts.", BY_HAND,
                {"two draws": dict(uniforms=uniforms)}, CLOSED),
        answers(path + "group_bootstrap_weights", "The same counts.", BY_HAND,
                {"four groups": dict(uniforms=uniforms, groups=groups)}, CLOSED),
        answers(path + "bootstrap", ENDS, "each resample by SciPy's search", {"80 %": resamples | dict(level=0.5)},
                PROFILE, ("quantity",)),
        answers(path + "jackknife", ENDS, "each fold by SciPy's search, SciPy's t",
                {"by size": ROUTED | dict(groups=N, quantities=asked)}, PROFILE, ("quantity",)),
        answers(path_held + "leave_one_out", FIELDS, BY_LEAVING,
                {"bilinear": bilinear, "dense": dense}, "vectors.line"),
        answers(path_held + "leave_one_group_out", FIELDS, BY_LEAVING,
                {"by size": bilinear | dict(groups=N), "by experts": bilinear | dict(groups=E)}, "vectors.line"),
        answers(path_held + "compare_forms", FIELDS, BY_LEAVING, {"three forms": table | dict(laws=forms)},
                "vectors.line"),
        answers("laws.intervals.jackknife_ends", ENDS, BY_STUDENT,
                {"95 %": folds | dict(level=0.95), "one group": dict(value=2.0, folds=np.array([2.0]), level=0.95)},
                CLOSED),
        answers("laws.intervals.jackknife_intervals", ENDS, BY_LEAVING,
                {"dense": jackknifed, "dense, 80 %": jackknifed | dict(level=0.8)}, "vectors.line"),
        answers("laws.intervals.jackknife_prediction", ENDS, BY_LEAVING,
                {"dense": jackknifed | dict(at=[2.0**33])}, "vectors.line"),
        answers("laws.choosing.resampled_losses", FIELDS, BY_LEAVING,
                {"bilinear": bilinear | dict(weights=draws, points=[np.array([2.0**31, 2.0**29]),
                                                                    np.array([16.0, 64.0])])}, "vectors.line"),
        answers("laws.choosing.win_shares", FIELDS, BY_HAND,
                {"four draws": dict(losses=np.array([[2.0, 3.0], [2.5, 2.375], [math.inf, 2.0], [2.0, 2.0]]))}, CLOSED),
    ]  # fmt: skip


def words() -> list[Later]:
    menu = {
        "pinned": Interval(Quantity("slope", 1e9), -0.03, -0.035, -0.025, 0.95, False),
        "soft": Interval(Quantity("slope", 1e9), -0.03, -0.04, -0.02, 0.95, False),
        "sign open": Interval(Quantity("gain", 1e9, 8.0), -0.01, -0.04, 0.02, 0.95, True),
        "loose": Interval(Quantity("E_max"), 300.0, 50.0, 2000.0, 0.95, True),
        "E_max open": Interval(Quantity("E_max"), 300.0, 120.0, math.inf, 0.95, False),
        "E_start at its edge": Interval(Quantity("E_start"), 1.5, 1.0, 2.5, 0.95, False),
        "twofold": Interval(Quantity("E_max"), 300.0, 200.0, 400.0, 0.95, False),
        "a loss": Interval(Quantity("prediction", 1e9, 8.0), 2.5, 2.45, 2.55, 0.95, False),
        "a wide loss": Interval(Quantity("observation", 1e9, 8.0), 2.5, 2.4, 2.6, 0.95, True),
        "unknown": Interval(Quantity("c"), 0.01, -math.inf, math.inf, 0.95, False),
    }
    cases = {name: dict(interval=one) for name, one in menu.items()}
    kept = {name: dict(quantity=one.quantity) for name, one in menu.items() if one.quantity.name != "c"}
    return [
        answers("laws.uncertainty.verdict", "The same words.", BY_HAND, cases, CLOSED),
        answers("laws.intervals.range_of", FIELDS, BY_HAND, cases, CLOSED),
        answers("laws.uncertainty.check_quantity", "The quantity itself.", BY_HAND, kept, CLOSED),
    ]


ANSWERS = (linear_intervals, first_order_intervals, profiles, bounded_intervals, resampled, words)
"""Each makes several files."""
