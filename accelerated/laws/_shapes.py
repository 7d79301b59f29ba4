"""The bounded law at many shapes at once: reduced tables, their residual sums, and a search by Newton's method.

Private to the accelerated package. A *shape* is a pair (log alpha, logit ratio) with alpha = 1/E_start and ratio =
E_start/E_max. Given a shape, the law is linear in four unknowns (`routelaws.reference.laws.fitting`). Each step of
NumPy moves all searches (*lanes*) that have not ended. So one fit and its intervals need no compiled loops.

For a fixed E the law is a straight line in log10 N, so two rows of a QR factorisation hold all the information of an E.
Arrays have these axes: [2, levels, ...], two rows for each E. Letters: rest = 1 - ratio, p = alpha rest, q = p ratio, x
= E - 1, and psi(x) = ln((1 + p x)/(1 + q x)).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.fitting import _TIE as TIE
from routelaws.reference.laws.numerics._projection import LEAST_CELLS, LEAST_EXPERT_COUNTS, RESOLUTION
from routelaws.reference.laws.numerics._projection import _independent as independent

LINEAR, CORNER, START_AT_1, UNBOUNDED, INTERIOR = range(5)  # pieces of the domain, from the smallest set to the largest
EDGES = {START_AT_1: np.s_[-1:, 1:], UNBOUNDED: np.s_[:, :1], INTERIOR: np.s_[:, 1:]}
"""The part of a scan (see `grid`) in each piece that has more than one shape."""

KEPT = 32  # largest number of weightings of a kept result
LEAST_ROWS = 7  # one more than coefficients
SCAN = 32  # points along each axis of the scan for intervals
INWARD = np.array([-30.0, -20.0, -14.0, -10.0, -7.0, -5.0, -3.0])  # logits near the edge of unbounded E_max
STEPS = 600  # largest number of steps of half a search; ten to twenty are used, more in a long narrow valley
LONGEST = 3.0  # longest step
FARTHEST = 40.0  # limit of |logit ratio|; beyond it, losses cannot distinguish a shape from an edge
DAMPING, EASED, STIFFEST = 1e-3, 1e-9, 1e9  # damping at the start, and its limits
SETTLED = 1e-12  # relative decrease that ends a half; after the second half, one more step follows
SLACK = 1e-10  # a last step may go up by this share, because rounding hides whether it goes down
BEHIND = 1e-3  # relative distance from the best residual sum of a table that ends a search early
NUDGE = 1e-5  # distance of the differences
AROUND = NUDGE * np.array([[0, 1, -1, 0, 0], [0, 0, 0, 1, -1]])  # a shape and its neighbours


class Reduced(NamedTuple):
    """Weighted tables, reduced to two rows for each E. Without other notes, fields are [2, levels, tables]."""

    extra: np.ndarray  # [levels] E - 1, rising
    one: np.ndarray  # the column of the intercept
    size: np.ndarray  # the column of centred log10 N
    units: tuple[np.ndarray, np.ndarray]  # orthogonal unit vectors in the plane of `one` and `size`
    plane: np.ndarray  # [2, 3, tables] `one`, `size` and log10 L along these vectors
    target: np.ndarray  # log10 L without its part in this plane
    constant: np.ndarray  # [tables] the part of the residual sum that does not depend on the shape


class Solved(NamedTuple):
    """The best linear unknowns at some shapes, by Gram-Schmidt. The lanes are the last axes."""

    level: np.ndarray  # unit vectors [2, levels, ...]: psi and psi times size, orthogonal to the plane
    tilt: np.ndarray
    residual: np.ndarray  # [2, levels, ...]
    total: np.ndarray  # [...] residual sum
    scores: np.ndarray  # [4, ...] the losses along the four unit vectors
    triangle: np.ndarray  # [4, 4, ...] upper triangle: the four columns along the four unit vectors


def dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.einsum("rl...,rl...->...", first, second)


def reduced(table, weights: np.ndarray) -> Reduced:
    """Reduce a `fitting.LevelTable` for each row of weights [tables, n]."""
    order = np.argsort(table.level, kind="stable")
    level, log_size, log_loss, weights = (
        table.level[order],
        table.log_size[order],
        table.log_loss[..., order],
        weights[:, order],
    )
    first = np.searchsorted(level, np.arange(table.extra.size))

    def sums(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, first, axis=1)

    total = sums(weights)
    present = np.where(total > 0, total, 1.0)
    mean_size, mean_loss = sums(weights * log_size) / present, sums(weights * log_loss) / present
    offset, miss = log_size - mean_size[:, level], log_loss - mean_loss[:, level]
    spread = sums(weights * offset**2)
    slope = sums(weights * offset * miss) / np.where(spread > 0, spread, 1.0)
    constant = (weights * (miss - slope[:, level] * offset) ** 2).sum(axis=1)
    root, lean = np.sqrt(total), np.sqrt(spread)
    one, size = np.array([root, 0 * root]), np.array([root * mean_size, lean])
    one, size, loss = (rows.swapaxes(1, 2) for rows in (one, size, np.array([root * mean_loss, lean * slope])))
    with np.errstate(invalid="ignore"):  # weights that are all 0
        unit = one / np.sqrt(dot(one, one))
        other = size - dot(size, unit) * unit
        other = other / np.sqrt(dot(other, other))
    plane = np.array([[dot(each, column) for column in (one, size, loss)] for each in (unit, other)])
    target = loss - dot(loss, unit) * unit
    return Reduced(table.extra, one, size, (unit, other), plane, target - dot(target, other) * other, constant)


def picked(table: Reduced, lanes: np.ndarray) -> Reduced:
    """Return the table of each lane; `lanes` may have several axes."""
    units = tuple(unit[..., lanes] for unit in table.units)
    return Reduced(
        table.extra, table.one[..., lanes], table.size[..., lanes], units, table.plane[..., lanes],
        table.target[..., lanes], table.constant[lanes],
    )  # fmt: skip


def curve(x: np.ndarray, log_alpha: np.ndarray, logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return psi [...] and its derivatives by log alpha and logit ratio [2, ...]; the arguments broadcast."""
    ratio, rest = 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(logit))
    p = np.exp(log_alpha) * rest
    px, qx = p * x, p * ratio * x
    rise = px * rest / (1 + qx)
    by_alpha = rise / (1 + px)
    return np.log1p(rise), np.stack([by_alpha, -qx * (1 / (1 + px) + (rest - ratio) / (1 + qx))])


def solve(table: Reduced, psi: np.ndarray) -> Solved:
    """Return the best linear unknowns at shapes with these psi [levels, ...]."""
    level, tilt = psi * table.one, psi * table.size
    triangle = np.zeros((4, 4, *level.shape[2:]))
    scores = np.empty((4, *level.shape[2:]))
    triangle[:2, :2], scores[:2] = table.plane[:, :2], table.plane[:, 2]
    for k, unit in enumerate(table.units):
        triangle[k, 2], triangle[k, 3] = dot(unit, level), dot(unit, tilt)
        level -= triangle[k, 2] * unit
        tilt -= triangle[k, 3] * unit
    triangle[2, 2] = np.sqrt(dot(level, level))
    level /= triangle[2, 2]
    triangle[2, 3] = dot(level, tilt)
    tilt -= triangle[2, 3] * level
    triangle[3, 3] = np.sqrt(dot(tilt, tilt))
    tilt /= triangle[3, 3]
    scores[2], scores[3] = dot(level, table.target), dot(tilt, table.target)
    residual = table.target - scores[2] * level
    residual -= dot(residual, tilt) * tilt
    return Solved(level, tilt, residual, dot(residual, residual) + table.constant, scores, triangle)


def scan_sums(table: Reduced, psi: np.ndarray) -> np.ndarray:
    """Return the residual sums [tables, ...] at shapes with these psi [levels, ...], without their last digits.

    The normal equations consist of sums over the levels, so a scan is a few matrix products.
    """
    curves = psi.reshape(len(psi), -1).T
    (first, second), square = table.units, curves**2

    def both(weights: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return weights @ (left * right).sum(axis=0)

    plane = [[both(curves, column, unit) for unit in (first, second)] for column in (table.one, table.size)]
    level, tilt = (both(curves, column, table.target) for column in (table.one, table.size))

    def overlap(i: int, j: int) -> np.ndarray:
        columns = table.one, table.size
        return both(square, columns[i], columns[j]) - sum(a * b for a, b in zip(plane[i], plane[j], strict=True))

    a, b, c = overlap(0, 0), overlap(0, 1), overlap(1, 1)
    explained = (level * (level * c - 2 * tilt * b) + tilt**2 * a) / (a * c - b * b)
    return (dot(table.target, table.target) + table.constant - explained).T.reshape(-1, *psi.shape[1:])


def routed_part(triangle: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return gain and interaction at centred size 0."""
    interaction = scores[3] / triangle[3, 3]
    return (scores[2] - triangle[2, 3] * interaction) / triangle[2, 2], interaction


def linear_unknowns(solved: Solved) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return intercept, size, gain and interaction at centred size 0."""
    triangle = solved.triangle
    gain, interaction = routed_part(triangle, solved.scores)
    left = solved.scores[:2] - triangle[:2, 2] * gain - triangle[:2, 3] * interaction
    size = left[1] / triangle[1, 1]
    return (left[0] - triangle[0, 1] * size) / triangle[0, 0], size, gain, interaction


def turned(table: Reduced, triangle: np.ndarray, scores: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the derivatives of the predictions of a law by both coordinates of the shape, [2, 2, levels, ...]."""
    gain, interaction = routed_part(triangle, scores)
    return by[:, None] * (gain * table.one + interaction * table.size)


def residual_sums(table: Reduced) -> Callable:
    """Return the function that `descend` needs to minimise residual sums. A lane is a table."""

    def slopes(places: np.ndarray, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = picked(table, lanes[None])
        psi, by = curve(table.extra[:, None, None], *places)
        solved = solve(rows, psi)
        turns = turned(rows, solved.triangle, solved.scores, by)
        # Without the parts along the four columns, which the residual does not have: fewer digits cancel.
        for unit in (*rows.units, solved.level, solved.tilt):
            turns -= np.einsum("krl...,rl...->k...", turns, unit)[:, None, None] * unit
        gauss = np.einsum("irl...,jrl...->ij...", turns[..., 0, :], turns[..., 0, :])
        return solved.total, -2 * np.einsum("krl...,rl...->k...", turns, solved.residual), 2 * gauss

    return slopes


def descend(slopes: Callable, places: np.ndarray, which: np.ndarray, free: np.ndarray, behind: float = np.inf):
    """Return the shapes [2, lanes] at the ends of searches, with log alpha <= 0, and the values there [lanes].

    The steps are damped (Levenberg-Marquardt). Those of the first half are Gauss-Newton steps. Those of the second half
    are Newton's, with differences of the first derivatives as second ones.

    Args:
        slopes: (shapes [2, k, lanes], `which` of these lanes) -> values [k, lanes], derivatives [2, k, lanes], and the
            Gauss-Newton matrix at the first shapes [2, 2, lanes].
        places: [2, lanes], the starts.
        which: [lanes], passed on to `slopes`.
        free: [2, lanes], which coordinates vary.
        behind: relative distance from the best value of the same `which` above which a lane omits the second half.
    """
    with np.errstate(all="ignore"):
        places, least, _ = _half(slopes, places, which, free, AROUND[:, :1])
        best = np.full(which.max(initial=0) + 1, np.inf)
        np.minimum.at(best, which, least)
        near = ~(least > best[which] + behind * np.abs(best[which]))
        places[:, near], least[near], last = _half(slopes, places[:, near], which[near], free[:, near], AROUND)
        value = slopes(last[:, None], which[near])[0][0]
        lower = value < least[near] + SLACK * np.abs(least[near])
        near[near] = lower
        places[:, near], least[near] = last[:, lower], value[lower]
    return places, least


def _half(slopes: Callable, starts: np.ndarray, which: np.ndarray, free: np.ndarray, around: np.ndarray):
    """Return the results of one half of `descend`, and where the next steps lead.

    Args:
        around: [2, 1 or 5], differences of shapes.
    """
    ends, least, lanes = np.array(starts), np.full(starts.shape[1], np.inf), np.arange(starts.shape[1])
    at, trial, value, nexts, newton = ends, ends, least, np.array(starts), around.any()
    damping, more, promise = np.full(lanes.size, EASED if newton else DAMPING), np.full(lanes.size, 2.0), least
    fall, matrix = np.zeros(starts.shape), np.zeros((2, *starts.shape))
    for count in range(STEPS):
        values, turns, bends = slopes(trial[:, None] + around[:, :, None], which[lanes])
        if newton:
            bends = (turns[:, 1::2] - turns[:, 2::2]) / (2 * NUDGE)
        lower = values[0] < value
        if count:
            eased = np.maximum(damping * np.maximum(1 / 3, 1 - (2 * (value - values[0]) / promise - 1) ** 3), EASED)
            damping, more = np.where(lower, eased, damping * more), np.where(lower, 2.0, 2 * more)
        at, value = np.where(lower, trial, at), np.where(lower, values[0], value)
        fall, matrix = np.where(lower, turns[:, 0], fall), np.where(lower, bends, matrix)
        outwards = np.stack([(at[0] >= 0) & (fall[0] < 0), lanes < 0])  # beyond the edge E_start = 1
        step, promise = _step(matrix, fall, ~free[:, lanes] | outwards, damping)
        farthest = np.minimum(at[1], -FARTHEST)  # -inf stays
        trial = np.stack([np.minimum(at[0] + step[0], 0.0), np.clip(at[1] + step[1], farthest, FARTHEST)])
        ended = ~(promise > SETTLED * np.abs(value)) | (damping > STIFFEST) | (count == STEPS - 1)
        ends[:, lanes], least[lanes], nexts[:, lanes] = at, value, trial
        if ended.all():
            break
        state = lanes, at, value, damping, more, promise, fall, matrix, trial
        lanes, at, value, damping, more, promise, fall, matrix, trial = (each[..., ~ended] for each in state)
    return ends, least, nexts


def _step(matrix: np.ndarray, fall: np.ndarray, held: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps -M⁻¹ fall, [2, lanes], and the decreases that they promise [lanes].

    M is `matrix` [2, 2, lanes] with absolute values of its eigenvalues, damped. Held coordinates do not move.
    """
    fall = np.where(held, 0.0, fall)
    first, second = (np.where(held[k], 1.0, matrix[k, k]) for k in (0, 1))
    both = np.where(held.any(axis=0), 0.0, (matrix[0, 1] + matrix[1, 0]) / 2)
    det = np.abs(first * second - both**2)
    root = np.sqrt(first**2 + second**2 + 2 * both**2 + 2 * det)  # |H| = (H² + det)/root
    first, both, second = (
        each / root for each in (first**2 + both**2 + det, both * (first + second), second**2 + both**2 + det)
    )
    first, second = first * (1 + damping), second * (1 + damping)
    step = np.stack([both * fall[1] - second * fall[0], both * fall[0] - first * fall[1]]) / (first * second - both**2)
    step = np.where(np.isfinite(step), step, 0.0)
    step = step * np.minimum(1.0, LONGEST / np.maximum(np.abs(step).max(axis=0), 1e-300))
    return step, -(fall * step).sum(axis=0) / 2


def grid(extra: np.ndarray, scan: int) -> np.ndarray:
    """Return the shapes of a scan, [2, scan, scan]. They change E_start and E_max by nearly equal factors.

    The last alpha is the edge E_start = 1. The first ratio is the edge of unbounded E_max.
    """
    log_top, axis = np.log1p(extra[-1]), np.arange(scan) / scan
    log_alphas = np.log(np.expm1((axis + 1 / scan) * log_top) / np.expm1(log_top))
    with np.errstate(divide="ignore"):  # -inf at ratio 0
        logits = np.log(np.expm1(axis * log_top) / np.expm1((1 - axis) * log_top))
    return np.stack(np.broadcast_arrays(log_alphas[:, None], logits))


def low_points(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return table, row and column of the lowest points that no neighbour is below, of scans [tables, rows, columns].

    Args:
        most: largest number of points of a table.
    """
    around = np.pad(values, ((0, 0), (1, 1), (1, 1)), constant_values=np.inf)
    around = np.minimum(np.minimum(around[:, :-2], around[:, 1:-1]), around[:, 2:])
    around = np.minimum(np.minimum(around[..., :-2], around[..., 1:-1]), around[..., 2:])
    low = np.where(values <= around, values, np.inf).reshape(len(values), -1)
    places = np.argsort(low, axis=1, kind="stable")[:, :most]
    table, which = np.nonzero(np.isfinite(np.take_along_axis(low, places, axis=1)))
    return table, *np.divmod(places[table, which], values.shape[2])


def starts_from(piece: int, values: np.ndarray, at: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the starts of `descend` in a piece of the domain: `which`, `places` and `free`.

    Args:
        values, most: as in `low_points`.
        at: [2, rows, columns], the shapes.
    """
    which, row, column = low_points(values, most)
    return which, at[:, row, column], np.tile([[piece != START_AT_1], [piece != UNBOUNDED]], which.size)


def best_shapes(table: Reduced, scan: int, starts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best shape of each piece of the domain, [5, 2, tables], and its residual sum, [5, tables]."""
    tables = table.constant.size
    at = grid(table.extra, scan)
    shapes, least = np.full((5, 2, tables), -np.inf), np.full((5, tables), np.inf)
    shapes[CORNER, 0] = 0.0
    with np.errstate(all="ignore"):
        values = scan_sums(table, curve(table.extra[:, None, None], *at)[0])
        least[LINEAR] = solve(table, table.extra[:, None] / table.extra[-1]).total
        least[CORNER] = solve(table, np.log1p(table.extra)[:, None]).total
    values = np.where(values >= 0, values, np.inf)
    starts = [starts_from(piece, values[:, *part], at[:, *part], starts) for piece, part in EDGES.items()]
    pieces = np.repeat([*EDGES], [which.size for which, *_ in starts])
    which, places, free = (np.concatenate(each, axis=-1) for each in zip(*starts, strict=True))
    places, found = descend(residual_sums(table), places, which, free, BEHIND)
    order = np.argsort(-found, kind="stable")  # of several searches, the last one is the best
    shapes[pieces[order], :, which[order]], least[pieces[order], which[order]] = places[:, order].T, found[order]
    return shapes, least


def chosen(least: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the piece of each optimum, [tables]: the smallest piece that is as good as the best one.

    Args:
        least: [5, tables], residual sums of the pieces.
        rows: [tables], numbers of rows. For tables without noise, the resolution decides between pieces.
    """
    return np.argmax(least <= least.min(axis=0) * (1 + TIE) + rows * RESOLUTION**2, axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Searched:
    """Reduced tables, and results of `best_shapes`."""

    rows: Reduced
    shapes: np.ndarray  # [5, 2, tables]
    least: np.ndarray  # [5, tables]

    @functools.cached_property
    def valleys(self) -> list[np.ndarray]:
        """Shapes [2, lanes] of one table with the least residual sums for each alpha or each logit, in three groups."""
        at = grid(self.rows.extra, SCAN)
        with np.errstate(all="ignore"):
            psi, _ = curve(self.rows.extra[:, None], *at.reshape(2, -1))
            sums = solve(self.rows, psi).total.reshape(SCAN, SCAN)[:, 1:]
        row, _, column = low_points(sums[:, None], 2)
        other_column, _, other_row = low_points(sums.T[:, None], 2)
        inwards = np.array([np.repeat(self.shapes[CORNER:, 0, 0], INWARD.size), np.tile(INWARD, 4)])
        groups = [at[:, row, column + 1], at[:, other_row, other_column + 1], inwards]
        sizes = [group.shape[1] for group in groups]
        free = np.repeat([[False, True, True], [True, False, False]], sizes, axis=1)
        places = np.concatenate(groups, axis=1)
        places, _ = descend(residual_sums(self.rows), places, np.zeros(places.shape[1], dtype=np.int64), free)
        return np.split(places, np.cumsum(sizes)[:-1], axis=1)


def searched(table, weights: np.ndarray, scan: int = 16, starts: int = 4) -> Searched:
    """Search a `fitting.LevelTable` for each row of weights.

    The last results of few weightings are kept: a report asks for several intervals of one table.
    """
    if len(weights) > KEPT or table.log_loss.ndim > 1:
        rows = reduced(table, weights)
        return Searched(rows, *best_shapes(rows, scan, starts))
    fields = table.log_size, table.log_loss, table.level, table.extra, weights
    return _kept(scan, starts, type(table), *(np.ascontiguousarray(field).tobytes() for field in fields))


@functools.lru_cache(maxsize=8)
def _kept(
    scan: int, starts: int, kind: type, log_size: bytes, log_loss: bytes, level: bytes, extra: bytes, weights: bytes
):
    columns = [np.frombuffer(field) for field in (log_size, log_loss, extra, weights)]
    table = kind(columns[0], 0.0, columns[1], np.frombuffer(level, np.int64), None, columns[2])
    rows = reduced(table, columns[3].reshape(-1, columns[0].size))
    return Searched(rows, *best_shapes(rows, scan, starts))


def fit_lanes(table, weights: np.ndarray, scan: int, starts: int) -> np.ndarray:
    """Fit a `fitting.LevelTable` for each row of weights.

    Returns:
        [tables, 9]: piece, alpha, ratio, rest, residual sum; at centred size 0: intercept, size, gain, interaction.
    """
    found = searched(table, weights, scan, starts)
    rows, piece = found.rows, chosen(found.least, weights.sum(axis=1))
    log_alpha, logit = found.shapes[piece, :, np.arange(len(weights))].T
    with np.errstate(over="ignore"):
        alpha, ratio, rest = np.exp(log_alpha), 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(logit))
        psi, _ = curve(rows.extra[:, None], log_alpha, logit)
    psi = np.where(piece == LINEAR, rows.extra[:, None], psi)
    solved = solve(rows, psi / psi[-1])
    return np.stack([piece, alpha, ratio, rest, solved.total, *linear_unknowns(solved)], axis=1)


def determined(table, weights: np.ndarray) -> np.ndarray:
    """Return which weightings [tables] determine the law by their rows with a weight above 0, see `fit_routed`."""
    present = (weights > 0).astype(np.float64)
    level_of = np.zeros(table.cell.max() + 1, dtype=np.int64)
    level_of[table.cell] = table.level
    cells = present @ np.eye(level_of.size)[table.cell] > 0
    sizes = cells.astype(np.float64) @ np.eye(table.extra.size)[level_of]  # of each level
    known = (weights.sum(axis=1) >= LEAST_ROWS) & (cells.sum(axis=1) >= LEAST_CELLS)
    known &= (sizes > 0).sum(axis=1) >= LEAST_EXPERT_COUNTS
    for each in np.flatnonzero(known & ((sizes > 1).sum(axis=1) < 2)):  # two levels with two sizes suffice
        rows = weights[each] > 0
        known[each] = independent(table.log_size[rows], table.extra[table.level[rows]])
    return known
