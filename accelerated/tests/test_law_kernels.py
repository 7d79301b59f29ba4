"""What the loops of the laws that add terms are made of: exponentials, derivatives, coefficients."""

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_terms, vector
from routelaws.accelerated.laws import _descent, _levenberg, additive, fine_grained, hoffmann, joint

RANDOM = np.random.default_rng(3)
RUNS = [RANDOM.uniform(1e7, 1e10, 20), RANDOM.uniform(1e9, 1e12, 20), RANDOM.integers(1, 65, 20).astype(float)]
LAWS = {
    "fine-grained": (lambda: additive._form(fine_grained.FINE_GRAINED), fine_grained.predict_fine_grained,
                     fine_grained.PUBLISHED["E=64"].coefficients, RUNS),
    "kaplan": (hoffmann._kaplan, hoffmann.predict_kaplan,
               hoffmann.KaplanCoefficients(0.076, 8.8e13, 0.095, 5.4e13), RUNS[:2]),
    "joint": (joint._joint, joint.predict_joint, joint.PUBLISHED["joint"].coefficients, RUNS),
}  # fmt: skip
"""The form of each law, what it predicts in NumPy, coefficients, and columns of a table."""


@pytest.mark.parametrize(("ours", "exact"), [(vector.exp, np.exp), (vector.log, np.log)])
def test_exponentials_and_logarithms_are_those_of_more_digits(ours, exact):
    values = np.concatenate([RANDOM.uniform(-690, 690, 5000), RANDOM.normal(0, 1, 5000), [0.0, -0.0, 1e-300]])
    values = values if ours is vector.exp else np.concatenate([np.exp(values), [1.0, 2.0, np.sqrt(0.5)]])
    found = values.copy()
    ours(found, np.empty_like(found))
    wanted = exact(values.astype(np.longdouble))
    assert np.all(np.abs(found - wanted) <= 3 * np.spacing(np.abs(wanted.astype(float))))


def test_what_no_number_comes_from_stays_one():
    values = np.array([np.nan, -np.inf, np.inf, 0.0])
    vector.exp(values, np.empty(4))
    assert np.isnan(values[0]) and 0 < values[1] < 1e-300 and 1e300 < values[2] < np.inf and values[3] == 1
    values = np.array([np.nan, 1.0])
    vector.log(values, np.empty(2))
    assert np.isnan(values[0]) and values[1] == 0


@pytest.mark.parametrize("name", LAWS)
def test_loops_predict_the_law_and_how_it_turns(name):
    form, predict, truth, columns = LAWS[name]
    problem = _descent.problem_of(form(), columns, np.full(20, np.e), None)
    theta = form().internal(truth, problem.centres)
    residual, turn = _descent.look(problem, theta)
    np.testing.assert_allclose(residual + 1, np.log(predict(*columns, truth)), rtol=1e-12)
    step = 1e-5 * np.eye(theta.size)
    sides = [(_descent.look(problem, theta + h)[0] - _descent.look(problem, theta - h)[0]) / 2e-5 for h in step]
    np.testing.assert_allclose(turn, np.stack(sides, axis=1), atol=1e-8)


def natural_fine_grained(theta, centres):
    """Return a, alpha, b, beta, g, gamma and c of unknowns that are counted from the middle of the table."""
    log_a, alpha, log_b, beta, log_g, gamma, log_c = theta
    P, D, G = centres
    logs = log_a + alpha * P, log_b + beta * D, log_g + alpha * P + gamma * G, log_c
    a, b, g, c = np.exp(np.array(logs))
    return np.array([a, alpha, b, beta, g, gamma, c])


def natural_kaplan(theta, centres):
    """Return alpha_N, N_c, alpha_D and D_c."""
    alpha_N, u, alpha_D, v = theta
    return np.array([alpha_N, np.exp(u / alpha_N + centres[0]), alpha_D, np.exp(v / alpha_D + centres[1])])


def natural_joint(theta, centres):
    """Return the eleven coefficients, with s = ln E_start."""
    rise, bend = np.exp(theta[8:10])
    s = theta[8] - 2 * np.log(rise + bend)
    found = []
    for first, centre in ((0, centres[0]), (4, centres[1])):
        level, power, gain, turn = theta[first : first + 4]
        log = level - gain * s - (power - turn * s) * centre
        found += [np.exp(log), power - turn * s, gain - turn * centre, turn]
    return np.array([*found, np.exp(s), np.exp(theta[8] - np.log(rise + bend) - theta[9]), np.exp(theta[10])])


NATURAL = {"fine-grained": natural_fine_grained, "kaplan": natural_kaplan, "joint": natural_joint}


@pytest.mark.parametrize("name", LAWS)
def test_an_interval_is_asked_for_what_the_law_calls_its_coefficients(name):
    """Against the formulas, whose derivatives are taken by a step of 1e-200 in the imaginary direction."""
    form, _, truth, columns = LAWS[name]
    form = form()
    centres = _descent.problem_of(form, columns, np.full(20, np.e), None).centres
    theta = form.internal(truth, centres)
    values = NATURAL[name](theta, centres)
    turns = np.array([NATURAL[name](theta + 1e-200j * h, centres).imag / 1e-200 for h in np.eye(theta.size)]).T
    np.testing.assert_allclose(values, truth, rtol=1e-12)
    for found, wanted in zip(_descent.coefficients(form, theta, centres), (values, turns), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    for j, above in enumerate(form.positive):
        by = np.empty(theta.size)
        value = law_terms.coefficient(form.law, centres, j, theta, by)
        wanted = (np.log(values[j]), turns[j] / values[j]) if above else (values[j], turns[j])
        np.testing.assert_allclose(value, wanted[0], rtol=1e-12)
        np.testing.assert_allclose(by, wanted[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_what_is_asked_of_a_start_pulls_with_its_weight(name):
    """With a weight of 0 it changes nothing, with a large one the coefficient ends where it is asked to be."""
    form, predict, truth, columns = LAWS[name]
    problem = _descent.problem_of(form(), columns, predict(*columns, truth), None)
    theta = form().internal(truth, problem.centres)
    (least,), _ = _descent._targets(problem, np.zeros(1, int), theta[None])
    asked, starts = np.zeros(2, int), np.tile(theta, (2, 1))
    wanted, weights = np.full(2, least + 0.01), np.array([0.0, 1e6])
    _, _, said = _descent._follow(problem, starts, _descent.HELD, asked, wanted, weights)
    np.testing.assert_allclose(said, [least, least + 0.01], atol=1e-6)


@pytest.mark.parametrize(("delta", "wanted"), [(1.0, 0.125 + 2 * 1.5), (np.inf, 0.125 + 2 * 2.0)])
def test_the_sum_of_huber_terms_by_hand(delta, wanted):
    """Residuals 0.5 and 2, the second counted twice: r²/2 up to delta, and delta (|r| - delta/2) beyond."""
    assert _levenberg._huber_sum(np.array([0.5, -2.0]), np.array([1.0, 2.0]), delta) == wanted
