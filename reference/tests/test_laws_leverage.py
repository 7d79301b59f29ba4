import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import derivatives
from routelaws.reference.laws import leverage as reference

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
"""EL at (A, G, C), recomputed from the printed coefficients; the last row is the paper's "over 7"."""


STUDENT_43 = 2.0166921992278248
"""Two-sided 95 % quantile of Student's t with 43 degrees of freedom."""

GRID = [v.ravel() for v in np.meshgrid([0.008, 1 / 32, 0.1, 0.25], [2.0, 4.0, 8.0, 16.0], [1e18, 1e19, 3e20])]


def test_the_papers_values():
    for place, printed in VALUES.items():
        digits = len(printed.partition(".")[2])
        assert f"{float(reference.leverage(*place)):.{digits}f}" == printed, place


def test_what_the_claim_of_seven_rests_on():
    """With one shared expert besides 8 of 256, only E_a/E gives over 7. The definition gives 5 % less."""
    ways = ("definition", "routed", "mixed")
    found = {way: reference.leverage(reference.activation_ratio(256, 8, 1, way), 12, 1e22) for way in ways}
    assert {way: f"{float(value):.2f}" for way, value in found.items()} == {
        "definition": "6.87", "routed": "7.22", "mixed": "6.86",
    }  # fmt: skip


def test_the_best_granularity():
    best = reference.best_granularity()
    assert f"{best:.1f}" == "11.3"
    around = reference.leverage(1 / 32, [best / 1.1, best, best * 1.1], 1e22)
    assert np.argmax(around) == 1
    assert reference.best_granularity(reference.PUBLISHED._replace(gamma=0.0)) == math.inf


@given(flops=st.floats(1e18, 1e24), model=st.sampled_from(["dense", "moe"]))
def test_allocations_split_the_budget(flops, model):
    found = reference.leverage_allocation(flops, model)
    check("laws.leverage.budget", abs(float(found.flops_per_token * found.tokens) / flops - 1))


def log_leverage(theta: np.ndarray, activation, granularity, flops) -> np.ndarray:
    """Return log10 EL of (a, d, gamma, beta, ln A_start), without a largest A."""
    a, d, gamma, beta, log_start = theta
    power = a + d * np.log10(flops) + gamma * np.log2(granularity) ** 2 + beta * np.log2(granularity)
    return -power * np.log10(1 / (np.asarray(activation) + np.exp(log_start)))


@pytest.mark.parametrize("observation", [False, True])
def test_intervals_are_those_of_derivatives_by_differences(observation):
    """The covariance is s² (JᵀJ)⁻¹ with n - 5 degrees of freedom. A prediction has the variance gᵀ s² (JᵀJ)⁻¹ g."""
    law = reference.PUBLISHED._replace(A_max=math.inf)
    measured = reference.leverage(*GRID, law) * np.exp(0.01 * np.random.default_rng(3).normal(size=48))
    place = 1 / 128, 12.0, 1e22
    fit = reference.fit_leverage(*GRID, measured, math.inf)
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
    ends = reference.predict_interval(fit, *place, 0.95, observation)
    wanted = 10 ** np.array([value - reach, value + reach])
    assert_close_bounded("laws.leverage.interval", ends, wanted, wanted, what="predict_interval")
