"""Fit the bounded law of `routed.py` to its global optimum by variable projection.

Step by step, with sources and examples: `routelaws.reference.laws.fitting`.

What differs here: the fit reduces the rows of each E to two rows. A coarse scan gives the starts of a second-order
search. All weightings of a table are searched together, in NumPy (`_shapes.py`). A fit of the released table takes
about 10 ms. One of many weightings (`fit_weighted`) takes about 60 µs, see `make bench BENCH="--only law-fits"`.
"""

import math
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.fitting import LossCurve, RoutedFit, Status
from routelaws.reference.laws.numerics._huber import check_delta, terms
from routelaws.reference.laws.numerics._projection import (
    INDEPENDENT,
    LEAST_CELLS,
    LEAST_EXPERT_COUNTS,
    ROUTED_WORDS,
    Words,
    check_lengths,
    check_range,
    expert_curve,
    need_rows,
)
from routelaws.reference.laws.routed import RoutedCoefficients
from routelaws.reference.notation import check_finite

from ..errors import InputError
from ._huber import fit_huber
from ._searches import share
from ._shapes import CORNER, LINEAR, START_AT_1, determined, fit_lanes

STATUSES: tuple[Status, ...] = (
    "linear limit", "E_start at 1, E_max unbounded", "E_start at 1", "E_max unbounded", "interior",
)  # fmt: skip
"""The statuses in the order of the pieces of `_shapes.py`, from the smallest set to the largest."""

AT_ONCE = 500  # weightings that are fitted together; the arrays of more of them do not stay in the processor's cache


class WeightedFits(NamedTuple):
    """One fit for each weighting of a table."""

    status: np.ndarray  # [resamples] int, index into STATUSES; -1 where the rows with a weight do not determine the law
    coefficients: np.ndarray  # [resamples, 6], as RoutedCoefficients; NaN in the linear limit and where status is -1
    curves: np.ndarray  # [resamples, 6], LossCurve without `top`; NaN where status is -1
    top: float  # field of LossCurve: largest E - 1 of the whole table, for any weights
    objective: np.ndarray  # [resamples] weighted mean squared difference of log10 losses, or sum of Huber terms


class LevelTable(NamedTuple):
    """A checked table in the format of the search: each row has the index of its E."""

    log_size: np.ndarray  # [n] log10 N less its mean
    centre: float  # that mean
    log_loss: np.ndarray  # [n] log10 L; for many tables [tables, n]
    level: np.ndarray  # [n] integers, index into `extra`
    cell: np.ndarray  # [n] integers, which pair (N, E)
    extra: np.ndarray  # [levels] E - 1, rising


def fit_routed(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    huber: float | None = None,
    *,
    scan: int = 16,
    starts: int = 4,
) -> RoutedFit:
    """Fit log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d to a table, globally.

    Args:
        dense_parameters: [n], N, parameters, above 0.
        num_experts: [n], E, at least 1; a dense model is E = 1.
        loss: [n], L, nats per token, above 0.
        huber: None for least squares (Clark et al. 2022), or the delta of Huber terms, in log10 units, above 0 (our
            choice). A Huber term is r²/2 up to delta and delta (|r| - delta/2) beyond.
        scan: points of the first scan along each axis of the domain. With `huber` there are 1.5 times as many.
        starts: number of searches in the interior and on each edge of the domain, from the lowest scan points. With
            `huber` there are twice as many, because its minima can lie closer together.

    Returns:
        The fit. `objective` is within a relative 1e-12 of the global minimum if the scan separates all local minima.
        Several minima may be close together if `huber` is far below the residuals.

    Raises:
        ValueError: lengths differ, an entry or `huber` is out of its range, or the rows cannot determine the law. They
            need 7 rows, 4 different E, 6 different pairs (N, E), and independent columns.

    Differs from the reference: the fit searches from the lowest points of a coarse scan (see the top of the file). With
    `huber`, a second round of searches starts near the best end.
    """
    return _fit_table(level_table(dense_parameters, num_experts, loss), huber, scan, starts)


def fit_weighted(
    dense_parameters: np.ndarray,
    num_experts: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray,
    huber: float | None = None,
    *,
    scan: int = 8,
    starts: int = 1,
) -> WeightedFits:
    """Fit one table once for each row of weights, for a bootstrap or a jackknife. The reference has no such function.

    Args:
        dense_parameters, num_experts: [n] each, as in `fit_routed`.
        loss: [n], or [resamples, n] for losses of each resample's own.
        weights: [resamples, n], at least 0; 0 leaves a row out, 2 counts it twice.
        huber, scan, starts: as in `fit_routed`.

    Returns:
        WeightedFits. The rows with a weight above 0 have to meet the requirements of `fit_routed`. If they do not, the
        fit has status -1 and NaN everywhere.

    Raises:
        ValueError: `fit_routed` raises this error for the whole table, or the weights are of the wrong shape or
            negative.
    """
    losses = np.atleast_2d(check_range("loss", loss, above=0.0))
    table = level_table(dense_parameters, num_experts, losses[0])
    weights = np.ascontiguousarray(check_finite("weights", np.asarray(weights, dtype=np.float64)))
    if weights.ndim != 2 or weights.shape[1] != table.log_loss.size:
        raise InputError(f"weights has shape {weights.shape}; needed: [resamples, {table.log_loss.size}]")
    if np.any(weights < 0):
        raise InputError("weights: every entry has to be at least 0")
    if losses.shape not in ((1, weights.shape[1]), weights.shape):
        raise InputError(f"loss has shape {losses.shape}; needed: {weights.shape[1:]} or {weights.shape}, as weights")
    fits = np.full((len(weights), 9), np.nan)
    fits[:, 0] = -1
    known = np.flatnonzero(determined(table, weights))
    for first in range(0, known.size, AT_ONCE):
        some = known[first : first + AT_ONCE]
        if len(losses) > 1:
            table = table._replace(log_loss=np.log10(losses[some]))
        fits[some] = _searched(table, weights[some], huber, scan, starts)
    piece, alpha, ratio, rest, residual, intercept, size, gain, interaction = fits.T
    top = table.extra[-1]
    rise, bend = alpha * rest**2, alpha * rest * ratio
    curves = np.stack(
        [intercept - size * table.centre, size, gain - interaction * table.centre, interaction, rise, bend], axis=1
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        span = np.log1p(rise * top / (1 + bend * top)) / math.log(10)
        b, c = curves[:, 2] / span, curves[:, 3] / span
        log_start = -np.log10(alpha)
        coefficients = np.stack(
            [size - c * log_start, b, c, curves[:, 0] - b * log_start, 1 / alpha, 1 / (alpha * ratio)], axis=1
        )
    coefficients[piece == LINEAR] = np.nan
    with np.errstate(invalid="ignore"):
        objective = residual / (weights.sum(axis=1) if huber is None else 1.0)
    return WeightedFits(piece.astype(np.int64), coefficients, curves, float(top), objective)


def predict_curves(fits: WeightedFits, dense_parameters: np.ndarray, num_experts: np.ndarray) -> np.ndarray:
    """Return the loss that each fit predicts: [resamples, m] at the m pairs (N, E); NaN where a fit has status -1."""
    log_size = np.log10(check_range("dense_parameters", np.atleast_1d(dense_parameters), above=0.0))
    extra = check_range("num_experts", np.atleast_1d(num_experts), least=1.0) - 1.0
    intercept, size, gain, interaction, rise, bend = fits.curves.T[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        psi = np.log1p(rise * extra / (1 + bend * extra)) / np.log1p(rise * fits.top / (1 + bend * fits.top))
    psi = np.where(rise == 0, extra / fits.top, psi)
    with np.errstate(over="ignore"):  # a draw of very wrong losses may predict inf
        return 10.0 ** (intercept + size * log_size + (gain + interaction * log_size) * psi)


def level_table(
    dense_parameters: np.ndarray, num_experts: np.ndarray, loss: np.ndarray, words: Words = ROUTED_WORDS
) -> LevelTable:
    """Check a table and sort it by E. Raise ValueError as `fit_routed` does, with these words."""
    size = np.atleast_1d(check_range("dense_parameters", dense_parameters, above=0.0))
    experts = np.atleast_1d(check_range("num_experts", num_experts, least=1.0))
    loss = np.atleast_1d(check_range("loss", loss, above=0.0))
    check_lengths(dense_parameters=size, num_experts=experts, loss=loss)
    need_rows(size.size, 6, "bounded")
    extra, level = np.unique(experts - 1.0, return_inverse=True)
    if extra.size < LEAST_EXPERT_COUNTS:
        raise InputError(
            f"{extra.size} different {words.expert_counts}; {words.searched} cannot be determined with fewer than "
            f"{LEAST_EXPERT_COUNTS}{words.instead}"
        )
    cell = _cells(level, size, words)
    log_size = np.log10(size)
    centre = float(log_size.mean())
    for psi in (np.log1p(extra)[level], extra[level]):  # the smallest and the largest possible psi
        _need_independent(log_size - centre, psi, words)
    return LevelTable(log_size - centre, centre, np.log10(loss), level.astype(np.int64), cell.astype(np.int64), extra)


def _cells(level: np.ndarray, size: np.ndarray, words: Words) -> np.ndarray:
    """Return the index of each row's pair (N, E), [n] integers."""
    pairs = np.stack([level, np.unique(size, return_inverse=True)[1]])
    cell = np.unique(pairs, axis=1, return_inverse=True)[1].ravel()
    cells = int(cell.max()) + 1
    if cells < LEAST_CELLS:
        raise InputError(
            f"{cells} different pairs of {words.size} and {words.experts}; 6 coefficients need at least {LEAST_CELLS}"
        )
    return cell


def _need_independent(offset: np.ndarray, psi: np.ndarray, words: Words) -> None:
    design = np.stack([np.ones_like(psi), offset, psi, psi * offset], axis=1)
    triangle = np.linalg.qr(design / np.maximum(np.linalg.norm(design, axis=0), 1e-300), mode="r")
    if np.linalg.svd(triangle, compute_uv=False)[-1] < INDEPENDENT:
        raise InputError(
            f"the effects of {words.size}, {words.experts} and their product cannot be distinguished in these rows; "
            f"needed: at least two {words.sizes}, with more than one {words.expert_count} at two of them"
        )


def _fit_columns(dense_parameters, num_experts, loss, huber: float | None, *words: Words) -> RoutedFit:
    return _fit_table(level_table(dense_parameters, num_experts, loss, *words), huber)


def _fit_table(table: LevelTable, huber: float | None, scan: int = 16, starts: int = 4) -> RoutedFit:
    count = table.log_loss.size
    best = _searched(table, np.ones((1, count)), huber, scan, starts)[0]
    piece, alpha, ratio, rest = int(best[0]), *best[1:4]
    rise, bend = float(alpha * rest * rest), float(alpha * rest * ratio)
    top = float(table.extra[-1])
    psi = expert_curve(table.extra[table.level], rise, bend, top)
    design = np.stack([np.ones(count), table.log_size, psi, psi * table.log_size], axis=1)
    solution = np.linalg.lstsq(design, table.log_loss, rcond=None)[0] if huber is None else best[5:]
    residual = table.log_loss - design @ solution
    square = float(np.mean(residual**2))
    objective, criterion = square, "mean squared difference of log10 losses"
    if huber is not None:
        objective = float(terms(residual, huber).sum())
        criterion = f"sum of Huber terms of log10 losses, delta = {huber:g}"
    intercept, size, gain, interaction = map(float, solution)
    curve = LossCurve(
        intercept - size * table.centre, size, gain - interaction * table.centre, interaction, rise, bend, top
    )
    coefficients = _coefficients(curve, piece, alpha, ratio)
    covariance = _covariance(table, psi, coefficients, curve, piece, _error_variance(residual, huber))
    return RoutedFit(coefficients, curve, objective, math.sqrt(square), STATUSES[piece], covariance, count, criterion)


def _searched(table: LevelTable, weights: np.ndarray, huber: float | None, scan: int, starts: int) -> np.ndarray:
    """Return the optimum for each row of weights, [tables, 9], in the format of `_shapes.fit_lanes`."""
    if huber is None:
        return fit_lanes(table, weights, scan, starts)
    return fit_huber(table, check_delta(huber, "in log10 units"), weights, scan + scan // 2, 2 * starts)


def _coefficients(curve: LossCurve, piece: int, alpha: float, ratio: float) -> RoutedCoefficients:
    if piece == LINEAR:
        return RoutedCoefficients(*[math.nan] * 6)
    E_start, E_max = float(1 / alpha), math.inf if ratio == 0 else float(1 / (alpha * ratio))
    span = math.log10(1 + curve.rise * curve.top / (1 + curve.bend * curve.top))
    b, c = curve.gain / span, curve.interaction / span
    start = math.log10(E_start)
    return RoutedCoefficients(curve.size - c * start, b, c, curve.intercept - b * start, E_start, E_max)


def _error_variance(residual: np.ndarray, huber: float | None) -> float:
    freedom = residual.size - 6
    if huber is None:
        return float(residual @ residual) / freedom
    inside = np.abs(residual) <= huber
    share = np.count_nonzero(inside) / residual.size
    if share == 0:
        return math.nan
    cut = float(np.sum(residual[inside] ** 2)) + huber**2 * (residual.size - np.count_nonzero(inside))
    return cut / freedom * ((1 + 6 * (1 / share - 1) / residual.size) / share) ** 2


def _covariance(
    table: LevelTable, psi: np.ndarray, coefficients: RoutedCoefficients, curve: LossCurve, piece: int, variance: float
) -> np.ndarray:
    """See reference. The derivatives come from log Ê = log E_start + log(1 + p x) - log(1 + q x)."""
    covariance = np.full((6, 6), np.nan if piece == LINEAR else 0.0)
    if piece == LINEAR:
        return covariance
    _, b, c, _, E_start, E_max = coefficients
    extra, log_size = table.extra[table.level], table.log_size + table.centre
    p, q = curve.rise + curve.bend, curve.bend  # p = 1/E_start - 1/E_max, q = p E_start/E_max
    by_p, by_q = extra / (1 + p * extra), -extra / (1 + q * extra)
    by_start = 1 / E_start - by_p / E_start**2 - by_q / E_max**2
    by_max = by_p / E_max**2 + by_q * (2 * E_start / E_max - 1) / E_max**2
    log_experts = math.log10(E_start) + psi * math.log10(1 + curve.rise * curve.top / (1 + q * curve.top))
    slope = (b + c * log_size) / math.log(10)
    derivatives = np.stack(
        [log_size, log_experts, log_size * log_experts, np.ones_like(psi), slope * by_start, slope * by_max]
    )
    free = [i for i in range(6) if not (i == 4 and piece == START_AT_1 or i == 5 and math.isinf(E_max))]
    if piece == CORNER:
        free = free[:4]
    scale = np.linalg.norm(derivatives[free], axis=1)
    _, triangle = np.linalg.qr((derivatives[free] / scale[:, None]).T)
    inverse = np.linalg.solve(triangle, np.eye(len(free))) / scale[:, None]
    covariance[np.ix_(free, free)] = variance * inverse @ inverse.T
    return covariance


share(__name__)
