"""Test how well a law predicts held-out runs, and compare laws by these errors.

Shared with `routelaws.reference.laws.held_out`. For the bounded laws, one search fits all folds with weights
(`fit_weighted`). Additive laws and laws with a floor also fit all folds together (`_smooth.fit_each`).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from routelaws.reference.laws import held_out as reference
from routelaws.reference.laws.held_out import HeldOut
from routelaws.reference.laws.utilisation import FLOOR

from ._searches import share
from ._smooth import fit_each
from .catalogue import LAWS, Law, searched_together
from .fitting import fit_weighted, predict_curves


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
    bounded = law is LAWS["routed-bounded"] or law is LAWS["routed-utilisation"]
    if not bounded and not searched_together(law):
        return [reference.leave_one_group_out(law, columns, loss, groups) for groups in divisions]
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
    weights = np.ones((len(folds), loss.size))
    for line, out in zip(weights, folds, strict=True):
        line[out] = 0.0
    if not searched_together(law):
        return _of_bounded(law, columns, loss, folds, weights)
    return [
        np.full(out.size, np.nan)
        if fold is None
        else law.miss(law.predict(fold, *(column[out] for column in columns)), loss[out])
        for fold, out in zip(fit_each(fit, columns, loss, weights), folds, strict=True)
    ]


def _of_bounded(law: Law, columns: list[np.ndarray], loss: np.ndarray, folds: list, weights) -> list[np.ndarray]:
    size, experts = columns
    if law.name == "routed-utilisation":  # the (F, E') law with E' = 1 + (B - B_min)/u
        experts = 1.0 + (experts - experts.min()) / (experts.min() * FLOOR)
    predicted = np.log10(predict_curves(fit_weighted(size, experts, loss, weights, scan=16, starts=4), size, experts))
    return [line[out] - np.log10(loss[out]) for line, out in zip(predicted, folds, strict=True)]


share(__name__)
