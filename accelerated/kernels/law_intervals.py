"""The ends of profile intervals in compiled loops: see `laws/uncertainty.py`, and the reference for the mathematics.

At a shape, a quantity has a best value, a low end and a high end in closed form (`ends_at`). The end of an interval is
the lowest low end, or the highest high end, over all shapes (`interval_end`). The search scans the unit square. It
refines the lowest points by nested golden sections, because E_start and E_max form a narrow slanted valley. It searches
the edges separately, because many ends lie there. Each end takes some milliseconds.

Letters as in `law_fit.py`: alpha = 1/E_start, ratio = E_start/E_max, rest = 1 - ratio.
"""

import math

import numpy as np

from .compile import jit, jit_within
from .law_fit import (
    FIXED_0,
    FIXED_1,
    LEVEL,
    LOSS,
    ONE,
    PSI,
    RESIDUAL,
    SIZE,
    TARGET,
    TILT,
    _dot,
    _normalise,
    _remove,
    _shape,
    fill_psi,
)

(PREDICTION, OBSERVATION, GAIN, SLOPE, INTERACTION, SIZE_SLOPE, LEVEL_AT_1, START, LIMIT, CUTOFF, EFFECTIVE) = range(11)
"""The quantities of intervals: c is INTERACTION, a SIZE_SLOPE, d LEVEL_AT_1, E_start START, E_max LIMIT."""

FIRST = 33  # points of a scan
CANDIDATES = 3  # number of low points of a scan to refine
COARSE, FINE = 5, 32  # steps of the golden section before and after the choice of a point: 2/32 · 0.618³⁷ = 1e-9
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
OUTSIDE = 1e200  # larger than every end, so rejected shapes rank last
TINY = np.finfo(np.float64).tiny


@jit
def _solve(problem, work, scores, triangle):
    """Write z [4] and Δ [4, 4] of the least-squares problem at the psi in `work`. Return the residual sum."""
    level, tilt, residual = work[LEVEL], work[TILT], work[RESIDUAL]
    for i in range(level.size):
        level[i] = work[PSI, i] * problem[ONE, i]
        tilt[i] = work[PSI, i] * problem[SIZE, i]
        residual[i] = problem[TARGET, i]
    triangle[0, 0], triangle[0, 1] = _dot(problem[FIXED_0], problem[ONE]), _dot(problem[FIXED_0], problem[SIZE])
    triangle[1, 1] = _dot(problem[FIXED_1], problem[SIZE])
    scores[0], scores[1] = _dot(problem[FIXED_0], problem[LOSS]), _dot(problem[FIXED_1], problem[LOSS])
    triangle[0, 2], triangle[1, 2] = _dot(problem[FIXED_0], level), _dot(problem[FIXED_1], level)
    triangle[0, 3], triangle[1, 3] = _dot(problem[FIXED_0], tilt), _dot(problem[FIXED_1], tilt)
    for column in (level, tilt):
        _remove(column, problem[FIXED_0])
        _remove(column, problem[FIXED_1])
    triangle[2, 2] = _normalise(level)
    triangle[2, 3] = _dot(level, tilt)
    _remove(tilt, level)
    triangle[3, 3] = _normalise(tilt)
    scores[2], scores[3] = _dot(level, residual), _dot(tilt, residual)
    _remove(residual, level)
    _remove(residual, tilt)
    return _dot(residual, residual)


@jit
def _across(triangle, h0, h1, h2, h3):
    """Return u = Δ^-T h."""
    u0 = h0 / triangle[0, 0]
    u1 = (h1 - triangle[0, 1] * u0) / triangle[1, 1]
    u2 = (h2 - triangle[0, 2] * u0 - triangle[1, 2] * u1) / triangle[2, 2]
    u3 = (h3 - triangle[0, 3] * u0 - triangle[1, 3] * u1 - triangle[2, 3] * u2) / triangle[3, 3]
    return u0, u1, u2, u3


@jit
def _times(u, v):
    return u[0] * v[0] + u[1] * v[1] + u[2] * v[2] + u[3] * v[3]


@jit
def _sight(room, scores, u_x, u_y):
    """Return whether the origin is allowed, the best pair (x, y), and a point (x, y) on each tangent.

    Some quantities are ratios y/x of linear quantities at a shape. The allowed pairs (x, y) form an ellipse. A ratio is
    allowed if the line through the origin with this slope meets the ellipse. So the ends are the slopes of the two
    tangents (Fieller's theorem; the reference uses bisection instead). In coordinates where the ellipse is a circle of
    radius root(room) around w, the angle between a tangent and w has sine root(room)/|w|.
    """
    length = math.sqrt(_times(u_x, u_x))
    lean = _times(u_x, u_y) / length
    share = lean / length
    upright = (u_y[0] - share * u_x[0], u_y[1] - share * u_x[1], u_y[2] - share * u_x[2], u_y[3] - share * u_x[3])
    height = math.sqrt(_times(upright, upright))
    x = _times(u_x, scores) / length
    y = _times(upright, scores) / height if height > 0.0 else 0.0
    sine = min(math.sqrt(room) / max(math.hypot(x, y), TINY), 1.0)
    cosine = math.sqrt(1.0 - sine * sine)
    first = (x * cosine + y * sine, y * cosine - x * sine)
    last = (x * cosine - y * sine, y * cosine + x * sine)
    return (
        sine >= 1.0,
        length * x,
        lean * x + height * y,
        length * first[0],
        lean * first[0] + height * first[1],
        length * last[0],
        lean * last[0] + height * last[1],
    )


@jit
def _angle(x, y):
    """Return the angle of a direction, between -90 and 270 degrees, in radians."""
    angle = math.atan2(y, x)
    return angle + 2.0 * math.pi if angle < -0.5 * math.pi else angle


@jit
def _ratio_ends(kind, at, psi, room, scores, triangle):
    if kind == CUTOFF:
        u_x, u_y = _across(triangle, 0.0, 0.0, 0.0, 1.0), _across(triangle, 0.0, 0.0, -1.0, 0.0)
        unseen, x, y, x_low, y_low, x_high, y_high = _sight(room, scores, u_x, u_y)
        low, high = _angle(x_low, y_low), _angle(x_high, y_high)
        if unseen or low > high:  # the range of allowed lines includes -90 degrees
            return _angle(x, y), -0.5 * math.pi, 1.5 * math.pi
        return _angle(x, y), low, high
    u_x, u_y = _across(triangle, 0.0, 1.0, 0.0, 0.0), _across(triangle, 0.0, 0.0, psi, psi * at)
    unseen, x, y, x_low, y_low, x_high, y_high = _sight(room, scores, u_x, u_y)
    if unseen or x_low * x_high <= 0.0:
        return y / x, -math.inf, math.inf
    return y / x, y_low / x_low, y_high / x_high


@jit
def _direction(kind, at, psi, factor):
    """Return h of a linear quantity. If `factor` is infinite, return the limit of h/factor."""
    endless = math.isinf(factor)
    weight = 1.0 if endless else factor
    keep = 0.0 if endless else 1.0
    if kind == PREDICTION or kind == OBSERVATION:
        return 1.0, at, psi, psi * at
    if kind == GAIN:
        return 0.0, 0.0, psi, psi * at
    if kind == SLOPE:
        return 0.0, 0.0, weight, weight * at
    if kind == INTERACTION:
        return 0.0, 0.0, 0.0, weight
    if kind == SIZE_SLOPE:
        return 0.0, keep, 0.0, -weight
    return keep, keep * at, -weight, -weight * at


@jit
def _dense_limit(kind, at, taken_at, room, scores, triangle, low, high):
    """Return the ends of a or d in the linear limit. `low` and `high` are the ends for a factor of +∞."""
    if taken_at > 0.0:  # the E of a and d may be above or below E_start, so the factor has either sign
        return min(low, -high), max(high, -low)
    if taken_at < 0.0:
        return low, high
    # E_start = 1 also leads to the linear limit, with a factor of 0, so every factor occurs in the limit.
    if kind == SIZE_SLOPE:
        across = _across(triangle, 0.0, 1.0, 0.0, 0.0)
    else:
        across = _across(triangle, 1.0, at, 0.0, 0.0)
    least = _times(across, scores)
    reach = math.sqrt(room * _times(across, across))
    return min(low, least - reach), max(high, least + reach)


@jit
def ends_at(problem, extra, constant, kind, at, beyond, alpha, ratio, rest, limit, work):
    """Return residual sum, best value, low end and high end of a quantity at a shape.

    Args:
        problem, constant: results of `reduce_rows`.
        extra: [levels], E - 1, rising.
        kind: a quantity, one of the names above.
        at: centred log10 N of the quantity; for b (a SLOPE at N = 1) and d, centred log10 of N = 1.
        beyond: E - 1 of the quantity; for a and d, log10 of their effective number of experts.
        alpha, ratio, rest: the shape.
        limit: the largest residual sum of an allowed law.
        work: [6, 2 levels], overwritten.

    Returns:
        Values on an increasing scale: -1/E for E_start and E_max, decades above N for effective_parameters, log10 L for
        losses. N_cutoff is the angle of the line from the origin to (interaction, -gain): from -90 degrees (a size of
        0) to 90 (infinite), and to 270 for c below 0.
    """
    if problem.shape[0] != 6 or problem.shape != work.shape:
        raise ValueError("problem and work have to be [6, 2 levels]")
    scores, triangle = np.empty(4), np.empty((4, 4))
    fill_psi(work[PSI], extra, alpha, ratio, rest)
    residual = _solve(problem, work, scores, triangle) + constant
    rise, bend, top = alpha * rest * rest, alpha * rest * ratio, extra[-1]
    if kind == START or kind == LIMIT:
        if rise == 0.0:
            return residual, np.nan, -1.0, 0.0
        own = -alpha if kind == START else -alpha * ratio
        return residual, own, own, own
    room = max(limit - residual, 0.0)
    scale = math.log1p(rise * top / (1.0 + bend * top))
    psi = math.log1p(rise * beyond / (1.0 + bend * beyond)) / scale if rise > 0.0 else beyond / top
    if kind >= CUTOFF:
        value, low, high = _ratio_ends(kind, at, psi, room, scores, triangle)
        return residual, value, low, high
    factor = math.log(10.0) / scale if rise > 0.0 else math.inf
    if kind == SIZE_SLOPE or kind == LEVEL_AT_1:
        factor = factor * (-math.log10(alpha) - beyond) if rise > 0.0 else math.inf
    elif kind <= GAIN:
        factor = psi
    h0, h1, h2, h3 = _direction(kind, at, psi, factor)
    across = _across(triangle, h0, h1, h2, h3)
    value = _times(across, scores)
    reach = math.sqrt(room * (_times(across, across) + (1.0 if kind == OBSERVATION else 0.0)))
    if not math.isinf(factor):
        return residual, value, value - reach, value + reach
    low, high = (value - reach) * math.inf, (value + reach) * math.inf
    if kind == SIZE_SLOPE or kind == LEVEL_AT_1:
        low, high = _dense_limit(kind, at, beyond, room, scores, triangle, low, high)
    return residual, value * math.inf, low, high


@jit
def _signed_end(quantity, t, w):
    """Return the low end (sign 1) or minus the high end (sign -1) at a shape. A rejected shape gives OUTSIDE or
    more."""
    problem, extra, constant, kind, at, beyond, limit, sign, work = quantity
    alpha, ratio, rest = _shape(t, w, math.log1p(extra[-1]))
    residual, _, low, high = ends_at(problem, extra, constant, kind, at, beyond, alpha, ratio, rest, limit, work)
    end = low if sign == 1.0 else -high
    if not residual <= limit or math.isnan(end):
        return OUTSIDE * (1.0 + residual)
    return end


@jit
def _end_at_t(quantity, unbounded, t):
    """Return the smallest end over all w, or (with `unbounded`) the end at w = 0, where E_max is infinite."""
    if unbounded:
        return _signed_end(quantity, t, 0.0)
    return _least(_signed_end, quantity, t)


@jit
def _low_points(values, found):
    """Write the indices of the lowest local minima of a scan into `found`, with -1 for missing minima."""
    found[:] = -1
    for i in range(values.size):
        if (i > 0 and values[i - 1] < values[i]) or (i + 1 < values.size and values[i + 1] < values[i]):
            continue
        place = i
        for k in range(found.size):
            if found[k] < 0 or values[place] < values[found[k]]:
                place, found[k] = found[k], place


@jit_within
def _golden(end, quantity, fixed, low, high, times):
    """Narrow an interval of x by golden section. Return its ends and the smallest `end(quantity, fixed, x)`."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = end(quantity, fixed, left), end(quantity, fixed, right)
    best = min(at_left, at_right)
    for _ in range(times):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = end(quantity, fixed, left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = end(quantity, fixed, right)
        best = min(best, at_left, at_right)
    return low, high, best


@jit_within
def _least(end, quantity, fixed):
    """Return the smallest `end(quantity, fixed, x)` over x from 0 to 1."""
    values, found = np.empty(FIRST), np.empty(CANDIDATES, dtype=np.int64)
    step = 1.0 / (FIRST - 1)
    for i in range(FIRST):
        values[i] = end(quantity, fixed, i * step)
    _low_points(values, found)
    best = chosen = values[found[0]]
    low = high = 0.0  # replaced below: there is always one low point
    for k in range(CANDIDATES):
        if found[k] >= 0:
            first, last = max((found[k] - 1) * step, 0.0), min((found[k] + 1) * step, 1.0)
            first, last, value = _golden(end, quantity, fixed, first, last, COARSE)
            if k == 0 or value < chosen:
                low, high, chosen = first, last, value
    return min(best, chosen, _golden(end, quantity, fixed, low, high, FINE)[2])


@jit
def interval_end(problem, extra, constant, kind, at, beyond, limit, sign):
    """Return the smallest `_signed_end` over the whole domain: the low end (sign 1) or minus the high end (sign -1).

    Args:
        problem, extra, constant, kind, at, beyond, limit: as in `ends_at`.
        sign: 1.0 or -1.0.
    """
    quantity = (problem, extra, constant, kind, at, beyond, limit, sign, np.empty((6, 2 * extra.size)))
    end = _end_at_t(quantity, False, 1.0)  # E_start = 1
    for unbounded in (False, True):
        end = min(end, _least(_end_at_t, quantity, unbounded))
    return end
