"""The loops behind the fit of the bounded law, where a fault costs steps or a few resamples and not yet the optimum.

The quick fits of many weightings beside the careful ones; the scan and the derivatives of the search beside plain sums.
"""

import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_huber, law_intervals
from routelaws.accelerated.laws import fitting
from routelaws.conformance.bounds import check
from routelaws.conformance.engine.harness import central_difference
from routelaws.conformance.suite.strategies_laws import EXPERTS, SIZES
from routelaws.reference.laws import routed

plain = pytest.mark.usefixtures("plain_loops")
"""Of tests that ask for so little that to compile it would cost more."""

LAWS = {
    "inside": (2.0, 300.0),
    "nearly unbounded": (1.5, 3e4),
    "nearly at 1": (1.05, 200.0),
    "at the corner": (1.0, np.inf),
}
"""E_start and E_max: with noise, resamples of each end in several pieces of the domain."""


def resampled(name: str, count: int = 60):
    """Return a noisy table of the law and `count` bootstrap weightings of it."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    random = np.random.default_rng(len(name))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, *LAWS[name])
    loss = routed.predict_loss(size, experts, law) * 10 ** random.normal(0, 3e-3, size.size)
    return (size, experts, loss), random.multinomial(size.size, np.full(size.size, 1 / size.size), count).astype(float)


@pytest.mark.parametrize("name", LAWS)
def test_quick_fits_are_the_careful_ones(name):
    table, weights = resampled(name)
    quick = fitting.fit_weighted(*table, weights)
    careful = fitting.fit_weighted(*table, weights, scan=24, starts=8, careful=True)
    assert len(set(quick.status)) > 1, np.bincount(quick.status)  # where pieces tie, either is right
    for b, (found, wanted) in enumerate(zip(quick.objective, careful.objective, strict=True)):
        check("laws.fitting.quick", abs(found / wanted - 1), message=f"{name}, weighting {b}")


def test_a_weight_counts_a_row_so_often():
    """A weighting is the table with each row repeated."""
    table, weights = resampled("inside", 8)
    found = fitting.fit_weighted(*table, weights)
    for b, weight in enumerate(weights.astype(int)):
        plain = fitting.fit_routed(*(np.repeat(column, weight) for column in table))
        assert fitting.STATUSES[found.status[b]] == plain.status
        check("laws.fitting.quick", abs(found.objective[b] / plain.objective - 1), message=f"weighting {b}")


def reduced(name: str = "inside"):
    """Return a table's two rows per E, and E - 1."""
    table = fitting.level_table(*resampled(name)[0])
    problem, _ = law_fit.reduce_rows(
        table.log_size, table.log_loss, table.level, np.ones(table.log_loss.size), table.extra.size
    )
    return problem, table.extra


def residual_sum(problem, psi: np.ndarray) -> float:
    """Return what is left of log10 L on 1, log10 N, psi and psi log10 N: rows of the reduced table, psi [levels]."""
    one, size, psi = problem[law_fit.ONE], problem[law_fit.SIZE], np.repeat(psi, 2)
    design = np.stack([one, size, psi * one, psi * size], axis=1)
    answer = np.linalg.lstsq(design, problem[law_fit.LOSS], rcond=None)[0]
    return float(np.sum((problem[law_fit.LOSS] - design @ answer) ** 2))


def shape_of(extra, alpha: float, ratio: float) -> np.ndarray:
    """Return psi at every E, 1 at the last."""
    rise, bend = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
    psi = np.log1p(rise * extra / (1 + bend * extra))
    return psi / psi[-1]


@plain
def test_the_scan_is_least_squares_at_each_point():
    """alpha and E_start/E_max at equal steps of about equal ratios; the sums by the normal equations."""
    problem, extra = reduced()
    scan, top = 6, float(extra[-1])
    values = np.empty(scan * scan)
    law_fit.scan_values(problem, law_fit.scan_table(extra, scan), values)
    for i in range(scan):
        for j in range(scan):
            alpha = math.expm1((i + 1) / scan * math.log1p(top)) / top
            low, high = ((1 + top) ** share - 1 for share in (j / scan, 1 - j / scan))
            wanted = residual_sum(problem, shape_of(extra, alpha, low / (low + high)))
            check("laws.fitting.scan", abs(values[i * scan + j] / wanted - 1), message=f"point {i}, {j}")


def check_turns(problem, extra, at, work):
    """Both derivatives of the prediction, less what the four columns of the linear part can follow of them."""

    def psi_of(point):
        return np.repeat(shape_of(extra, math.exp(point[0]), 1 / (1 + math.exp(-point[1]))), 2)

    one, size, psi = problem[law_fit.ONE], problem[law_fit.SIZE], psi_of(at)
    design = np.stack([one, size, psi * one, psi * size], axis=1)
    gain, interaction = np.linalg.lstsq(design, problem[law_fit.LOSS], rcond=None)[0][2:]
    for turn, direction in ((law_fit.TURN_0, np.array([1, 0])), (law_fit.TURN_1, np.array([0, 1]))):
        moved = (gain * one + interaction * size) * central_difference(psi_of, at, direction)
        wanted = moved - design @ np.linalg.lstsq(design, moved, rcond=None)[0]
        scale = float(np.abs(wanted).max())
        check("laws.fitting.turn", float(np.abs(work[turn] - wanted).max()), scale, message=f"turn by {direction}")


@plain
@pytest.mark.parametrize("alpha, ratio", [(0.5, 0.01), (0.05, 0.2), (0.9, 1e-4)])
def test_derivatives_of_the_search(alpha, ratio):
    """Of the residual sum, by log alpha and logit ratio: the loops' turn of the prediction, and central differences."""
    problem, extra = reduced("nearly at 1")
    at, work = np.array([math.log(alpha), math.log(ratio / (1 - ratio))]), np.empty((6, 2 * extra.size))

    def value(point):
        return residual_sum(problem, shape_of(extra, math.exp(point[0]), 1 / (1 + math.exp(-point[1]))))

    whole = law_fit._value(problem, extra, *at, work)
    check("laws.fitting.scan", abs(whole / value(at) - 1), message="the residual sum")
    law_fit._gradient(problem, extra, alpha, at[1], work)
    check_turns(problem, extra, at, work)
    for turn, direction in ((law_fit.TURN_0, np.array([1, 0])), (law_fit.TURN_1, np.array([0, 1]))):
        found = -2 * float(work[turn] @ work[law_fit.RESIDUAL])
        size = 2 * float(np.linalg.norm(work[turn]) * np.linalg.norm(work[law_fit.RESIDUAL]))
        wanted = central_difference(value, at, direction)
        check("laws.fitting.derivative", abs(found - wanted), size, message=f"by {direction}")


@plain
@pytest.mark.parametrize("free", [(True, True), (True, False), (False, True)])
def test_a_step_of_newton(free):
    """With second differences of the residual sum, half of which the slopes are taken of, in the free variables."""
    problem, extra = reduced()
    at, work = np.array([math.log(0.5), math.log(0.01 / 0.99)]), np.empty((6, 2 * extra.size))
    axes = [axis for axis, kept in zip(np.eye(2), free, strict=True) if kept]

    def value(point):
        return residual_sum(problem, shape_of(extra, math.exp(point[0]), 1 / (1 + math.exp(-point[1])))) / 2

    def slope(point, axis):
        return central_difference(value, point, axis)

    bend = [[central_difference(lambda point, one=one: slope(point, one), at, other) for other in axes] for one in axes]
    wanted = -np.linalg.solve(bend, [slope(at, axis) for axis in axes]) @ np.array(axes)
    assert np.linalg.eigvalsh(bend).min() > 0, "the sum bends upwards here"
    _, *fall = law_fit._slopes(problem, extra, *at, work)
    found = np.array(law_fit._newton(problem, extra, *at, *free, *fall, work))
    check("laws.fitting.newton", float(np.abs(found - wanted).max() / np.abs(wanted).max()), message=f"free: {free}")


@plain
def test_newton_stays_where_the_sum_does_not_bend_upwards():
    """There it has no step, and a search is left where it ended."""
    problem, extra = reduced()
    work, flat = np.empty((6, 2 * extra.size)), 0
    for log_alpha in (-6.0, -4.0, -0.05):
        for logit in (-12.0, -2.0, 3.0):
            _, *fall = law_fit._slopes(problem, extra, log_alpha, logit, work)
            if law_fit._newton(problem, extra, log_alpha, logit, True, True, *fall, work) == (0.0, 0.0):
                flat += 1
                found = law_fit.polish(problem, extra, log_alpha, logit, True, True, work)
                assert found == (log_alpha, logit, law_fit._value(problem, extra, log_alpha, logit, work))
    assert flat


LINES = {
    "both ends": ([1.0, 2.0, 3.0, 0.5], [3, 0, -1]),
    "more than there is room for": ([4.0, 1.0, 4.0, 2.0, 4.0, 0.0, 4.0, 3.0, 4.0], [5, 1, 3]),
    "level": ([1.0, 1.0, 2.0], [0, 1, -1]),
    "one": ([3.0, 2.0, 1.0], [2, -1, -1]),
}


@pytest.mark.parametrize("name", LINES)
def test_low_points_of_a_scan(name):
    """Places that no neighbour is below, the lowest first."""
    line, wanted = LINES[name]
    found = np.empty(3, np.int64)
    law_intervals._low_points(np.array(line), found)
    assert found.tolist() == wanted


PLANES = {
    "a corner, a side and the inside": ([[1.0, 5.0, 5.0, 5.0], [5.0, 5.0, 3.0, 5.0], [2.0, 5.0, 5.0, 5.0]], [0, 8, 6]),
    "two apart": ([[3.0, 5.0, 1.0, 5.0], [5.0, 5.0, 5.0, 5.0], [2.0, 5.0, 5.0, 5.0]], [2, 8, 0]),
    "diagonal neighbours": ([[2.0, 5.0, 5.0], [5.0, 1.0, 5.0], [5.0, 5.0, 3.0]], [4, -1, -1]),
}


@plain
@pytest.mark.parametrize("name", PLANES)
def test_where_a_search_begins(name):
    """Flat places that none of the eight neighbours is below, the lowest first; for one start the lowest of all."""
    plane, wanted = PLANES[name]
    for starts in (1, 2, 3):
        assert law_fit._best_starts(np.array(plane), starts).tolist() == wanted[:starts]


@plain
@pytest.mark.parametrize("delta", [1.0, 3e-3])
def test_derivatives_of_the_search_under_huber(delta):
    """The slope is that of the criterion; the matrix is a weighted projection, here by least squares."""
    table, alpha, at = fitting.level_table(*resampled("nearly at 1")[0]), 0.6, np.array([math.log(0.6), -3.0])
    problem, rows = (table.log_size, table.log_loss, table.level, table.extra), table.log_loss.size
    linear = np.array([1.0, -0.1, -0.1, 0.0])
    work = (np.empty((4, rows)), np.zeros((4, 4)), np.empty((4, 4)), np.empty(rows), np.empty(rows))

    def value(point):
        ratio = 1 / (1 + math.exp(-point[1]))
        return law_huber.solve(problem, delta, math.exp(point[0]), ratio, 1 - ratio, linear, work)

    def curve(point):
        rest, ratio = 1 / (1 + math.exp(point[1])), 1 / (1 + math.exp(-point[1]))
        rise, bend = math.exp(point[0]) * rest**2, math.exp(point[0]) * rest * ratio
        return np.log1p(rise * table.extra / (1 + bend * table.extra))

    directions = (np.array([1, 0]), np.array([0, 1]))
    wanted = [central_difference(value, at, direction) for direction in directions]
    value(at)
    slope, inner, scales = law_huber._slopes(problem, delta, alpha, at[1], linear, work)
    size, residual = np.abs(work[3]), work[3]
    assert np.any(size > delta) == (delta < 0.1) and np.any(size <= delta)
    routed = (linear[2] + linear[3] * table.log_size) / curve(at)[-1]
    turns = np.stack([routed * central_difference(curve, at, direction)[table.level] for direction in directions])
    psi = curve(at)[table.level]
    design = np.stack([np.ones(rows), table.log_size, psi, psi * table.log_size], axis=1)
    weight = np.where(size <= delta, 1, law_huber.OUTER_SHARE * delta / size)
    for weights, found in ((weight, inner), (np.ones(rows), np.diag(scales))):
        root = np.sqrt(weights)[:, None]
        left = turns.T * root - design * root @ np.linalg.lstsq(design * root, turns.T * root, rcond=None)[0]
        whole = left.T @ left if found is inner else np.diag(np.diag(left.T @ left))
        check("laws.fitting.turns", float(np.abs(found - whole).max()), float(np.abs(whole).max()))
    for f in range(2):
        scale = float(np.abs(turns[f]) @ np.minimum(size, delta))
        if delta > 0.1:  # else a row may cross delta within the step of the difference
            check("laws.fitting.turns", abs(-slope[f] - wanted[f]), scale, message=f"slope {f}")
        clipped = np.clip(residual, -delta, delta)
        check("laws.fitting.turns", abs(slope[f] - float(turns[f] @ clipped)), scale, message=f"slope {f}, by hand")


@plain
def test_the_linear_part_is_least_squares():
    """The residual sum at a shape, and the four coefficients by back-substitution."""
    problem, extra = reduced()
    psi, work = shape_of(extra, 0.4, 0.02), np.empty((6, 2 * extra.size))
    work[law_fit.PSI] = np.repeat(psi, 2)
    residual = law_fit.evaluate(problem, work)
    gain, interaction = law_fit._routed_part(problem, work)
    found = (*law_fit._fixed_part(problem, work[law_fit.PSI], gain, interaction), gain, interaction)
    one, size, both = problem[law_fit.ONE], problem[law_fit.SIZE], np.repeat(psi, 2)
    design = np.stack([one, size, both * one, both * size], axis=1)
    wanted = np.linalg.lstsq(design, problem[law_fit.LOSS], rcond=None)[0]
    check("laws.fitting.turns", abs(residual / residual_sum(problem, psi) - 1), message="residual sum")
    for name, ours, theirs in zip(("intercept", "size", "gain", "interaction"), found, wanted, strict=True):
        check("laws.fitting.turns", abs(ours / theirs - 1), message=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [law_intervals.SLOPE, law_intervals.PREDICTION, law_intervals.START])
def test_an_end_between_no_limit_and_the_first_point_of_a_scan(kind):
    """E_start = 6000 and little noise: all shapes of the scan are rejected, the first, t = 0, by the least."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 6000.0, np.inf)
    noise = np.random.default_rng(3).normal(0, 1e-6, size.size)
    table = fitting.level_table(size, experts, routed.predict_loss(size, experts, law) * 10**noise)
    problem, constant = law_fit.reduce_rows(
        table.log_size, table.log_loss, table.level, np.ones(size.size), table.extra.size
    )
    work, top = np.empty((6, 2 * table.extra.size)), math.log1p(table.extra[-1])
    asked = (problem, table.extra, constant, kind, 0.3, float(table.extra[-1]) / 3)

    def sums_and_ends(sign):
        """Along t between the scan's first two points, E_max without limit: [residual sum, end]."""
        for t in np.linspace(0, 1 / (law_intervals.FIRST - 1), 401):
            alpha, ratio, rest = law_fit._shape(t, 0.0, top)
            found = law_intervals.ends_at(*asked, alpha, ratio, rest, limit, work)
            yield found[0], found[2] if sign > 0 else -found[3]

    limit = np.inf
    first, *sums = (residual for residual, _ in sums_and_ends(1.0))
    limit = 1.2 * min(sums)
    assert limit < first < sums[-1], "the scan's first point is rejected, and its second even more"
    for sign in (1.0, -1.0):
        ends = [end for residual, end in sums_and_ends(sign) if residual <= limit]
        found = law_intervals._least_over_t(*asked, True, limit, sign, work)
        assert len(ends) > 10 and found < max(ends)
        check("laws.uncertainty.end", max(found - min(ends), 0.0) / (max(ends) - min(ends)), message=f"sign {sign}")


LEVELS_4, CELLS_7 = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([0, 1, 2, 3, 4, 5, 5])


@plain
@pytest.mark.parametrize("change, wanted", [
    ({}, True), ({"weights": [1.0, 1, 1, 1, 1, 1, 0.5]}, False), ({"weights": [2.0, 1, 1, 1, 1, 1, 0.5]}, True),
    ({"weights": [1.0, 1, 1, 1, 1, 2, 0]}, False), ({"weights": [3.0, 0, 1, 1, 1, 1, 1]}, False),
    ({"level": [0, 0, 1, 1, 2, 2, 2]}, False), ({"cell": [0, 1, 2, 3, 4, 4, 4]}, False), ({"extra": 5}, True),
])  # fmt: skip
def test_what_a_table_has_to_hold(monkeypatch, change, wanted):
    """Seven rows, each as often as its weight, four E and six pairs (N, E); the columns are independent here."""
    given = {"level": LEVELS_4, "cell": CELLS_7, "weights": [1.0] * 7} | change
    monkeypatch.setattr(law_fit, "_independent", lambda *_: True)
    level, cell, weights = (np.array(given[name]) for name in ("level", "cell", "weights"))
    extra = np.arange(given.get("extra", 4), dtype=float)
    assert bool(law_fit._determined(level, cell, weights, np.ones((6, 2 * extra.size)), extra, None)) == wanted


@plain
@pytest.mark.parametrize(
    "spread, lines",
    [
        ([1, 1, 0, 0], True),
        ([0, 0, 1, 1], True),
        ([0, 1, 0, 0], False),
        ([0, 0.5, 0.5, 0], False),
        ([1, 0.5, 0, 2], True),
    ],
)
def test_two_e_with_two_sizes_are_enough(monkeypatch, spread, lines):
    """Spreads in units of the least that counts beside the row's weight; else both ends of psi are looked at."""
    asked, extra, problem = [], np.array([0.0, 1.0, 2.0, 4.0]), np.zeros((6, 8))
    problem[law_fit.ONE, ::2] = [1.0, 2.0, 3.0, 4.0]
    problem[law_fit.SIZE, 1::2] = 1.5 * law_fit.INDEPENDENT * np.array(spread) * problem[law_fit.ONE, ::2]
    problem[law_fit.SIZE, ::2] = 0.1
    for answers in ((True, True), (True, False), (False, True)):
        del asked[:]
        left = iter(answers)
        look = lambda table, psi, _, left=left: asked.append((table, psi)) or next(left)  # noqa: E731
        monkeypatch.setattr(law_fit, "_independent", look)
        found = law_fit._determined(LEVELS_4, CELLS_7, np.ones(7), problem, extra, None)
        assert bool(found) == (lines or answers == (True, True))
        assert len(asked) == (0 if lines else 1 + answers[0]) and all(table is problem for table, _ in asked)
    if not lines:
        check("laws.kernels.sum", float(np.abs(asked[0][1] - np.log1p(extra)).max()))
    problem[law_fit.SIZE, 1::2] = problem[law_fit.ONE, 4:] = 0.0
    monkeypatch.setattr(law_fit, "_independent", lambda *_: False)
    assert not law_fit._determined(LEVELS_4, CELLS_7, np.ones(7), problem, extra, None), "an E without weight is none"
    assert law_fit.INDEPENDENT == 1e-8


ROOT = np.array([1.0, 2.0, 0.5, 1.0, 1.5])
TABLES = {
    "two E with two sizes": ([0, 0, 1, 1], [-1.0, 1.0, -1.0, 1.0], [0.0, 1.0], True),
    "four E with a size each": ([0, 1, 2, 3], [-1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 3.0, 7.0], True),
    "three of them": ([0, 1, 2], [-1.0, 0.0, 2.0], [0.0, 1.0, 3.0], False),
    "the size is psi": ([0, 1, 2, 3], [0.0, 1.0, 3.0, 7.0], [0.0, 1.0, 3.0, 7.0], False),
    "psi is 1 and the inverse size": ([0, 1, 2, 3, 4], [1.0, 2.0, 4.0, 8.0, -1.0], [2.0, 1.5, 1.25, 1.125, 0.0], False),
    "psi is size less psi log10 N": (
        [0, 1, 2, 3, 4],
        [0.0, 1.0, 2.0, 3.0, 4.0],
        [0.0, 1 / 2, 2 / 3, 3 / 4, 4 / 5],
        False,
    ),
    "one size": ([0, 1, 2, 3], [0.5] * 4, [0.0, 1.0, 3.0, 7.0], False),
    "size 0": ([0, 1, 2, 3], [0.0] * 4, [0.0, 1.0, 3.0, 7.0], False),
    "psi 0": ([0, 0, 1, 1], [-1.0, 1.0, -1.0, 1.0], [0.0, 0.0], False),
    "psi 1": ([0, 0, 1, 1], [-1.0, 1.0, -1.0, 1.0], [1.0, 1.0], False),
    "psi nearly 1": ([0, 0, 1, 1], [-1.0, 1.0, -1.0, 1.0], [1.0, 1.0 + 1e-9], False),
    "psi not that near 1": ([0, 0, 1, 1], [-1.0, 1.0, -1.0, 1.0], [1.0, 1.0 + 1e-7], True),
    "nearly one size": ([0, 0, 1, 1], [0.5, 0.5 + 1e-9, 0.5, 0.5 + 1e-9], [0.0, 1.0], False),
    "not that near": ([0, 0, 1, 1], [0.5, 0.5 + 1e-7, 0.5, 0.5 + 1e-7], [0.0, 1.0], True),
}
"""Levels, sizes, psi of each level, and whether 1, log10 N, psi and psi log10 N are independent."""


@plain
@pytest.mark.parametrize("name", TABLES)
def test_independent_columns(name):
    """By their lengths of 1, less what the others hold."""
    level, size, psi, wanted = TABLES[name]
    level, size, psi = np.array(level), np.array(size), np.array(psi)
    problem, _ = law_fit.reduce_rows(size, size * 0.0, level, ROOT[: size.size] ** 2, psi.size)
    assert bool(law_fit._independent(problem, psi, np.empty((6, 2 * psi.size)))) == wanted
    assert bool(law_fit._independent(problem, 1e-5 * psi, np.empty((6, 2 * psi.size)))) == wanted, "a factor"


@plain
@pytest.mark.parametrize("spread, wanted", [(1e-9, False), (1e-7, True)])
def test_a_size_that_only_few_rows_tell(spread, wanted):
    """With little weight on the rows of another size, and there psi is 1: the other columns are far from each other."""
    level, size = np.array([0, 0, 1, 1]), np.array([1.0, 1.0 + spread, 1.0, 1.0 + 2000 * spread])
    weights = np.array([1.0, 1.0, 1e-6, 1e-6])
    problem, _ = law_fit.reduce_rows(size, size * 0.0, level, weights, 2)
    assert bool(law_fit._independent(problem, np.array([1e-6, 1.0]), np.empty((6, 4)))) == wanted


def test_long_sums_may_be_added_up_in_any_order():
    """Where all terms are there at once; nothing else is relaxed."""
    assert law_fit._dot.targetoptions["fastmath"] == {"reassoc", "contract"}
    assert not law_fit.evaluate.targetoptions.get("fastmath") and not law_huber.solve.targetoptions.get("fastmath")
