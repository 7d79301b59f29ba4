"""Test how well a law predicts held-out runs, and compare laws by these errors.

Shared with `routelaws.reference.laws.held_out`. Linear and bounded laws need no fit for each fold (`_SHORT_CUTS`).
For a linear law, one fit to all rows gives the errors. The matrix H maps the measured to the fitted log10 L. The errors
of a fold are (I - H)⁻¹ times its residuals, where I - H has only the rows and columns of the fold. For the bounded
laws, one search fits all folds with weights (`fit_weighted`).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from routelaws.reference.laws import held_out as reference
from routelaws.reference.laws._projection import INDEPENDENT
from routelaws.reference.laws.held_out import HeldOut
from routelaws.reference.laws.utilisation import FLOOR

from ._searches import share
from ._smooth import fit_each
from .catalogue import LAWS, Law, searched_together
from .fitting import fit_weighted, predict_curves

_DOUBTFUL = 1e-3  # smallest usable eigenvalue of I - H (it divides rounding errors); other folds are fitted again


def leave_one_group_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray, groups: np.ndarray) -> HeldOut:
    """Return the error of each row by the law fitted to all rows of other groups.

    Args:
        law, columns, loss: as in `leave_one_out`.
        groups: [n]; rows with equal entries form one group. Pass the sizes N to leave one size out.

    Returns:
        A HeldOut with one fold for each group.

    Raises:
        ValueError: `law.fit` raises this error for the whole table, or `groups` has the wrong length.
    """
    return leave_groups_out(law, columns, loss, [groups])[0]


def leave_groups_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray, divisions: Sequence) -> list[HeldOut]:
    """Return the `leave_one_group_out` of each of several divisions, by one search for laws that have one.

    A row whose group is NaN is never left out.
    """
    checked = [reference._checked(law, columns, loss, groups) for groups in divisions]
    (columns, loss, _), divisions = checked[0], [groups for *_, groups in checked]
    folds = [[np.flatnonzero(groups == name) for name in np.unique(groups[groups == groups])] for groups in divisions]
    found, held_out = iter(_errors_left_out(law, columns, loss, sum(folds, []))), []
    for some in folds:
        errors = np.full(loss.size, np.nan)
        for out in some:
            errors[out] = next(found)
        held_out.append(reference._summary(errors, len(some)))
    return held_out


def _errors_left_out(law: Law, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
    """Return the errors of the rows of each fold by the law fitted to all other rows; a row may be in several folds."""
    fit = partial(law.fit, **law.given(*columns))
    fit(*columns, loss)  # raises for an invalid table
    refit = partial(_refit, law, fit, columns, loss)
    if law is LAWS.get(law.name) and law.name in _SHORT_CUTS:
        return _SHORT_CUTS[law.name](refit, columns, loss, folds)
    if not searched_together(law):
        return [refit(out) for out in folds]
    fits = fit_each(fit, columns, loss, _weights_of(folds, loss.size))
    return [_errors(law, fold, columns, loss, out) for fold, out in zip(fits, folds, strict=True)]


def _weights_of(folds: list, rows: int) -> np.ndarray:
    """Return [folds, rows]: 0 for the rows of a fold, 1 for all other rows."""
    weights = np.ones((len(folds), rows))
    for line, out in zip(weights, folds, strict=True):
        line[out] = 0.0
    return weights


def _refit(law: Law, fit, columns: list[np.ndarray], loss: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return the errors of the rows `out` under the fit to the other rows; NaN if these do not determine the law."""
    rest = np.ones(loss.size, dtype=bool)
    rest[out] = False
    if not rest.any():
        return np.full(out.size, np.nan)
    try:
        fold = fit(*(column[rest] for column in columns), loss[rest])
    except ValueError:
        fold = None
    return _errors(law, fold, columns, loss, out)


def _errors(law: Law, fold, columns: list[np.ndarray], loss: np.ndarray, out: np.ndarray) -> np.ndarray:
    if fold is None:
        return np.full(out.size, np.nan)
    return law.miss(law.predict(fold, *(column[out] for column in columns)), loss[out])


# SHORT CUTS


def _by_hat_matrix(
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


def _by_lines(refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
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


def _by_weights(refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
    """Return the errors of a bounded law."""
    size, experts = columns
    fits = fit_weighted(size, experts, loss, _weights_of(folds, loss.size), scan=16, starts=4)
    predicted = np.log10(predict_curves(fits, size, experts))
    return [line[out] - np.log10(loss[out]) for line, out in zip(predicted, folds, strict=True)]


def _by_utilisation(refit: Callable, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> list[np.ndarray]:
    """Return the errors of the bounded (F, B) law, fitted as the (F, E') law with E' = 1 + (B - B_min)/u."""
    teraflops, utilisation = columns
    least = utilisation.min()
    return _by_weights(refit, [teraflops, 1.0 + (utilisation - least) / (least * FLOOR)], loss, folds)


_SHORT_CUTS: dict[str, Callable] = {
    "dense": _by_hat_matrix, "per-size": _by_lines, "separable": _by_hat_matrix,
    "bilinear": partial(_by_hat_matrix, interaction=True), "routed-bounded": _by_weights,
    "routed-utilisation": _by_utilisation,
}  # fmt: skip
"""Short cuts for the records of `LAWS` themselves: (refit, columns, loss, folds) -> the errors of the rows of folds.

`refit(out)` returns the errors of a fold by a fit to all other rows; it serves ill-conditioned folds. `columns` are [n]
each, `loss` is [n], and the folds are lists of row numbers. A law without a short cut is fitted fold by fold.
"""


share(__name__)
