"""The compiled fit of the bounded law. Most tests run it as plain Python and compare its sums with NumPy."""

import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit
from routelaws.accelerated.laws import _shapes, fitting
from routelaws.conformance.bounds import check
from routelaws.conformance.compare import central_difference
from routelaws.reference.laws import routed
from routelaws.reference.tests.strategies_laws import EXPERTS, SIZES

plain = pytest.mark.usefixtures("plain")
"""Mark of small tests, for which compiling would take longer."""

LAWS = {
    "inside": (2.0, 300.0),
    "nearly unbounded": (1.5, 3e4),
    "nearly at 1": (1.05, 200.0),
    "at the corner": (1.0, np.inf),
}
"""E_start and E_max; with noise, the optima of resamples lie in several pieces of the domain."""


@pytest.fixture(autouse=True)
def no_lanes(monkeypatch):
    monkeypatch.setattr(fitting, "FEW", 0)


def resampled(name: str, count: int = 60):
    """Return a noisy table of the law, and `count` bootstrap weightings of it."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    random = np.random.default_rng(len(name))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, *LAWS[name])
    loss = routed.predict_loss(size, experts, law) * 10 ** random.normal(0, 3e-3, size.size)
    return (size, experts, loss), random.multinomial(size.size, np.full(size.size, 1 / size.size), count).astype(float)


@pytest.mark.parametrize("name", LAWS)
def test_lanes_are_the_compiled_fits(name, monkeypatch):
    table, weights = resampled(name)
    weights[0] = np.arange(weights.shape[1]) < 8  # one size, which does not determine the law
    compiled = fitting.fit_weighted(*table, weights, scan=16, starts=4)
    monkeypatch.setattr(fitting, "FEW", len(weights))
    lanes = fitting.fit_weighted(*table, weights, scan=16, starts=4)
    np.testing.assert_array_equal(lanes.status, compiled.status)
    assert lanes.status[0] == -1 and np.isnan(lanes.objective[0])
    worse = lanes.objective[1:] / compiled.objective[1:] - 1
    check("laws.fitting.objective", max(float(worse.max()), 0.0), message=f"{name}, at {worse.argmax() + 1}")
    losses = [np.log10(fitting.predict_curves(fits, *table[:2])) for fits in (lanes, compiled)]
    same = worse > -1e-9  # elsewhere the lanes found a lower optimum
    check("laws.fitting.prediction", float(np.abs(losses[0] - losses[1])[1:][same].max()) / 3)


def test_a_weight_counts_a_row_so_often():
    table, weights = resampled("inside", 8)
    found = fitting.fit_weighted(*table, weights)
    for b, weight in enumerate(weights.astype(int)):
        plain = fitting.fit_routed(*(np.repeat(column, weight) for column in table))
        assert fitting.STATUSES[found.status[b]] == plain.status
        check("laws.fitting.quick", abs(found.objective[b] / plain.objective - 1), message=f"weighting {b}")


EXTRA = np.array([0.0, 1.0, 4.0, 20.0, 100.0, 300.0])
LEVEL = np.array([0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 5, 5])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 0.5, 1.0, 1.5, 0.5, 1.0, 1.0, 0.0, 0.0])
"""Weights for six E: one E has one row (2), and the rows of one have no weight (5)."""


def rows():
    """Return log10 N and log10 L of a table with much noise, so that every term matters."""
    random = np.random.default_rng(4)
    return random.uniform(-1, 1, LEVEL.size), random.uniform(0.2, 0.8, LEVEL.size)


def problem_of(table, weights):
    """Return the arguments `problem` and `constant` of the kernel."""
    found = _shapes.reduced(table, weights[None])
    lines = [found.one, found.size, *found.units, found.target, found.loss]
    return np.stack([line[..., 0].T.ravel() for line in lines]), float(found.constant[0])


def reduced(weights=WEIGHTS):
    """Return the two rows of each E, and the constant residual."""
    size, loss = rows()
    return problem_of(fitting.LevelTable(size, 0.0, loss, LEVEL, None, EXTRA), weights)


def psi_of(extra, alpha, ratio):
    rise, bend = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
    psi = np.log1p(rise * extra / (1 + bend * extra))
    return psi / psi[-1]


def columns(one, size, psi):
    return np.stack([one, size, psi * one, psi * size], axis=1)


def near(found, wanted, message=""):
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    assert found.shape == wanted.shape, message
    check("laws.kernels.sum", float(np.abs(found - wanted).max()), float(np.abs(wanted).max()), message=message)


@plain
def test_two_rows_say_what_all_rows_of_an_e_say():
    """The weighted products of 1, log10 N and log10 L are equal. log10 L squared lacks the residuals of the line."""
    size, loss = rows()
    problem, constant = reduced()
    one, sizes, losses = (problem[line].reshape(-1, 2) for line in (law_fit.ONE, law_fit.SIZE, law_fit.LOSS))
    missed = 0.0
    assert problem.shape == (6, 2 * EXTRA.size)
    for j in range(EXTRA.size):
        weight, x, y = (values[LEVEL == j] for values in (WEIGHTS, size, loss))
        root, design = np.sqrt(weight), np.stack([np.ones(x.size), x], axis=1)
        line = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        missed += weight @ (y - design @ line) ** 2
        wanted = [weight.sum(), weight @ x, weight @ x**2, weight @ y, weight @ (x * y), weight @ (design @ line) ** 2]
        own, lean, mine = one[j], sizes[j], losses[j]
        near([own @ own, own @ lean, lean @ lean, own @ mine, lean @ mine, mine @ mine], wanted, f"E {j}")
        assert own[1] == 0 and own[0] >= 0 and lean[1] >= 0
    assert not np.any(one[5]) and not np.any(sizes[5]) and not np.any(losses[5]) and sizes[2, 1] == 0
    near(constant, missed, "what no shape can change")


@plain
def test_the_reduced_table_has_the_residual_sum_of_the_rows():
    (size, loss), (problem, constant), work = rows(), reduced(), np.empty((6, 2 * EXTRA.size))
    psi, root = psi_of(EXTRA, 0.3, 0.02), np.sqrt(WEIGHTS)
    design = columns(root, root * size, psi[LEVEL])
    wanted = np.linalg.lstsq(design, root * loss, rcond=None)[0]
    work[law_fit.PSI] = np.repeat(psi, 2)
    value = law_fit.evaluate(problem, work)
    near(value + constant, np.sum((root * loss - design @ wanted) ** 2), "residual sum")
    gain, interaction = law_fit._routed_part(problem, work)
    near([*law_fit._fixed_part(problem, work[law_fit.PSI], gain, interaction), gain, interaction], wanted)
    four = problem[[law_fit.FIXED_0, law_fit.FIXED_1]].tolist() + work[[law_fit.TILT, law_fit.LEVEL]].tolist()
    near(np.array(four) @ np.array(four).T, np.eye(4), "orthonormal")
    small = columns(problem[law_fit.ONE], problem[law_fit.SIZE], work[law_fit.PSI])
    near(work[law_fit.RESIDUAL], problem[law_fit.LOSS] - small @ wanted, "residuals")


@plain
def test_the_scan_takes_the_grid_row_by_row():
    """t = 1/3, 2/3, 1 and for each w = 0, 1/3, 2/3."""
    problem, _ = reduced()
    table, values, work = law_fit.scan_table(EXTRA, 3), np.empty(9), np.empty((6, 2 * EXTRA.size))
    assert table.shape == (9, 6)
    law_fit.scan_values(problem, table, values)
    for place in range(9):
        alpha, ratio, _ = law_fit._shape((place // 3 + 1) / 3, place % 3 / 3, math.log(301.0))
        near(table[place], psi_of(EXTRA, alpha, ratio), f"psi at point {place}")
        work[law_fit.PSI] = np.repeat(table[place], 2)
        near(values[place], law_fit.evaluate(problem, work), f"value at point {place}")


@plain
@pytest.mark.parametrize("alpha, logit", [(0.5, -4.0), (1.0, -1.0), (0.05, 0.5), (1.0, -np.inf)])
def test_turns_of_the_prediction(alpha, logit):
    problem, work = reduced()[0], np.empty((6, 2 * EXTRA.size))
    at = np.array([math.log(alpha), logit])

    def psi_at(point):
        return np.repeat(psi_of(EXTRA, math.exp(point[0]), 1 / (1 + math.exp(-point[1]))), 2)

    value, *slopes = law_fit._slopes(problem, EXTRA, *at, work)
    one, size, loss = problem[[law_fit.ONE, law_fit.SIZE, law_fit.LOSS]]
    design = columns(one, size, psi_at(at))
    answer = np.linalg.lstsq(design, loss, rcond=None)[0]
    near(value, np.sum((loss - design @ answer) ** 2))
    for turn, direction, slope in zip((law_fit.TURN_0, law_fit.TURN_1), np.eye(2), slopes, strict=True):
        if math.isinf(logit) and direction[1]:
            assert not np.any(work[turn]) and slope == 0.0
            continue
        step = central_difference(psi_at, at, direction) if direction[0] or not math.isinf(logit) else 0.0
        moved = (answer[2] * one + answer[3] * size) * step
        wanted = moved - design @ np.linalg.lstsq(design, moved, rcond=None)[0]
        check("laws.fitting.turn", float(np.abs(work[turn] - wanted).max()), float(np.abs(moved).max()))
        scale = float(np.linalg.norm(work[turn]) * np.linalg.norm(loss - design @ answer))
        check("laws.kernels.sum", abs(slope - float(work[turn] @ (loss - design @ answer))), scale)


def reduced_fit(name: str = "inside"):
    table = fitting.level_table(*resampled(name)[0])
    return problem_of(table, np.ones(table.log_loss.size))[0], table.extra


def residual_sum(problem, psi: np.ndarray) -> float:
    """Return the residual sum of log10 L on 1, log10 N, psi and psi log10 N in the reduced table; psi [levels]."""
    one, size, psi = problem[law_fit.ONE], problem[law_fit.SIZE], np.repeat(psi, 2)
    design = np.stack([one, size, psi * one, psi * size], axis=1)
    answer = np.linalg.lstsq(design, problem[law_fit.LOSS], rcond=None)[0]
    return float(np.sum((problem[law_fit.LOSS] - design @ answer) ** 2))


@plain
@pytest.mark.parametrize("free", [(True, True), (True, False), (False, True)])
def test_a_step_of_newton(free):
    problem, extra = reduced_fit()
    at, work = np.array([math.log(0.5), math.log(0.01 / 0.99)]), np.empty((6, 2 * extra.size))
    axes = [axis for axis, kept in zip(np.eye(2), free, strict=True) if kept]

    def value(point):
        return residual_sum(problem, psi_of(extra, math.exp(point[0]), 1 / (1 + math.exp(-point[1])))) / 2

    def slope(point, axis):
        return central_difference(value, point, axis)

    bend = [[central_difference(lambda point, one=one: slope(point, one), at, other) for other in axes] for one in axes]
    wanted = -np.linalg.solve(bend, [slope(at, axis) for axis in axes]) @ np.array(axes)
    assert np.linalg.eigvalsh(bend).min() > 0, "the sum bends upwards here"
    _, *fall = law_fit._slopes(problem, extra, *at, work)
    found = np.array(law_fit._newton(problem, extra, *at, *free, *fall, work))
    check("laws.fitting.newton", float(np.abs(found - wanted).max() / np.abs(wanted).max()), message=f"free: {free}")


PLANES = {
    "a corner, a side and the inside": ([[1.0, 5.0, 5.0, 5.0], [5.0, 5.0, 3.0, 5.0], [2.0, 5.0, 5.0, 5.0]], [0, 8, 6]),
    "two apart": ([[3.0, 5.0, 1.0, 5.0], [5.0, 5.0, 5.0, 5.0], [2.0, 5.0, 5.0, 5.0]], [2, 8, 0]),
    "diagonal neighbours": ([[2.0, 5.0, 5.0], [5.0, 1.0, 5.0], [5.0, 5.0, 3.0]], [4, -1, -1]),
}


@plain
@pytest.mark.parametrize("name", PLANES)
def test_where_a_search_begins(name):
    """Starts are local minima among eight neighbours, lowest first. A single start is the global minimum."""
    plane, wanted = PLANES[name]
    for starts in (1, 2, 3):
        assert law_fit._best_starts(np.array(plane), starts).tolist() == wanted[:starts]


LEVELS_4, CELLS_7 = np.array([0, 0, 1, 1, 2, 3, 3]), np.array([0, 1, 2, 3, 4, 5, 5])


@plain
@pytest.mark.parametrize("change, wanted", [
    ({}, True), ({"weights": [1.0, 1, 1, 1, 1, 1, 0.5]}, False), ({"weights": [2.0, 1, 1, 1, 1, 1, 0.5]}, True),
    ({"weights": [1.0, 1, 1, 1, 0, 2, 1]}, False), ({"weights": [3.0, 0, 1, 1, 1, 1, 1]}, False),
    ({"level": [0, 0, 1, 1, 2, 2, 2]}, False), ({"cell": [0, 1, 2, 3, 4, 4, 4]}, False),
])  # fmt: skip
def test_what_a_table_has_to_hold(monkeypatch, change, wanted):
    """A fit needs seven rows (counted by weight), four E and six pairs (N, E)."""
    given = {"level": LEVELS_4, "cell": CELLS_7, "weights": [1.0] * 7} | change
    monkeypatch.setattr(_shapes, "independent", lambda *_: True)
    level, cell, weights = (np.array(given[name]) for name in ("level", "cell", "weights"))
    size = np.linspace(0.0, 1.0, 7)
    table = fitting.LevelTable(size, 0.0, size, level, cell, np.arange(level.max() + 1.0))
    assert _shapes.determined(table, weights[None]).tolist() == [wanted]
