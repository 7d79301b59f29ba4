"""The loops behind the intervals, piece by piece: the ends at one shape by plain formulas, the searches by hand.

All run as plain Python, so that nothing is compiled and a test can put a function of its own in a helper's place.
"""

import itertools
import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_intervals
from routelaws.accelerated.laws import fitting, uncertainty
from routelaws.conformance.bounds import check
from routelaws.reference.laws import _allowed, _projection, routed

KINDS = {
    "a": law_intervals.SIZE_SLOPE, "b": law_intervals.SLOPE, "c": law_intervals.INTERACTION,
    "d": law_intervals.LEVEL_AT_1, "E_start": law_intervals.START, "E_max": law_intervals.LIMIT,
    "N_cutoff": law_intervals.CUTOFF, "slope": law_intervals.SLOPE, "gain": law_intervals.GAIN,
    "prediction": law_intervals.PREDICTION, "observation": law_intervals.OBSERVATION,
    "effective_parameters": law_intervals.EFFECTIVE,
}  # fmt: skip
SHAPES = {
    "inside": (0.4, 0.01), "nearly linear": (1e-7, 1e-3), "nearly bounded": (0.7, 0.4), "E_start at 1": (1.0, 0.003),
    "unbounded": (0.3, 0.0), "the corner": (1.0, 0.0), "the linear limit": (0.0, 0.0),
}  # fmt: skip
"""alpha = 1/E_start and E_start/E_max."""


@pytest.fixture
def plain(monkeypatch):
    """Put the plain Python function in place of each compiled one."""
    for module in (law_fit, law_intervals):
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)


def small_table(sign: float = 1.0):
    """Return (rows, reduced table, its constant, E - 1, work) of a noisy table of 5 E and 3 sizes, not all of them."""
    size, experts = (v.ravel()[:-1] for v in np.meshgrid([2e7, 1e8, 6e8], [1.0, 4.0, 16.0, 64.0, 256.0]))
    law = routed.RoutedCoefficients(-0.08, -0.2 * sign, 0.02 * sign, 1.1, 2.0, 300.0)
    noise = np.random.default_rng(5).normal(0, 2e-3, size.size)
    loss = routed.predict_loss(size, experts, law) * 10**noise
    table = fitting.level_table(size, experts, loss)
    problem, constant = law_fit.reduce_rows(table.log_size, table.log_loss, table.level, np.ones(size.size), 5)
    work = np.full((6, 2 * table.extra.size), np.nan)
    return _projection.check_rows(size, experts, loss), problem, constant, table.extra, work


def numbers_near(found, wanted, message: str) -> None:
    """Compare numbers of which some are NaN or infinite: those exactly, the others relatively."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite], err_msg=message)
    error = np.abs(found[finite] - wanted[finite]) / np.maximum(np.abs(wanted[finite]), 1.0)
    check("laws.uncertainty.loops", float(error.max(initial=0.0)), message=message)


# The ends at one shape


def test_the_least_squares_problem_is_that_of_qr(plain):
    """R with its diagonal above 0, Q^T y and what is left of y."""
    _, problem, _, extra, work = small_table()
    for psi in ([0.0, 0.3, 0.5, 0.8, 1.0], [0.0, 0.01, 0.06, 0.25, 1.0]):
        work[law_fit.PSI] = both = np.repeat(psi, 2)
        scores, triangle = np.full(4, np.nan), np.full((4, 4), np.nan)
        residual = law_intervals._solve(problem, work, scores, triangle)
        one, size, loss = problem[law_fit.ONE], problem[law_fit.SIZE], problem[law_fit.LOSS]
        q, r = np.linalg.qr(np.stack([one, size, both * one, both * size], axis=1))
        sign = np.sign(np.diag(r))
        upper = np.triu_indices(4)
        numbers_near(triangle[upper], (sign[:, None] * r)[upper], "R")
        numbers_near(scores, sign * (q.T @ loss), "z")
        wanted = float(np.sum((loss - q @ (q.T @ loss)) ** 2))
        check("laws.uncertainty.loops", abs(residual / wanted - 1), 1e2, message="the residual sum")


def test_a_direction_across_the_triangle(plain):
    """u = R^-T h by the solver of NumPy, for every axis and one in between."""
    triangle = np.triu(np.random.default_rng(1).uniform(0.5, 2.0, (4, 4)))
    below = triangle + np.tril(np.full((4, 4), np.nan), -1)  # nothing may read what is not of R
    for h in (*np.eye(4), np.array([2.0, -1.0, 0.5, 3.0])):
        numbers_near(law_intervals._across(below, *h), np.linalg.solve(triangle.T, h), f"h {h}")


def test_a_product_of_four(plain):
    """Every axis with every other one, and a sum by hand."""
    for one, other in itertools.product(np.eye(4), repeat=2):
        assert law_intervals._times(one, other) == float(one @ other)
    assert law_intervals._times((1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)) == 70.0


def test_an_angle_lies_between_its_cuts(plain):
    """From -90 degrees, which it keeps, to 270, in all quadrants and on all axes."""
    for degrees in (-90, -89, -45, 0, 30, 90, 91, 135, 180, 181, 225, 269):
        x, y = round(math.cos(math.radians(degrees)), 9), math.sin(math.radians(degrees))
        found = law_intervals._angle(2 * x, 2 * y)
        check("laws.uncertainty.angle", abs(found - math.radians(degrees)), message=f"{degrees} degrees")


CENTRES = [(3.0, 1.0), (-3.0, 1.0), (1.0, 3.0), (-1.0, 3.0), (1.0, -3.0), (-3.0, -1.0), (0.5, -3.0), (-0.5, -3.0)]
"""Best pairs (x, y), in all quadrants: the pairs allowed lie beside an axis, across one, or around the origin."""


def ellipse(centre):
    """Return R and z of a problem in which x is the size slope and y a gain, with this best pair, and the matrix G."""
    random = np.random.default_rng(8)
    triangle = np.triu(random.uniform(0.2, 0.6, (4, 4))) + np.eye(4)
    h_x, h_y = np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.7, 0.7 * 0.4])
    beta = np.array([2.0, centre[0], centre[1] / 0.7 - 0.4 * 1.5, 1.5])
    u = np.stack([np.linalg.solve(triangle.T, h_x), np.linalg.solve(triangle.T, h_y)])
    return triangle, triangle @ beta, u @ u.T


def room_at(centre, matrix) -> float:
    """Return the room at which the ellipse of the pairs allowed begins to hold the origin."""
    return float(np.array(centre) @ np.linalg.solve(matrix, centre))


@pytest.mark.parametrize("centre", CENTRES)
def test_lines_of_sight_touch_the_ellipse(plain, centre):
    """A line through the origin touches where the distance of the centre is the ellipse's reach along the normal."""
    u = np.random.default_rng(8).uniform(-1.0, 1.0, (2, 4))
    scores, matrix = np.linalg.lstsq(u, centre, rcond=None)[0], u @ u.T
    for share in (0.01, 0.5, 0.98):
        room = share * room_at(centre, matrix)
        unseen, x, y, *tangents = law_intervals._sight(room, scores, *u)
        assert not unseen
        numbers_near((x, y), centre, "the best pair")
        for turn, (x_end, y_end) in zip((-1, 1), (tangents[:2], tangents[2:]), strict=True):
            normal = np.array([-y_end, x_end]) / math.hypot(x_end, y_end)
            numbers_near((normal @ centre) ** 2, room * normal @ matrix @ normal, f"tangent {turn}")
            assert turn * (x * y_end - y * x_end) > 0, "the first is clockwise"
            assert np.linalg.solve(matrix, centre) @ (x_end, y_end) > 0, "towards the ellipse, not away from it"
    assert not law_intervals._sight(room_at(centre, matrix) * (1 - 1e-9), scores, *u)[0]
    assert law_intervals._sight(room_at(centre, matrix) * (1 + 1e-9), scores, *u)[0]


def test_lines_of_sight_where_both_see_the_same(plain):
    """y = 2 x always: one line, seen as long as x is not 0; y counts nothing of its own."""
    u_x = np.array([0.0, 0.0, 0.0, 0.5])
    scores = np.array([9.0, 9.0, 9.0, 0.25])
    for room, wanted in ((0.06, False), (0.0624, False), (0.0626, True), (4.0, True)):
        unseen, x, y, x_low, y_low, x_high, y_high = law_intervals._sight(room, scores, u_x, 2 * u_x)
        assert unseen == wanted and (x, y) == (0.125, 0.25)
        assert y_low == 2 * x_low and y_high == 2 * x_high
    assert law_intervals._sight(1e-9, 0 * scores, u_x, 2 * u_x)[0], "the origin itself"
    assert not law_intervals._sight(0.0, 0 * scores, u_x, 2 * u_x)[0], "no room: nothing but the origin"


def fieller(centre, matrix, room):
    """Return both roots r of (y - r x)^2 = room (G_yy - 2 r G_xy + r^2 G_xx), rising."""
    (x, y), (xx, xy), yy = centre, matrix[0], matrix[1, 1]
    return np.sort(np.roots([x * x - room * xx, 2 * (room * xy - x * y), y * y - room * yy]))


@pytest.mark.parametrize("centre", CENTRES)
def test_ends_of_a_ratio(plain, centre):
    """Fieller's theorem as a quadratic; open where x = 0 is allowed."""
    triangle, scores, matrix = ellipse(centre)
    kind, at, psi, seen = law_intervals.EFFECTIVE, 0.4, 0.7, 0
    for share in (0.01, 0.3, 0.98, 1.02):
        room = share * room_at(centre, matrix)
        found = law_intervals._ratio_ends(kind, at, psi, room, scores, triangle)
        off_zero = centre[0] ** 2 > room * matrix[0, 0]
        ends = fieller(centre, matrix, room) if off_zero else (-math.inf, math.inf)
        numbers_near(found, (centre[1] / centre[0], *ends), f"share {share}")
        seen += off_zero
    assert seen


@pytest.mark.parametrize("centre", CENTRES)
def test_ends_of_a_line_of_sight(plain, centre):
    """The angles of Fieller's roots, each on the side of the ellipse; all of them where -90 degrees is allowed."""
    random = np.random.default_rng(8)
    triangle = np.triu(random.uniform(0.2, 0.6, (4, 4))) + np.eye(4)
    scores = triangle @ (2.0, -1.0, -centre[1], centre[0])
    u = np.linalg.solve(triangle.T, np.array([[0.0, 0.0], [0.0, 0.0], [0.0, -1.0], [1.0, 0.0]])).T
    matrix = u @ u.T
    best = (math.degrees(math.atan2(centre[1], centre[0])) + 90) % 360 - 90
    for share in (0.01, 0.3, 0.98, 1.02):
        room = share * room_at(centre, matrix)
        found = np.degrees(law_intervals._ratio_ends(law_intervals.CUTOFF, 0.0, 0.0, room, scores, triangle))
        wanted = (best, -90, 270)
        if share < 1:
            rays = [(1.0, root) for root in fieller(centre, matrix, room)]
            side = [np.sign(np.linalg.solve(matrix, centre) @ ray) for ray in rays]
            ends = sorted((math.degrees(math.atan2(s * r[1], s)) + 90) % 360 - 90
                          for s, r in zip(side, rays, strict=True))  # fmt: skip
            wanted = (best, *ends) if ends[1] - ends[0] < 180 else wanted
        numbers_near(found, wanted, f"share {share}")


def test_a_line_of_sight_along_the_axis(plain, monkeypatch):
    """A tangent at x = 0 leaves a ratio open on both sides; lines of one angle are no way around."""
    for x_low, x_high, wanted in ((0.0, 3.0, (-math.inf, math.inf)), (3.0, 0.0, (-math.inf, math.inf)),
                                  (-2.0, 4.0, (-math.inf, math.inf)), (-2.0, -4.0, (-0.5, -0.5))):  # fmt: skip
        monkeypatch.setattr(
            law_intervals, "_sight", lambda *given, x=x_low, y=x_high: (False, 1.0, 5.0, x, 1.0, y, 2.0)
        )
        found = law_intervals._ratio_ends(law_intervals.EFFECTIVE, 0.0, 1.0, 1.0, np.ones(4), np.ones((4, 4)))
        assert found == (5.0, *wanted)
    monkeypatch.setattr(law_intervals, "_sight", lambda *given: (False, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0))
    assert law_intervals._ratio_ends(law_intervals.CUTOFF, 0.0, 1.0, 0.0, np.ones(4), np.ones((4, 4))) == (
        0.0,
        0.0,
        0.0,
    )


def test_directions_of_the_linear_quantities(plain):
    """h = fixed + factor moving, of which an infinite factor leaves `moving` alone; see the reference's step 3."""
    at, psi = 0.25, 0.5
    parts = {
        "SLOPE": ((0, 0, 0, 0), (0, 0, 1, at)), "INTERACTION": ((0, 0, 0, 0), (0, 0, 0, 1)),
        "SIZE_SLOPE": ((0, 1, 0, 0), (0, 0, 0, -1)), "LEVEL_AT_1": ((1, at, 0, 0), (0, 0, -1, -at)),
    }  # fmt: skip
    for name, (fixed, moving) in parts.items():
        kind = getattr(law_intervals, name)
        found = law_intervals._direction(kind, at, psi, 3.0)
        assert found == tuple(np.array(fixed) + 3.0 * np.array(moving)), name
        assert law_intervals._direction(kind, at, psi, math.inf) == tuple(map(float, moving)), name
    for name in ("PREDICTION", "OBSERVATION"):
        assert law_intervals._direction(getattr(law_intervals, name), at, psi, psi) == (1.0, at, psi, psi * at), name
    assert law_intervals._direction(law_intervals.GAIN, at, psi, psi) == (0.0, 0.0, psi, psi * at)


@pytest.mark.parametrize("name", KINDS)
def test_ends_at_a_shape_are_the_reference_s(plain, name):
    """At every kind of shape; with no room, less than none, and some; within the table and beyond it."""
    for sign in (1.0, -1.0):  # of what experts do; where E_start is at infinity, it says which of both ends is
        rows, problem, constant, extra, work = small_table(sign)
        centre = rows.log_size.mean()
        for (shape, (alpha, ratio)), E in itertools.product(SHAPES.items(), (1.5, 100.0, 3000.0)):
            N = 10 ** (centre + {1.5: 0.0, 100.0: -0.3, 3000.0: 1.0}[E])
            quantity = uncertainty.Quantity(name, N, E)
            at = (math.log10(N) if name in uncertainty._AT_SIZE else 0.0) - centre
            rise, bend = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
            least = float(_allowed._at_shape(rows, quantity, 0.0, np.asarray(rise), np.asarray(bend))[0])
            for factor in (0.5, 1.0, 1.01, 40.0):
                limit = factor * least
                wanted = _allowed._at_shape(rows, quantity, limit, np.asarray(rise), np.asarray(bend))
                asked = (problem, extra, constant, KINDS[name], at, E - 1)
                with np.errstate(invalid="ignore"):
                    found = law_intervals.ends_at(*asked, alpha, ratio, 1 - ratio, limit, work)
                if factor == 1.0:
                    found, wanted = found[:2], wanted[:2]  # whether there is room is a matter of the last bit
                numbers_near(found, np.array(wanted, dtype=float), f"{name}, {shape}, E {E}, limit {factor}")


# The searches


ASKED = ("problem", "extra", "constant", "kind", "at", "beyond")
REST = ("limit", "sign", "work")


def test_the_end_that_is_searched(plain, monkeypatch):
    """The low end, or minus the high one; shapes that are rejected come behind all others, the worse the further."""
    extra, given = np.array([0.0, 3.0, 15.0]), []
    monkeypatch.setattr(law_intervals, "_shape", lambda t, w, top: (t, w, top))

    outside = law_intervals.OUTSIDE
    for answer, low, high in (
        ((2.0, 9.0, -3.0, 5.0), -3.0, -5.0), ((2.5, 9.0, -3.0, 5.0), -3.0, -5.0),
        ((2.6, 9.0, -3.0, 5.0), 3.6 * outside, 3.6 * outside), ((1.0, 9.0, math.nan, 5.0), 2.0 * outside, -5.0),
        ((1.0, 9.0, -math.inf, math.inf), -math.inf, -math.inf),
    ):  # fmt: skip
        monkeypatch.setattr(law_intervals, "ends_at", lambda *asked, answer=answer: given.append(asked) or answer)
        for sign, wanted in ((1.0, low), (-1.0, high)):
            asked = ("problem", extra, "constant", "kind", "at", "beyond")
            assert law_intervals._signed_end(*asked, 0.25, 0.75, 2.5, sign, "work") == wanted
            assert given.pop() == (*asked, 0.25, 0.75, math.log1p(15.0), 2.5, "work")


def test_the_line_of_a_place(plain, monkeypatch):
    """The least over w, or, with E_max unbounded, the point w = 0."""
    monkeypatch.setattr(law_intervals, "_signed_end", lambda *given: ("point", given))
    monkeypatch.setattr(law_intervals, "_least_over_w", lambda *given: ("line", given))
    assert law_intervals._at_t(*ASKED, 0.3, True, *REST) == ("point", (*ASKED, 0.3, 0.0, *REST))
    assert law_intervals._at_t(*ASKED, 0.3, False, *REST) == ("line", (*ASKED, 0.3, *REST))


def test_an_end_is_the_least_of_the_inside_and_both_edges(plain, monkeypatch):
    """Over all shapes, over those without E_max, and over those with E_start = 1."""
    for least in itertools.permutations((1.0, 2.0, 3.0)):
        given = []

        def over(*arguments, given=given, least=least):
            given.append(arguments)
            return least[len(given) - 1]

        monkeypatch.setattr(law_intervals, "_least_over_t", over)
        monkeypatch.setattr(law_intervals, "_least_over_w", over)
        asked = ("problem", np.zeros(3), "constant", "kind", "at", "beyond")
        assert law_intervals.interval_end(*asked, "limit", "sign") == 1.0
        assert [one[6:-1] for one in given] == [(False, "limit", "sign"), (True, "limit", "sign"),
                                                (1.0, "limit", "sign")]  # fmt: skip
        assert all(one[:6] == asked and one[-1].shape == (6, 6) for one in given)


def test_low_points_of_all_short_lines(plain):
    """Places that no neighbour is below, the lowest first, each once; -1 where there are no more."""
    for size in range(1, 7):
        for line in itertools.product((0.0, 1.0, 2.0), repeat=size):
            low = [i for i in range(size) if line[i] == min(line[max(i - 1, 0) : i + 2])]
            for room in (1, 2, 3):
                found = np.full(room, 7)
                law_intervals._low_points(np.array(line), found)
                places, count = found.tolist(), min(room, len(low))
                assert set(places[:count]) <= set(low) and places[count:] == [-1] * (room - count), line
                assert len(set(places[:count])) == count, line
                assert [line[i] for i in places[:count]] == sorted(line[i] for i in low)[:count], line


def test_the_golden_ratio():
    """A step leaves the same share of the whole and of what is left."""
    check("laws.uncertainty.loops", abs(law_intervals.GOLDEN**2 + law_intervals.GOLDEN - 1))


VALLEYS = {
    "inside": lambda x: (x - 0.37) ** 2, "at the left end": lambda x: x, "at the right end": lambda x: -x,
    "a kink": lambda x: abs(x - 0.61), "flat": lambda x: 1.0,
    "rejected beyond 0.3": lambda x: -x if x <= 0.3 else 1e200 * (1 + x),
    "rejected before 0.7": lambda x: x if x >= 0.7 else 1e200 * (2 - x),
}  # fmt: skip
LEAST = {"inside": 0.37, "at the left end": 0.2, "at the right end": 0.9, "a kink": 0.61, "flat": 0.2,
         "rejected beyond 0.3": 0.3, "rejected before 0.7": 0.7}  # fmt: skip
"""Where each is least between 0.2 and 0.9."""


def along(monkeypatch, axis: str, function):
    """Put a function of one coordinate in place of the end at a shape, or on a line; return where it is asked."""
    places = []

    def signed_end(*given):
        assert given[:6] == ASKED and given[-3:] == REST
        assert axis == "t" or given[6] == "t"
        assert axis == "w" or given[7] == "unbounded"
        places.append(given[7] if axis == "w" else given[6])
        return function(places[-1])

    monkeypatch.setattr(law_intervals, "_signed_end" if axis == "w" else "_at_t", signed_end)
    return places


def golden(axis: str, low: float, high: float, times: int):
    if axis == "w":
        return law_intervals._golden_w(*ASKED, "t", *REST, low, high, times)
    return law_intervals._golden_t(*ASKED, "unbounded", *REST, low, high, times)


def least_over(axis: str):
    if axis == "w":
        return law_intervals._least_over_w(*ASKED, "t", *REST)
    return law_intervals._least_over_t(*ASKED, "unbounded", *REST)


@pytest.mark.parametrize("axis", "wt")
@pytest.mark.parametrize("name", VALLEYS)
def test_a_golden_section_closes_in(plain, monkeypatch, name, axis):
    """Each step asks once, leaves 0.618 of the bracket, and keeps the least in it; the least value seen comes back."""
    for times in (0, 1, 2, 12):
        places = along(monkeypatch, axis, VALLEYS[name])
        low, high, best = golden(axis, 0.2, 0.9, times)
        assert len(places) == times + 2 and best == min(map(VALLEYS[name], places))
        share = (math.sqrt(5) - 1) / 2
        numbers_near(places[:2], (0.9 - 0.7 * share, 0.2 + 0.7 * share), "the first points")
        numbers_near(high - low, 0.7 * share**times, f"the bracket after {times}")
        assert 0.2 <= low <= LEAST[name] <= high <= 0.9


SCANS = {
    "one valley": (lambda x: (x - 0.37) ** 2, [12]),
    "two valleys": (lambda x: min((x - 0.2) ** 2 + 0.01, (x - 0.8) ** 2), [26, 6]),
    "five valleys": (lambda x: -math.cos(8 * math.pi * x) - x / 9, [32, 24, 16]),
    "both ends": (lambda x: x * (1 - x) - x / 9, [32, 0]),
    "at 0": (lambda x: x, [0]),
    "at 1": (lambda x: -x, [32]),
    "flat": (lambda x: 1.0, [0, 1, 2]),
}
"""Functions of one coordinate, and the lowest points of 33 at equal steps."""


@pytest.mark.parametrize("axis", "wt")
@pytest.mark.parametrize("name", SCANS)
def test_a_search_begins_around_the_low_points_of_its_scan(plain, monkeypatch, name, axis):
    """Some steps around each, and the others around that in whose bracket the least was found."""
    function, wanted = SCANS[name]
    step, brackets = 1 / (law_intervals.FIRST - 1), []

    def narrow(*given):
        brackets.append(given[-3:])
        middle = (given[-3] + given[-2]) / 2
        return middle - 0.01, middle + 0.01, function(middle) + offset

    monkeypatch.setattr(law_intervals, f"_golden_{axis}", narrow)
    for offset in (0.0, 5.0, -5.0):  # what the search adds to a scan's own values
        places = along(monkeypatch, axis, function)
        found = least_over(axis)
        assert places == [i * step for i in range(law_intervals.FIRST)]
        around = [(max(i - 1, 0) * step, min(i + 1, 32) * step, law_intervals.CHOOSE) for i in wanted]
        *begun, last = brackets
        assert begun == around
        ends = [function((low + high) / 2) for low, high, _ in around]
        middle = sum(around[ends.index(min(ends))][:2]) / 2
        assert last == (middle - 0.01, middle + 0.01, law_intervals.TIMES - law_intervals.CHOOSE)
        assert found == min(
            *map(function, places), *(end + offset for end in ends), function(sum(last[:2]) / 2) + offset
        )
        brackets.clear()


def test_the_least_value_is_that_of_the_scan_the_choice_or_the_end(plain, monkeypatch):
    """Whichever of the three is lowest."""
    for axis in "wt":
        for answers in itertools.permutations((0.5, 1.5)):
            for scan in (0.25, 1.0, 2.0):
                values = iter(answers)
                along(monkeypatch, axis, lambda x, scan=scan: x + scan)
                narrow = lambda *given, values=values: (0.1, 0.2, next(values))  # noqa: E731
                monkeypatch.setattr(law_intervals, f"_golden_{axis}", narrow)
                assert least_over(axis) == min(scan, 0.5)


@pytest.mark.parametrize("axis", "wt")
@pytest.mark.parametrize("name", [name for name in SCANS if name != "flat"])
def test_a_search_ends_at_the_least(plain, monkeypatch, name, axis):
    """In as many steps as it says; the least is that of a fine scan, or below it."""
    function, low = SCANS[name]
    places = along(monkeypatch, axis, function)
    found = least_over(axis)
    assert len(places) == 33 + len(low) * (law_intervals.CHOOSE + 2) + law_intervals.TIMES - law_intervals.CHOOSE + 2
    assert found == min(map(function, places))
    fine = min(map(function, np.linspace(0, 1, 4001)))
    check("laws.uncertainty.loops", max(found - fine, 0.0), message=name)
