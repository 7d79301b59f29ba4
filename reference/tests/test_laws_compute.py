"""Loss from compute above a floor: six published runs, the registered prediction, and the fit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.plain.laws import Student
from routelaws.reference.laws import compute as reference

LAWS = st.builds(reference.ComputeCoefficients, st.sampled_from([0.0, 1.6]), st.floats(20, 200), st.floats(0.04, 0.2))
BUDGETS = np.array([1e18, 3e18, 1e19, 3e19, 1e20, 3e20])


def test_the_refit_of_the_published_runs():
    """A floor of 1.6 gives 96.71 and 0.0944, within 2 per cent of the published line."""
    fit = reference.fit_compute(*np.array(reference.RUNS).T, floor=1.6)
    assert (f"{fit.coefficients.A:.2f}", f"{fit.coefficients.alpha:.4f}") == ("96.71", "0.0944")
    ratios = np.array(fit.coefficients[1:]) / reference.PUBLISHED[1:]
    check("laws.compute.published", float(np.abs(ratios - 1).max()))


def test_the_registered_prediction_is_scored():
    """Both measured losses are below the prediction, by 0.3 and 0.85 per cent. Only the nearer is in the interval.

    The interval assumes that the floor is right. Otherwise the error grows with the distance from the six runs: at
    1e23, 330 times the largest budget, the measured 2.233 is just outside. It would be inside with a floor of 1.5,
    which fits the six runs better.
    """
    fits = {floor: reference.fit_compute(*np.array(reference.RUNS).T, floor=floor) for floor in (1.5, 1.6)}
    assert fits[1.5].rmsle < fits[1.6].rmsle
    inside = {}
    for run in reference.REGISTERED:
        assert f"{float(reference.predict_loss(run.flops)):.3f}" == f"{run.predicted:.3f}"
        for floor, fit in fits.items():
            low, high = reference.predict_interval(fit, run.flops)
            inside[floor, run.flops] = bool(low <= run.measured <= high)
    assert inside == {(1.5, 1e21): True, (1.5, 1e23): True, (1.6, 1e21): True, (1.6, 1e23): False}
    errors = [f"{run.predicted / run.measured - 1:.2%}" for run in reference.REGISTERED]
    assert errors == ["0.27%", "0.85%"]


@given(law=LAWS, noise=st.sampled_from([0.0, 1e-3]), seed=st.integers(0, 99))
def test_fits_recover_the_law(law, noise, seed):
    loss = reference.predict_loss(BUDGETS, law) * np.exp(noise * np.random.default_rng(seed).normal(size=6))
    fit = reference.fit_compute(BUDGETS, loss, law.floor)
    assert (fit.status, fit.rows) == ("interior", 6)
    residual = np.log(loss - law.floor) - np.log(reference.predict_loss(BUDGETS, fit.coefficients) - law.floor)
    check("laws.compute.orthogonal", abs(float(residual.sum())))
    check("laws.compute.orthogonal", abs(float(residual @ np.log(BUDGETS / 1e19))), scale=10.0)
    check("laws.compute.orthogonal", abs(fit.objective - float(np.mean(residual**2))))
    if not noise:
        check("laws.compute.exact", float(np.abs(np.array(fit.coefficients[1:]) / law[1:] - 1).max()))


@pytest.mark.parametrize("observation", [False, True])
def test_the_interval_of_a_prediction_is_students(observation):
    """ln (L - floor) is a line in ln C."""
    flops, loss = np.array(reference.RUNS).T
    student = Student(np.stack([np.ones(6), np.log(flops)], axis=1), np.log(loss - 1.6), 0.9)
    _, *ends = student.interval(np.array([1.0, math.log(1e24)]), more=float(observation))
    found = reference.predict_interval(reference.fit_compute(flops, loss, floor=1.6), 1e24, 0.9, observation)
    assert_close_bounded("laws.compute.interval", found, 1.6 + np.exp(ends), 1.0, what="predict_interval")


def test_the_interval_of_A_is_that_of_the_value_at_one_flop():
    """The error of the line is smallest at the mean of ln C, and twenty times larger at ln C = 0."""
    x, y = np.log(np.array(reference.RUNS)).T
    offset = x - x.mean()
    slope = offset @ y / (offset @ offset)
    left = y - y.mean() - slope * offset
    error = np.sqrt(left @ left / 4 * (1 / 6 + x.mean() ** 2 / (offset @ offset)))
    reach = 2.7764451051977987 * error  # Student's t, 95 %, 4 degrees of freedom
    fit = reference.fit_compute(*np.array(reference.RUNS).T)
    of_A, _ = reference.compute_intervals(fit, [], np.array([]))
    ends = np.log([of_A.low / of_A.value, of_A.high / of_A.value])
    assert_close_bounded("laws.compute.interval", ends, [-reach, reach], 1.0, what="ln A")


def test_a_speed_up_does_not_depend_on_the_budget():
    """Two recipes have the same floor and exponent; A differs by 3 per cent."""
    worse, better = reference.ComputeCoefficients(1.6, 98.0, 0.094), reference.ComputeCoefficients(1.6, 95.0, 0.094)
    found = reference.speedup(reference.predict_loss(BUDGETS, worse), reference.predict_loss(BUDGETS, better), better)
    assert_close_bounded("laws.compute.speedup", found, np.full(6, found[0]), found[0], what="speedup")
    again = reference.predict_loss(BUDGETS * found[0], worse)
    assert_close_bounded("laws.compute.speedup", again, reference.predict_loss(BUDGETS, better), again, what="speedup")


def test_a_loss_that_does_not_fall_is_no_law():
    assert reference.fit_compute([1e18, 1e19, 1e20], [2.0, 2.0, 2.1]).status == "loss does not fall with compute"
