"""Efficiency leverage: the paper's values to their digits, the ways to count A, and the fit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import derivatives
from routelaws.reference.laws import leverage as reference

pytestmark = pytest.mark.asks("laws.leverage.leverage")

VALUES = {
    (1 / 32, 2, 3e18): "2.321",
    (1 / 32, 2, 3e20): "3.690",
    (1 / 32, 2, 1e22): "5.252",
    (1 / 32, 8, 1e22): "7.130",
    (1 / 32, 12, 1e22): "7.220",
    (1 / 32, 16, 1e22): "7.132",
    (1 / 128, 2, 3e20): "4.936",
    (1 / 128, 12, 1e22): "11.219",
    (1, 12, 1e22): "0.990",
    (0.031, 12, 1e22): "7.24",
}
"""EL at (A, G, C), recomputed from the printed coefficients; the last is the paper's "over 7"."""

LAWS = st.builds(
    reference.LeverageCoefficients,
    st.floats(0.9, 1.5), st.floats(-0.09, -0.05), st.floats(0.01, 0.03), st.floats(-0.15, -0.05),
    st.sampled_from([3e-3, 1.63e-2, 0.05]), st.sampled_from([5.28e16, math.inf]),
)  # fmt: skip

STUDENT_43 = 2.0166921992278248
"""95 % of Student's t with 43 degrees of freedom lie between minus and plus this."""

GRID = [v.ravel() for v in np.meshgrid([0.008, 1 / 32, 0.1, 0.25], [2.0, 4.0, 8.0, 16.0], [1e18, 1e19, 3e20])]


def test_the_papers_values(backend):
    for place, printed in VALUES.items():
        for module in (backend.laws.leverage, reference):
            digits = len(printed.partition(".")[2])
            assert f"{float(module.leverage(*place)):.{digits}f}" == printed, place


@pytest.mark.asks("laws.leverage.activation_ratio")
def test_what_the_claim_of_seven_rests_on(backend):
    """With one shared expert beside 8 of 256, only E_a/E gives over 7: the definition gives a twentieth less."""
    for module in (backend.laws.leverage, reference):
        ways = ("definition", "routed", "mixed")
        found = {way: module.leverage(module.activation_ratio(256, 8, 1, way), 12, 1e22) for way in ways}
        assert {way: f"{float(value):.2f}" for way, value in found.items()} == {
            "definition": "6.87", "routed": "7.22", "mixed": "6.86",
        }  # fmt: skip


@pytest.mark.asks("laws.leverage.best_granularity")
def test_the_best_granularity(backend):
    for module in (backend.laws.leverage, reference):
        best = module.best_granularity()
        assert f"{best:.1f}" == "11.3"
        around = module.leverage(1 / 32, [best / 1.1, best, best * 1.1], 1e22)
        assert np.argmax(around) == 1
        assert module.best_granularity(reference.PUBLISHED._replace(gamma=0.0)) == math.inf


@pytest.mark.asks("laws.leverage.effective_activation")
@given(law=LAWS, activation=st.floats(1e-3, 1.0), granularity=st.floats(1, 32), flops=st.floats(1e17, 1e24))
def test_values_agree(backend, law, activation, granularity, flops):
    ours = backend.laws.leverage.LeverageCoefficients(*law)
    place = activation, granularity, flops
    found, wanted = (m.leverage(*place, c) for m, c in ((backend.laws.leverage, ours), (reference, law)))
    assert_close_bounded("laws.leverage.value", found, wanted, wanted, what=f"leverage at {place}")
    found, wanted = (
        m.effective_activation(activation, c) for m, c in ((backend.laws.leverage, ours), (reference, law))
    )
    assert_close_bounded("laws.leverage.value", found, wanted, wanted, what="effective_activation")


@pytest.mark.asks("laws.leverage.effective_activation", "laws.routed.effective_experts")
def test_saturation_is_that_of_the_routed_law(backend):
    """Â with A is Ê with E - 1: the two functions share their formula, start and limit."""
    from routelaws.reference.laws.routed import effective_experts

    law = reference.PUBLISHED._replace(A_start=2.0, A_max=300.0)
    for module in (backend.laws.leverage, reference):
        found = module.effective_activation([1.0, 63.0, 511.0], module.LeverageCoefficients(*law))
        wanted = effective_experts(np.array([2.0, 64.0, 512.0]), 2.0, 300.0)
        assert_close_bounded("laws.leverage.value", found, wanted, wanted, what="effective_activation")


@pytest.mark.asks("laws.leverage.leverage_allocation")
@given(flops=st.floats(1e18, 1e24), model=st.sampled_from(["dense", "moe"]))
def test_allocations_split_the_budget(backend, flops, model):
    found, wanted = backend.laws.leverage.leverage_allocation(flops, model), reference.leverage_allocation(flops, model)
    assert_close_bounded("laws.leverage.value", found, wanted, wanted, what="leverage_allocation")
    check("laws.leverage.budget", abs(float(found.flops_per_token * found.tokens) / flops - 1))


@pytest.mark.asks("laws.leverage.fit_leverage")
@given(law=LAWS, noise=st.sampled_from([0.0, 0.01]), seed=st.integers(0, 99))
def test_fits_recover_the_law(backend, law, noise, seed):
    measured = reference.leverage(*GRID, law) * np.exp(noise * np.random.default_rng(seed).normal(size=GRID[0].size))
    found, wanted = (m.fit_leverage(*GRID, measured, law.A_max) for m in (backend.laws.leverage, reference))
    assert (found.status, found.rows, found.criterion) == ("interior", 48, wanted.criterion)
    if noise:
        check("laws.leverage.objective", abs(found.objective / wanted.objective - 1))
        error = np.sqrt(np.diag(wanted.covariance))
        assert_close_bounded(
            "laws.leverage.fit", found.coefficients[:4], wanted.coefficients[:4], error[:4], what="fit"
        )
        scale = np.outer(error, error)
        assert_close_bounded("laws.leverage.covariance", found.covariance, wanted.covariance, scale, what="covariance")
    else:
        for fit in (found, wanted):
            check("laws.leverage.exact", float(np.abs(np.array(fit.coefficients[:5]) / law[:5] - 1).max()))


@pytest.mark.asks("*.predict_interval")
def test_one_more_leverage_scatters_as_the_rows_do(backend):
    """Beyond the variance of the law comes that of a row: the sum of squares over n - 5; of a fit made by hand."""
    for module in (backend.laws.leverage, reference):
        fit = module.LeverageFit(module.PUBLISHED, 1e-5, 0.0, "interior", 1e-8 * np.eye(5), 48, "")
        ends = [module.predict_interval(fit, 0.1, 8.0, 3e20, observation=each) for each in (False, True)]
        law, row = (float(np.log10(high / low)) / 2 / STUDENT_43 for low, high in ends)
        assert_close_bounded("laws.leverage.interval", row**2 - law**2, 48e-5 / 43, row**2, what="variance of a row")


def log_leverage(theta: np.ndarray, activation, granularity, flops) -> np.ndarray:
    """Return log10 EL of (a, d, gamma, beta, ln A_start), without a largest A."""
    a, d, gamma, beta, log_start = theta
    power = a + d * np.log10(flops) + gamma * np.log2(granularity) ** 2 + beta * np.log2(granularity)
    return -power * np.log10(1 / (np.asarray(activation) + np.exp(log_start)))


@pytest.mark.asks("*.predict_interval", "laws.leverage.fit_leverage")
@pytest.mark.parametrize("observation", [False, True])
def test_intervals_are_those_of_derivatives_by_differences(backend, observation):
    """s² (JᵀJ)⁻¹ with s² of n - 5 degrees of freedom, and a prediction whose variance is gᵀ s² (JᵀJ)⁻¹ g."""
    law = reference.PUBLISHED._replace(A_max=math.inf)
    measured = reference.leverage(*GRID, law) * np.exp(0.01 * np.random.default_rng(3).normal(size=48))
    place = 1 / 128, 12.0, 1e22
    for module in (backend.laws.leverage, reference):
        fit = module.fit_leverage(*GRID, measured, math.inf)
        theta = np.array([*fit.coefficients[:4], math.log(fit.coefficients.A_start)])
        miss = np.log10(measured) - log_leverage(theta, *GRID)
        variance = float(miss @ miss) / 43
        slopes = derivatives(lambda theta: log_leverage(theta, *GRID), theta)
        covariance = variance * np.linalg.inv(slopes.T @ slopes)
        error = np.sqrt(np.diag(covariance))
        scale = np.outer(error, error)
        assert_close_bounded("laws.leverage.covariance", fit.covariance, covariance, scale, what="covariance")
        slope = derivatives(lambda theta: log_leverage(theta, *place)[None], theta)[0]
        reach = STUDENT_43 * math.sqrt(slope @ covariance @ slope + observation * variance)
        value = float(log_leverage(theta, *place))
        ends = module.predict_interval(fit, *place, 0.95, observation)
        wanted = 10 ** np.array([value - reach, value + reach])
        assert_close_bounded("laws.leverage.interval", ends, wanted, wanted, what="predict_interval")


@pytest.mark.asks("*.predict_interval", "laws.leverage.fit_leverage")
@given(seed=st.integers(0, 99), observation=st.booleans())
def test_intervals_agree(backend, seed, observation):
    measured = reference.leverage(*GRID) * np.exp(0.01 * np.random.default_rng(seed).normal(size=48))
    places = [1 / 32, 1 / 128], [12.0, 2.0], [1e22, 3e20]
    ends = []
    for module in (backend.laws.leverage, reference):
        fit = module.fit_leverage(*GRID, measured)
        low, high = module.predict_interval(fit, *places, 0.9, observation)
        value = module.leverage(*places, fit.coefficients)
        assert np.all((low < value) & (value < high))
        ends.append(np.stack([low, high]))
    assert_close_bounded("laws.leverage.interval", ends[0], ends[1], ends[1], what="predict_interval")


@pytest.mark.asks("*.predict_interval", "laws.leverage.fit_leverage")
@pytest.mark.slow
def test_intervals_hold_what_they_say(backend):
    """300 tables with noise of 0.02: coefficients, and a leverage far beyond the table, are inside 91 to 98 %."""
    module, random, inside = backend.laws.leverage, np.random.default_rng(4), np.zeros(7)
    truth = np.array([*reference.PUBLISHED[:4], math.log(reference.PUBLISHED.A_start)])
    place = 1 / 128, 12.0, 1e22
    exact = float(reference.leverage(*place))
    for _ in range(300):
        fit = module.fit_leverage(*GRID, reference.leverage(*GRID) * np.exp(0.02 * random.normal(size=48)))
        found = np.array([*fit.coefficients[:4], math.log(fit.coefficients.A_start)])
        inside[:5] += np.abs(found - truth) < 2.017 * np.sqrt(np.diag(fit.covariance))  # Student's t, 43 degrees
        for at, observation, measured in ((5, False, exact), (6, True, exact * np.exp(0.02 * random.normal()))):
            low, high = module.predict_interval(fit, *place, observation=observation)
            inside[at] += bool(low < measured < high)
    assert np.all((inside / 300 > 0.91) & (inside / 300 < 0.98)), inside / 300


BAD = {
    "lengths": ((GRID[0], GRID[1], GRID[2], GRID[0][1:]), "needed: one axis, the same length"),
    "few": ((GRID[0][:6], GRID[1][:6], GRID[2][:6], GRID[0][:6]), "6 rows; the leverage law has 6 coefficients"),
    "one G": ((GRID[0], np.full(48, 2.0), GRID[2], GRID[0]), "cannot tell the coefficients apart"),
    "limit": ((*GRID, GRID[0], 1.0), "A_max is 1.0; needed: at least 10"),
}


@pytest.mark.asks("laws.leverage.activation_ratio", "laws.leverage.fit_leverage")
@pytest.mark.twin
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fitted_is_named(backend, case):
    arguments, message = BAD[case]
    for module in (backend.laws.leverage, reference):
        with pytest.raises(ValueError, match=message):
            module.fit_leverage(*arguments)
        with pytest.raises(ValueError, match="counting 'all' is not known; allowed: definition"):
            module.activation_ratio(8, 1, 0, "all")
