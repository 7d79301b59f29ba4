import math

import numpy as np
import pytest
from hypothesis import given

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import Student
from routelaws.reference.laws import log_linear as reference
from routelaws.reference.tests.strategies_laws import linear_design, noisy_tables, released_runs


def test_what_no_number_of_experts_reaches():
    """At 1e12, above the cutoff, experts do not help: no loss below the dense loss is reachable."""
    law = reference.BilinearCoefficients(-0.08, -0.12, 0.01, 1.1)
    check("laws.log_linear.cutoff", abs(reference.cutoff(law) / 1e12 - 1))
    dense = float(reference.predict_loss(1e13, 1.0, law))
    assert reference.experts_for_loss(1e13, [dense * 1.01, dense * 0.99], law).tolist() == [1.0, math.inf]
    lines = reference.PerSizeCoefficients(np.array([1e7]), np.array([-0.03]), np.array([0.5]))
    assert np.isnan(reference.experts_for_loss(1e8, 2.0, lines)) and reference.experts_for_loss(1e7, 4.0, lines) == 1
    rising = reference.BilinearCoefficients(-0.08, -0.12, 0.1, 1.1)
    assert np.isnan(reference.size_for_loss([1.0, 10.0], 2.0, rising)).tolist() == [False, True]
    for gain in (-0.03, 0.03):
        assert reference.cutoff(reference.SeparableCoefficients(-0.08, gain, 1.1)) == math.inf
    assert reference.cutoff(reference.BilinearCoefficients(-0.08, -1.0, 1e-3, 1.1)) == math.inf
    assert math.isnan(reference.cutoff(reference.BilinearCoefficients(-0.08, math.nan, 0.01, 1.1)))
    assert math.isnan(reference.cutoff(reference.BilinearCoefficients(-0.08, math.nan, -0.01, 1.1)))


CENTRE = {
    "per-size": None,
    "separable": np.array([[1, 0, 0], [0, 1, 0], [8, 0, 1]]),
    "bilinear": np.array([[1, 0, 0, 0], [0, 1, 8, 0], [0, 0, 1, 0], [8, 0, 0, 1]]),
}
"""For each law, the matrix that gives the coefficients at sizes relative to 1e8, where the textbook loses no digits."""


@pytest.mark.parametrize("name", CENTRE)
@given(runs=noisy_tables())
def test_fits_are_those_of_least_squares(name, runs):
    """The textbook's solution, sum of squares and covariance."""
    fit, centre = getattr(reference, f"fit_{name.replace('-', '_')}")(*runs), CENTRE[name]
    size, law, covariance = runs.dense_parameters, fit.coefficients, fit.covariance
    line = Student(
        linear_design(name, size if centre is None else size / 1e8, runs.num_experts), np.log10(runs.loss), 0.9
    )
    wanted = line.covariance
    if centre is None:
        found, lines = np.array([*law.b, *law.d]), np.arange(2 * law.b.size).reshape(2, -1).T  # b and d of each size
        wanted = np.array([wanted[np.ix_(each, each)] for each in lines])
        assert np.array_equal(law.sizes, np.unique(size))
    else:
        found, covariance = centre @ law, centre @ covariance @ centre.T
    error = np.abs(found - line.solution) / np.sqrt(np.diag(line.covariance))
    check("laws.coverage.covariance", float(error.max()), message=f"coefficients in standard errors: {name}")
    error = np.sqrt(np.diagonal(wanted, axis1=-2, axis2=-1))
    unit = error[..., :, None] * error[..., None, :]
    assert_close_bounded("laws.coverage.covariance", covariance, wanted, unit, what=name)
    rounding = max(1.0, 1e-3 / fit.rmsle)  # rounding of the residuals in the objective
    check("laws.log_linear.objective", abs(fit.objective * size.size / line.squares - 1), scale=rounding)
    check("laws.rmsle", abs(fit.rmsle - math.sqrt(fit.objective)), scale=fit.rmsle)
    assert (fit.status, fit.rows) == ("interior", size.size)


def test_a_size_with_one_count_has_no_line():
    size, count = np.append(np.repeat([1e7, 1e8], 4), 3e7), np.append(np.tile([1.0, 2.0, 4.0, 8.0], 2), 1.0)
    loss = 3.0 - 0.1 * np.log2(count) + 0.01 * np.arange(9)
    found = reference.fit_per_size(size, count, loss)
    assert (found.status, found.rows) == ("no line at 1 of 3 sizes", 8)
    assert found.coefficients.sizes.tolist() == [1e7, 1e8] and found.covariance.shape == (2, 2, 2)
    without = reference.fit_per_size(size[:8], count[:8], loss[:8])
    assert found.rmsle == without.rmsle < 0.01 and without.status == "interior"
    for ours, theirs in zip(found.coefficients, without.coefficients, strict=True):
        assert np.array_equal(ours, theirs)
    assert np.array_equal(found.covariance, without.covariance), "a size without a line takes no freedom"
    predicted = reference.predict_loss(size, count, found.coefficients)
    assert np.isnan(predicted).tolist() == [False] * 8 + [True]


SLOPES = {
    "S-Base": (-0.0328, -0.0336, -0.0316, -0.0290, -0.0245, -0.0197),
    "RL-R": (-0.0338, -0.0331, -0.0314, -0.0274, -0.0223, -0.0166),
    "Hash": (-0.0308, -0.0309, -0.0289, -0.0241, -0.0209, -0.0151),
}
"""Change of log10 L per tenfold E at each size; dense runs of all seeds included."""


@pytest.mark.released
@pytest.mark.parametrize("router", SLOPES)
def test_released_runs(router):
    runs = released_runs(router, seeds=("1", "2", "3", "42"))
    slopes = reference.fit_per_size(*runs).coefficients.b
    assert_close_bounded("laws.log_linear.printed", slopes, SLOPES[router], what="slopes per size")


@pytest.mark.parametrize("name", ["fit_bilinear", "fit_separable", "fit_per_size"])
def test_two_sizes_that_nearly_agree_are_two(name):
    """Sizes that differ by 3e-8 are as independent as sizes a decade apart."""
    size, experts = np.repeat([1e8, 1e8 * (1 + 3e-8)], 3), np.tile([1.0, 4.0, 16.0], 2)
    found = getattr(reference, name)(size, experts, 10 ** (0.5 - 0.02 * np.log10(experts)))
    assert found.status == "interior" and found.rows == 6, f"{name}: {found}"
