"""See `routelaws.reference.laws.held_out`.

What differs here: no law of the catalogue is fitted again and again; each has a short cut to the errors of rows left
out (`_left_out.py`). Any other law is fitted fold by fold.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ._columns import check_range
from .catalogue import LAWS, SHORT_CUTS, Law


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
    fit = partial(law.fit, **law.given(*columns))
    fit(*columns, loss)  # what is wrong with the table is said here
    refit = partial(_refit, law, fit, columns, loss)
    folds = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    if law is LAWS.get(law.name) and law.name in SHORT_CUTS:
        errors = SHORT_CUTS[law.name](refit, columns, loss, folds)
    else:
        errors = np.full(loss.size, np.nan)
        for out in folds:
            errors[out] = refit(out)
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
