"""What `fitting.py` and `uncertainty.py` share: the law as a curve that is linear in four unknowns, and a safe search.

Private to the reference (the fast twin has its own kernel). In the order of use: `check_rows` takes logarithms; `shape`
maps the unit square onto all (rise, bend), the two coefficients that are not linear; `expert_curve` is ψ; `project`
solves for the four that are; `minimise` searches the square. The equations are in `fitting.py`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..notation import check_finite

SCAN = 33  # points of the first scan along each axis
ZOOM = 9  # points of each later scan, between the neighbours of the best point so far
LEVELS = 13  # later scans: each narrows the interval 4 times, 2/32 · 4⁻¹³ = 1e-9 at the end
CANDIDATES = 3  # low points of a scan that are narrowed down
CHOOSE = 2  # later scans until one of them is chosen
RESOLUTION = 1e-10  # log10; root mean square differences of predictions below this are the search's own
LEAST_ROWS = 7  # one more than the coefficients, so that there is a residual to judge by
LEAST_EXPERT_COUNTS = 4  # ψ is 0 at E = 1 and 1 at the top: two more values are needed to fix rise and bend
LEAST_CELLS = 6  # different (N, E): one for each coefficient
INDEPENDENT = 1e-8  # singular value, of columns of length 1, below which they are taken to depend on each other


class Rows(NamedTuple):
    """A checked table, in the units the fit works in."""

    log_size: np.ndarray  # [n] log10 N
    extra_experts: np.ndarray  # [n] x = E - 1
    log_loss: np.ndarray  # [n] log10 L


def check_range(name: str, values: np.ndarray, above: float = -math.inf, least: float = -math.inf) -> np.ndarray:
    """Return `values` as float64; ValueError unless every entry is finite, > `above` and >= `least`."""
    # At least one axis, or a lone number would have no entry that could be named.
    listed = check_finite(name, np.atleast_1d(values))
    bad = np.argwhere(~((listed > above) & (listed >= least)))
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        allowed = f"above {above:g}" if math.isfinite(above) else f"at least {least:g}"
        raise ValueError(f"{name}: entry {where} is {listed[where]}; every entry has to be {allowed}")
    return listed.reshape(np.shape(values))


def check_rows(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> Rows:
    """Return the table in logarithms. Raises ValueError as `fit_routed` says."""
    size = np.atleast_1d(check_range("dense_parameters", dense_parameters, above=0.0))
    experts = np.atleast_1d(check_range("num_experts", num_experts, least=1.0))
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    if not (size.ndim == 1 and size.shape == experts.shape == loss.shape):
        raise ValueError(
            f"dense_parameters, num_experts and loss have shapes {size.shape}, {experts.shape} and {loss.shape}; "
            "needed: one axis, the same length"
        )
    if size.size < LEAST_ROWS:
        raise ValueError(f"{size.size} rows; the bounded law has 6 coefficients and needs at least {LEAST_ROWS} rows")
    levels = np.unique(experts).size
    if levels < LEAST_EXPERT_COUNTS:
        raise ValueError(
            f"{levels} different num_experts; E_start and E_max cannot be told apart with fewer than "
            f"{LEAST_EXPERT_COUNTS}"
        )
    cells = np.unique(np.stack([size, experts]), axis=1).shape[1]
    if cells < LEAST_CELLS:
        raise ValueError(f"{cells} different pairs of size and num_experts; 6 coefficients need at least {LEAST_CELLS}")
    if not _independent(np.log10(size), experts - 1.0):
        raise ValueError(
            "size, num_experts and their product cannot be told apart in these rows; needed: at least two sizes, with "
            "more than one num_experts at two of them"
        )
    return Rows(np.log10(size), experts - 1.0, np.log10(loss))


def _independent(log_size: np.ndarray, extra_experts: np.ndarray) -> bool:
    """Return whether the four columns (`fitting.py`, step 2) are independent, at the two ends of what ψ can be."""
    offset = log_size - log_size.mean()
    for psi in (np.log1p(extra_experts), extra_experts):
        design = np.stack([np.ones_like(psi), offset, psi, psi * offset], axis=1)
        length = np.linalg.norm(design, axis=0)
        if np.any(length == 0) or np.linalg.matrix_rank(design / length, tol=INDEPENDENT) < 4:
            return False
    return True


def shape(t: np.ndarray, w: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray]:
    """Map the unit square onto every (rise, bend) of the domain (`fitting.py`, step 1).

    t is 1/E_start, which runs from 0 to 1, and w is E_start/E_max, which does too, both stretched so that equal steps
    are equal ratios wherever the x of the table can tell: 1/E_start = g(t)/top and E_start/E_max = g(w)/(g(w)+g(1-w))
    with g(v) = (1 + top)^v - 1. The sides are: t = 1, E_start = 1; w = 0, E_max = ∞; t = 0 and w = 1, linear limit.
    """

    def stretch(v):
        return np.expm1(v * np.log1p(top))

    inverse_start = np.minimum(stretch(t) / top, 1.0)
    both = stretch(w) + stretch(1 - np.asarray(w))
    ratio, rest = stretch(w) / both, stretch(1 - np.asarray(w)) / both  # rest = 1 - ratio, without cancellation
    return inverse_start * rest**2, inverse_start * rest * ratio


def expert_curve(extra_experts: np.ndarray, rise: np.ndarray, bend: np.ndarray, top: float) -> np.ndarray:
    """Return ψ(x) = log(1 + rise·x/(1 + bend·x)), divided by its value at x = top; x/top where rise = 0."""
    # A quotient of two tiny logarithms is exact, but 0/0 is not: the linear limit is written out.
    linear = np.asarray(rise) == 0
    safe_rise = np.where(linear, 1.0, rise)
    curved = np.log1p(safe_rise * extra_experts / (1 + bend * extra_experts))
    curved = curved / np.log1p(safe_rise * top / (1 + bend * top))
    return np.where(linear, extra_experts / top, curved)


def project(rows: Rows, rise: np.ndarray, bend: np.ndarray, at: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solve step 2 of `fitting.py` for each pair (rise, bend) by Gram-Schmidt, one column after the other.

    The columns are 1, log10 N, ψ·(log10 N - at), ψ. With `at` taken off in the third, the coefficient of the fourth
    is the gain at the size log10 N = at, and because ψ comes last its coefficient is a simple regression on what is
    left of it once the other columns are removed.

    Args:
        rows: the table, n rows.
        rise, bend: any shape, of step 1 of `fitting.py`.
        at: log10 of the size at which the gain is wanted.

    Returns:
        Three arrays of the shape of `rise`: the residual sum of squares; the gain at that size, which is the change of
        log10 L from E = 1 to the largest E of the table; and the gain's variance divided by the residual variance.
    """
    psi = expert_curve(rows.extra_experts, np.asarray(rise)[..., None], np.asarray(bend)[..., None],
                       rows.extra_experts.max())  # fmt: skip  # (..., n)
    fixed, _ = np.linalg.qr(np.stack([np.ones_like(rows.log_size), rows.log_size - rows.log_size.mean()], axis=1))

    def without_fixed(column: np.ndarray) -> np.ndarray:
        return column - (column @ fixed) @ fixed.T

    def without(column: np.ndarray, unit: np.ndarray) -> np.ndarray:
        return column - (column * unit).sum(-1, keepdims=True) * unit

    tilt = without_fixed(psi * (rows.log_size - at))
    tilt = tilt / np.linalg.norm(tilt, axis=-1, keepdims=True)
    level = without(without_fixed(psi), tilt)
    target = without(without_fixed(rows.log_loss), tilt)
    weight = (level**2).sum(-1)
    gain = (level * target).sum(-1) / weight
    residual = target - gain[..., None] * level
    return (residual**2).sum(-1), gain, 1.0 / weight


def minimise(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray], t_range: tuple[float, float],
    w_range: tuple[float, float],
) -> tuple[float, float, float]:  # fmt: skip
    """Return (t, w, value) at the least value of `function` over a rectangle.

    The least value over w is found for each t, and then the least of these over t. Nesting costs evaluations and
    buys safety: a narrow slanted valley, which E_start and E_max always form, misleads a search along the axes.

    No line is given up for its lowest point alone. Along w there are often two low points, one of them narrow, and a
    scan may pass it by at some t; then the least values over t have a false hill where the narrow point is, and the
    search over t turns away from the optimum. So the lowest few are narrowed down before one is chosen, along both.
    """

    def best_w(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _minimise_along(lambda w: function(np.broadcast_to(t[:, None], w.shape), w), w_range, t.size)

    def least_over_w(t: np.ndarray) -> np.ndarray:
        return best_w(t[0])[1][None]

    t, value = _minimise_along(least_over_w, t_range, 1)
    return float(t[0]), float(best_w(t)[0][0]), float(value[0])


def _minimise_along(function, ends: tuple[float, float], lines: int) -> tuple[np.ndarray, np.ndarray]:
    """Scan between the ends, narrow down the lowest points, choose one, and narrow that down to the end.

    Args:
        function: maps points [lines, K] to values [lines, K].
        ends: of every line.
        lines: how many there are.

    Returns:
        The best points and their values, each [lines].
    """
    low, high = np.full((lines, 1), ends[0]), np.full((lines, 1), ends[1])
    for level in range(LEVELS + 1):
        count = 1 if ends[0] == ends[1] else (SCAN if level == 0 else ZOOM)
        points = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, count)  # [lines, candidates, count]
        values = function(points.reshape(lines, -1)).reshape(points.shape)
        if level == 0 and count > 1:
            bent = np.pad(values[:, 0], ((0, 0), (1, 1)), constant_values=np.inf)
            lowest = np.where(values[:, 0] <= np.minimum(bent[:, :-2], bent[:, 2:]), values[:, 0], np.inf)
            best = np.argsort(lowest, axis=1, kind="stable")[:, :CANDIDATES]
            points, values = np.repeat(points, CANDIDATES, axis=1), np.repeat(values, CANDIDATES, axis=1)
        else:
            best = values.argmin(axis=2)
        around = best + np.array([-1, 0, 1])[:, None, None]
        low, here, high = np.take_along_axis(points[None], around.clip(0, count - 1)[..., None], axis=3)[..., 0]
        value = np.take_along_axis(values, best[..., None], axis=2)[..., 0]
        if level in (CHOOSE, LEVELS) or count == 1:
            chosen = value.argmin(axis=1)[:, None]
            low, here, high, value = (np.take_along_axis(v, chosen, axis=1) for v in (low, here, high, value))
        if count == 1:
            break
    return here[:, 0], value[:, 0]
