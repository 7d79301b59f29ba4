"""See `routelaws.reference.laws.held_out`.

What differs here: no law of the catalogue is fitted again and again. For the laws that are linear throughout, the error
of rows left out follows from the one fit to all rows: with H the matrix that takes the measured log10 L to the fitted
ones, the rows of a fold are off by (I - H)⁻¹ times their residuals, I - H taken at those rows. The bounded laws are
fitted under weights, all folds in one compiled call (`fit_weighted`). Any other law is fitted fold by fold.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ._columns import INDEPENDENT, check_range
from .catalogue import LAWS, Law
from .fitting import fit_weighted, predict_curves
from .utilisation import FLOOR

_DOUBTFUL = 1e-3  # least eigenvalue of I - H, by which rounding is divided, below which a fold is fitted by itself


class HeldOut(NamedTuple):
    """See reference."""

    errors: np.ndarray
    rmsle: float
    predicted: int
    folds: int


class Score(NamedTuple):
    """See reference."""

    name: str
    held_out: HeldOut
    excess: float
    standard_error: float
    verdict: str


class Comparison(NamedTuple):
    """See reference."""

    leave_one_out: list[Score]
    leave_one_group_out: list[Score]


def leave_one_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray) -> HeldOut:
    """See reference."""
    return leave_one_group_out(law, columns, loss, np.arange(np.size(loss)))


def leave_one_group_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray, groups: np.ndarray) -> HeldOut:
    """See reference."""
    columns, loss, groups = _checked(law, columns, loss, groups)
    fit = _fit_of(law, columns)
    fit(*columns, loss)  # what is wrong with the table is said here
    folds = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    if law is LAWS.get(law.name):
        errors = _METHODS[law.name](law, fit, columns, loss, folds)
    else:
        errors = np.full(loss.size, np.nan)
        for out in folds:
            errors[out] = _refit(law, fit, columns, loss, out)
    known = np.isfinite(errors)
    predicted = int(known.sum())
    rmsle = math.sqrt(float(np.mean(errors[known] ** 2))) if predicted else math.nan
    return HeldOut(errors, rmsle, predicted, len(folds))


def compare_forms(
    laws: Sequence[Law], columns: Mapping[str, np.ndarray], loss: np.ndarray, groups: np.ndarray
) -> Comparison:
    """See reference."""
    if not laws:
        raise ValueError("no law to compare; needed: at least one")
    for law in laws:
        missing = [name for name in law.columns if name not in columns]
        if missing:
            raise ValueError(f"column {missing[0]} is missing; the {law.name} law takes {', '.join(law.columns)}")
    results = []
    for division in (np.arange(np.size(loss)), np.asarray(groups)):
        found = [leave_one_group_out(law, [columns[name] for name in law.columns], loss, division) for law in laws]
        results.append(_scores([law.name for law in laws], found, division))
    return Comparison(*results)


def _refit(law: Law, fit, columns: list[np.ndarray], loss: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return the errors of the rows `out` under the fit to all others; NaN where those do not determine the law."""
    rest = np.ones(loss.size, dtype=bool)
    rest[out] = False
    try:
        fold = fit(*(column[rest] for column in columns), loss[rest])
    except ValueError:
        return np.full(out.size, np.nan)
    return np.log10(law.predict(fold, *(column[out] for column in columns))) - np.log10(loss[out])


def _by_hat_matrix(law: Law, fit, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> np.ndarray:
    """Return the errors of a law that is linear in all its parameters."""
    logs = [np.log10(column) - np.log10(column).mean() for column in columns]
    design = [np.ones(loss.size), *logs] + ([logs[0] * logs[1]] if law.name == "bilinear" else [])
    target = np.log10(loss)
    unit, _ = np.linalg.qr(np.stack(design, axis=1))
    residual = target - unit @ (unit.T @ target)
    errors = np.empty(loss.size)
    for out in folds:
        errors[out] = _left_out(unit[out], residual[out])
        if not np.all(np.isfinite(errors[out])) or loss.size - out.size <= unit.shape[1]:
            errors[out] = _refit(law, fit, columns, loss, out)
    return errors


def _left_out(unit: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Return -(I - H)⁻¹ residual for rows with H = unit unitᵀ; NaN if that is nearly singular."""
    if residual.size == 1:
        remaining = 1.0 - float(unit[0] @ unit[0])
        return -residual / remaining if remaining > _DOUBTFUL else np.array([np.nan])
    values, vectors = np.linalg.eigh(np.eye(residual.size) - unit @ unit.T)
    return -(vectors / values) @ (vectors.T @ residual) if values[0] > _DOUBTFUL else np.full(residual.size, np.nan)


def _by_lines(law: Law, fit, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> np.ndarray:
    """Return the errors of per-size lines: each line by itself, if the fold has one there and rows to spare."""
    x, y = np.log10(columns[1]), np.log10(loss)
    _, line = np.unique(columns[0], return_inverse=True)
    lines = [np.flatnonzero(line == each) for each in range(line.max() + 1)]
    errors = np.full(loss.size, np.nan)
    rest = np.ones(loss.size, dtype=bool)
    for out in folds:
        rest[out] = False
        left = [rows[rest[rows]] for rows in lines]
        lined = [rows.size > 0 and np.ptp(x[rows]) > INDEPENDENT for rows in left]
        if sum(rows.size for rows, good in zip(left, lined, strict=True) if good) > 2 * sum(lined):
            for each in np.unique(line[out]):
                if lined[each]:
                    mine = np.isin(lines[each], out)
                    errors[lines[each][mine]] = _line_left_out(x[lines[each]], y[lines[each]], mine)
        rest[out] = True
    return errors


def _line_left_out(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return the errors of the points `out` of one line."""
    offset = x - x.mean()
    unit = np.stack([np.full(x.size, 1 / math.sqrt(x.size)), offset / math.sqrt(float(offset @ offset))], axis=1)
    found = _left_out(unit[out], (y - unit @ (unit.T @ y))[out])
    if np.all(np.isfinite(found)):
        return found
    at, level = x[~out].mean(), y[~out].mean()  # nearly one E left: straight from the points that remain
    offset = x[~out] - at
    # The offsets add up to a rounding, which the whole of y would multiply.
    slope = offset @ (y[~out] - level) / (offset @ offset)
    return level + slope * (x[out] - at) - y[out]


def _by_weights(law: Law, fit, columns: list[np.ndarray], loss: np.ndarray, folds: list) -> np.ndarray:
    """Return the errors of a bounded law: each fold is a weight of 0 for its rows and 1 for all others."""
    size, experts = columns
    if law.name == "routed-utilisation":
        least = float(experts.min())
        experts = 1.0 + (experts - least) / (FLOOR * least)
    weights = np.ones((len(folds), loss.size))
    for line, out in zip(weights, folds, strict=True):
        line[out] = 0.0
    fits = fit_weighted(size, experts, loss, weights, scan=16, starts=4, careful=True)
    predicted = np.log10(predict_curves(fits, size, experts))
    errors = np.empty(loss.size)
    for line, out in zip(predicted, folds, strict=True):
        errors[out] = line[out] - np.log10(loss[out])
    return errors


_METHODS = {
    "dense": _by_hat_matrix, "per-size": _by_lines, "separable": _by_hat_matrix, "bilinear": _by_hat_matrix,
    "routed-bounded": _by_weights, "routed-utilisation": _by_weights,
}  # fmt: skip


def _checked(law: Law, columns, loss, groups) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """See reference."""
    if len(columns) != len(law.columns):
        raise ValueError(f"{len(columns)} columns; the {law.name} law takes {', '.join(law.columns)}")
    columns = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in columns]
    loss, groups = np.atleast_1d(check_range("loss", loss, above=0.0)), np.atleast_1d(groups)
    shapes = [column.shape for column in columns] + [groups.shape]
    if loss.ndim != 1 or any(shape != loss.shape for shape in shapes):
        raise ValueError(f"columns and groups have shapes {shapes}, loss has {loss.shape}; needed: one axis, the same")
    return columns, loss, groups


def _fit_of(law: Law, columns: list[np.ndarray]):
    """Return `law.fit`, with B_min held if the law has one."""
    if "B_min" in [parameter.name for parameter in law.parameters]:
        return partial(law.fit, B_min=float(columns[law.columns.index("utilisation")].min()))
    return law.fit


def _scores(names: list[str], found: list[HeldOut], groups: np.ndarray) -> list[Score]:
    """Return each form's score against the best."""
    most = max(each.predicted for each in found)
    best = min((each for each in found if each.predicted == most), key=lambda each: each.rmsle, default=None)
    scores = []
    for name, each in zip(names, found, strict=True):
        excess, error = _paired(each.errors, best.errors, groups)
        if each.predicted == 0:
            words = "predicts nothing"
        elif each is best:
            words = "best"
        elif each.predicted < most:
            words = "predicts fewer rows"
        else:
            words = "worse" if excess > error else "as good as the best"
        scores.append(Score(name, each, excess, error, words))
    return scores


def _paired(errors: np.ndarray, best: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Return the mean difference of squared errors and its standard error."""
    difference = errors**2 - best**2
    both = np.isfinite(difference)
    if not both.any():
        return math.nan, math.nan
    _, member = np.unique(groups[both], return_inverse=True)
    count = int(both.sum())
    mean = float(difference[both].mean())
    sums = np.bincount(member, difference[both] - mean)
    if sums.size < 2:
        return mean, math.nan
    return mean, math.sqrt(float(sums @ sums) * sums.size / (sums.size - 1)) / count
