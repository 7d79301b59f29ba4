"""The sums and small solves of the bounded law's fit, run as plain Python beside NumPy's own.

Rows merged to two per E, the columns of the law and what a table has to hold; the Newton steps under a Huber criterion.
"""

import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_huber
from routelaws.conformance.bounds import check
from routelaws.conformance.engine.harness import central_difference

EXTRA = np.array([0.0, 1.0, 4.0, 20.0, 100.0, 300.0])
LEVEL = np.array([0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 5, 5])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 0.5, 1.0, 1.5, 0.5, 1.0, 1.0, 0.0, 0.0])
"""Six E: one with one row (2), one whose rows have no weight (5)."""
pytestmark = pytest.mark.usefixtures("plain_loops")


def rows():
    """Return log10 N and log10 L of a table with much noise: every term counts."""
    random = np.random.default_rng(4)
    return random.uniform(-1, 1, LEVEL.size), random.uniform(0.2, 0.8, LEVEL.size)


def reduced(weights=WEIGHTS):
    """Return the two rows of each E, and what is left."""
    return law_fit.reduce_rows(*rows(), LEVEL, weights, EXTRA.size)


def psi_of(extra, alpha, ratio):
    """Return psi, 1 at the last E."""
    rise, bend = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
    psi = np.log1p(rise * extra / (1 + bend * extra))
    return psi / psi[-1]


def columns(one, size, psi):
    return np.stack([one, size, psi * one, psi * size], axis=1)


def near(found, wanted, message=""):
    """Compare numbers, of the size of the largest."""
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    assert found.shape == wanted.shape, message
    check("laws.kernels.sum", float(np.abs(found - wanted).max()), float(np.abs(wanted).max()), message=message)


def test_two_rows_say_what_all_rows_of_an_e_say():
    """All weighted products of 1, log10 N and log10 L; of log10 L with itself the line's misses are apart."""
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


def test_the_fixed_columns_are_orthonormal_and_the_target_is_rid_of_them():
    problem, _ = reduced()
    fixed = problem[[law_fit.FIXED_0, law_fit.FIXED_1]]
    design = problem[[law_fit.ONE, law_fit.SIZE]].T
    wanted = np.linalg.qr(design)[0].T
    near(fixed, wanted * np.sign(np.sum(wanted * design.T, axis=1))[:, None])
    line = np.linalg.lstsq(design, problem[law_fit.LOSS], rcond=None)[0]
    near(problem[law_fit.TARGET], problem[law_fit.LOSS] - design @ line)


def test_the_reduced_table_has_the_residual_sum_of_the_rows():
    """At a shape, with all four unknowns; the coefficients too."""
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


@pytest.mark.parametrize("alpha, ratio", [(1.0, 0.0), (0.3, 0.02), (0.01, 0.5)])
def test_psi_at_every_e(alpha, ratio):
    """Each twice, for the two rows of an E."""
    psi = np.empty(2 * EXTRA.size)
    law_fit.fill_psi(psi, EXTRA, alpha, ratio, 1 - ratio)
    near(psi, np.repeat(psi_of(EXTRA, alpha, ratio), 2))
    law_fit.fill_psi(psi, EXTRA, 0.0, ratio, 1 - ratio)
    near(psi, np.repeat(EXTRA / 300, 2), "E_start without limit: a straight line in E")


def test_points_of_the_unit_square():
    """E rises by equal factors with t; at w = 0 E_max is without limit, at w = 1/2 it is where E_start is in ratio."""
    log_top = math.log(301.0)
    assert law_fit._shape(1.0, 0.0, log_top) == (1.0, 0.0, 1.0)
    assert law_fit._shape(0.0, 0.5, log_top)[0] == 0.0
    for t, w in ((0.25, 0.1), (0.5, 0.5), (0.75, 0.9)):
        low, high = 301**w - 1, 301 ** (1 - w) - 1
        near(law_fit._shape(t, w, log_top), [(301**t - 1) / 300, low / (low + high), high / (low + high)], f"{t}, {w}")


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


def test_what_a_scan_cannot_solve_is_infinite():
    """A psi of 0 leaves 0/0, and a sum below 0 is rounding; 0 is as it is. One E, two columns, which hold all."""
    problem, values = np.zeros((6, 2)), np.empty(1)
    law_fit.scan_values(problem, np.zeros((1, 1)), values)
    assert values == np.inf
    problem[law_fit.ONE, 0] = problem[law_fit.SIZE, 1] = 1.0
    problem[law_fit.TARGET] = 0.3, 0.4
    law_fit.scan_values(problem, np.ones((1, 1)), values)
    assert values == 0.0
    problem[law_fit.FIXED_0, 0] = 0.6  # leaves 0.64 of the first column's square: 0.09 / 0.64 comes off
    law_fit.scan_values(problem, np.ones((1, 1)), values)
    assert values == np.inf


@pytest.mark.parametrize("logit", [-np.inf, -40.0, -2.0, 40.0])
def test_a_point_of_the_search_is_a_shape(logit, monkeypatch):
    """E_start/E_max and one less that, both to the last digit, in either fit."""
    asked, ratio = [], 0.0 if logit == -np.inf else math.exp(-math.log1p(math.exp(-logit)))
    monkeypatch.setattr(law_fit, "fill_psi", lambda *given: asked.append(given[2:]))
    monkeypatch.setattr(law_fit, "evaluate", lambda *given: 7.0)
    monkeypatch.setattr(law_huber, "solve", lambda *given: asked.append(given[2:5]) or 7.0 * (given[:2] == (None, 0.1)))
    assert law_fit._value(None, EXTRA, math.log(0.25), logit, np.zeros((6, 2))) == 7.0
    assert law_huber._at(None, 0.1, math.log(0.25), logit, None, None) == 7.0
    rest = math.exp(-math.log1p(math.exp(logit)))
    for alpha, found, other in asked:
        near(alpha, 0.25)
        near(other, rest)
        assert found == 0.0 if ratio == 0.0 else near(found, ratio) is None


@pytest.mark.parametrize("alpha, logit", [(0.5, -4.0), (1.0, -1.0), (0.05, 0.5), (1.0, -np.inf)])
def test_turns_of_the_prediction(alpha, logit):
    """Its derivatives by log alpha and logit, less what the four columns can follow; the slopes are of half the sum."""
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


def test_two_unknowns():
    """Those that are free, where the matrix is positive; else no step."""
    both = law_fit._solve_two(4.0, 1.0, 2.0, 3.0, -5.0, True, True)
    near(both[:2], np.linalg.solve([[4.0, 1.0], [1.0, 2.0]], [3.0, -5.0]))
    assert both[2] is True
    assert law_fit._solve_two(4.0, 1.0, 2.0, 3.0, -5.0, True, False) == (0.75, 0.0, True)
    assert law_fit._solve_two(4.0, 1.0, 2.0, 3.0, -5.0, False, True) == (0.0, -2.5, True)
    assert law_fit._solve_two(4.0, -9.0, -2.0, 3.0, -5.0, True, False) == (0.75, 0.0, True)
    assert law_fit._solve_two(-4.0, -9.0, 2.0, 3.0, -5.0, False, True) == (0.0, -2.5, True)
    nothing = (0.0, 0.0, False)
    assert law_fit._solve_two(4.0, 1.0, 2.0, 3.0, -5.0, False, False) == nothing
    for a00, a01, a11 in ((1.0, 2.0, 4.0), (1.0, 3.0, 4.0), (-0.5, 0.0, -0.5), (0.0, 0.0, 1.0), (math.nan, 0.0, 1.0)):
        assert law_fit._solve_two(a00, a01, a11, 3.0, -5.0, True, True) == nothing
    for empty in (0.0, -1.0, math.nan):
        assert law_fit._solve_two(empty, 0.0, 1.0, 3.0, -5.0, True, False) == nothing
        assert law_fit._solve_two(1.0, 0.0, empty, 3.0, -5.0, False, True) == nothing


@pytest.mark.parametrize("free", [(True, True), (True, False), (False, True), (False, False)])
def test_a_damped_step(free):
    """The diagonal times 1 + damping; what it promises is the product with the slopes. In either fit."""
    work = np.random.default_rng(1).normal(size=(6, 8))
    turns, residual, kept = work[[law_fit.TURN_0, law_fit.TURN_1]], work[law_fit.RESIDUAL], list(free)
    matrix, slope, wanted = turns @ turns.T, turns @ residual, np.zeros(2)
    damped = matrix + 0.5 * np.diag(np.diag(matrix))
    wanted[kept] = np.linalg.solve(damped[kept][:, kept], slope[kept])
    near([*law_fit._step(work, *free, 0.5)], [*wanted, slope @ wanted])
    scales = np.array([2.0, 3.0])
    damped = matrix + 0.5 * np.diag(scales)
    wanted[kept] = np.linalg.solve(damped[kept][:, kept], slope[kept])
    promised = slope @ wanted if any(free) else np.inf
    found = law_huber._step(slope, matrix, scales, *free, 0.5)
    near(found[:2], wanted)
    assert found[2] == promised or near(found[2], promised) is None


def test_a_step_where_the_matrix_is_not_positive():
    """Least squares has none; under Huber more damping is asked for, which makes it positive."""
    assert law_fit._step(np.zeros((6, 4)), True, True, 0.1) == (0.0, 0.0, 0.0)
    slope, inner, scales = np.array([1.0, 1.0]), np.array([[-1.0, 0.0], [0.0, 1.0]]), np.ones(2)
    assert law_huber._step(slope, inner, scales, True, True, 1.0) == (0.0, 0.0, np.inf)
    assert law_huber._step(slope, inner, scales, True, True, 2.0) == (1.0, 1 / 3, 4 / 3)


def test_the_terms_of_huber():
    """Half the square within delta, a straight line beyond; the share of a row in Newton's matrix."""
    assert law_huber.criterion(np.array([]), 0.5) == 0.0
    assert law_huber.criterion(np.array([0.25, -0.5]), 0.5) == 0.03125 + 0.125
    assert law_huber.criterion(np.array([2.0, -1.0, 0.0]), 0.5) == 0.875 + 0.375
    assert [law_huber._weight(r, 0.5) for r in (0.0, -0.5, 0.5)] == [1.0] * 3 and 0 < law_huber.OUTER_SHARE < 0.01
    for far in (2.0, -2.0):
        near(law_huber._weight(far, 0.5), law_huber.OUTER_SHARE / 4)


@pytest.mark.parametrize("alpha, ratio", [(0.3, 0.02), (1.0, 0.0), (0.0, 0.0)])
def test_the_columns_of_the_rows_made_orthonormal(alpha, ratio):
    """And the triangle that gives them back, as of a QR factorisation."""
    size, _ = rows()
    basis, triangle = np.empty((4, size.size)), np.zeros((4, 4))
    law_huber._fill(basis, triangle, size, LEVEL, EXTRA, alpha, ratio, 1 - ratio)
    psi = (psi_of(EXTRA, alpha, ratio) if alpha else EXTRA / 300)[LEVEL]
    near(basis @ basis.T, np.eye(4))
    near(basis.T @ triangle, columns(np.ones(size.size), size, psi))
    assert np.all(np.diag(triangle) > 0) and not np.any(np.tril(triangle, -1))


def test_a_factor_and_what_it_solves():
    """Of a positive matrix that of Cholesky, the half above left alone. What rounding bent moves nothing."""
    random = np.random.default_rng(2)
    half, vector = random.normal(size=(4, 6)), random.normal(size=4)
    matrix = half @ half.T
    given, answer = matrix.copy(), vector.copy()
    law_huber._factor(given)
    near(np.tril(given), np.linalg.cholesky(matrix))
    assert np.array_equal(np.triu(given, 1), np.triu(matrix, 1))
    law_huber._back(given, answer)
    near(answer, np.linalg.solve(matrix, vector))
    bent, answer = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1.0, 1.0])
    law_huber._factor(bent)
    law_huber._back(bent, answer)
    near(answer, [1.0, 0.0])


def test_the_matrix_counts_the_rows_within_delta():
    random = np.random.default_rng(3)
    basis, residual, matrix = random.normal(size=(4, 9)), random.normal(size=9), np.full((4, 4), 7.0)
    law_huber._newton_matrix(basis, residual, 0.5, matrix)
    weight = np.where(np.abs(residual) <= 0.5, 1, law_huber.OUTER_SHARE * 0.5 / np.abs(residual))
    assert 2 < np.count_nonzero(weight == 1) < 7
    near(np.tril(matrix), np.tril((basis * weight) @ basis.T))


class Counted(list):
    """Numbers that count how often they are gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def least_length(residual, change, delta):
    """Return where the slope along residual - s change crosses 0: between two of the points where a row bends."""
    bends = np.sort([(r - sign * delta) / z for r, z in zip(residual, change, strict=True) for sign in (1, -1)])
    slopes = [-float(np.clip(residual - s * change, -delta, delta) @ change) for s in bends]
    k = int(np.searchsorted(slopes, 0.0))
    return bends[k - 1] - slopes[k - 1] * (bends[k] - bends[k - 1]) / (slopes[k] - slopes[k - 1])


@pytest.mark.parametrize("delta", [0.01, 0.3, 10.0])
def test_the_best_length_of_a_step(delta):
    """Against the sorted points where the slope bends; a few rounds are enough."""
    random, rounds = np.random.default_rng(5), []
    for scale in (0.01, 0.3, 1.0, 30.0) * 3:
        change = random.normal(size=9)
        residual = change * random.uniform(0, 2, 9) * scale + random.normal(0, 0.1, 9)
        decline = float(np.clip(residual, -delta, delta) @ change)
        if decline <= 0:
            residual, decline = -residual, -decline
        given = Counted(residual)
        found = law_huber._best_length(given, change, delta, decline)
        rounds.append(given.times)
        check("laws.kernels.length", abs(found / least_length(residual, change, delta) - 1), message=f"{scale}")
    assert sorted(rounds)[len(rounds) // 2] <= 12, rounds
    assert max(rounds) < 100, "a slope that rounding keeps above its limit: halves, until no number is between"


def test_best_lengths_by_hand():
    """Rounds: one where the guess 1 is right, two for a parabola, one a doubling where no row is within delta."""
    for residual, change, delta, length, rounds in (
        ([1.0, -2.0], [1.0, -2.0], 5.0, 1.0, 1),  # a parabola about 1
        ([3.0, -6.0], [1.0, -2.0], 9.0, 3.0, 2),  # about 3
        ([0.25, -0.5], [1.0, -2.0], 9.0, 0.25, 2),  # about 1/4
        ([16.0], [1.0], 0.5, 16.0, 5),  # 1, 2, 4, 8, 16
        ([16.25], [1.0], 0.5, 16.25, 6),  # and Newton's step from 16, where the row is within delta
        ([0.25], [1.0], 0.125, 0.25, 3),  # 1, then the middle of 0 and 1, 1/2, then of 0 and 1/2
        ([1.5], [1.0], 0.5, 1.5, 2),  # a row that is delta away bends the sum
        ([3 * 2.0**-30], [2.0**-30], 9.0, 3.0, 2),  # however small
    ):
        given = Counted(residual)
        decline = float(np.clip(residual, -delta, delta) @ np.array(change))
        assert law_huber._best_length(given, np.array(change), delta, decline) == length, residual
        assert given.times == rounds, residual


def huber_work(size):
    return np.empty((4, size)), np.zeros((4, 4)), np.empty((4, 4)), np.empty(size), np.empty(size)


def counted(monkeypatch, name):
    """Let a function of `law_huber` count its calls."""
    calls, inner = [], getattr(law_huber, name)
    monkeypatch.setattr(law_huber, name, lambda *given: (calls.append(0), inner(*given))[1])
    return calls


@pytest.mark.parametrize("delta", [0.02, 0.1, 9.0])
@pytest.mark.parametrize("alpha, ratio", [(0.3, 0.02), (0.0, 0.0)])
def test_the_linear_unknowns_under_huber(monkeypatch, delta, alpha, ratio):
    """Where the sum is least the clipped residuals are orthogonal to each column, whatever the start."""
    (size, loss), work = rows(), huber_work(LEVEL.size)
    rounds = counted(monkeypatch, "_newton_matrix")
    psi = (psi_of(EXTRA, alpha, ratio) if alpha else EXTRA / 300)[LEVEL]
    design, values = columns(np.ones(size.size), size, psi), []
    for start in (np.zeros(4), np.array([1.0, -2.0, 3.0, 4.0])):
        linear = start.copy()
        values.append(law_huber.solve((size, loss, LEVEL, EXTRA), delta, alpha, ratio, 1 - ratio, linear, work))
        residual = loss - design @ linear
        near(work[3], residual, "residuals")
        near(values[-1], np.sum(np.where(abs(residual) <= delta, residual**2 / 2, delta * (abs(residual) - delta / 2))))
        slopes = design.T @ np.clip(residual, -delta, delta)
        scale = math.sqrt(values[-1]) * float(np.linalg.norm(design))
        check("laws.kernels.stationary", float(np.linalg.norm(slopes)), scale)
    near(values[0], values[1], "from either start")
    if not np.any(np.abs(residual) > delta):
        near(linear, np.linalg.lstsq(design, loss, rcond=None)[0], "least squares")
    assert len(rounds) <= (40 if delta < 1 else 6), len(rounds)
    del rounds[:]
    law_huber.solve((size, loss, LEVEL, EXTRA), delta, alpha, ratio, 1 - ratio, linear, work)
    assert len(rounds) <= 2, "the solution is a start at which nothing is left to do"


def test_a_solve_ends():
    """At once where no row has a residual; after `ROUNDS` at the latest."""
    size, _ = rows()
    exact = 0.5 - 0.25 * size
    linear, work = np.array([0.5, -0.25, 0.0, 0.0]), huber_work(LEVEL.size)
    value = law_huber.solve((size, exact, LEVEL, EXTRA), 0.1, 0.3, 0.02, 0.98, linear, work)
    near([*linear[:2], 1 + linear[2], 1 + linear[3]], [0.5, -0.25, 1.0, 1.0])
    check("laws.kernels.sum", value)


@pytest.mark.parametrize("given", [0.0, 0.75])
def test_rounds_of_a_solve(monkeypatch, given):
    """A step is taken while its decline is more than a share of the sum and the sum falls; `ROUNDS` are the most."""
    (size, loss), lengths = rows(), []
    monkeypatch.setattr(law_huber, "ROUNDS", 3)

    def best_length(residual, change, delta, decline):
        lengths.append(decline)
        return given

    monkeypatch.setattr(law_huber, "_best_length", best_length)
    linear, work = np.zeros(4), huber_work(LEVEL.size)
    value = law_huber.solve((size, loss, LEVEL, EXTRA), 9.0, 0.3, 0.02, 0.98, linear, work)
    if given:
        assert len(lengths) == 3
        near(lengths[1] / lengths[0], 1 / 16, "a quarter of the way is left each time")
        design = columns(np.ones(size.size), size, psi_of(EXTRA, 0.3, 0.02)[LEVEL])
        near(linear, (1 - 1 / 64) * np.linalg.lstsq(design, loss, rcond=None)[0])
    else:
        assert len(lengths) == 1 and not np.any(linear)
        near(value, np.sum(loss**2) / 2)
