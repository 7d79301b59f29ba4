"""How well a law predicts runs that it was not fitted to: errors of rows left out, and forms compared by them.

Step by step, with sources and examples: `routelaws.reference.laws.held_out`.

What differs here: laws that are linear, or have the bounded form, are not fitted again and again; each has a short cut
to the errors of rows left out (`_left_out.py`). Any other law is fitted fold by fold.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ._columns import check_range
from .catalogue import LAWS, SHORT_CUTS, Law


class HeldOut(NamedTuple):
    """The errors of rows that were left out.

    Attributes:
        errors: [n] log10 L predicted - log10 L measured (accuracies: without log10); NaN where no fit could predict
        rmsle: root of the mean square over the rows that were predicted; NaN if there are none
        predicted: how many rows that is
        folds: how often the law was fitted
    """

    errors: np.ndarray
    rmsle: float
    predicted: int
    folds: int


class Score(NamedTuple):
    """One form of the law in a comparison.

    Attributes:
        name: of the law
        held_out: its errors
        excess: mean of (squared error of this form - of the best one) over rows that both predict; 0 for the best
        standard_error: of `excess`; NaN with fewer than two groups
        verdict: "best", "as good as the best", "worse", "predicts fewer rows" or "predicts nothing"
    """

    name: str
    held_out: HeldOut
    excess: float
    standard_error: float
    verdict: str


class Comparison(NamedTuple):
    """Forms of the law side by side, each list in the order of the laws given.

    Attributes:
        leave_one_out: rows left out one at a time
        leave_one_group_out: groups left out one at a time
    """

    leave_one_out: list[Score]
    leave_one_group_out: list[Score]


def leave_one_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray) -> HeldOut:
    """Return the error of each row under the law fitted to all others.

    Args:
        law: a record of `catalogue.LAWS`, or one like it.
        columns: the data columns in the order of `law.columns`, and of `law.beside`, [n] each.
        loss: [n], L, nats per token, above 0; or what else the law is of, `law.measured`.

    Returns:
        A HeldOut with n folds.

    Raises:
        ValueError: as `law.fit` for the whole table.
    """
    return leave_one_group_out(law, columns, loss, np.arange(np.size(loss)))


def leave_one_group_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray, groups: np.ndarray) -> HeldOut:
    """Return the error of each row under the law fitted to all rows of other groups.

    Args:
        law, columns, loss: as `leave_one_out`.
        groups: [n], equal entries are one group. With the sizes N this is leave one size out.

    Returns:
        A HeldOut with one fold for each group.

    Raises:
        ValueError: as `law.fit` for the whole table, or `groups` is of another length.
    """
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
    """Return forms of the law beside each other by their held-out errors, and which one is best.

    The best form is the one with the least RMSLE among those that predict the most rows. Every other form is compared
    with it row by row: d = (its squared error) - (the best one's), over rows that both predict. The standard error of
    the mean of d takes the groups' sums of d as independent (rows, where one row is left out at a time). It ignores
    that folds share most of their rows, and with six sizes it may itself be off by a third. So "worse" is
    an indication, not a test.

    Args:
        laws: records of `catalogue.LAWS`, or others like them.
        columns: every column that one of the laws takes, by name, [n] each.
        loss: [n], L, nats per token, above 0.
        groups: [n], as `leave_one_group_out`.

    Returns:
        A Comparison. verdict is "best"; "worse", where the mean of d is above its standard error; "as good as the
        best", where it is not; "predicts fewer rows" whatever its errors there; or "predicts nothing".

    Raises:
        ValueError: no law, a column is missing, or as `leave_one_group_out`.
    """
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
    if not rest.any():
        return np.full(out.size, np.nan)
    try:
        fold = fit(*(column[rest] for column in columns), loss[rest])
    except ValueError:
        return np.full(out.size, np.nan)
    return law.miss(law.predict(fold, *(column[out] for column in columns)), loss[out])


def _checked(law: Law, columns, loss, groups) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """See reference."""
    names = (*law.columns, *law.beside)
    if len(columns) != len(names):
        raise ValueError(f"{len(columns)} columns; the {law.name} law takes {', '.join(names)}")
    columns = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in columns]
    above = -math.inf if law.measured == "accuracy" else 0.0
    loss, groups = np.atleast_1d(check_range(law.measured, loss, above=above)), np.atleast_1d(groups)
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
