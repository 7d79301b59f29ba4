"""The ends of profile intervals of the bounded law, all at once: see `uncertainty.py`.

Private to the accelerated package. `reference.laws.numerics._allowed` explains the mathematics: at a shape, a quantity
has a low end and a high end in closed form, and an interval is the union over all allowed shapes. Here a scan, the
valley through it and the optima give starts. All ends are then searched together (`_shapes.descend`). The derivatives
by the shape are those of the law that attains the end (envelope theorem). E_start and E_max: `extreme_ends`.

Losses are log10 L. A ratio y/x is the angle of the line from the origin to (x, y). The slope of effective_parameters is
in decades above N. The line of N_cutoff goes to (interaction, -gain): from -90 degrees (a size of 0) to 90 (infinite),
and to 270 for c below 0. Letters as in the reference: h and β of a quantity h·β, and Δ = `Solved.triangle`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.numerics._allowed import PLACE

from ._shapes import (
    CORNER,
    EDGES,
    INTERIOR,
    INWARD,
    LINEAR,
    RESOLUTION,
    SCAN,
    START_AT_1,
    UNBOUNDED,
    Reduced,
    Searched,
    Solved,
    curve,
    descend,
    grid,
    low_points,
    picked,
    routed_part,
    solve,
    starts_from,
    turned,
)

STARTS = 3  # low points of a scan to search from
SCAN_OF_E = 32  # points of the scan of u, the coordinate of E_start or E_max
COARSE, FINE = (32, 6), (128, 11)  # points and rounds of `_least_on_lines`: for a scan of E, and for an end
MOST, NARROW = 60, 1e-11  # most rounds of `_last_allowed`, and the share of an end that remains
RIGHT = math.pi / 2
CONSTANT, CURVE, START = range(3)  # what the factor of the routed part is: ln 10, psi, or ln(Ê/E_start)


class LinearQuantities(NamedTuple):
    """Quantities h·β, or ratios (h·β)/(divisor·β). h is `fixed` and, times a factor, `routed`. Fields are [lanes]."""

    fixed: np.ndarray  # [2, lanes]
    routed: np.ndarray  # [2, lanes]
    factor: np.ndarray  # CONSTANT, CURVE or START
    extra: np.ndarray  # E - 1 of CURVE
    effective: np.ndarray  # ln Ê of START
    noise: np.ndarray  # 1 for an observation
    divisor: np.ndarray  # [4, lanes]; 0 for linear quantities
    folded: np.ndarray  # whether (x, y) and (-x, -y) are the same ratio
    sign: np.ndarray  # 1 for low ends, -1 for high ends


class End(NamedTuple):
    """Ends of quantities at shapes."""

    best: np.ndarray
    end: np.ndarray  # times `LinearQuantities.sign`
    along: np.ndarray  # [4, ...] Δ^-T h; of a ratio, h is y cos - x sin of the angle of the end, by its derivative
    length: np.ndarray  # of `along`, with the noise
    share: np.ndarray  # how much the end changes if the routed part of h does


def asked_of(quantities, centre: float) -> LinearQuantities:
    """Return both sides of quantities, the low ends first. `centre` is the mean log10 N."""
    records = []
    for name, N, E, effective in quantities:
        n = (math.log10(N) if "N" in PLACE[name] else 0.0) - centre
        point = (1.0, n)
        fixed = point if name in ("prediction", "observation", "d") else (0.0, 1.0) if name == "a" else (0.0, 0.0)
        routed = {"a": (0.0, 1.0), "c": (0.0, 1.0), "N_cutoff": (-1.0, 0.0)}.get(name, point)
        factor = CURVE if "E" in PLACE[name] else START if name in ("a", "d") else CONSTANT
        divisor = {"effective_parameters": (0, 1, 0, 0), "N_cutoff": (0, 0, 0, math.log(10))}.get(name, (0, 0, 0, 0))
        records.append((
            *fixed, *routed, factor, E - 1 if factor == CURVE else 0.0, math.log(effective), name == "observation",
            *divisor, name == "effective_parameters",
        ))  # fmt: skip
    columns = np.tile(np.array(records, dtype=np.float64).T, 2)
    sign = np.repeat([1.0, -1.0], len(records))
    return LinearQuantities(columns[:2], columns[2:4], *columns[4:8], columns[8:12], columns[12] > 0, sign)


def interval_ends(found: Searched, quantities, centre: float, limit: float, piece: int) -> np.ndarray:
    """Return value, low end and high end of each quantity, [quantities, 3].

    Args:
        found: of one table.
        quantities: their names, N, E and effective; without E_start and E_max.
        centre: mean log10 N of the table.
        limit: the largest residual sum of an allowed law.
        piece: of the optimum.
    """
    table, asked = found.rows, asked_of(quantities, centre)
    wide = LinearQuantities(*(field[..., None] for field in asked))
    at_linear = _linear_ends(table, wide, limit)
    best, ends = _ends_of(table, wide, limit, found.shapes[..., 0].T)
    best = at_linear[0][:, 0] if piece == LINEAR else best[:, piece]
    end = np.fmin(np.fmin(ends.min(axis=1), at_linear[1][:, 0]), asked.sign * best)
    which, places, free = _starts(found, wide, limit)
    finite = np.isfinite(end[which])
    which = which[finite]
    _, least = descend(_signed_ends(table, asked, limit), places[:, finite], which, free[:, finite])
    np.fmin.at(end, which, least)
    low, high = np.split(end, 2)
    return np.stack([best[: low.size], low, -high], axis=1)


def _ends_of(table: Reduced, wide: LinearQuantities, limit: float, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return best values and signed ends of all quantities at shapes [2, shapes], [sides, shapes] each.

    An end is infinite where the shape is not allowed.
    """
    with np.errstate(all="ignore"):
        psi, _ = curve(table.extra[:, None], *places)
        solved = solve(table, psi)
        end = ends_at(solved, wide, _factor(wide, *places)[0], np.maximum(limit - solved.total, 0.0))
        return end.best, np.where(_allowed(table, solved, limit, places), end.end, np.inf)


def _allowed(table: Reduced, solved: Solved, limit: float, places: np.ndarray) -> np.ndarray:
    """Return which shapes are allowed, without those that losses cannot distinguish from the linear limit."""
    bent = np.exp(places[0]) / (1 + np.exp(places[1])) * table.extra[-1] >= RESOLUTION
    return bent & (solved.total <= limit)


def _starts(found: Searched, wide: LinearQuantities, limit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the starts of the searches: side, shape [2, starts], and which coordinates vary [2, starts]."""
    table, shapes = found.rows, found.shapes[..., 0]
    at = grid(table.extra, SCAN)
    ends = _ends_of(table, wide, limit, at.reshape(2, -1))[1].reshape(-1, SCAN, SCAN)
    starts = [starts_from(piece, ends[:, *part], at[:, *part], STARTS) for piece, part in EDGES.items()]
    # If few shapes are allowed, they lie near the optima of the pieces, and in the valleys.
    near = {
        UNBOUNDED: [shapes[[CORNER, UNBOUNDED]].T],
        START_AT_1: [shapes[[START_AT_1]].T, np.array([np.zeros(INWARD.size), INWARD])],
        INTERIOR: [shapes[[START_AT_1, INTERIOR]].T, *found.valleys],
    }
    for piece, some in near.items():
        for places in some:
            ends = _ends_of(table, wide, limit, places)[1][:, None]
            starts.append(starts_from(piece, ends, places[:, None], STARTS))
    return tuple(np.concatenate(each, axis=-1) for each in zip(*starts, strict=True))


def _linear_ends(table: Reduced, wide: LinearQuantities, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return best values and signed ends in the linear limit, as `_ends_of`: [sides, 1] each.

    There slopes, and the coefficients a and d, have a factor of infinity, so only their signs remain.
    """
    solved = solve(table, table.extra[:, None] / table.extra[-1])
    constant, start = (wide.factor == CONSTANT) & ~wide.divisor.any(axis=0), wide.factor == START
    factor = np.where(wide.factor == CURVE, wide.extra / table.extra[-1], np.where(start, -1.0, math.log(10)))
    bare = wide._replace(fixed=np.where(start, 0.0, wide.fixed))
    room = np.maximum(limit - solved.total, 0.0)
    with np.errstate(all="ignore"):
        end = ends_at(solved, bare, factor, room)
        best, ends = (np.where(constant | start, each * math.inf, each) for each in (end.best, end.end))
        # The effective E of a and d may be above or below E_start, so the factor has either sign.
        other = ends_at(solved, bare, -factor, room).end * math.inf
        # E_start = 1 also leads to the linear limit, with a factor of 0, so every factor occurs in the limit.
        zero = ends_at(solved, wide, 0 * factor, room).end
        ends = np.where(start & (wide.effective > 0), np.fmin(ends, other), ends)
        ends = np.where(start & (wide.effective == 0), np.fmin(ends, zero), ends)
    return best, np.where(solved.total <= limit, ends, np.inf)


def ends_at(solved: Solved, asked: LinearQuantities, factor: np.ndarray, room: np.ndarray) -> End:
    """Return the ends at shapes.

    Args:
        factor: of the routed part, see `LinearQuantities`.
        room: how much the residual sum may rise.
    """
    along = _across(solved.triangle, [*asked.fixed, *(factor * asked.routed)])
    best = _times(along, solved.scores)
    length = np.sqrt(_times(along, along) + asked.noise)
    end, share = asked.sign * best - np.sqrt(room) * length, np.ones_like(best)
    ratio = np.broadcast_to(asked.divisor.any(axis=0), best.shape)
    if ratio.any():
        angle, tangent, part, turn = _ratio(solved, asked, along, room)
        best, end, along = np.where(ratio, angle, best), np.where(ratio, tangent, end), np.where(ratio, turn, along)
        length, share = np.where(ratio, np.sqrt(_times(turn, turn)), length), np.where(ratio, part, share)
    return End(best, end, along, length, share)


def _across(triangle: np.ndarray, h) -> np.ndarray:
    """Return Δ^-T h [4, ...]."""
    across = []
    for k in range(4):
        left = h[k] - sum((triangle[j, k] * across[j] for j in range(k)), 0.0)
        across.append(left / triangle[k, k])
    return np.stack(np.broadcast_arrays(*across))


def _times(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.einsum("k...,k...->...", first, second)


def _ratio(solved: Solved, asked: LinearQuantities, upward: np.ndarray, room: np.ndarray):
    """Return the ends of ratios y/x as angles, and the linear quantity that is 0 on the line of the end.

    The allowed pairs (x, y) form an ellipse. A ratio is allowed if the line through the origin with this slope meets
    the ellipse. So the ends are the slopes of the two tangents (Fieller's theorem; the reference uses bisection
    instead). In coordinates where the ellipse is a circle of radius root(room) around w, the angle between a tangent
    and w has sine root(room)/|w|.
    """
    forward = _across(solved.triangle, list(asked.divisor))
    length = np.sqrt(_times(forward, forward))
    lean = _times(forward, upward) / length
    upright = upward - lean / length * forward
    height = np.sqrt(_times(upright, upright))
    x, y = _times(forward, solved.scores) / length, _times(upright, solved.scores) / np.where(height > 0, height, 1.0)
    sine = np.minimum(np.sqrt(room) / np.maximum(np.hypot(x, y), 1e-300), 1.0)
    cosine = np.sqrt(1 - sine**2)
    fold = np.where(asked.folded & (x < 0), -1.0, 1.0)

    def angle(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, y = fold * length * x, fold * (lean * x + height * y)
        angle = np.arctan2(y, x)
        return np.where(angle < -RIGHT, angle + 2 * math.pi, angle), x, y

    best, _, _ = angle(x, y)
    low, high = angle(x * cosine + y * sine, y * cosine - x * sine), angle(x * cosine - y * sine, y * cosine + x * sine)
    most = np.where(asked.folded, RIGHT, 3 * RIGHT)
    # The range of allowed lines includes -90 degrees.
    every = (sine >= 1) | (low[0] > high[0]) | (asked.folded & (high[0] >= RIGHT))
    end, x, y = (np.where(asked.sign > 0, first, second) for first, second in zip(low, high, strict=True))
    end = asked.sign * np.where(every, np.where(asked.sign > 0, -RIGHT, most), end)
    x, y = x * cosine, y * cosine  # the point where the tangent meets the ellipse
    share = np.where(every, 0.0, fold / (x**2 + y**2))
    return best, end, share * x, share * (x * upward - y * forward)


def _factor(asked: LinearQuantities, log_alpha: np.ndarray, logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of the routed parts and their derivatives by both coordinates of the shape."""
    psi, by = curve(asked.extra, log_alpha, logit)
    curved, start = asked.factor == CURVE, asked.factor == START
    factor = np.where(curved, psi, np.where(start, log_alpha + asked.effective, math.log(10)))
    return factor, np.where(curved, by, np.where(start, np.array([1.0, 0.0]).reshape(2, *[1] * psi.ndim), 0.0))


def _signed_ends(table: Reduced, asked: LinearQuantities, limit: float) -> Callable:
    """Return the function that `descend` needs to minimise `End.end`. A lane is a quantity and side."""
    rows = picked(table, np.zeros((1, 1), dtype=np.int64))

    def slopes(places: np.ndarray, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        psi, by = curve(table.extra[:, None, None], *places)
        solved, some = solve(rows, psi), _lanes(asked, lanes[None])
        factor, by_factor = _factor(some, *places)
        room = np.maximum(limit - solved.total, 0.0)
        end = ends_at(solved, some, factor, room)
        root = np.sqrt(room)
        shift = -some.sign * root / end.length * end.along
        scores, units = solved.scores + shift, (*rows.units, solved.level, solved.tilt)
        turns = turned(rows, solved.triangle, scores, by)
        by_h = some.sign * end.share * (some.routed * np.stack(routed_part(solved.triangle, scores))).sum(axis=0)
        along = np.stack([np.einsum("krl...,rl...->k...", turns, unit) for unit in units])
        across = np.einsum("krl...,rl...->k...", turns, solved.residual)
        fall = by_factor * by_h - end.length / root * (across - (along * shift[:, None]).sum(axis=0))
        fall = np.where(np.isfinite(fall), fall, 0.0)  # where an end does not depend on the shape
        # Second derivatives of -length · root(room), as the residual sum has them in a Gauss-Newton step.
        turns, along, across = turns[..., 0, :], along[..., 0, :], across[:, 0]
        inner = np.einsum("irl...,jrl...->ij...", turns, turns) - np.einsum("ki...,kj...->ij...", along, along)
        gauss = end.length[0] / root[0] * (inner + across * across[:, None] / room[0])
        return np.where(_allowed(table, solved, limit, places), end.end, np.inf), fall, gauss

    return slopes


def _lanes(asked: LinearQuantities, lanes) -> LinearQuantities:
    return LinearQuantities(*(each[..., lanes] for each in asked))


def extreme_ends(found: Searched, names: list[str], limit: float, piece: int) -> np.ndarray:
    """Return value, low end and high end of -1/E for E_start and E_max.

    Let u be the coordinate of E, from 0 (infinite) to 1 (E = 1). An end is the u where the least residual sum of all
    shapes with this u reaches the limit.

    Args:
        found: of one table.
        names: "E_start" or "E_max".
        limit: the largest residual sum of an allowed law.
        piece: of the optimum.
    """
    table, least = found.rows, found.least[:, 0]
    log_top, top = math.log1p(table.extra[-1]), table.extra[-1]
    log_alpha, logit = found.shapes[piece, :, 0]
    with np.errstate(over="ignore"):
        inverse = np.array([np.exp(log_alpha) / (1 if name == "E_start" else 1 + np.exp(-logit)) for name in names])
    maximum = np.array([name == "E_max" for name in names])
    best, axis = np.log1p(inverse * top) / log_top, np.linspace(0, 1, SCAN_OF_E + 1)

    def sums(u: np.ndarray, maximum: np.ndarray, search: tuple[int, int]) -> np.ndarray:
        values = _least_on_lines(table, u, maximum, *search)
        return np.where(np.isnan(values), least[LINEAR], values)

    allowed = sums(np.tile(axis, best.size), np.repeat(maximum, axis.size), COARSE).reshape(best.size, -1) <= limit
    inside = np.array([np.where(allowed, axis, 0.0).max(axis=1), np.where(allowed, axis, 1.0).min(axis=1)])
    inside = np.array([np.maximum(inside[0], best), np.minimum(inside[1], best)])
    sides = np.repeat([1, -1], best.size)
    ends = _last_allowed(lambda u: sums(u, np.tile(maximum, 2), FINE), inside.ravel(), sides, limit, least.min())
    value = np.full(best.size, np.nan) if piece == LINEAR else -inverse
    return np.stack([value, *np.where(ends < 1, -np.expm1(ends * log_top) / top, -1.0).reshape(2, -1)], axis=1)


def _last_allowed(sums: Callable, inside: np.ndarray, sides: np.ndarray, limit: float, least: float) -> np.ndarray:
    """Return the last u [ends] where the least residual sum is allowed, between an allowed u and 0 or 1 (`sides`).

    Steps of the scan find a u that is not allowed. Then false position (Illinois method) narrows the bracket.
    """

    def excess(u: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(sums(u) - least, 0.0) / (limit - least)) - 1  # nearly straight

    step = sides / SCAN_OF_E
    outside = np.clip(inside + step, 0, 1)
    found, before = inside == outside, np.ones(inside.size, dtype=bool)
    under, over = np.full(inside.size, -1.0), np.ones(inside.size)
    with np.errstate(all="ignore"):
        for _ in range(MOST):
            if np.all(found & (np.abs(outside - inside) <= NARROW * np.maximum(inside, outside))):
                break
            middle = np.where(found, inside + (outside - inside) * under / (under - over), outside)
            value = excess(middle)
            here = np.abs(value) <= NARROW  # the end; rounding would keep a bracket from closing around it
            allowed = here | (value <= 0)  # False for NaN, if no rise is allowed
            inside = np.where(allowed, middle, inside)
            outside = np.where(allowed & ~here, np.where(found, outside, np.clip(middle + step, 0, 1)), middle)
            under = np.where(allowed, value, np.where(found & ~before, under / 2, under))
            over = np.where(allowed, np.where(found & before, over / 2, over), np.fmax(value, NARROW))
            found, before = found | ~allowed | (inside == outside), allowed
    return inside


def _least_on_lines(table: Reduced, u: np.ndarray, maximum: np.ndarray, points: int, rounds: int) -> np.ndarray:
    """Return the least residual sum of all shapes with a given E_start or E_max, [lines]; NaN in the linear limit.

    Args:
        u: [lines], coordinates of E.
        maximum: [lines], whether E is E_max.
        points: of the scan of each line.
        rounds: how often to divide the interval around each low point of a scan by 4.
    """
    log_top, top = math.log1p(table.extra[-1]), table.extra[-1]

    def sums(lines: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the residual sums at points v [lines, points] from 0 to 1."""
        one, inner = u[lines, None], maximum[lines, None]
        log_alpha = np.log(np.expm1(np.where(inner, one + (1 - one) * v, one) * log_top) / top)
        ratio = np.expm1(one * log_top) / top / np.exp(log_alpha)
        logit = np.where(
            inner, np.log(ratio / (1 - ratio)), np.log(np.expm1(v * log_top) / np.expm1((1 - v) * log_top))
        )
        return solve(
            picked(table, np.zeros((1, 1), dtype=np.int64)), curve(table.extra[:, None, None], log_alpha, logit)[0]
        ).total

    with np.errstate(all="ignore"):
        scan = np.linspace(0, 1, points + 1)
        values = sums(np.arange(u.size), np.tile(scan, (u.size, 1)))
        least = np.fmin.reduce(values, axis=1)
        line, _, column = low_points(np.where(values >= 0, values, np.inf)[:, None], STARTS)
        middle, half = scan[column], np.full(line.size, 1 / points)
        for _ in range(rounds):
            near = np.clip(middle[:, None] + half[:, None] * np.linspace(-1, 1, 9), 0, 1)
            values = sums(line, near)
            best = np.argmin(np.where(values >= 0, values, np.inf), axis=1)[:, None]
            middle, half = np.take_along_axis(near, best, 1)[:, 0], half / 4
            np.fmin.at(least, line, np.take_along_axis(values, best, 1)[:, 0])
    return least
