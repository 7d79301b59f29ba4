"""The cases of the vectors for formulas of the laws: sizes, slopes, costs, and the best model for a budget."""

import math

import numpy as np

from routelaws.conformance.vectors.checks import law_entry
from routelaws.conformance.vectors.law_cases import (
    BILINEAR,
    BUDGETS,
    BY_FORMULA,
    BY_UTILISATION,
    DENSE,
    FINE,
    FLOORED,
    HOFFMANN,
    JOINT,
    LEVER,
    LINES,
    LONG,
    LOSSES,
    ROUTED,
    ROUTED_E,
    ROUTED_N,
    SEPARABLE,
    SPARSE,
    TWO_STAGES,
    WIDE,
)
from routelaws.reference.laws import (
    Budget,
    StagesLinearCoefficients,
    StagesLogisticCoefficients,
    StagesRatioCoefficients,
)
from routelaws.reference.laws.dense import DenseCoefficients, DenseLine
from routelaws.reference.laws.fitting import LossCurve
from routelaws.reference.laws.utilisation import UtilisationCurve

SIZES, EXPERTS, LOSS = np.array([2.0**24, 2.0**27, 2.0**34]), np.array([1.0, 16.0, 4096.0]), np.array([2.25, 2.0, 1.5])
SHARE, TERAFLOPS = np.array([0.1875, 1.0, 30.0]), np.array([0.25, 3.0, 40.0])
WIDTHS, FLOPS = np.array([256.0, 640.0, 2048.0]), np.array([1e18, 1e20, 1e22])
PLANES = (SEPARABLE, BILINEAR, BILINEAR._replace(c=-0.0078125))
UTILISED = (BY_UTILISATION, BY_UTILISATION._replace(B_max=math.inf))
CURVES = (
    LossCurve(1.0625, -0.0703125, -0.375, 0.03125, 0.5, 0.0078125, 127.0),
    LossCurve(1.0625, -0.0703125, -0.375, 0.03125, 0.25, 0.0, 127.0),
)
ONE, BOTH = [BUDGETS[:3]], [WIDE[:4], LONG[:4]]
STAGED = (
    {"coefficients": StagesLinearCoefficients(96.0, 0.078125, -0.375, 1.5), "*columns": ONE},
    {"coefficients": StagesLogisticCoefficients(96.0, 0.078125, 0.5, -4.0, 2.75, 0.25), "*columns": ONE},
    {"coefficients": StagesRatioCoefficients(64.0, 0.25, 128.0, 0.25, 1.5, 0.5, -4.0, 2.75, 0.25), "*columns": BOTH},
)


def of_each(laws, **given) -> list[dict]:
    return [given | dict(coefficients=law) for law in laws]


def menu(common: dict, **options) -> list[dict]:
    """Return `common` alone, and `common` with each value of each option."""
    return [common, *(common | {name: value} for name, values in options.items() for value in values)]


BENT = tuple(ROUTED.values())
INPUTS = {
    "laws.dense.size_for_loss": of_each([DENSE, DenseCoefficients(0.25, 1e9)], loss=np.array([3.5, 0.75])),
    "laws.dense.predict_line": [dict(line=DenseLine(1.0625, -0.0703125), dense_parameters=SIZES)],
    "laws.log_linear.slope_in_experts": of_each((LINES, *PLANES), dense_parameters=LINES.sizes),
    "laws.log_linear.slope_in_parameters": of_each(PLANES, num_experts=EXPERTS),
    "laws.log_linear.effective_parameter_count": of_each(PLANES[:2], dense_parameters=SIZES, num_experts=EXPERTS),
    "laws.log_linear.experts_for_loss": of_each((LINES, *PLANES[:2]), dense_parameters=LINES.sizes, loss=LOSS[:2]),
    "laws.log_linear.size_for_loss": of_each(PLANES[:2], num_experts=np.array([1.0, 16.0, 200.0]), loss=LOSS),
    "laws.log_linear.cutoff": of_each(PLANES),
    "laws.routed.effective_experts": [dict(num_experts=EXPERTS, E_start=k.E_start, E_max=k.E_max) for k in BENT],
    "laws.routed.experts_for_loss": of_each(BENT, dense_parameters=SIZES, loss=LOSS),
    "laws.routed.size_for_loss": of_each(BENT, num_experts=EXPERTS, loss=LOSS),
    "laws.routed.slope_in_experts": of_each(BENT, dense_parameters=SIZES),
    "laws.routed.slope_in_parameters": of_each(BENT, num_experts=EXPERTS),
    "laws.routed.cutoff": of_each(BENT),
    "laws.routed.effective_parameter_count": of_each(BENT, dense_parameters=ROUTED_N, num_experts=ROUTED_E),
    "laws.fitting.predict_curve": [dict(curve=k, dense_parameters=SIZES, num_experts=EXPERTS) for k in CURVES],
    "laws.utilisation.compute_columns": menu(
        dict(flops_per_step=np.array([2.0**45, 2.0**48]), total_parameters=np.array([2.0**24, 2.0**31])),
        tokens_per_step=[np.array([2.0**14] * 2)]),
    "laws.utilisation.effective_utilisation": [
        dict(utilisation=SHARE, B_start=k.B_start, B_max=k.B_max, B_min=k.B_min) for k in UTILISED],
    "laws.utilisation.slope_in_utilisation": of_each(UTILISED, teraflops=TERAFLOPS),
    "laws.utilisation.slope_in_teraflops": of_each(UTILISED, utilisation=SHARE),
    "laws.utilisation.effective_teraflops": of_each(UTILISED, teraflops=TERAFLOPS, utilisation=SHARE),
    "laws.utilisation.teraflops_for_loss": of_each(UTILISED, utilisation=SHARE, loss=np.array([2.25, 2.0, 3.0])),
    "laws.utilisation.predict_utilisation": [
        dict(curve=UtilisationCurve(CURVES[0], 0.1875, 0.01875), teraflops=TERAFLOPS, utilisation=SHARE)],
    "laws.fine_grained.fine_grained_active": [dict(d_model=WIDTHS)],
    "laws.fine_grained.fine_grained_parameters": [dict(d_model=WIDTHS, expansion=value) for value in (1.0, 64.0)],
    "laws.fine_grained.fine_grained_flops": menu(
        dict(d_model=WIDTHS, expansion=64.0, granularity=np.array([1.0, 8.0, 32.0])), router_flops=[6]),
    "laws.joint.at_experts": [dict(num_experts=count, coefficients=JOINT) for count in (1.0, 8.0)],
    "laws.joint.joint_active": menu(dict(d_model=WIDTHS), vocab_size=[1000]),
    "laws.joint.joint_total": menu(dict(d_model=WIDTHS, num_experts=8.0), vocab_size=[1000]),
    "laws.joint.joint_cache": [dict(d_model=WIDTHS, cached_tokens=4096.0)],
    "laws.sparsity.sparsity_active": menu(
        dict(total_parameters=SIZES[:2], sparsity=np.array([0.0, 0.96875])), always_active=[0.05]),
    "laws.leverage.activation_ratio": [
        dict(experts=256.0, active=8.0, shared=1.0, counting=way) for way in ("definition", "routed", "mixed")],
    "laws.leverage.effective_activation": menu(dict(activation=np.array([0.03125, 0.5, 1.0])), coefficients=[LEVER]),
    "laws.leverage.best_granularity": menu({}, coefficients=[LEVER, LEVER._replace(gamma=-0.015625)]),
    "laws.leverage.leverage_allocation": [dict(flops=FLOPS, model=model) for model in ("moe", "dense")],
    "laws.compute.speedup": menu(
        dict(worse=np.array([3.0, 2.5]), better=np.array([2.75, 2.625])), coefficients=[FLOORED]),
    "laws.downstream.normalise": menu(dict(accuracy=np.array([0.25, 0.5, 1.0])), guess_rate=[0.25]),
    "laws.downstream.pass_at_k": [
        dict(samples=n, correct=c, attempts=k)
        for n, c, k in ((10, 3, 1), (10, 3, 4), (5, 5, 2), (6, 1, 6), (6, 0, 2))],
    "laws.accuracy.predict_stages": list(STAGED),
    "laws.two_stage.predict_first": [{"stage_1": one, "*columns": columns} for one, _, columns in TWO_STAGES.values()],
    "laws.two_stage.predict_second": [dict(stage_2=two, loss=LOSSES) for _, two, _ in TWO_STAGES.values()],
    "laws.planning.printed_joint_optimum": [dict(flops=2.0**70, num_experts=8.0, coefficients=JOINT)],
}  # fmt: skip

_LIMITS = Budget(2.0**72, 2.0**34, 2.0**16, 2.0**38, 1.0)
OPTIMA = {
    "laws.planning.hoffmann_optimum": [
        dict(flops=2.0**70, coefficients=HOFFMANN),
        dict(flops=2.0**76, coefficients=HOFFMANN._replace(alpha=0.25, beta=0.375))],
    "laws.planning.fine_grained_optimum": menu(
        dict(flops=2.0**66, expansion=64.0, coefficients=FINE), granularities=[[1, 4]]),
    "laws.planning.joint_optimum": [
        dict(budget=Budget(2.0**70), num_experts=8.0, coefficients=JOINT),
        dict(budget=_LIMITS, num_experts=4.0, coefficients=JOINT, vocab_size=1000)],
    "laws.sparsity.sparsity_optimum": [
        dict(flops=1e20, sparsity=0.875),
        dict(flops=2.0**68, sparsity=0.96875, coefficients=SPARSE, always_active=0.0625)],
}  # fmt: skip
"""The best model of a budget; `reference/tests/test_laws_planning.py` tests the reference."""

ENDS = {
    "laws.intervals.jackknife_ends": [
        dict(value=2.0, folds=np.array([1.75, 2.0, 2.125, 2.5]), level=0.95),
        dict(value=2.0, folds=np.array([2.0]), level=0.95),
    ]
}


_FLAT = {"": "vectors.optimum", "loss": "vectors.closed", "flops": "vectors.closed"}
ANSWERS = tuple(
    law_entry(function, "Each entry within its bound.", checked, {str(i + 1): m for i, m in enumerate(inputs)}, bound)
    for menus, bound, checked in (
        (INPUTS, "vectors.closed", BY_FORMULA),
        (ENDS, "vectors.closed", ""),
        (OPTIMA, _FLAT, ""),
    )
    for function, inputs in menus.items()
)
