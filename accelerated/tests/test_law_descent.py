import numpy as np
import pytest

from routelaws.accelerated.laws import _descent, _smooth, fine_grained, hoffmann, joint
from routelaws.reference.laws import _descent as plain_descent
from routelaws.reference.laws import additive

RANDOM = np.random.default_rng(3)
RUNS = [RANDOM.uniform(1e7, 1e10, 20), RANDOM.uniform(1e9, 1e12, 20), RANDOM.integers(1, 65, 20).astype(float)]
LAWS = {
    "fine-grained": (additive._form(fine_grained.FINE_GRAINED), fine_grained.predict_fine_grained,
                     fine_grained.PUBLISHED["E=64"].coefficients, RUNS),
    "kaplan": (hoffmann._KAPLAN,
               hoffmann.predict_kaplan, hoffmann.KaplanCoefficients(0.076, 8.8e13, 0.095, 5.4e13), RUNS[:2]),
    "joint": (joint._JOINT,
              joint.predict_joint, joint.PUBLISHED["joint"].coefficients, RUNS),
}  # fmt: skip
"""For each law: its form, a prediction in NumPy, coefficients, and columns of a table."""


@pytest.mark.parametrize("name", LAWS)
def test_the_search_predicts_the_law_and_how_it_turns(name):
    form, predict, truth, columns = LAWS[name]
    problem, centres = _smooth._problem(form, columns, np.full(20, np.e), None), form.centres(columns)
    theta = form.internal(truth, centres)
    residual, turn = _descent.look(problem, theta)
    np.testing.assert_allclose(residual + 1, np.log(predict(*columns, truth)), rtol=1e-12)
    step = 1e-5 * np.eye(theta.size)
    sides = [(_descent.look(problem, theta + h)[0] - _descent.look(problem, theta - h)[0]) / 2e-5 for h in step]
    np.testing.assert_allclose(turn, np.stack(sides, axis=1), atol=1e-8)

    def coefficients(theta):
        return _descent.coefficients(problem, theta)

    values, turn = coefficients(theta)
    np.testing.assert_allclose(values, truth, rtol=1e-9)
    sides = [(coefficients(theta + h)[0] - coefficients(theta - h)[0]) / 2e-5 for h in step]
    np.testing.assert_allclose(turn / values[:, None], np.stack(sides, axis=1) / values[:, None], rtol=1e-5, atol=1e-5)

    predicted, J = form.bind(columns, centres)(theta)
    np.testing.assert_allclose(np.exp(predicted), predict(*columns, truth), rtol=1e-12)
    np.testing.assert_allclose(J, _descent.look(problem, theta)[1], atol=1e-12)
    np.testing.assert_allclose(form.natural(theta, centres), truth, rtol=1e-9)


@pytest.mark.parametrize("log_bend", [-28.0, -32.0, -36.0])
def test_a_search_with_a_vanished_unknown_has_converged(log_bend):
    """These losses have E_max = ∞. A search may stop where the bend is tiny but above 0: no step changes a loss."""
    axes = np.geomspace(1e8, 1e9, 4), np.geomspace(1e10, 1e11, 4), 2.0 ** np.arange(4)
    columns = tuple(axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    truth = joint.JointCoefficients(36, -0.19, -0.23, 0.01, 36, -0.18, 0.55, -0.026, 2.0, np.inf, 1.36)
    loss = joint.predict_joint(*columns, truth) * np.exp(np.random.default_rng(2).normal(0, 2e-3, 64))
    form, centres = joint._JOINT, joint._JOINT.centres(columns)
    problem = _smooth._problem(form, columns, loss, None)
    theta = _descent.best_of(problem, form.starts(columns, centres, problem.log_loss)).theta
    theta[9] = log_bend
    residual, turn = _descent.look(problem, theta)
    assert _descent.ended(problem, residual, turn, residual @ residual / 2)
    assert plain_descent.ended(plain_descent.problem_of(form, columns, loss, None, centres), theta)
    theta[0] += 1e-3
    residual, turn = _descent.look(problem, theta)
    assert not _descent.ended(problem, residual, turn, residual @ residual / 2)
