import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.suite.strategies_laws import noisy_tables, released_runs
from routelaws.reference.laws import log_linear as reference

KINDS = ("PerSize", "Separable", "Bilinear")


@pytest.mark.asks("*.predict_loss", "*.size_for_loss", "*.experts_for_loss", "*.cutoff")
def test_what_no_number_of_experts_reaches(backend):
    """At 1e12, above the cutoff, experts do not help: no loss below the dense loss is reachable."""
    for module in (backend.laws.log_linear, reference):
        law = module.BilinearCoefficients(-0.08, -0.12, 0.01, 1.1)
        check("laws.log_linear.cutoff", abs(module.cutoff(law) / 1e12 - 1))
        dense = float(module.predict_loss(1e13, 1.0, law))
        assert module.experts_for_loss(1e13, [dense * 1.01, dense * 0.99], law).tolist() == [1.0, math.inf]
        lines = module.PerSizeCoefficients(np.array([1e7]), np.array([-0.03]), np.array([0.5]))
        assert np.isnan(module.experts_for_loss(1e8, 2.0, lines)) and module.experts_for_loss(1e7, 4.0, lines) == 1
        rising = module.BilinearCoefficients(-0.08, -0.12, 0.1, 1.1)
        assert np.isnan(module.size_for_loss([1.0, 10.0], 2.0, rising)).tolist() == [False, True]
        for gain in (-0.03, 0.03):
            assert module.cutoff(module.SeparableCoefficients(-0.08, gain, 1.1)) == math.inf
        assert module.cutoff(module.BilinearCoefficients(-0.08, -1.0, 1e-3, 1.1)) == math.inf
        assert math.isnan(module.cutoff(module.BilinearCoefficients(-0.08, math.nan, 0.01, 1.1)))
        assert math.isnan(module.cutoff(module.BilinearCoefficients(-0.08, math.nan, -0.01, 1.1)))


@pytest.mark.asks("laws.log_linear.fit_per_size", "laws.log_linear.fit_separable", "laws.log_linear.fit_bilinear")
@given(runs=noisy_tables(), kind=st.sampled_from(KINDS))
def test_fits_agree_with_the_reference(backend, runs, kind):
    name = {"PerSize": "fit_per_size", "Separable": "fit_separable", "Bilinear": "fit_bilinear"}[kind]
    found, wanted = getattr(backend.laws.log_linear, name)(*runs), getattr(reference, name)(*runs)
    assert (found.status, found.rows, found.criterion) == (wanted.status, wanted.rows, wanted.criterion)
    rounding = max(1.0, 1e-3 / wanted.rmsle)  # rounding of the residuals in the objective
    check("laws.log_linear.objective", abs(found.objective / wanted.objective - 1), scale=rounding)
    check("laws.rmsle", abs(found.rmsle - math.sqrt(found.objective)), scale=found.rmsle)
    error = np.sqrt(np.diagonal(wanted.covariance, axis1=-2, axis2=-1))
    # The rounding of a coefficient is its standard error per unit of residual, times the rounding of a log10 loss.
    unit = (error / wanted.rmsle).T
    for ours, theirs, each in zip(
        found.coefficients[kind == "PerSize" :], wanted.coefficients[kind == "PerSize" :], unit, strict=True
    ):
        assert_close_bounded("laws.log_linear.coefficient", ours, theirs, each, what=f"{name} {wanted.coefficients}")
    unit = rounding * error[..., :, None] * error[..., None, :]
    assert_close_bounded("laws.log_linear.covariance", found.covariance, wanted.covariance, unit, what=name)
    if kind == "PerSize":
        assert np.array_equal(found.coefficients.sizes, np.unique(runs.dense_parameters))


@pytest.mark.asks("*.predict_loss", "laws.log_linear.fit_per_size")
def test_a_size_with_one_count_has_no_line(backend):
    size, count = np.append(np.repeat([1e7, 1e8], 4), 3e7), np.append(np.tile([1.0, 2.0, 4.0, 8.0], 2), 1.0)
    loss = 3.0 - 0.1 * np.log2(count) + 0.01 * np.arange(9)
    for module in (backend.laws.log_linear, reference):
        found = module.fit_per_size(size, count, loss)
        assert (found.status, found.rows) == ("no line at 1 of 3 sizes", 8)
        assert found.coefficients.sizes.tolist() == [1e7, 1e8] and found.covariance.shape == (2, 2, 2)
        without = module.fit_per_size(size[:8], count[:8], loss[:8])
        assert found.rmsle == without.rmsle < 0.01 and without.status == "interior"
        for ours, theirs in zip(found.coefficients, without.coefficients, strict=True):
            assert np.array_equal(ours, theirs)
        assert np.array_equal(found.covariance, without.covariance), "a size without a line takes no freedom"
        predicted = module.predict_loss(size, count, found.coefficients)
        assert np.isnan(predicted).tolist() == [False] * 8 + [True]


SLOPES = {
    "S-Base": (-0.0328, -0.0336, -0.0316, -0.0290, -0.0245, -0.0197),
    "RL-R": (-0.0338, -0.0331, -0.0314, -0.0274, -0.0223, -0.0166),
    "Hash": (-0.0308, -0.0309, -0.0289, -0.0241, -0.0209, -0.0151),
}
"""Change of log10 L per tenfold E at each size; dense runs of all seeds included."""


@pytest.mark.asks("laws.log_linear.fit_per_size")
@pytest.mark.released
@pytest.mark.parametrize("router", SLOPES)
def test_released_runs(backend, router):
    runs = released_runs(router, seeds=("1", "2", "3", "42"))
    for module in (backend.laws.log_linear, reference):
        slopes = module.fit_per_size(*runs).coefficients.b
        assert_close_bounded("laws.log_linear.printed", slopes, SLOPES[router], what="slopes per size")


LEAST = {"fit_bilinear": 5, "fit_separable": 4, "fit_per_size": 5}
"""The least number of rows: one more than the coefficients; for per-size lines, two sizes with two E each and one row
twice.
"""


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("name", LEAST)
def test_the_least_number_of_rows_is_enough(backend, name):
    rows = tuple(
        np.array(column)[: LEAST[name]]
        for column in ([1e7, 1e8, 1e7, 1e8, 1e8], [1, 1, 4, 4, 4], [3.0, 2.5, 2.75, 2.4, 2.35])
    )
    found, wanted = (getattr(module, name)(*rows) for module in (backend.laws.log_linear, reference))
    assert found.rows == wanted.rows == LEAST[name]
    for ours, theirs in zip(found.coefficients, wanted.coefficients, strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        assert_close_bounded("laws.log_linear.exact", ours, theirs, scale, what=f"{name} from {LEAST[name]} rows")


@pytest.mark.asks(because="each case names its function by a parameter")
@pytest.mark.parametrize("name", ["fit_bilinear", "fit_separable", "fit_per_size"])
def test_two_sizes_that_nearly_agree_are_two(backend, name):
    """Sizes that differ by 3e-8 are as independent as sizes a decade apart."""
    size, experts = np.repeat([1e8, 1e8 * (1 + 3e-8)], 3), np.tile([1.0, 4.0, 16.0], 2)
    for module in (backend.laws.log_linear, reference):
        found = getattr(module, name)(size, experts, 10 ** (0.5 - 0.02 * np.log10(experts)))
        assert found.status == "interior" and found.rows == 6, f"{name}: {found}"
