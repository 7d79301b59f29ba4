"""The bounded law under Huber's criterion: SciPy's least squares from the lowest shapes of a scan.

Private to the accelerated package. A fit takes some tenths of a second. It runs once per table, because a Huber fit has
no intervals and no resamples, so compiled loops would gain nothing. Letters as in `_shapes.py`: alpha =
1/E_start, ratio = E_start/E_max, rest = 1 - ratio, p = alpha rest, q = p ratio, x = E - 1.
"""

import math

import numpy as np

from routelaws.reference.laws._huber import terms
from routelaws.reference.laws._projection import expert_curve

from ._shapes import CORNER, EDGES, LINEAR, RESOLUTION, TIE, curve, grid, starts_from

SETTLED = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 500}
FARTHEST = 40.0  # limit of |log alpha| and |logit ratio|; beyond it, losses cannot distinguish a shape from an edge
ROUNDS = 30  # reweighted least squares at each shape of the scan; they only have to rank the shapes


def fit_huber(table, delta: float, scan: int, starts: int) -> np.ndarray:
    """Return the optimum of a `fitting.LevelTable` over the whole domain.

    Args:
        delta: log10 units, above 0.
        scan: points of the scan along each axis.
        starts: largest number of searches in the interior, and on each edge.

    Returns:
        [9]: piece, alpha, ratio, rest, the sum of Huber terms, and intercept, size, gain and interaction at centred
        size 0, as in `_shapes.fit_lanes`.
    """
    at = grid(table.extra, scan)
    values = _scan(table, delta, *at)
    found = [_search(table, delta, (place, -math.inf), [False, False]) for place in (-math.inf, 0.0)]  # LINEAR, CORNER
    for piece, part in EDGES.items():
        _, places, free = starts_from(piece, values[None, *part], at[:, *part], starts)
        found.append(min(_search(table, delta, place, free[:, 0].tolist()) for place in places.T))
    # For tables without noise, the resolution of the search decides between pieces.
    limit = min(found)[0] * (1 + TIE) + table.log_loss.size * float(terms(np.array(RESOLUTION), delta))
    piece = next(piece for piece in (LINEAR, CORNER, *EDGES) if found[piece][0] <= limit)
    value, (*linear, log_alpha, logit) = found[piece]
    return np.array([piece, math.exp(log_alpha), _ratio(logit), _ratio(-logit), value, *linear])


def _ratio(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def _scan(table, delta: float, log_alpha: np.ndarray, logit: np.ndarray) -> np.ndarray:
    """Return the smallest sum at each shape, nearly; shapes and sums are [alphas, logits]."""
    psi, _ = curve(table.extra, log_alpha[..., None], logit[..., None])
    psi = (psi / psi[..., -1:])[..., table.level]
    size = np.broadcast_to(table.log_size, psi.shape)
    residual, *_ = _reweighted(np.stack([np.ones_like(psi), size, psi, psi * size], axis=-1), table.log_loss, delta)
    return terms(residual, delta).sum(axis=-1)


def _reweighted(design: np.ndarray, target: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return residuals [..., n] and linear unknowns [..., 4] near the smallest sum, for designs [..., n, 4]."""
    unit, triangle = np.linalg.qr(design)
    weight = np.ones(design.shape[:-1])
    for _ in range(ROUNDS):
        weighted = np.swapaxes(unit * weight[..., None], -1, -2)
        solution = np.linalg.solve(weighted @ unit, weighted @ target[:, None])
        residual = target - (unit @ solution)[..., 0]
        weight = delta / np.maximum(np.abs(residual), delta)
    return residual, np.linalg.solve(triangle, solution)[..., 0]


def _search(table, delta: float, place: tuple[float, float], free: list[bool]) -> tuple[float, list[float]]:
    """Return the sum and (intercept, size, gain, interaction, log alpha, logit ratio) of the search from a shape.

    Args:
        place: log alpha and logit ratio of the shape.
        free: [2] bool, which of the two vary.
    """
    from scipy.optimize import least_squares  # imported here, because most fits do not need it

    extra, top, log_size = table.extra[table.level], float(table.extra[-1]), table.log_size

    def whole(theta) -> np.ndarray:
        values = np.array([*theta[:4], *place])
        values[4:][free] = theta[4:]
        return values

    def design(log_alpha: float, logit: float) -> np.ndarray:
        p, ratio = math.exp(log_alpha) * _ratio(-logit), _ratio(logit)
        psi = expert_curve(extra, p * _ratio(-logit), p * ratio, top)
        return np.stack([np.ones_like(psi), log_size, psi, psi * log_size], axis=1)

    def residual(theta) -> np.ndarray:
        linear, nonlinear = np.split(whole(theta), [4])
        return design(*nonlinear) @ linear - table.log_loss

    def jacobian(theta) -> np.ndarray:
        linear, (log_alpha, logit) = np.split(whole(theta), [4])
        columns, ratio, rest = design(log_alpha, logit), _ratio(logit), _ratio(-logit)
        p = math.exp(log_alpha) * rest
        q, scale = p * ratio, math.log1p(p * rest * top / (1 + p * ratio * top))

        def slopes(x):
            by_logit = -q * x * (1 / (1 + p * x) + (rest - ratio) / (1 + q * x))
            return np.array([p * rest * x / ((1 + p * x) * (1 + q * x)), by_logit])

        turns = (slopes(extra) - slopes(top)[:, None] * columns[:, 2]) / scale * (linear[2] + linear[3] * log_size)
        return np.concatenate([columns, turns[free].T], axis=1)

    _, linear = _reweighted(design(*place), table.log_loss, delta)
    low, high = np.array([-np.inf] * 4 + [-FARTHEST] * 2), np.array([np.inf] * 4 + [0.0, FARTHEST])
    varied = [True] * 4 + free
    found = least_squares(
        residual, [*linear, *np.array(place)[free]], jacobian if any(free) else lambda _: design(*place),
        (low[varied], high[varied]), loss="huber", f_scale=delta, x_scale="jac", **SETTLED,
    )  # fmt: skip
    return float(found.cost), whole(found.x).tolist()
