import math
from functools import partial

import numpy as np
import pytest

from routelaws.accelerated.laws import _descent, _smooth, fine_grained, hoffmann, joint
from routelaws.accelerated.laws.catalogue import LAWS as RECORDS
from routelaws.reference.laws import additive
from routelaws.reference.laws.numerics import _descent as plain_descent
from routelaws.reference.laws.numerics._huber import terms

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


@pytest.mark.parametrize(
    ("name", "huber"), [("kaplan", None), ("hoffmann", 1e-3), ("bilinear-floor", 1e-3), ("routed-bounded-floor", None)]
)
def test_many_tables_are_fitted_as_well_as_each_alone(name, huber):
    """The best minimum of a resample by Kaplan's law may lie far from that of the whole table."""
    law, random = RECORDS[name], np.random.default_rng(0)
    second = [1.0, 4.0, 16.0, 64.0] if law.columns[1] == "num_experts" else np.geomspace(1e9, 1e11, 4)
    columns = [axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 4), second)]
    loss = 1.7 + 400 / columns[0] ** 0.34 + 2 * columns[1] ** -0.1
    loss *= np.exp(random.normal(0, 1e-2, 16))
    drawn = [np.delete(np.arange(16), 5), *random.integers(0, 16, (8, 16))[[0, 1, 7]], np.flatnonzero(columns[0] > 1e8)]
    tables = [[column[np.sort(rows)] for column in (*columns, loss)] for rows in drawn]
    fit, delta = partial(law.fit, huber=huber), math.inf if huber is None else huber * math.log(10)
    found = _smooth.fit_each(fit, columns, loss, np.array([np.bincount(rows, minlength=16) for rows in drawn]))
    assert found[0] is not None and found[-1] is None
    for table, each in zip(tables, found, strict=True):
        try:
            best = fit(*table)
        except ValueError:
            assert each is None
            continue
        residuals = (np.log(law.predict(some, *table[:2]) / table[2]) for some in (each, best))
        together, alone = (terms(residual, delta).sum() for residual in residuals)
        assert together <= alone * (1 + 1e-5)


def test_the_end_of_another_table_starts_a_second_search():
    """The first table ends far off; the others lead it to its minimum."""
    (form, predict, truth, columns), random = LAWS["kaplan"], np.random.default_rng(0)
    losses = [predict(*columns, truth) * np.exp(random.normal(0, 1e-3, 20)) for _ in range(3)]
    problems = [_smooth._problem(form, columns, loss, None) for loss in losses]
    ends = np.array([_smooth.searched(form, columns, loss, None).best.theta for loss in losses])
    tables = problems[0]._replace(log_loss=np.array([each.log_loss for each in problems]), weight=np.ones((3, 20)))
    least, every = _descent.sums_at(tables, ends), _descent.sums_at(tables, ends, every=True)
    np.testing.assert_allclose(every[1], _descent.sums_at(tables, np.tile(ends[1], (3, 1))), rtol=1e-12)
    astray = np.array(ends)
    astray[0, 0] += 1.0
    found = _smooth._second_ends(tables, np.array(astray), _descent.sums_at(tables, astray))
    np.testing.assert_allclose(_descent.sums_at(tables, found), least, rtol=1e-9)
    assert np.array_equal(found[1:], ends[1:])


def test_a_kept_search_is_of_its_own_table():
    """The searches of eight tables are kept. Another loss, delta or law is another search."""
    columns, loss = RUNS[:2], np.exp(RANDOM.normal(1, 1e-2, 20))
    form = hoffmann._KAPLAN
    search = _smooth.searched(form, columns, loss, None)
    assert _smooth.searched(form, columns, loss.copy(), None) is search
    assert _smooth.searched(form, columns, loss * 1.1, None) is not search
    assert _smooth.searched(form, columns, loss, 1e-3) is not search
    assert _smooth.searched(additive._form(hoffmann.HOFFMANN), columns, loss, None) is not search
