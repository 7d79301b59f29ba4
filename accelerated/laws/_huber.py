"""The bounded law under Huber's criterion: the search of `_descent.py` from the lowest shapes of a scan.

Private to the accelerated package. All starts, of all weightings of a table, are one search. The unknowns are the four
linear ones, ln(ln E_start), and the logit of E_start/E_max. An infinite unknown does not move, so the edges of the
domain need no search of their own. Letters as in `_shapes.py`.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np

from routelaws.reference.laws.numerics._huber import terms

from . import _descent
from ._shapes import EDGES, INTERIOR, RESOLUTION, START_AT_1, TIE, best_shapes, curve, grid, reduced, starts_from

FORM = SimpleNamespace(positive=(False, False, False, False, True, False))
INSIDE = -0.05  # largest log alpha of a start that can move: ln(ln E_start) does not leave the edge E_start = 1
ROUNDS = 30  # reweighted least squares at each shape; they only have to rank the shapes
NEAR = np.array([[0.3, -0.3, 0.0, 0.0], [0.0, 0.0, 0.5, -0.5]])  # shapes relative to the best one, for a second round
BOUND = 12.0  # a second round starts with |log alpha| and |logit ratio| below this
LOW = 2.0  # a minimum of all rows with a larger sum, as a multiple of the least, is no start for a resample


def fit_huber(table, delta: float, weights: np.ndarray, scan: int, starts: int) -> np.ndarray:
    """Return the optimum of a `fitting.LevelTable` over the whole domain, for each row of weights.

    Args:
        delta: log10 units, above 0.
        weights: [tables, n]. Weights other than 1 start from the minima of all rows, and from those of least squares.
        scan: points of the scan along each axis.
        starts: largest number of searches in the interior, and on each edge.

    Returns:
        [tables, 9]: piece, alpha, ratio, rest, the sum of Huber terms, and intercept, size, gain and interaction at
        centred size 0, as in `_shapes.fit_lanes`.
    """
    whole, one = table._replace(log_loss=np.atleast_2d(table.log_loss).mean(axis=0)), np.ones((1, table.level.size))
    at = grid(table.extra, scan)
    psi, _ = curve(table.extra, at[0][..., None], at[1][..., None])
    residual, _ = _reweighted(whole, (psi / psi[..., -1:])[..., table.level], delta, one[0])
    values = terms(residual, delta).sum(axis=-1)
    shapes = [np.full((2, 1), -np.inf), np.array([[0.0], [-np.inf]])]  # the first two pieces have one shape each
    shapes += [starts_from(piece, values[None, *part], at[:, *part], starts)[1] for piece, part in EDGES.items()]
    pieces = np.repeat(np.arange(len(shapes)), [each.shape[1] for each in shapes])
    theta, value = _ends(whole, delta, one, pieces, np.concatenate(shapes, axis=1)[:, None])
    if np.any(weights != 1):
        low = value[0] <= LOW * value.min()
        least_squares, _ = best_shapes(reduced(table, weights), 8, 1)
        near = np.repeat(_shapes(theta[:, low]), len(weights), axis=1)
        pieces = np.append(pieces[low], np.arange(len(shapes)))
        theta, value = _ends(table, delta, weights, pieces, np.append(near, least_squares.transpose(1, 2, 0), axis=2))
    best = _shapes(theta[np.arange(len(value)), np.argmin(value, axis=1)])  # often a better minimum is near
    around, inside = np.clip(best[..., None] + NEAR[:, None], -BOUND, BOUND), np.full(NEAR.shape[1], INTERIOR)
    again = _ends(table, delta, weights, inside, around)
    theta, value = (np.append(*both, axis=1) for both in zip((theta, value), again, strict=True))
    pieces = np.append(pieces, inside)
    # For tables without noise, the resolution of the search decides between pieces.
    resolution = weights.sum(axis=1) * float(terms(np.array(RESOLUTION), delta))
    good = value <= (value.min(axis=1) * (1 + TIE) + resolution)[:, None]
    piece = np.where(good, pieces, INTERIOR).min(axis=1)
    place = np.arange(len(value)), np.argmin(np.where(pieces == piece[:, None], value, np.inf), axis=1)
    log_alpha, logit = _shapes(theta[place])
    with np.errstate(over="ignore"):
        shape = np.exp(log_alpha), 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(logit))
    return np.column_stack([piece, *shape, value[place], theta[place][:, :4]])


def _shapes(theta: np.ndarray) -> np.ndarray:
    """Return log alpha and logit ratio, [2, ...], of unknowns [..., 6]."""
    return np.stack([-np.exp(theta[..., 4]), theta[..., 5]])


def _ends(table, delta: float, weights: np.ndarray, pieces: np.ndarray, shapes: np.ndarray):
    """Return the unknowns [tables, searches, 6] and the sums [tables, searches] at the ends of searches.

    Args:
        pieces: [searches], in which piece of the domain each search is.
        shapes: [2, tables, searches], the starts.
    """
    count, searches = len(weights), len(pieces)
    log_loss = np.broadcast_to(table.log_loss, weights.shape)
    extra = table.extra[table.level]
    logs = np.stack([table.log_size, extra])
    log_alpha = np.where(pieces > START_AT_1, np.minimum(shapes[0], INSIDE), shapes[0]).ravel()
    theta = np.zeros((count * searches, 6))
    with np.errstate(divide="ignore"):
        theta[:, 4], theta[:, 5] = np.log(-log_alpha), shapes[1].ravel()
    lanes = np.repeat(np.arange(count), searches)
    fast = _descent.Fast(partial(_predict, float(table.extra[-1])), None)
    with np.errstate(invalid="ignore"):  # 0/0 in the linear limit
        psi, _ = _curve(float(table.extra[-1]), theta[:, 4:], extra)
    _, theta[:, :4] = _reweighted(table._replace(log_loss=log_loss[lanes]), psi, delta, weights[lanes])
    problem = _descent.Problem(FORM, fast, logs, None, log_loss, delta, weights).of(lanes)
    theta, value = _descent.ends_of(problem, theta)
    return theta.reshape(count, searches, 6), value.reshape(count, searches)


def _reweighted(table, psi: np.ndarray, delta: float, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return residuals [..., n] and linear unknowns [..., 4] near the smallest sum, for psi [..., n]."""
    size = np.broadcast_to(table.log_size, psi.shape)
    unit, triangle = np.linalg.qr(np.stack([np.ones_like(psi), size, psi, psi * size], axis=-1))
    inner = np.broadcast_to(weight, psi.shape)
    for _ in range(ROUNDS):
        weighted = np.swapaxes(unit * inner[..., None], -1, -2)
        solution = np.linalg.solve(weighted @ unit, weighted @ table.log_loss[..., None])
        residual = table.log_loss - (unit @ solution)[..., 0]
        inner = weight * delta / np.maximum(np.abs(residual), delta)
    return residual, np.linalg.solve(triangle, solution)[..., 0]


def _predict(top: float, theta: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See `_descent.Fast`. The columns are log10 N, centred, and E - 1."""
    size, extra = logs[..., 0, :], logs[..., 1, :]
    psi, by = _curve(top, theta[:, 4:], extra)
    intercept, tilt, gain, interaction = theta.T[:4, :, None]
    level = gain + interaction * size
    turns = [np.ones_like(psi), np.broadcast_to(size, psi.shape), psi, psi * size, *(level * by)]
    return intercept + tilt * size + level * psi, np.stack(turns, axis=1)


def _curve(top: float, shape: np.ndarray, extra: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return psi over its value at `top`, [s, n], and its derivatives by the last two unknowns [2, s, n]."""
    log_alpha, logit = _shapes(np.concatenate([np.zeros((len(shape), 4)), shape], axis=1))[..., None]
    (psi, by), (whole, by_whole) = (curve(x, log_alpha, logit) for x in (extra, np.array(top)))
    psi = psi / whole
    by = (by - by_whole * psi) / whole * np.stack([log_alpha, np.ones_like(logit)])
    linear = whole == 0
    return np.where(linear, extra / top, psi), np.where(linear | np.isinf(shape.T[:, :, None]), 0.0, by)
