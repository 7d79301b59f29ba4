"""The cases of the vectors for fits that are searched: laws that add terms, bounded laws, leverage and accuracies."""

import math

import numpy as np

from routelaws.conformance.vectors.checks import Later, answers, call
from routelaws.conformance.vectors.files import Named
from routelaws.conformance.vectors.law_cases import (
    BY_FORMULA,
    BY_LINE,
    BY_UTILISATION,
    CLOSED,
    FINE,
    FLOPS,
    HOFFMANN,
    JOINT,
    KAPLAN,
    LEVER,
    SPARSE,
    B,
    F,
    grid,
    noisy,
    short,
)
from routelaws.reference.laws.accuracy import (
    StagesLinearCoefficients,
    StagesLogisticCoefficients,
    StagesRatioCoefficients,
)
from routelaws.reference.laws.broken import BrokenCoefficients
from routelaws.reference.laws.downstream import (
    CeilingCoefficients,
    DirectCoefficients,
    RatioCoefficients,
    RepeatedCoefficients,
)
from routelaws.reference.laws.two_stage import LinearCoefficients, LogisticCoefficients, LossCoefficients, TwoStageFit

BY_SEARCH = "scipy.optimize.least_squares from the law of the table; the covariance by its derivatives"
FIELDS = "Every field within its bound."
FITTED = {"": "vectors.searched", "objective": "vectors.objective", "covariance": "vectors.covariance"}

SIZE, TOKENS = grid([2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**33, 2.0**35, 2.0**37])
PAIR = dict(dense_parameters=SIZE, tokens=TOKENS)
FINE_COLUMNS = dict(zip(("total_parameters", "tokens", "granularity"),
                        grid([2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**34, 2.0**37], [1, 4, 16]),
                        strict=True))  # fmt: skip
JOINT_COLUMNS = dict(zip(("active_parameters", "tokens", "num_experts"),
                         grid([2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**34, 2.0**37], [1, 4, 16, 64]),
                         strict=True))  # fmt: skip
SPARSE_COLUMNS = dict(zip(("total_parameters", "tokens", "sparsity"),
                          grid([2.0**20, 2.0**24, 2.0**28, 2.0**32], [2.0**28, 2.0**32, 2.0**36],
                               [0, 0.5, 0.875, 0.96875]), strict=True))  # fmt: skip
LEVER_COLUMNS = dict(zip(("activation", "tian_granularity", "flops"),
                         grid([0.0078125, 0.03125, 0.125, 0.5], [2.0, 8.0, 32.0], [2.0**60, 2.0**66]),
                         strict=True))  # fmt: skip


def table(path: str, columns: dict, law, seed: int, scatter: float = 0.003) -> dict:
    """Return columns with the losses of a law, each with an error."""
    return columns | dict(loss=noisy(call(path, columns | dict(coefficients=law)), seed, scatter))


HOFFMANN_TABLE = table("laws.hoffmann.predict_hoffmann", PAIR, HOFFMANN, 3)
KAPLAN_TABLE = table("laws.hoffmann.predict_kaplan", PAIR, KAPLAN, 4)
FINE_TABLE = table("laws.fine_grained.predict_fine_grained", FINE_COLUMNS, FINE, 5, 0.001)
JOINT_TABLE = table("laws.joint.predict_joint", JOINT_COLUMNS, JOINT, 6, 0.001)
# Losses this exact decide all ten coefficients: a valley that is flat along one ends elsewhere on another processor.
SPARSE_TABLE = table("laws.sparsity.predict_loss", SPARSE_COLUMNS, SPARSE, 7, 0.0001)
UTILISATION_TABLE = table("laws.utilisation.predict_loss", dict(teraflops=F, utilisation=B), BY_UTILISATION, 8, 0.001)
LEVER_TABLE = LEVER_COLUMNS | dict(
    leverage=noisy(call("laws.leverage.leverage", LEVER_COLUMNS | dict(coefficients=LEVER)), 9)
)


def criteria(menu: dict) -> dict:
    """Return the tables of a menu by Huber's sum, which is the default, and by least squares."""
    return {"Huber's sum": menu, "least squares": menu | dict(huber=None)}


def additive_fits() -> list[Later]:
    leave = ("reached",)
    start = np.array([HOFFMANN])
    one = criteria(HOFFMANN_TABLE) | {"one start": HOFFMANN_TABLE | dict(starts=start)}
    columns, loss = [SIZE, TOKENS], HOFFMANN_TABLE["loss"]
    hoffmann = Named("public", "laws.hoffmann.HOFFMANN")
    logs = [SIZE, TOKENS, loss]
    by_name = Named("public", "laws.hoffmann.fit_hoffmann")
    return [
        answers("laws.hoffmann.fit_hoffmann", FIELDS, BY_SEARCH, one, FITTED, leave),
        answers("laws.hoffmann.fit_kaplan", FIELDS, BY_SEARCH, criteria(KAPLAN_TABLE), FITTED, leave),
        answers("laws.additive.fit_additive", FIELDS, BY_SEARCH,
                {"one start": dict(law=hoffmann, columns=columns, loss=loss, starts=start)}, FITTED),
        answers("laws.smooth_intervals.fit_in_log10", FIELDS, BY_SEARCH,
                {"Huber's sum": {"fit": by_name, "*columns_and_loss": logs, "huber": 0.0004},
                 "least squares": {"fit": by_name, "*columns_and_loss": logs}}, FITTED, leave),
        answers("laws.fine_grained.fit_fine_grained", FIELDS, BY_SEARCH,
                {"Huber's sum": FINE_TABLE, "least squares": FINE_TABLE | dict(huber=None)}, FITTED, leave),
        answers("laws.joint.fit_joint", FIELDS, BY_SEARCH, {"least squares": JOINT_TABLE | dict(huber=None)},
                FITTED, leave),
        answers("laws.sparsity.fit_sparsity", FIELDS, BY_SEARCH, {"least squares": SPARSE_TABLE | dict(huber=None)},
                FITTED, leave),
    ]  # fmt: skip


def other_fits() -> list[Later]:
    return [
        answers("laws.utilisation.fit_utilisation", FIELDS, BY_SEARCH, {
            "B_min of the rows": UTILISATION_TABLE, "B_min given": UTILISATION_TABLE | dict(B_min=0.125)},
            FITTED),
        answers("laws.leverage.fit_leverage", FIELDS, BY_SEARCH, {
            "no limit": LEVER_TABLE, "a limit": LEVER_TABLE | dict(A_max=64.0)}, FITTED),
        answers("laws.compute.fit_compute", FIELDS, BY_LINE, {
            "no floor": dict(flops=FLOPS, loss=COMPUTE_LOSS),
            "a floor": dict(flops=FLOPS, loss=COMPUTE_LOSS, floor=1.5),
            "rises": dict(flops=FLOPS, loss=COMPUTE_LOSS[::-1], floor=1.5)}, "vectors.line"),
    ]  # fmt: skip


COMPUTE_LOSS = short([3.5273, 3.3398, 3.1494, 3.0066, 2.8509, 2.7222])

BUDGETS = 2.0 ** np.arange(60, 76, 2)
ACCURACY = short([0.28, 0.315, 0.36, 0.43, 0.52, 0.6, 0.69, 0.75])
CAPPED = short([0.12, 0.24, 0.385, 0.5, 0.6, 0.665, 0.71, 0.735])
LOSSES = short([3.5, 3.25, 3.05, 2.875, 2.7, 2.55, 2.41, 2.29])
WIDE, LONG = grid([2.0**26, 2.0**29, 2.0**32], [2.0**31, 2.0**34, 2.0**37])
WIDE_LOSS = short([3.6, 3.2, 3.05, 3.3, 2.8, 2.6, 3.17, 2.6, 2.35])
ACCURACIES = short([0.3, 0.34, 0.38, 0.32, 0.47, 0.58, 0.35, 0.57, 0.66])
BUDGET, TRIES = grid(2.0 ** np.array([60, 64, 68]), [1.0, 4.0, 16.0])
PASSED = short([0.05, 0.125, 0.25, 0.13, 0.28, 0.47, 0.27, 0.49, 0.72])
QUARTER = dict(guess_rate=0.25, least_gain=0.03125)


def accuracy_laws() -> list[Later]:
    path = "laws.downstream."
    laws = {
        "direct": (DirectCoefficients(1024.0, 0.15625), [BUDGETS[:3]]),
        "ratio": (RatioCoefficients(16.0, 0.15625, 64.0, 0.1875), [WIDE[:5], LONG[:5]]),
        "ceiling": (CeilingCoefficients(1024.0, 0.15625, 0.125), [BUDGETS[:3]]),
        "repeated": (RepeatedCoefficients(6.0, -0.125, -0.5, 0.0078125), [BUDGET[:5], TRIES[:5]]),
    }
    rate = {"direct": 0.25, "ceiling": 0.5}
    predicted = {
        name: {"coefficients": law, "*columns": columns} | ({"guess_rate": rate[name]} if name in rate else {})
        for name, (law, columns) in laws.items()
    }
    shares = dict(accuracy=np.array([0.25, 0.5, 1.0]))
    counts = ((10, 3, 1), (10, 3, 4), (5, 5, 2), (6, 1, 6), (6, 0, 2))
    stages = {
        "linear": (StagesLinearCoefficients(96.0, 0.078125, -0.375, 1.5), [BUDGETS[:3]]),
        "logistic": (StagesLogisticCoefficients(96.0, 0.078125, 0.5, -4.0, 2.75, 0.25), [BUDGETS[:3]]),
        "ratio": (StagesRatioCoefficients(64.0, 0.25, 128.0, 0.25, 1.5, 0.5, -4.0, 2.75, 0.25), [WIDE[:4], LONG[:4]]),
    }
    by_compute = LossCoefficients(96.0, 0.078125, 0.0, math.nan, 0.0)
    by_both = LossCoefficients(64.0, 0.25, 128.0, 0.25, 1.5)
    line, curve = LinearCoefficients(-0.375, 1.5), LogisticCoefficients(0.5, -4.0, 2.75, 0.25)
    both = {
        "compute, linear": (by_compute, line, [BUDGETS[:3]]),
        "both, logistic": (by_both, curve, [WIDE[:4], LONG[:4]]),
    }
    broken = BrokenCoefficients(1.0, -4.0, 0.03125, 2.0**68, 1.5, 0.0625)
    return [
        answers(path + "predict_accuracy", FIELDS, BY_FORMULA, predicted, CLOSED),
        answers(path + "normalise", FIELDS, BY_FORMULA,
                {"no guess": shares, "one of four": shares | dict(guess_rate=0.25)}, CLOSED),
        answers(path + "pass_at_k", FIELDS, BY_FORMULA,
                {f"{c} of {n}, {k}": dict(samples=n, correct=c, attempts=k) for n, c, k in counts}, CLOSED),
        answers("laws.accuracy.predict_stages", FIELDS, BY_FORMULA,
                {name: {"coefficients": law, "*columns": columns} for name, (law, columns) in stages.items()}, CLOSED),
        answers("laws.two_stage.predict_first", FIELDS, BY_FORMULA,
                {name: {"stage_1": one, "*columns": columns} for name, (one, _, columns) in both.items()}, CLOSED),
        answers("laws.two_stage.predict_second", FIELDS, BY_FORMULA,
                {name: dict(stage_2=two, loss=LOSSES[:4]) for name, (_, two, _) in both.items()}, CLOSED),
        answers("laws.two_stage.predict_two_stage", FIELDS, BY_FORMULA,
                {name: {"fit": TwoStageFit(one, two, 0.0, 0.0, 0.0, 9), "*columns": columns}
                 for name, (one, two, columns) in both.items()}, CLOSED),
        answers("laws.broken.predict_broken", FIELDS, BY_FORMULA,
                {"about the break": dict(flops=BUDGETS, coefficients=broken)}, CLOSED),
    ]  # fmt: skip


def accuracy_fits() -> list[Later]:
    path, direct = "laws.downstream", dict(flops=BUDGETS, accuracy=ACCURACY)
    two = dict(flops=BUDGETS, loss=LOSSES, accuracy=ACCURACY)
    ratio = dict(parameters=WIDE, tokens=LONG, accuracy=ACCURACIES)
    staged = ratio | dict(loss=WIDE_LOSS)
    return [
        answers(path + ".fit_direct", FIELDS, BY_LINE, {"all rows": direct, "above a guess": direct | QUARTER},
                "vectors.line"),
        answers(path + ".fit_repeated", FIELDS, BY_LINE,
                {"nine rows": dict(flops=BUDGET, attempts=TRIES, accuracy=PASSED),
                 "above a gain": dict(flops=BUDGET, attempts=TRIES, accuracy=PASSED, least_gain=0.125)},
                "vectors.line"),
        answers(path + "_sums.fit_ratio", FIELDS, BY_SEARCH,
                {"all rows": ratio, "above a guess, Huber": ratio | QUARTER | dict(huber=0.03125)}, FITTED),
        answers(path + "_sums.fit_ceiling", FIELDS, BY_SEARCH,
                {"a ceiling": direct | dict(accuracy=CAPPED), "no ceiling": direct | QUARTER}, FITTED),
        answers("laws.two_stage.fit_two_stage", FIELDS, BY_SEARCH,
                {"linear": two | dict(link="linear"), "logistic": two}, FITTED),
        answers("laws.two_stage.fit_two_stage_ratio", FIELDS, BY_SEARCH,
                {"linear": staged | dict(link="linear"), "logistic": staged}, FITTED),
        answers("laws.accuracy.fit_stages_linear", FIELDS, BY_SEARCH, {"eight rows": two}, FITTED),
        answers("laws.accuracy.fit_stages_logistic", FIELDS, BY_SEARCH, {"eight rows": two}, FITTED),
        answers("laws.accuracy.fit_stages_ratio", FIELDS, BY_SEARCH, {"nine rows": staged}, FITTED),
        answers("laws.broken.fit_broken", FIELDS, BY_SEARCH, {"least squares": direct | dict(huber=None)}, FITTED,
                ("coefficients",)),
        answers("laws.accuracy.fit_broken_record", FIELDS, BY_SEARCH, {"least squares": direct | dict(huber=None)},
                FITTED, ("coefficients",)),
    ]  # fmt: skip


ANSWERS = (additive_fits, other_fits, accuracy_laws, accuracy_fits)
"""Each makes several files."""
