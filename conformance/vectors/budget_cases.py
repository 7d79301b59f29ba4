"""The cases of the vectors for what laws are used for: the best model of a budget, the next run."""

import numpy as np

from routelaws.conformance.vectors.checks import Later, answers
from routelaws.conformance.vectors.files import Named
from routelaws.conformance.vectors.interval_cases import DENSE_LOSS, DENSE_N, ENDS, PLANE_LOSS, fit_of
from routelaws.conformance.vectors.law_cases import BILINEAR, BY_FORMULA, CLOSED, FINE, HOFFMANN, JOINT, SPARSE, E, N
from routelaws.reference.laws.next_run import Asked
from routelaws.reference.laws.planning import Budget

BY_OPTIMUM = "the minimum by SciPy, and its costs by the formulas"
FOUND = {"": "vectors.optimum", "loss": CLOSED, "flops": CLOSED}
LEAST = "The least loss within its bound, where it is within a wider one."


def budgets() -> list[Later]:
    path = "laws.planning."
    asked = {
        "training alone": Budget(2.0**70),
        "all limits": Budget(2.0**72, 2.0**34, 2.0**16, 2.0**38, 1.0),
    }
    fine = dict(expansion=64.0, coefficients=FINE)
    steep = HOFFMANN._replace(alpha=0.25, beta=0.375)
    return [
        answers(path + "hoffmann_optimum", LEAST, BY_OPTIMUM, {
            "one law": dict(flops=2.0**70, coefficients=HOFFMANN),
            "other powers": dict(flops=2.0**76, coefficients=steep)},
            FOUND),
        answers(path + "fine_grained_optimum", LEAST, BY_OPTIMUM, {
            "any granularity": dict(flops=2.0**66) | fine,
            "two": dict(flops=2.0**66, granularities=[1, 4]) | fine}, FOUND),
        answers(path + "fine_grained_for_active", LEAST, BY_OPTIMUM, {
            "one granularity": dict(active_parameters=2.0**28, granularities=[8]) | fine},
            {"": "vectors.optimum"}),
        answers(path + "joint_optimum", LEAST, BY_OPTIMUM, {
            name: dict(budget=budget, num_experts=8.0, coefficients=JOINT) for name, budget in asked.items()}
            | {"small vocabulary": dict(budget=asked["all limits"], num_experts=4.0, coefficients=JOINT,
                                        vocab_size=1000)}, FOUND),
        answers(path + "joint_optima", LEAST, BY_OPTIMUM, {
            "small vocabulary": dict(budget=asked["all limits"], coefficients=JOINT, expert_counts=[1, 4, 16],
                                     vocab_size=1000)}, FOUND),
        answers(path + "printed_joint_optimum", "Both within their bound.", BY_FORMULA, {
            "8 experts": dict(flops=2.0**70, num_experts=8.0, coefficients=JOINT)}, CLOSED),
        answers(path + "check_budget", "The budget itself.", "the rule, by hand", {
            name: dict(budget=budget) for name, budget in asked.items()}, CLOSED),
        answers("laws.sparsity.sparsity_optimum", LEAST, BY_OPTIMUM, {
            "published": dict(flops=1e20, sparsity=0.875),
            "other": dict(flops=2.0**68, sparsity=0.96875, coefficients=SPARSE, always_active=0.0625)}, FOUND),
    ]  # fmt: skip


def next_run() -> list[Later]:
    """Two laws whose intervals are formulas."""
    path, by_name = "laws.next_run.", {name: Named("law", name) for name in ("dense", "bilinear")}
    dense = dict(law=by_name["dense"], columns=[DENSE_N], loss=DENSE_LOSS)
    plane = dict(law=by_name["bilinear"], columns=[N, E], loss=PLANE_LOSS)
    runs = [(2.0**24,), (2.0**32,), (2.0**21,)]
    far, size, slope = Asked("prediction", (2.0**33,)), Asked("N_c"), Asked("c")
    line = fit_of("laws.dense.fit_dense", dense_parameters=DENSE_N, loss=DENSE_LOSS)
    bilinear = fit_of("laws.log_linear.fit_bilinear", dense_parameters=N, num_experts=E, loss=PLANE_LOSS)
    student = "the interval by the normal equations, SciPy's t, with the row added"
    return [
        answers(path + "next_runs", ENDS, student, {
            "a prediction": dense | dict(candidates=runs, asked=far),
            "N_c, 50 %": dense | dict(candidates=runs, asked=size, level=0.5)}, "vectors.line"),
        answers(path + "interval_of", ENDS, student, {
            "a prediction": dense | dict(fit=line, asked=far),
            "a coefficient": plane | dict(fit=bilinear, asked=slope)}, "vectors.line"),
        answers("laws.catalogue.fitted", "Every field within its bound.", BY_FORMULA, {
            "three rows": dict(coefficients=BILINEAR, predicted=np.array([3.0, 2.5, 2.25]),
                               loss=np.array([3.125, 2.375, 2.25])),
            "a status": dict(coefficients=BILINEAR, predicted=np.array([3.0, 2.5]), loss=np.array([3.0, 2.0]),
                             status="linear limit")}, "vectors.objective"),
    ]  # fmt: skip


ANSWERS = (budgets, next_run)
"""Each makes several files."""
