"""Which pieces of the domain a fit of the bounded law searches, from where, and which end it takes.

The loops run as plain Python here, with recorders in the place of the searches.
"""

import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_huber
from routelaws.accelerated.laws import fitting
from routelaws.conformance.bounds import check
from routelaws.conformance.suite.strategies_laws import EXPERTS, SIZES

pytestmark = pytest.mark.usefixtures("plain_loops")

INFINITE = math.inf
EXTRA = np.array([0.0, 1.0, 3.0, 9.0])
BOTH = pytest.mark.parametrize("module", [law_fit, law_huber])


def near(found, wanted) -> bool:
    check("laws.kernels.sum", abs(found - wanted), abs(wanted))
    return True


PLANE = np.full((4, 4), INFINITE)
PLANE[[1, 3, 2, 0], [2, 3, 0, 0]] = 1.0, 2.0, 0.5, 3.0
PLANE[[2, 1, 3], [1, 1, 1]] = 1.25, 1.125, 1.5  # next to these, and lower than some of another piece
"""A scan: the lowest points inside, on the last line and in the first column differ."""


@pytest.mark.parametrize(
    "free, places",
    [((True, True), [(1, 2), (3, 3)]), ((True, False), [(2, 0), (0, 0)]), ((False, True), [(3, 1), (3, 3)])],
)
@BOTH
def test_where_each_piece_is_searched(monkeypatch, module, free, places):
    """From the lowest points of its part of the scan: all but the first column, that column, the last line."""
    begun, extra, solutions = [], EXTRA, np.arange(64.0).reshape(4, 4, 4)

    def searched(*given):
        begun.append(given)
        start = given[2 + (module is law_fit) :][:2]
        if module is law_huber:
            assert given[:2] == (("table", None, None, extra), 0.1) and given[4:6] == free and given[7] == "work"
            given[6][:] += 1000.0
        else:
            assert given[:3] == ("table", extra, 0.5) and given[5:7] == free
            assert given[7:] == (law_fit.SETTLED_SOON, "work")
        return *start, 5.0 - len(begun)

    monkeypatch.setattr(module, "search", searched)
    if module is law_fit:
        found = law_fit._search_piece("table", extra, 0.5, PLANE, *free, 3, False, "work")
    else:
        table = ("table", None, None, extra)
        found = law_huber._search_piece(table, 0.1, PLANE, solutions, *free, 3, "work")
        assert np.array_equal(solutions, np.arange(64.0).reshape(4, 4, 4)), "they are copied"
        assert found[4:].tolist() == (solutions[places[-1]] + 1000.0).tolist()
    assert len(begun) == len(places) and found[3] == 5.0 - len(places)
    for (i, j), given in zip(places, begun, strict=True):
        alpha, ratio, rest = law_fit._shape((i + 1) / 4, j / 4, math.log(10.0))
        log_alpha, logit = given[2 + (module is law_fit) :][:2]
        assert logit == -INFINITE if not free[1] else near(math.exp(logit), ratio / rest)
        assert near(math.exp(log_alpha), alpha)
    assert near(found[0], alpha) and near(found[2], rest) and (near(found[1], ratio) if free[1] else found[1] == 0.0)


@BOTH
@pytest.mark.parametrize("values, best", [([2.0, 1.0], 1), ([1.0, 2.0], 0), ([1.0, 1.0], 0), ([math.nan, 1.0], 1)])
def test_the_best_end_of_a_piece(monkeypatch, module, values, best):
    """The lowest, of equal ones the first; `starts` says how many are searched from."""
    ends = [(math.log(0.5), 2.0, values[0]), (math.log(0.25), -3.0, values[1])]
    for starts in (1, 2):
        left = iter(ends)
        monkeypatch.setattr(module, "search", lambda *given, left=left: next(left))
        if module is law_fit:
            found = law_fit._search_piece(None, EXTRA, 0.0, PLANE, True, True, starts, False, None)
        else:
            table = (None, None, None, EXTRA)
            found = law_huber._search_piece(table, 0.1, PLANE, np.zeros((4, 4, 4)), True, True, starts, None)
        assert len(list(left)) == 2 - starts
        log_alpha, logit, value = ends[best if starts == 2 else 0]
        if not math.isnan(value):
            assert near(found[0], math.exp(log_alpha)) and found[3] == value
            assert near(found[1], 1 / (1 + math.exp(-logit))) and near(found[2], 1 / (1 + math.exp(logit)))
    empty = np.full((4, 4), INFINITE)
    if module is law_fit:
        assert law_fit._search_piece(None, EXTRA, 0.0, empty, True, True, 2, False, None)[3] == INFINITE
    else:
        found = law_huber._search_piece(table, 0.1, empty, np.zeros((4, 4, 4)), True, True, 2, None)
        assert found.shape == (8,) and found[3] == INFINITE


def test_a_careful_search_is_polished(monkeypatch):
    """And ends later; a quick one is not."""
    polished = []
    monkeypatch.setattr(law_fit, "search", lambda *given: (-1.0, 2.0, given[7]))
    monkeypatch.setattr(law_fit, "polish", lambda *given: polished.append(given) or (-1.5, 2.5, 0.25))
    found = law_fit._search_piece("table", EXTRA, 0.0, PLANE, True, True, 1, False, "work")
    assert found[3] == law_fit.SETTLED_SOON and not polished
    found = law_fit._search_piece("table", EXTRA, 0.0, PLANE, True, True, 1, True, "work")
    assert near(found[0], math.exp(-1.5)) and near(found[1], 1 / (1 + math.exp(-2.5))) and found[3] == 0.25
    assert polished == [("table", EXTRA, -1.0, 2.0, True, True, "work")]
    assert 0 < law_fit.SETTLED < law_fit.SETTLED_SOON < 0.001
    monkeypatch.setattr(law_fit, "polish", lambda *given: (-1.5, 2.5, math.nan))
    monkeypatch.setattr(law_fit, "search", lambda *given: (-1.0, 2.0, 0.0 if given[7] == law_fit.SETTLED else math.nan))
    assert law_fit._search_piece("table", EXTRA, 0.0, PLANE, True, True, 1, True, "work")[3] == INFINITE


SHAPES = [(0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (1.0, 0.25, 0.75), (0.5, 0.0, 1.0), (0.75, 0.375, 0.625)]
"""Of the five pieces, from the smallest set to the largest."""


class Pieces:
    """A whole fit whose pieces have these sums: what is searched, and which is taken.

    Args:
        values: sums of the five pieces, from the smallest set to the largest.
        constant: what no shape can change.
        may_win: what the look at an edge's scan says.
    """

    weights = np.full(8, 0.5)

    def __init__(self, monkeypatch, values, constant=0.0, may_win=True):
        self.searched, self.looked, self.values, self.constant = [], [], values, constant
        self.shapes, self.may_win, self.at = SHAPES, may_win, None
        own = {
            "reduce_rows": lambda *given: ("table", constant),
            "_determined": lambda *given: True,
            "scan_values": self.scanned,
            "fill_psi": self.filled,
            "evaluate": self.evaluated,
            "_may_win": self.looks,
            "_search_piece": self.searches,
            "_routed_part": lambda *given: (7.0, 8.0),
            "_fixed_part": lambda problem, psi, gain, interaction: (gain - 2.0, interaction - 2.0),
        }
        for name, function in own.items():
            monkeypatch.setattr(law_fit, name, function)

    def scanned(self, problem, table, values):
        values[:] = np.arange(9.0)

    def filled(self, psi, extra, *shape):
        self.at = shape

    def evaluated(self, problem, work):
        return self.values[self.shapes.index(tuple(self.at))]

    def looks(self, line, inside, constant):
        self.looked.append((line.tolist(), inside, constant))
        return self.may_win

    def searches(self, problem, extra, constant, values, free_alpha, free_logit, starts, careful, work):
        assert (problem, constant, starts) == ("table", self.constant, 2) and values.shape == (3, 3)
        piece = {(True, True): 4, (True, False): 3, (False, True): 2}[bool(free_alpha), bool(free_logit)]
        self.searched.append((piece, careful))
        return *self.shapes[piece], self.values[piece]

    def fit_one(self, careful=True):
        found = law_fit.fit_one(None, None, None, None, EXTRA, self.weights, np.empty((9, 4)), 2, careful)
        assert found.shape == (9,) and tuple(self.at) == tuple(found[1:4]), "the coefficients are those of the shape"
        assert found[5:].tolist() == [5.0, 6.0, 7.0, 8.0]
        return found


def test_a_careful_fit_searches_every_piece(monkeypatch):
    pieces = Pieces(monkeypatch, [9.0, 8.0, 7.0, 6.0, 5.0], 0.5)
    assert pieces.fit_one().tolist() == [4, *pieces.shapes[4], 5.5, 5.0, 6.0, 7.0, 8.0]
    assert sorted(pieces.searched) == [(2, True), (3, True), (4, True)] and not pieces.looked


def test_a_quick_fit_looks_at_the_scan_of_an_edge(monkeypatch):
    """The first column is that without E_max, the last line that of E_start = 1; the inside comes first."""
    pieces = Pieces(monkeypatch, [9.0, 8.0, 3.0, 4.0, 5.0], 0.5)
    assert pieces.fit_one(careful=False)[0] == 2
    assert pieces.searched == [(4, False), (3, False), (2, False)]
    assert pieces.looked == [([0.0, 3.0, 6.0], 5.0, 0.5), ([6.0, 7.0, 8.0], 5.0, 0.5)]
    pieces = Pieces(monkeypatch, [9.0, 8.0, 3.0, 4.0, 5.0], 0.5, may_win=False)
    assert pieces.fit_one(careful=False)[[0, 4]].tolist() == [4, 5.5] and pieces.searched == [(4, False)]


@pytest.mark.parametrize("lowest", range(5))
def test_the_smallest_piece_of_those_that_tie(monkeypatch, lowest):
    """Within 1e-13 of the least sum, what no shape can change included; beyond that it is not a tie."""
    for share, ties in ((0.5e-13, True), (2e-13, False)):
        for other in range(lowest):
            values = [9.0] * 5
            values[lowest], values[other] = 1.0, 1.0 + 4.0 * share
            found = Pieces(monkeypatch, values, 3.0).fit_one()
            assert found[:4].tolist() == [other if ties else lowest, *SHAPES[other if ties else lowest]]
    values = [9.0] * 5
    values[lowest] = 1.0
    for after in range(lowest + 1, 5):
        values[after] = 1.0
    assert Pieces(monkeypatch, values).fit_one()[0] == lowest


def test_what_a_search_cannot_tell_apart_decides_nothing(monkeypatch):
    """1e-10 in the root mean square of the predictions, so 1e-20 for each unit of weight; infinity is never taken."""
    for value, piece in ((3e-20, 1), (5e-20, 4)):
        assert Pieces(monkeypatch, [9.0, value, 9.0, 9.0, 0.0]).fit_one()[0] == piece
    assert Pieces(monkeypatch, [math.nan, INFINITE, math.nan, INFINITE, 1.0]).fit_one()[0] == 4


def test_a_table_that_does_not_determine_the_law(monkeypatch):
    """Its rows are looked at with their weights, before any search."""
    pieces = Pieces(monkeypatch, [1.0] * 5)
    monkeypatch.setattr(law_fit, "_determined", lambda *given: False)
    found = law_fit.fit_one(None, None, None, None, EXTRA, pieces.weights, np.empty((9, 4)), 2, True)
    assert found[0] == law_fit.UNDETERMINED == -1 and np.isnan(found[1:]).all() and found.shape == (9,)
    assert not pieces.searched and pieces.at is None


def noisy_table():
    """Return a table with noise, weights of it and the design of the law at a shape."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:3], EXPERTS[::2]))
    random = np.random.default_rng(6)
    table = fitting.level_table(size, experts, 10 ** (0.6 - 0.1 * np.log10(size / 1e7) + random.normal(0, 0.01, 15)))
    return table, random.integers(0, 3, (2, 15)).astype(float)


def test_a_batch_is_a_fit_of_each_weighting():
    """The shape's sum and coefficients are those of weighted least squares."""
    table, weights = noisy_table()
    given = (table.log_size, table.log_loss, table.level, table.cell, table.extra)
    found = law_fit.fit_batch(*given, weights, 3, 1, False)
    assert found.shape == (2, 9)
    for b in range(2):
        wanted = law_fit.fit_one(*given, weights[b], law_fit.scan_table(table.extra, 3), 1, False)
        assert np.array_equal(found[b], wanted)
        psi = np.empty(2 * table.extra.size)
        law_fit.fill_psi(psi, table.extra, *found[b, 1:4])
        here, root = psi[::2][table.level], np.sqrt(weights[b])
        design = np.stack([np.ones(15), table.log_size, here, here * table.log_size], axis=1) * root[:, None]
        answer = np.linalg.lstsq(design, root * table.log_loss, rcond=None)[0]
        assert near(found[b, 4], np.sum((root * table.log_loss - design @ answer) ** 2))
        check("laws.fitting.turns", float(np.abs(found[b, 5:] - answer).max()), float(np.abs(answer).max()))


def test_the_scan_under_huber_goes_to_and_fro(monkeypatch):
    """So that each solve starts from a neighbour's solution; what has no answer is infinite, and the next start 0."""
    asked, answers = [], [5.0, math.nan, 3.0, 0.0]

    def solve(problem, delta, alpha, ratio, rest, linear, work):
        assert (problem[3] is EXTRA, delta, work) == (True, 0.1, "work")
        asked.append(((alpha, ratio, rest), linear.tolist()))
        linear[:] = len(asked)
        return answers[len(asked) - 1]

    monkeypatch.setattr(law_huber, "solve", solve)
    values, solutions = law_huber.scan_shapes((None, None, None, EXTRA), 0.1, 2, "work")
    points = [(0.5, 0.0), (0.5, 0.5), (1.0, 0.5), (1.0, 0.0)]
    for (shape, start), point, wanted in zip(asked, points, ([0.0] * 4, [1.0] * 4, [0.0] * 4, [3.0] * 4), strict=True):
        assert start == wanted
        assert all(near(*pair) for pair in zip(shape, law_fit._shape(*point, math.log(10.0)), strict=True))
    assert values.tolist() == [[5.0, INFINITE], [0.0, 3.0]]
    assert solutions.tolist() == [[[1.0] * 4, [0.0] * 4], [[4.0] * 4, [3.0] * 4]]
    del asked[:]
    answers[:] = range(9)
    values, _ = law_huber.scan_shapes((None, None, None, EXTRA), 0.1, 3, "work")
    assert values.tolist() == [[0.0, 1.0, 2.0], [5.0, 4.0, 3.0], [6.0, 7.0, 8.0]]


def fit_of(monkeypatch, values, shapes=SHAPES, rows=8):
    """Return a Huber fit whose five pieces have these sums and shapes; the unknowns are 10 and the piece's number."""

    def solve(problem, delta, alpha, ratio, rest, linear, work):
        piece = [shape[:1] for shape in SHAPES[:2]].index((alpha,))
        assert (problem[3] is EXTRA, delta, ratio, rest) == (True, 0.1, 0.0, 1.0)
        assert linear.tolist() == [0.0] * 4
        assert [part.shape for part in work] == [(4, rows), (4, 4), (4, 4), (rows,), (rows,)]
        linear[:] = 10.0 + piece
        return values[piece]

    def searched(problem, delta, plane, solutions, free_alpha, free_logit, starts, work):
        assert (delta, plane, solutions, starts) == (0.1, "values", "solutions", 3) and problem[3] is EXTRA
        piece = {(True, True): 4, (True, False): 3, (False, True): 2}[bool(free_alpha), bool(free_logit)]
        return np.array([*shapes[piece], values[piece], *[10.0 + piece] * 4])

    def scanned(problem, delta, scan, work):
        assert (problem[3] is EXTRA, delta, scan) == (True, 0.1, 5)
        return "values", "solutions"

    monkeypatch.setattr(law_huber, "scan_shapes", scanned)
    monkeypatch.setattr(law_huber, "solve", solve)
    monkeypatch.setattr(law_huber, "_search_piece", searched)
    return law_huber.fit(np.zeros(rows), np.zeros(rows), np.zeros(rows, int), EXTRA, 0.1, 5, 3)


@pytest.mark.parametrize("lowest", range(5))
def test_the_pieces_of_a_fit_under_huber(monkeypatch, lowest):
    """All are searched; the smallest within 1e-13 of the least sum is taken, with its shape and unknowns."""
    values = [9.0] * 5
    values[lowest] = 1.0
    found = fit_of(monkeypatch, values)
    assert found.tolist() == [lowest, *SHAPES[lowest], 1.0, *[10.0 + lowest] * 4]
    for share, ties in ((0.5e-13, True), (2e-13, False)):
        for other in range(lowest):
            near_tie = [*values]
            near_tie[other] = 1.0 + share
            assert fit_of(monkeypatch, near_tie)[0] == (other if ties else lowest)


def test_what_a_search_under_huber_cannot_tell_apart(monkeypatch):
    """Residuals of 1e-10 in each row, as terms of Huber."""
    for value, piece in ((3e-20, 1), (5e-20, 4)):
        assert fit_of(monkeypatch, [9.0, value, 9.0, 9.0, 0.0])[0] == piece
    assert fit_of(monkeypatch, [9.0, 6e-20, 9.0, 9.0, 0.0], rows=16)[0] == 1
    assert fit_of(monkeypatch, [math.nan] * 5)[0] == 4, "nothing to compare: no piece is left out"


@pytest.mark.parametrize("inside, edge", [(4, 2), (3, 1)])
def test_a_search_that_ended_on_an_edge(monkeypatch, inside, edge):
    """It found a point of that edge, which is taken over where it is better than the edge's own."""
    shapes = [*SHAPES]
    shapes[inside] = (1.0, 0.125, 0.875)
    values = [9.0, 8.0, 7.0, 6.0, 5.0]
    values[inside] = 1.0
    assert fit_of(monkeypatch, values, shapes).tolist() == [edge, *shapes[inside], 1.0, *[10.0 + inside] * 4]
    values[edge] = 1.0
    assert fit_of(monkeypatch, values, shapes).tolist() == [edge, *SHAPES[edge], 1.0, *[10.0 + edge] * 4]
    values[edge] = 9.0
    assert fit_of(monkeypatch, values)[0] == inside, "it did not end there"


def test_starts_that_are_infinite_are_none():
    """Of a plane all of which is below infinity but for a corner, or nothing; of equal ones the first comes first."""
    plane = np.array([[1.0, 5.0, 1.0], [5.0, 5.0, 5.0], [1.0, 5.0, INFINITE]])
    assert law_fit._best_starts(plane, 4).tolist() == [0, 2, 6, -1]
    assert law_fit._best_starts(plane[1:, 1:], 2).tolist() == [0, 1], "two of three that are level"
    assert law_fit._best_starts(np.full((2, 2), INFINITE), 2).tolist() == [-1, -1]
    sides = np.full((5, 5), 5.0)
    sides[[0, 0, 4], [0, 4, 0]] = 3.0, 2.0, 1.0
    assert law_fit._best_starts(sides, 3).tolist() == [20, 4, 0], "opposite sides are no neighbours"
    row = np.array([[4.0, 1.0, 4.0, 3.0, 4.0, 2.0, 4.0, 0.0]])
    for starts, wanted in ((1, [7]), (2, [7, 1]), (3, [7, 1, 5]), (4, [7, 1, 5, 3])):
        assert law_fit._best_starts(row, starts).tolist() == wanted
        assert law_fit._best_starts(np.ascontiguousarray(row.T), starts).tolist() == wanted
    assert (law_fit.LINEAR, law_fit.CORNER, law_fit.START_AT_1, law_fit.UNBOUNDED, law_fit.INTERIOR) == (0, 1, 2, 3, 4)
    assert len(fitting.STATUSES) == 5


def test_a_place_to_keep_machine_code_is_no_need(monkeypatch):
    """Programs are kept on disk where that can be; with and without, 0/0 is no error, and options are handed on."""
    asked, folder = [], {}

    def njit(**options):
        asked.append(options)
        if "cache" in options and not folder["is there"]:
            raise RuntimeError("no folder")
        return lambda function: function

    monkeypatch.setattr(law_fit, "njit", njit)
    for has_folder in (False, True):
        folder["is there"] = has_folder
        assert law_fit._compiler(fastmath={"contract"})(len) is len
    kept, plainly = ({"error_model": "numpy", "fastmath": {"contract"}} | more for more in ({"cache": True}, {}))
    assert asked == [kept, plainly, kept]
