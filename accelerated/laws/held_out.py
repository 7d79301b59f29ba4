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
    columns, loss, groups = reference._checked(law, columns, loss, groups)
    fit = partial(law.fit, **law.given(*columns))
    fit(*columns, loss)  # raises for an invalid table
    refit = partial(_refit, law, fit, columns, loss)
    folds = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    if law is LAWS.get(law.name) and law.name in SHORT_CUTS:
        errors = SHORT_CUTS[law.name](refit, columns, loss, folds)
    elif searched_together(law):
        errors = np.full(loss.size, np.nan)
        tables = [[np.delete(column, out) for column in (*columns, loss)] for out in folds]
        for out, fold in zip(folds, fit_each(fit, [*columns, loss], tables), strict=True):
            if fold is not None:
                errors[out] = law.miss(law.predict(fold, *(column[out] for column in columns)), loss[out])
    else:
        errors = np.full(loss.size, np.nan)
        for out in folds:
            errors[out] = refit(out)
    return reference._summary(errors, len(folds))


def _refit(law: Law, fit, columns: list[np.ndarray], loss: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return the errors of the rows `out` under the fit to the other rows; NaN if these do not determine the law."""
    rest = np.ones(loss.size, dtype=bool)
    rest[out] = False
    if not rest.any():
        return np.full(out.size, np.nan)
    try:
        fold = fit(*(column[rest] for column in columns), loss[rest])
    except ValueError:
        return np.full(out.size, np.nan)
    return law.miss(law.predict(fold, *(column[out] for column in columns)), loss[out])


share(__name__)
