"""The parts of the fit of the bounded law: weights, reduced rows, residual sums, derivatives, and starts."""

import math

import numpy as np
import pytest

from routelaws.accelerated.laws import _shapes, fitting
from routelaws.conformance.bounds import check
from routelaws.conformance.compare import central_difference
from routelaws.reference.laws import routed
from routelaws.reference.tests.strategies_laws import EXPERTS, SIZES

LAWS = {
    "inside": (2.0, 300.0),
    "nearly unbounded": (1.5, 3e4),
    "nearly at 1": (1.05, 200.0),
    "at the corner": (1.0, np.inf),
}
"""E_start and E_max; with noise, the optima of resamples lie in several pieces of the domain."""


def resampled(name: str, count: int = 60):
    """Return a noisy table of the law, and `count` bootstrap weightings of it."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    random = np.random.default_rng(len(name))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, *LAWS[name])
    loss = routed.predict_loss(size, experts, law) * 10 ** random.normal(0, 3e-3, size.size)
    return (size, experts, loss), random.multinomial(size.size, np.full(size.size, 1 / size.size), count).astype(float)


@pytest.mark.parametrize(
    ("own", "huber"), [(False, None), pytest.param(True, None, marks=pytest.mark.slow), (True, 5e-4)]
)
@pytest.mark.parametrize("name", LAWS)
def test_a_weight_counts_a_row_so_often(name, own, huber, monkeypatch):
    table, weights = resampled(name, 10 if huber is None else 5)
    losses = np.tile(table[2], (len(weights), 1)) * (
        10 ** np.random.default_rng(1).normal(0, 3e-3, weights.shape) if own else 1
    )
    weights[0] = np.arange(weights.shape[1]) < 8  # one size, which does not determine the law
    monkeypatch.setattr(fitting, "AT_ONCE", 4)
    found = fitting.fit_weighted(*table[:2], losses if own else table[2], weights, huber, scan=16, starts=4)
    assert found.status[0] == -1 and np.isnan(found.objective[0])
    for b, weight in list(enumerate(weights.astype(int)))[1:]:
        rows = [np.repeat(column, weight) for column in (*table[:2], losses[b])]
        alone = fitting.fit_routed(*rows, huber)
        assert fitting.STATUSES[found.status[b]] == alone.status
        check("laws.fitting.objective", abs(found.objective[b] / alone.objective - 1), message=f"weighting {b}")
        predicted = fitting.predict_curves(found, *table[:2])[b], fitting.predict_curve(alone.curve, *table[:2])
        error = float(np.abs(np.log10(predicted[0]) - np.log10(predicted[1])).max())
        bound, unit = ("laws.fitting.prediction", 1e-3) if huber is None else ("laws.huber.prediction", 1.0)
        check(bound, error, alone.rmsle / unit, message=f"weighting {b}")


EXTRA = np.array([0.0, 1.0, 4.0, 20.0, 100.0, 300.0])
LEVEL = np.array([0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 5, 5])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 0.5, 1.0, 1.5, 0.5, 1.0, 1.0, 0.0, 0.0])
"""Weights for six E: one E has one row (2), and the rows of one have no weight (5)."""


def rows():
    """Return log10 N and log10 L of a table with much noise, so that every term matters."""
    random = np.random.default_rng(4)
    return random.uniform(-1, 1, LEVEL.size), random.uniform(0.2, 0.8, LEVEL.size)


def reduced() -> _shapes.Reduced:
    """Return the two rows of each E."""
    size, loss = rows()
    return _shapes.reduced(fitting.LevelTable(size, 0.0, loss, LEVEL, None, EXTRA), WEIGHTS[None])


def line(column: np.ndarray) -> np.ndarray:
    """Return the rows of the only table, [2 levels]."""
    return column[..., 0].ravel()


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


def log_loss(table) -> np.ndarray:
    """Return the column of log10 L: its parts in the plane of `one` and `size`, and the rest."""
    return table.plane[0, 2] * table.units[0] + table.plane[1, 2] * table.units[1] + table.target


def test_two_rows_say_what_all_rows_of_an_e_say():
    """The weighted products of 1, log10 N and log10 L are equal. log10 L squared lacks the residuals of the line."""
    (size, loss), table, missed = rows(), reduced(), 0.0
    ones, sizes, losses = (column[..., 0].T for column in (table.one, table.size, log_loss(table)))
    for j in range(EXTRA.size):
        weight, x, y = (values[LEVEL == j] for values in (WEIGHTS, size, loss))
        root, design = np.sqrt(weight), np.stack([np.ones(x.size), x], axis=1)
        answer = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        missed += weight @ (y - design @ answer) ** 2
        wanted = [
            weight.sum(),
            weight @ x,
            weight @ x**2,
            weight @ y,
            weight @ (x * y),
            weight @ (design @ answer) ** 2,
        ]
        own, lean, mine = ones[j], sizes[j], losses[j]
        near([own @ own, own @ lean, lean @ lean, own @ mine, lean @ mine, mine @ mine], wanted, f"E {j}")
    assert not np.any(ones[5]) and not np.any(sizes[5]) and not np.any(losses[5]) and sizes[2, 1] == 0
    near(table.constant, [missed], "what no shape can change")


def test_the_reduced_table_has_the_residual_sum_of_the_rows():
    (size, loss), table, psi, root = rows(), reduced(), psi_of(EXTRA, 0.3, 0.02), np.sqrt(WEIGHTS)
    design = columns(root, root * size, psi[LEVEL])
    wanted = np.linalg.lstsq(design, root * loss, rcond=None)[0]
    solved = _shapes.solve(table, psi[:, None])
    near(solved.total, [np.sum((root * loss - design @ wanted) ** 2)], "residual sum")
    near(np.concatenate(_shapes.linear_unknowns(solved)), wanted)
    four = np.stack([line(unit) for unit in (*table.units, solved.level, solved.tilt)])
    near(four @ four.T, np.eye(4), "orthonormal")
    small = columns(line(table.one), line(table.size), np.tile(psi, 2))
    near(line(solved.residual), line(log_loss(table)) - small @ wanted, "residuals")


def test_a_scan_has_the_residual_sums_of_its_shapes():
    table, at = reduced(), _shapes.grid(EXTRA, 3)
    near(np.exp(at[0, -1]), np.ones(3))
    assert np.all(at[1, :, 0] == -np.inf)
    psi, _ = _shapes.curve(EXTRA[:, None, None], *at)
    sums = _shapes.scan_sums(table, psi)
    assert sums.shape == (1, 3, 3)
    for i, j in np.ndindex(3, 3):
        near(sums[0, i, j], _shapes.solve(table, psi[:, i, j, None]).total[0], f"point {i, j}")


@pytest.mark.parametrize("alpha, logit", [(0.5, -4.0), (1.0, -1.0), (0.05, 0.5), (1.0, -np.inf)])
def test_turns_of_the_residual_sum(alpha, logit):
    table, at = reduced(), np.array([math.log(alpha), logit])

    def value(point):
        return float(
            _shapes.solve(table, psi_of(EXTRA, math.exp(point[0]), 1 / (1 + math.exp(-point[1])))[:, None]).total[0]
        )

    values, turns, _ = _shapes.residual_sums(table)(at[:, None, None], np.zeros(1, np.int64))
    near(values, [[value(at)]])
    for turn, direction in zip(turns[:, 0, 0], np.eye(2), strict=True):
        if math.isinf(logit) and direction[1]:
            assert turn == 0.0
        else:
            wanted = central_difference(value, at, direction)
            check("laws.fitting.turn", abs(turn - wanted), abs(wanted) + value(at) * 1e-3)


@pytest.mark.parametrize("start", [(-1.0, -3.0), (-0.1, 0.0)])
def test_a_search_ends_where_the_residual_sum_is_flat(start):
    table = fitting.level_table(*resampled("inside")[0])
    sums = _shapes.residual_sums(_shapes.reduced(table, np.ones((1, table.log_loss.size))))
    which = np.zeros(1, np.int64)
    place, least = _shapes.descend(sums, np.array(start)[:, None], which, np.ones((2, 1), dtype=bool))
    value, turn, bend = sums(place[:, None], which)
    step = np.linalg.solve(bend[..., 0], turn[:, 0, 0])
    assert value[0, 0] == least[0] and turn[:, 0, 0] @ step < 1e-15 * least[0]


PLANES = {
    "a corner, a side and the inside": ([[1.0, 5.0, 5.0, 5.0], [5.0, 5.0, 3.0, 5.0], [2.0, 5.0, 5.0, 5.0]], [0, 8, 6]),
    "two apart": ([[3.0, 5.0, 1.0, 5.0], [5.0, 5.0, 5.0, 5.0], [2.0, 5.0, 5.0, 5.0]], [2, 8, 0]),
    "diagonal neighbours": ([[2.0, 5.0, 5.0], [5.0, 1.0, 5.0], [5.0, 5.0, 3.0]], [4]),
}


@pytest.mark.parametrize("name", PLANES)
def test_where_a_search_begins(name):
    """Starts are local minima among eight neighbours, lowest first. A single start is the global minimum."""
    plane, wanted = np.array(PLANES[name][0]), PLANES[name][1]
    for starts in (1, 2, 3):
        table, row, column = _shapes.low_points(np.stack([plane, plane]), starts)
        assert (row * plane.shape[1] + column).tolist() == 2 * wanted[:starts]
        assert table.tolist() == np.repeat([0, 1], len(wanted[:starts])).tolist()


LEVELS_4, CELLS_7 = np.array([0, 0, 1, 1, 2, 3, 3]), np.array([0, 1, 2, 3, 4, 5, 5])


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
