"""The fit of the bounded law: exact tables, one law in two forms, and statuses at the edges."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings

from routelaws.conformance.bounds import check
from routelaws.reference.laws import fitting as reference
from routelaws.reference.laws import routed
from routelaws.reference.laws.numerics import _huber, _projection
from routelaws.reference.tests.strategies_laws import EXPERTS, SIZES, Runs, exact_tables, noisy_tables


@settings(max_examples=settings.default.max_examples // 2)
@given(case=exact_tables())
def test_exact_tables_give_their_law_back(case):
    runs, law = case
    found = reference.fit_routed(*runs)
    check("laws.fitting.exact_rmsle", found.rmsle)
    wanted = ["E_start at 1"] * (law.E_start == 1) + ["E_max unbounded"] * math.isinf(law.E_max)
    assert found.status == (", ".join(wanted) or "interior")
    assert (found.coefficients.E_max == math.inf) == math.isinf(law.E_max)
    for name in ("a", "b", "d", "E_start", "E_max"):
        if math.isfinite(getattr(law, name)):
            error = abs(getattr(found.coefficients, name) / getattr(law, name) - 1)
            check("laws.fitting.exact_coefficient", error, message=f"{name} of {law}")
    check("laws.fitting.exact_coefficient", abs(found.coefficients.c - law.c), scale=0.01)


@settings(max_examples=settings.default.max_examples // 2)
@given(runs=noisy_tables())
def test_curve_and_coefficients_are_one_law(runs):
    found = reference.fit_routed(*runs)
    curve = reference.predict_curve(found.curve, runs.dense_parameters, runs.num_experts)
    residual = np.log10(curve / runs.loss)
    check("laws.fitting.objective", abs(float(np.mean(residual**2)) / found.objective - 1))
    if found.status == "linear limit":
        assert np.all(np.isnan(found.coefficients)) and np.all(np.isnan(found.covariance))
        assert found.curve.rise == found.curve.bend == 0
    elif found.coefficients.E_start < 1e4:  # for larger values the coefficients nearly cancel
        direct = routed.predict_loss(runs.dense_parameters, runs.num_experts, found.coefficients)
        check(
            "laws.fitting.same_law",
            float(np.abs(np.log10(direct / curve)).max()),
            scale=max(1.0, abs(found.coefficients.b)),
        )


def test_linear_limit_is_a_status():
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    bulge = 1e-3 * ((experts - 1) / 511) ** 2  # bends the wrong way, so no finite E_max is better
    runs = Runs(size, experts, 10 ** (1.1 - 0.08 * np.log10(size) - 0.1 * (experts - 1) / 511 - bulge))
    found = reference.fit_routed(*runs)
    assert found.status == "linear limit"
    assert np.all(np.isnan(found.coefficients)) and np.all(np.isnan(found.covariance))
    assert found.rmsle < 2e-4 and np.all(np.isfinite(found.curve))
    middle = reference.predict_curve(found.curve, 1e8, np.array([1.0, 256.5, 512.0]))
    steps = np.diff(np.log10(middle))
    check("laws.fitting.same_law", abs(steps[0] - steps[1]))


@pytest.mark.parametrize("huber", [None, pytest.param(1e-3, marks=pytest.mark.slow)])
def test_an_unbounded_e_max_is_found_without_a_warning(huber):
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    loss = routed.predict_loss(size, experts, routed.RoutedCoefficients(-0.08, -0.1, 0.008, 1.1, 2.0, math.inf))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = reference.fit_routed(size, experts, loss, huber)
    assert fit.status == "E_max unbounded" and fit.coefficients.E_max == math.inf


def test_a_row_far_beyond_delta_takes_few_steps(monkeypatch):
    """At the shape of the law (the first), only the wrong row counts. The sum is below its linear term."""
    monkeypatch.setattr(_huber, "ROUNDS", 8)
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[:5]))
    law, factor = routed.RoutedCoefficients(-0.08, -0.1, 0.008, 1.1, 2.0, 300.0), np.where(np.arange(15) == 7, 1.1, 1.0)
    rows = _projection.check_rows(size, experts, routed.predict_loss(size, experts, law) * factor)
    shapes = ((1 / 2, 2 / 300), (1 / 2, 0), (1, 0.003))  # 1/E_start, and E_start/E_max
    sums = [_huber.solve(rows, a * (1 - ratio) ** 2, a * (1 - ratio) * ratio, 1e-4)[0] for a, ratio in shapes]
    assert sums[0] < 1e-4 * math.log10(1.1) < min(sums[1:])
