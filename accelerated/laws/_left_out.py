"""Errors of held-out rows without a separate fit for each fold: the formulas of `held_out.py`, one per type of law.

For a linear law, one fit to all rows gives the errors. The matrix H maps the measured to the fitted log10 L. The errors
of a fold are (I - H)⁻¹ times its residuals, where I - H has only the rows and columns of the fold. For the bounded
laws, one search fits all folds with weights (`fit_weighted`).

Each function takes four arguments and returns the errors of the rows of each fold. `refit(out)` returns the errors of a
fold by a fit to all other rows; it serves ill-conditioned folds. The other arguments are the columns, [n] each, the
loss, [n], and the folds (lists of row numbers).
"""

import math
from collections.abc import Callable

import numpy as np

from routelaws.reference.laws._projection import INDEPENDENT
from routelaws.reference.laws.utilisation import FLOOR

from .fitting import fit_weighted, predict_curves

_DOUBTFUL = 1e-3  # smallest usable eigenvalue of I - H (it divides rounding errors); other folds are fitted again


def by_hat_matrix(
    refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list, interaction: bool = False
) -> list[np.ndarray]:
    """Return the errors of a law that is linear in the logarithms of its columns (optionally also in their product)."""
    logs = [np.log10(column) - np.log10(column).mean() for column in columns]
    design = [np.ones(loss.size), *logs] + ([logs[0] * logs[1]] if interaction else [])
    target = np.log10(loss)
    unit, _ = np.linalg.qr(np.stack(design, axis=1))
    residual = target - unit @ (unit.T @ target)
    errors = [_left_out(unit[out], residual[out]) for out in folds]
    for i, out in enumerate(folds):
        if not np.all(np.isfinite(errors[i])) or loss.size - out.size <= unit.shape[1]:
            errors[i] = refit(out)
    return errors


def _left_out(unit: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Return -(I - H)⁻¹ residual for rows with H = unit unitᵀ; NaN if I - H is nearly singular."""
    if residual.size == 1:
        remaining = 1.0 - float(unit[0] @ unit[0])
        return -residual / remaining if remaining > _DOUBTFUL else np.array([np.nan])
    values, vectors = np.linalg.eigh(np.eye(residual.size) - unit @ unit.T)
    return -(vectors / values) @ (vectors.T @ residual) if values[0] > _DOUBTFUL else np.full(residual.size, np.nan)


def by_lines(refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
    """Return the errors of per-size lines; NaN if the other rows do not determine a line."""
    x, y = np.log10(columns[1]), np.log10(loss)
    _, line = np.unique(columns[0], return_inverse=True)
    lines = [np.flatnonzero(line == each) for each in range(line.max() + 1)]
    rest, found = np.ones(loss.size, dtype=bool), []
    for out in folds:
        errors = np.full(loss.size, np.nan)
        rest[out] = False
        left = [rows[rest[rows]] for rows in lines]
        lined = [rows.size > 0 and np.ptp(x[rows]) > INDEPENDENT for rows in left]
        if sum(rows.size for rows, good in zip(left, lined, strict=True) if good) > 2 * sum(lined):
            for each in np.unique(line[out]):
                if lined[each]:
                    mine = np.isin(lines[each], out)
                    errors[lines[each][mine]] = _line_left_out(x[lines[each]], y[lines[each]], mine)
        rest[out] = True
        found.append(errors[out])
    return found


def _line_left_out(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return the errors of the points `out` of a line."""
    offset = x - x.mean()
    unit = np.stack([np.full(x.size, 1 / math.sqrt(x.size)), offset / math.sqrt(float(offset @ offset))], axis=1)
    errors = _left_out(unit[out], (y - unit @ (unit.T @ y))[out])
    if np.all(np.isfinite(errors)):
        return errors
    at, level = x[~out].mean(), y[~out].mean()  # with nearly one E left: directly from the remaining points
    offset = x[~out] - at
    # The offsets sum to a rounding error, which the mean of y would multiply.
    slope = offset @ (y[~out] - level) / (offset @ offset)
    return level + slope * (x[out] - at) - y[out]


def by_weights(refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
    """Return the errors of a bounded law: a fold has weight 0 for its rows and weight 1 for all other rows."""
    size, experts = columns
    weights = np.ones((len(folds), loss.size))
    for line, out in zip(weights, folds, strict=True):
        line[out] = 0.0
    fits = fit_weighted(size, experts, loss, weights, scan=16, starts=4)
    predicted = np.log10(predict_curves(fits, size, experts))
    return [line[out] - np.log10(loss[out]) for line, out in zip(predicted, folds, strict=True)]


def by_utilisation(refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
    """Return the errors of the bounded (F, B) law, fitted as the (F, E') law with E' = 1 + (B - B_min)/u."""
    teraflops, utilisation = columns
    least = utilisation.min()
    return by_weights(refit, [teraflops, 1.0 + (utilisation - least) / (least * FLOOR)], loss, folds)
