"""The ends of the profile intervals of E_start and E_max: see `_ends.py`.

Private to the accelerated package.
"""

import math
from collections.abc import Callable

import numpy as np

from ._shapes import LINEAR, Reduced, Searched, curve, low_points, picked, solve

SCAN = 32  # points of the scan of u
STARTS = 3  # low points of a line to refine
COARSE, FINE = (32, 6), (128, 11)  # points and rounds of `_least_on_lines`: for a scan of E, and for an end
MOST, NARROW = 60, 1e-11  # most rounds of `_last_allowed`, and the share of an end that remains


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
    best, axis = np.log1p(inverse * top) / log_top, np.linspace(0, 1, SCAN + 1)

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

    step = sides / SCAN
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
