"""See `routelaws.reference.laws.fitting`.

What differs here: the rows of each E are reduced to two, the scan is coarse and shared by all weightings of a table,
and a second-order search from its best points does the rest, in numba (`kernels/law_fit.py`). A fit of the released
table takes about 0.2 ms, of a bootstrap sample about 50 µs (`fit_weighted`).
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ..kernels import law_fit
from ..notation import check_finite
from .routed import RoutedCoefficients

Status = Literal["interior", "E_start at 1", "E_max unbounded", "E_start at 1, E_max unbounded", "linear limit"]

_STATUS: tuple[Status, ...] = (
    "linear limit", "E_start at 1, E_max unbounded", "E_start at 1", "E_max unbounded", "interior",
)  # fmt: skip  # in the order of the kernel's pieces
_LEAST_ROWS = 7
_RESOLUTION = 1e-10  # log10; differences of predictions below this do not decide between pieces of the domain
_LEAST_EXPERT_COUNTS = 4


class LossCurve(NamedTuple):
    """See reference."""

    intercept: float
    size: float
    gain: float
    interaction: float
    rise: float
    bend: float
    top: float


class RoutedFit(NamedTuple):
    """See reference."""

    coefficients: RoutedCoefficients
    curve: LossCurve
    objective: float
    rmsle: float
    status: Status
    covariance: np.ndarray
    rows: int


class LevelTable(NamedTuple):
    """A checked table as the kernel takes it: rows that point to their E."""

    log_size: np.ndarray  # [n] log10 N less its mean
    centre: float  # that mean
    log_loss: np.ndarray  # [n] log10 L
    level: np.ndarray  # [n] integers, index into `extra`
    extra: np.ndarray  # [levels] E - 1, rising


def fit_routed(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, *, scan: int = 16, starts: int = 4
) -> RoutedFit:
    """See reference.

    Args:
        dense_parameters, num_experts, loss: see reference.
        scan: points of the first scan along each axis of the domain.
        starts: how many of its lowest points are searched from, in each piece of the domain.
    """
    table = level_table(dense_parameters, num_experts, loss)
    count = table.log_loss.size
    found = law_fit.fit_batch(*_arrays(table), np.ones((1, count)), scan, starts, count * _RESOLUTION**2)[0]
    piece, alpha, ratio, rest = int(found[0]), *found[1:4]
    rise, bend = float(alpha * rest * rest), float(alpha * rest * ratio)
    top = float(table.extra[-1])
    psi = _psi(table.extra[table.level], rise, bend, top)
    design = np.stack([np.ones(count), table.log_size, psi, psi * table.log_size], axis=1)
    solution, *_ = np.linalg.lstsq(design, table.log_loss, rcond=None)
    objective = float(np.mean((table.log_loss - design @ solution) ** 2))
    intercept, size, gain, interaction = map(float, solution)
    curve = LossCurve(intercept - size * table.centre, size, gain - interaction * table.centre, interaction,
                      rise, bend, top)  # fmt: skip
    coefficients = _coefficients(curve, piece, alpha, ratio)
    covariance = _covariance(table, psi, coefficients, curve, piece, objective)
    return RoutedFit(coefficients, curve, objective, math.sqrt(objective), _STATUS[piece], covariance, count)


def fit_weighted(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, weights: np.ndarray,
    scan: int = 8, starts: int = 1,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Fit one table under many weightings, for a bootstrap or a jackknife. The fast twin's own: no reference.

    Args:
        dense_parameters, num_experts, loss: [n] each, as `fit_routed`.
        weights: [B, n], at least 0; 0 leaves a row out, 2 counts it twice.
        scan, starts: as `fit_routed`.

    Returns:
        Two arrays. [B, 4]: E_start, E_max, and b and c of the law (NaN in the linear limit and where too few rows are
        left to fit, E_max inf where unbounded). [B]: the weighted mean squared difference of log10 losses.

    Raises:
        ValueError: as `fit_routed`, or the weights are of another shape, negative or all 0 in a line.
    """
    table = level_table(dense_parameters, num_experts, loss)
    weights = np.ascontiguousarray(check_finite("weights", np.asarray(weights, dtype=np.float64)))
    if weights.ndim != 2 or weights.shape[1] != table.log_loss.size:
        raise ValueError(f"weights has shape {weights.shape}; needed: [B, {table.log_loss.size}]")
    if np.any(weights < 0) or np.any(weights.sum(axis=1) == 0):
        raise ValueError("weights: every entry has to be at least 0, and every line needs one above 0")
    found = law_fit.fit_batch(*_arrays(table), weights, scan, starts, table.log_loss.size * _RESOLUTION**2)
    _, alpha, ratio, rest, residual, gain, interaction = found.T
    top = table.extra[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        span = np.log1p(alpha * rest**2 * top / (1 + alpha * rest * ratio * top)) / math.log(10)
        c = interaction / span
        b = gain / span - c * table.centre
        E_start, E_max = 1 / alpha, 1 / (alpha * ratio)
    shapes = np.stack([E_start, E_max, b, c], axis=1)
    shapes[(found[:, 0] == law_fit.LINEAR) | ~np.isfinite(residual)] = np.nan
    return shapes, residual / weights.sum(axis=1)


def predict_curve(curve: LossCurve, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """See reference."""
    log_size = np.log10(_checked("dense_parameters", dense_parameters, 0.0, strict=True))
    extra = _checked("num_experts", num_experts, 1.0, strict=False) - 1.0
    psi = _psi(extra, curve.rise, curve.bend, curve.top)
    return 10.0 ** (curve.intercept + curve.size * log_size + (curve.gain + curve.interaction * log_size) * psi)


def level_table(dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray) -> LevelTable:
    """Check a table and sort it by E; raises ValueError as `fit_routed`."""
    size = np.atleast_1d(_checked("dense_parameters", dense_parameters, 0.0, strict=True))
    experts = np.atleast_1d(_checked("num_experts", num_experts, 1.0, strict=False))
    loss = np.atleast_1d(_checked("loss", loss, 0.0, strict=True))
    if size.ndim != 1 or size.shape != experts.shape or size.shape != loss.shape:
        raise ValueError(
            f"dense_parameters, num_experts and loss have shapes {size.shape}, {experts.shape} and {loss.shape}; "
            "needed: one axis, the same length"
        )
    if size.size < _LEAST_ROWS:
        raise ValueError(f"{size.size} rows; the bounded law has 6 coefficients and needs at least {_LEAST_ROWS} rows")
    extra, level = np.unique(experts - 1.0, return_inverse=True)
    if extra.size < _LEAST_EXPERT_COUNTS:
        raise ValueError(
            f"{extra.size} different num_experts; E_start and E_max cannot be told apart with fewer than "
            f"{_LEAST_EXPERT_COUNTS}"
        )
    cells = np.unique(np.stack([level, np.unique(size, return_inverse=True)[1]]), axis=1)
    if np.count_nonzero(np.bincount(cells[0]) >= 2) < 2:
        raise ValueError("fewer than two num_experts have rows at two or more sizes; the slopes in N need two")
    log_size = np.log10(size)
    centre = float(log_size.mean())
    return LevelTable(log_size - centre, centre, np.log10(loss), level.astype(np.int64), extra)


def _arrays(table: LevelTable) -> tuple[np.ndarray, ...]:
    return table.log_size, table.log_loss, table.level, table.extra


def _psi(extra: np.ndarray, rise: float, bend: float, top: float) -> np.ndarray:
    if rise == 0:
        return extra / top
    return np.log1p(rise * extra / (1 + bend * extra)) / math.log1p(rise * top / (1 + bend * top))


def _coefficients(curve: LossCurve, piece: int, alpha: float, ratio: float) -> RoutedCoefficients:
    if piece == law_fit.LINEAR:
        return RoutedCoefficients(*[math.nan] * 6)
    E_start, E_max = float(1 / alpha), math.inf if ratio == 0 else float(1 / (alpha * ratio))
    span = math.log10(1 + curve.rise * curve.top / (1 + curve.bend * curve.top))
    b, c = curve.gain / span, curve.interaction / span
    start = math.log10(E_start)
    return RoutedCoefficients(curve.size - c * start, b, c, curve.intercept - b * start, E_start, E_max)


def _covariance(
    table: LevelTable, psi: np.ndarray, coefficients: RoutedCoefficients, curve: LossCurve, piece: int, objective: float
) -> np.ndarray:
    """See reference. The derivatives come from log Ê = log E_start + log(1 + p x) - log(1 + q x)."""
    covariance = np.full((6, 6), np.nan if piece == law_fit.LINEAR else 0.0)
    if piece == law_fit.LINEAR:
        return covariance
    _, b, c, _, E_start, E_max = coefficients
    extra, log_size = table.extra[table.level], table.log_size + table.centre
    p, q = curve.rise + curve.bend, curve.bend  # p = 1/E_start - 1/E_max, q = p E_start/E_max
    by_p, by_q = extra / (1 + p * extra), -extra / (1 + q * extra)
    by_start = 1 / E_start - by_p / E_start**2 - by_q / E_max**2
    by_max = by_p / E_max**2 + by_q * (2 * E_start / E_max - 1) / E_max**2
    log_experts = math.log10(E_start) + psi * math.log10(1 + curve.rise * curve.top / (1 + q * curve.top))
    slope = (b + c * log_size) / math.log(10)
    derivatives = np.stack([log_size, log_experts, log_size * log_experts, np.ones_like(psi), slope * by_start,
                            slope * by_max])  # fmt: skip
    free = [i for i in range(6) if not (i == 4 and piece == law_fit.START_AT_1 or i == 5 and math.isinf(E_max))]
    if piece == law_fit.CORNER:
        free = free[:4]
    scale = np.linalg.norm(derivatives[free], axis=1)
    _, triangle = np.linalg.qr((derivatives[free] / scale[:, None]).T)
    inverse = np.linalg.solve(triangle, np.eye(len(free))) / scale[:, None]
    covariance[np.ix_(free, free)] = objective * psi.size / (psi.size - 6) * inverse @ inverse.T
    return covariance


def _checked(name: str, values: np.ndarray, least: float, strict: bool) -> np.ndarray:
    """Return `values` as float64; ValueError unless every entry is finite and at least (or above) `least`."""
    listed = check_finite(name, np.atleast_1d(np.asarray(values, dtype=np.float64)))
    bad = np.argwhere(listed <= least if strict else listed < least)
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        allowed = "above" if strict else "at least"
        raise ValueError(f"{name}: entry {where} is {listed[where]}; every entry has to be {allowed} {least:g}")
    return listed.reshape(np.shape(values))
