"""The fit: the same optimum as the reference, proof of optimality, and statuses at the edges."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference.laws import fitting as reference
from routelaws.reference.laws import routed
from routelaws.reference.tests.strategies_laws import EXPERTS, SIZES, Runs, noisy_tables, released_runs

RELEASED = {
    "S-Base": (58, 1.041688462e-05, 783e9),
    "RL-R": (59, 1.042800091e-05, 97.1e9),
    "Hash": (56, 8.890275660e-06, 89.3e9),
}
"""Rows, least mean squared difference of log10 losses (confirmed by four methods), N_cutoff at this optimum."""


def prediction_error(found, wanted, runs: Runs, module) -> float:
    ours = np.log10(module.predict_curve(found.curve, runs.dense_parameters, runs.num_experts))
    theirs = np.log10(reference.predict_curve(wanted.curve, runs.dense_parameters, runs.num_experts))
    return float(np.abs(ours - theirs).max())


def least_squares(runs: Runs, E_start: float, E_max: float) -> float:
    """Return the least mean squared difference at one (E_start, E_max), from the law and the equation of Ê."""
    log_size = np.log10(runs.dense_parameters / 1e8)
    log_experts = np.log10(routed.effective_experts(runs.num_experts, E_start, E_max))
    log_experts = (log_experts - log_experts.mean()) / log_experts.std()
    design = np.stack([np.ones_like(log_size), log_size, log_experts, log_size * log_experts], axis=1)
    target = np.log10(runs.loss)
    return float(np.mean((target - design @ np.linalg.lstsq(design, target, rcond=None)[0]) ** 2))


@settings(max_examples=settings.default.max_examples // 3)  # the reference takes half a second for each
@given(runs=noisy_tables())
def test_noisy_tables_agree_with_the_reference(runs):
    found, wanted = fast.fitting.fit_routed(*runs), reference.fit_routed(*runs)
    check("laws.fitting.objective", abs(found.objective / wanted.objective - 1))
    assert found.status == wanted.status and found.rows == wanted.rows == runs.loss.size
    check("laws.rmsle", abs(found.rmsle - math.sqrt(found.objective)), scale=found.rmsle)
    error = prediction_error(found, wanted, runs, fast.fitting)
    check("laws.fitting.prediction", error, scale=wanted.rmsle / 1e-3)


@given(runs=noisy_tables(), seed=st.integers(0, 2**32 - 1))
def test_no_point_of_the_domain_is_better(runs, seed):
    found = fast.fitting.fit_routed(*runs)
    random = np.random.default_rng(seed)
    start = 10.0 ** random.uniform(0, 3, 150)
    start[:40] = 1.0
    end = start * (1 + 10.0 ** random.uniform(-3, 5, 150))
    end[30:70] = math.inf
    if math.isfinite(found.coefficients.E_start):  # and around the optimum
        start[70:110] = np.maximum(found.coefficients.E_start * random.uniform(0.5, 2, 40), 1)
        end[70:110] = start[70:110] + (found.coefficients.E_max - start[70:110]) * random.uniform(0.5, 2, 40)
        end = np.where(end > start, end, np.inf)
    least = min(least_squares(runs, *pair) for pair in zip(start, end, strict=True))
    check("laws.fitting.objective", max(found.objective / least - 1, 0.0), message=str(found.coefficients))


TWO_LOW_POINTS = np.array([
    7050, 6717, 6920, 6487, 6124, 6031, 5927, 5605, 5692, 6554, 6340, 6232,
    5890, 5713, 5625, 5213, 5204, 5161, 6302, 6227, 6057, 5635, 5407, 5304,
    5047, 4853, 4933, 6026, 5805, 5652, 5270, 5191, 4775, 4657, 4473, 4697,
    7032, 6590, 5857, 6537, 5932, 5243, 6351, 5675, 4950, 5960, 5391, 4602,
])  # fmt: skip
"""10,000 log10 L at four sizes and nine E, every third of them twice. The least value over E_max, as a function of
E_start, has two close minima; a scan in steps of 1/32 finds only the higher one, by two parts in a million.
"""


@pytest.mark.parametrize("seed", [289, 924, 2972])
def test_noise_that_outweighs_the_shape(seed):
    """Gauss-Newton steps ignore the curvature of the residuals, and end up to 6e-9 (relative) above the optimum.

    These are cases among 2,159 random tables. With seed 289 E_max is unbounded at the optimum, but 3e17 where
    Gauss-Newton steps end.
    """
    random = np.random.default_rng(seed)
    sizes = 10 ** np.sort(random.uniform(6, 10, random.integers(2, 6)))
    counts = np.unique(np.append(1, random.choice([2, 4, 8, 16, 32, 64, 128, 256, 512], random.integers(2, 7))))
    size, experts = (v.ravel() for v in np.meshgrid(sizes, counts, indexing="ij"))
    slopes = -random.uniform(0.03, 0.1), -random.uniform(0.02, 0.15), random.uniform(0, 0.012)
    law = routed.RoutedCoefficients(*slopes, 1.1, random.uniform(1, 4), 10 ** random.uniform(1.5, 3.5))
    noise = random.normal(0, 10 ** random.uniform(-4, -1), size.size)
    runs = Runs(size, experts, routed.predict_loss(size, experts, law) * 10**noise)
    found, wanted = fast.fitting.fit_routed(*runs), reference.fit_routed(*runs)
    check("laws.fitting.objective", abs(found.objective / wanted.objective - 1))
    assert found.status == wanted.status


def test_two_low_points_close_together():
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[1:2] + SIZES[3:], EXPERTS[:6] + EXPERTS[7:], indexing="ij"))
    size, experts = (np.append(v, v[::3]) for v in (size, experts))
    runs = Runs(size, experts, 10 ** (TWO_LOW_POINTS / 1e4))
    fits = [module.fit_routed(*runs) for module in (fast.fitting, reference)]
    check("laws.fitting.objective", abs(fits[0].objective / fits[1].objective - 1))
    least = least_squares(runs, 3.748800485, 14.464057827)
    for fit in fits:
        check("laws.fitting.released_objective", max(fit.objective / least - 1, 0.0))


@given(runs=noisy_tables(), seed=st.integers(0, 1000))
def test_order_and_whole_repetition_do_not_matter(runs, seed):
    order = np.random.default_rng(seed).permutation(runs.loss.size)
    shuffled = Runs(*(np.concatenate([column[order], column]) for column in runs))
    once, twice = fast.fitting.fit_routed(*runs), fast.fitting.fit_routed(*shuffled)
    check("laws.fitting.objective", abs(twice.objective / once.objective - 1))
    assert once.status == twice.status and twice.rows == 2 * once.rows


def check_covariance(name: str, found, wanted) -> None:
    """Compare two covariances in units of the second one's standard errors."""
    error = np.sqrt(np.diag(wanted.covariance))
    assert np.array_equal(np.diag(found.covariance) == 0, error == 0)
    unit = np.where(error > 0, error, 1.0)
    check(name, float(np.abs((found.covariance - wanted.covariance) / unit / unit[:, None]).max()))


@pytest.mark.parametrize(
    "law",
    [
        (2.0, 300.0),
        *(pytest.param(law, marks=pytest.mark.slow) for law in ((1.0, 300.0), (2.0, math.inf))),
        (1.0, math.inf),
    ],
)
def test_covariance_agrees_on_every_face(law):
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    loss = routed.predict_loss(size, experts, routed.RoutedCoefficients(-0.08, -0.1, 0.008, 1.1, *law))
    # Noise orthogonal to the law, so the optimum does not move and the residual does not vanish.
    log_size = np.log10(size)
    loss = loss * 10 ** (1e-5 * (log_size - 8.0) * (log_size - log_size.mean()) ** 2)
    found, wanted = fast.fitting.fit_routed(size, experts, loss), reference.fit_routed(size, experts, loss)
    assert found.status == wanted.status != "linear limit"
    check_covariance("laws.fitting.covariance", found, wanted)


@pytest.mark.released
@pytest.mark.parametrize("router", RELEASED)
def test_released_table(router):
    runs = released_runs(router)
    rows, objective, cutoff = RELEASED[router]
    wanted = reference.fit_routed(*runs)
    found = fast.fitting.fit_routed(*runs)
    for fit in (wanted, found):
        assert (fit.rows, fit.status) == (rows, "interior")
        check("laws.fitting.released_objective", abs(fit.objective / objective - 1))
        check("laws.routed.cutoff", abs(routed.cutoff(fit.coefficients) / cutoff - 1))
    check("laws.fitting.objective", abs(found.objective / wanted.objective - 1))
    check("laws.fitting.prediction", prediction_error(found, wanted, runs, fast.fitting), scale=3.0)
    check_covariance("laws.fitting.covariance", found, wanted)
