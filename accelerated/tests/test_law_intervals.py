"""The ends at one shape behind the intervals, piece by piece, each by a plain formula; and where their search begins.

All but the last test run as plain Python.
"""

import itertools
import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_intervals
from routelaws.accelerated.laws import fitting, uncertainty
from routelaws.conformance.bounds import check
from routelaws.conformance.suite.strategies_laws import EXPERTS, SIZES
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
            ends = sorted(
                (math.degrees(math.atan2(s * r[1], s)) + 90) % 360 - 90 for s, r in zip(side, rays, strict=True)
            )
            wanted = (best, *ends) if ends[1] - ends[0] < 180 else wanted
        numbers_near(found, wanted, f"share {share}")


def test_a_line_of_sight_along_the_axis(plain, monkeypatch):
    """A tangent at x = 0 leaves a ratio open on both sides; lines of one angle are no way around."""
    for x_low, x_high, wanted in (
        (0.0, 3.0, (-math.inf, math.inf)),
        (3.0, 0.0, (-math.inf, math.inf)),
        (-2.0, 4.0, (-math.inf, math.inf)),
        (-2.0, -4.0, (-0.5, -0.5)),
    ):
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
        "SLOPE": ((0, 0, 0, 0), (0, 0, 1, at)),
        "INTERACTION": ((0, 0, 0, 0), (0, 0, 0, 1)),
        "SIZE_SLOPE": ((0, 1, 0, 0), (0, 0, 0, -1)),
        "LEVEL_AT_1": ((1, at, 0, 0), (0, 0, -1, -at)),
    }
    for name, (fixed, moving) in parts.items():
        kind = getattr(law_intervals, name)
        found = law_intervals._direction(kind, at, psi, 3.0)
        assert found == tuple(np.array(fixed) + 3.0 * np.array(moving)), name
        assert law_intervals._direction(kind, at, psi, math.inf) == tuple(map(float, moving)), name
    for name in ("PREDICTION", "OBSERVATION"):
        assert law_intervals._direction(getattr(law_intervals, name), at, psi, psi) == (1.0, at, psi, psi * at), name
    assert law_intervals._direction(law_intervals.GAIN, at, psi, psi) == (0.0, 0.0, psi, psi * at)


def on_the_scale_of_the_kernel(quantity, value: float, centre: float) -> float:
    """Return what the reference says of a quantity as the kernel has it: -1/E, an angle, or decades above N."""
    if quantity.name in ("E_start", "E_max"):
        return -1 / value
    if quantity.name == "N_cutoff":
        return math.atan(value - centre)
    return value - (math.log10(quantity.N) if quantity.name == "effective_parameters" else 0.0)


@pytest.mark.parametrize("name", KINDS)
def test_ends_at_a_shape_are_the_reference_s(plain, name):
    """At every kind of shape; with no room, less than none, and some; within the table and beyond it."""
    for sign in (1.0, -1.0):  # of what experts do; where E_start is at infinity, it says which of both ends is
        rows, problem, constant, extra, work = small_table(sign)
        centre = rows.log_size.mean()
        places = ((1.0, 0.0), (100.0, -0.3), (3000.0, 1.0))  # E, and log10 N less its mean
        for (alpha, ratio), (E, at), factor in itertools.product(SHAPES.values(), places, (0.5, 1.0, 1.01, 40.0)):
            dense = name in ("a", "d")  # which may be taken at any effective expert count
            quantity = uncertainty.Quantity(name, 10 ** (centre + at), E, effective=E if dense else 1.0)
            curve = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
            limit = factor * _allowed.at_shape(rows, quantity, 0.0, *curve)[0]
            residual, *says = _allowed.at_shape(rows, quantity, limit, *curve)
            wanted = [residual, *(on_the_scale_of_the_kernel(quantity, value, centre) for value in says)]
            beyond = math.log10(E) if dense else E - 1
            asked = (problem, extra, constant, KINDS[name], at if "N" in _allowed.PLACE[name] else -centre, beyond)
            with np.errstate(invalid="ignore"):
                found = np.array(law_intervals.ends_at(*asked, alpha, ratio, 1 - ratio, limit, work))
            if name == "N_cutoff":  # beyond a right angle c is not above 0, and the reference's is infinite
                found[1:] = np.minimum(found[1:], math.pi / 2)
            kept = 2 if factor == 1.0 else 4  # whether there is room is a matter of the last bit then
            numbers_near(found[:kept], wanted[:kept], f"{name}, {alpha}, {ratio}, E {E}, limit {factor}")


# The searches for the ends over all shapes


LINES = {
    "both ends": ([1.0, 2.0, 3.0, 0.5], [3, 0, -1]),
    "more than there is room for": ([4.0, 1.0, 4.0, 2.0, 4.0, 0.0, 4.0, 3.0, 4.0], [5, 1, 3]),
    "level": ([1.0, 1.0, 2.0], [0, 1, -1]),
    "one": ([3.0, 2.0, 1.0], [2, -1, -1]),
}


@pytest.mark.parametrize("name", LINES)
def test_low_points_of_a_scan(plain, name):
    """Places that no neighbour is below, the lowest first."""
    line, wanted = LINES[name]
    found = np.empty(3, np.int64)
    law_intervals._low_points(np.array(line), found)
    assert found.tolist() == wanted


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
