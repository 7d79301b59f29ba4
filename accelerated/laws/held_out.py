"""Test how well a law predicts held-out runs, and compare laws by these errors.

Shared with `routelaws.reference.laws.held_out`. Linear and bounded laws need no fit for each fold
(`_left_out.py`).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from routelaws.reference.laws import held_out as reference
from routelaws.reference.laws.held_out import HeldOut

from ._searches import share
from ._smooth import fit_each
from .catalogue import LAWS, SHORT_CUTS, Law, searched_together


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
    if law is LAWS.get(law.name) and law.name in SHORT_CUTS:
        return SHORT_CUTS[law.name](refit, columns, loss, folds)
    if not searched_together(law):
        return [refit(out) for out in folds]
    weights = np.ones((len(folds), loss.size))
    for line, out in zip(weights, folds, strict=True):
        line[out] = 0.0
    fits = fit_each(fit, columns, loss, weights)
    return [_errors(law, fold, columns, loss, out) for fold, out in zip(fits, folds, strict=True)]


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


share(__name__)
