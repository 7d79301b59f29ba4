"""Test how well a law predicts held-out runs, and compare laws by these errors.

A law with more coefficients always fits better. Held-out rows show whether it also predicts better. A *fold* leaves
some rows out, fits the law to the other rows, and predicts the rows that it left out:

    leave one out          each row by itself: interpolation of a missing run from its neighbours
    leave one group out    all rows of one group, usually of one size N: prediction of an untrained size

The error is predicted log10 L minus measured log10 L. The root of its mean square is the RMSLE, as for a fit. The
second test is harder and more useful, because you use a law at sizes without runs. The prediction is an extrapolation
for the largest and the smallest size. Clark et al. 2022 (arXiv 2202.01169) reportedly score their laws by leaving out
one row; leaving out sizes is our choice.

An error is NaN if the other rows do not determine the law, or if the law has no prediction for the row. `predicted`
does not count such rows.

Every fold of the (F, B) law uses the same B_min, the least B of all rows (`Law.given`). B_min depends on the models and
not on their losses, so it does not leak the loss of a held-out row.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .catalogue import Law
from .numerics._projection import check_range


class HeldOut(NamedTuple):
    """The errors of held-out rows.

    Attributes:
        errors: [n] log10 L predicted - log10 L measured (accuracies: without log10); NaN without a prediction
        rmsle: root mean square of the errors of the predicted rows; NaN if no row is predicted
        predicted: number of predicted rows
        folds: number of folds
    """

    errors: np.ndarray
    rmsle: float
    predicted: int
    folds: int


class Score(NamedTuple):
    """The held-out errors of one law, and its comparison with the best law.

    Attributes:
        name: the name of the law
        held_out: its errors
        excess: mean of its squared error minus the squared error of the best law, over the rows that both predict
        standard_error: of `excess`; NaN with fewer than two groups
        verdict: "best", "as good as the best", "worse", "predicts fewer rows" or "predicts nothing"
    """

    name: str
    held_out: HeldOut
    excess: float
    standard_error: float
    verdict: str


class Comparison(NamedTuple):
    """The scores of several laws, each list in the order of `laws`.

    Attributes:
        leave_one_out: rows left out one at a time
        leave_one_group_out: groups left out one at a time
    """

    leave_one_out: list[Score]
    leave_one_group_out: list[Score]


def leave_one_group_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray, groups: np.ndarray) -> HeldOut:
    """Return the error of each row by the law fitted to all rows of other groups.

    Args:
        law, columns, loss: as in `leave_one_out`.
        groups: [n]; rows with equal entries form one group. Pass the sizes N to leave one size out. A row whose group
            is NaN is never left out.

    Returns:
        A HeldOut with one fold for each group.

    Raises:
        ValueError: `law.fit` raises this error for the whole table, or `groups` has the wrong length.
    """
    columns, loss, groups = _checked(law, columns, loss, groups)
    fit = partial(law.fit, **law.given(*columns))  # values such as B_min come from the whole table
    fit(*columns, loss)  # raises for an invalid table
    errors = np.full(loss.size, np.nan)
    names = np.unique(groups[groups == groups])
    for name in names:
        out = groups == name
        if out.all():  # no row is left to fit
            continue
        try:
            fold = fit(*(column[~out] for column in columns), loss[~out])
        except ValueError:  # the other rows do not determine the law
            continue
        errors[out] = law.miss(law.predict(fold, *(column[out] for column in columns)), loss[out])
    return _summary(errors, names.size)


def leave_one_out(law: Law, columns: Sequence[np.ndarray], loss: np.ndarray, *, search=leave_one_group_out) -> HeldOut:
    """Return the error of each row by the law fitted to all other rows.

    Args:
        law: a record of `catalogue.LAWS`, or your own.
        columns: the columns of `law.columns`, then the columns of `law.beside`, in their order, [n] each.
        loss: [n], L, nats per token, above 0; or another measured column, `law.measured`.
        search: how to leave out groups; the accelerated package passes its own.

    Returns:
        A HeldOut with n folds.

    Raises:
        ValueError: `law.fit` raises this error for the whole table.

    Example:
        log10 L is 0.4, 0.3, 0.2, 0.3 at four sizes, one decade apart. The line through the first three gives 0.1 at the
        last. The least-squares line through the last three (0.3, 0.2, 0.3) is level and gives 0.2667 at the first.

        >>> from routelaws.reference.laws.catalogue import LAWS
        >>> sizes, loss = np.array([1e6, 1e7, 1e8, 1e9]), 10.0 ** np.array([0.4, 0.3, 0.2, 0.3])
        >>> found = leave_one_out(LAWS["dense"], [sizes], loss)
        >>> found.errors.round(4)[[0, 3]].tolist(), found.predicted, found.folds
        ([-0.1333, -0.2], 4, 4)
    """
    return search(law, columns, loss, np.arange(np.size(loss)))


def compare_forms(
    laws: Sequence[Law], columns: Mapping, loss: np.ndarray, groups: np.ndarray, *, search=leave_one_group_out
) -> Comparison:
    """Compare laws by their held-out errors and return their scores.

    The best law has the least RMSLE among the laws that predict the most rows. Compare every other law with the best
    law, row by row. Let d be the squared error of this law minus the squared error of the best law, for each row that
    both predict. The standard error of the mean of d assumes independent groups (independent rows for leave one out).
    But folds share most of their rows, so "worse" is an indication, not a test.

    Args:
        laws: records of `catalogue.LAWS`, or your own.
        columns: every column that any of the laws needs, by name, [n] each.
        loss: [n], L, nats per token, above 0.
        groups: [n], as in `leave_one_group_out`.
        search: as in `leave_one_out`.

    Returns:
        A Comparison. A law is "worse" if the mean of d is above the standard error of this mean, else "as good as the
        best". Of two laws whose errors differ by rounding, the first is the best.

    Raises:
        ValueError: `laws` is empty, a column is missing, or `leave_one_group_out` raises this error.
    """
    if not laws:
        raise InputError("no law to compare; needed: at least one")
    for law in laws:
        for name in law.columns:
            if name not in columns:
                raise InputError(f"column {name} is missing; the {law.name} law takes {', '.join(law.columns)}")
    results = []
    for division in (np.arange(np.size(loss)), np.asarray(groups)):
        errors = [search(law, [columns[name] for name in law.columns], loss, division) for law in laws]
        results.append(_scores([law.name for law in laws], errors, division))
    return Comparison(*results)


def _checked(law: Law, columns, loss, groups) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return columns, loss and groups as arrays of one length. `law.fit` checks their entries."""
    names = (*law.columns, *law.beside)
    if len(columns) != len(names):
        raise InputError(f"{len(columns)} columns; the {law.name} law takes {', '.join(names)}")
    columns = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in columns]
    above = -math.inf if law.measured == "accuracy" else 0.0
    loss, groups = np.atleast_1d(check_range(law.measured, loss, above=above)), np.atleast_1d(groups)
    shapes = [column.shape for column in columns] + [groups.shape]
    if loss.ndim != 1 or any(shape != loss.shape for shape in shapes):
        raise InputError(
            f"columns and groups have shapes {shapes}, loss has {loss.shape}; pass one-dimensional arrays of the same "
            "length"
        )
    return columns, loss, groups


def _summary(errors: np.ndarray, folds: int) -> HeldOut:
    known = errors[np.isfinite(errors)]
    rmsle = math.sqrt(float(np.mean(known**2))) if known.size else math.nan
    return HeldOut(errors, rmsle, known.size, folds)


SAME = 1e-6
"""A law with a relatively smaller difference of errors is the same law, such as one whose floor is 0."""


def _scores(names: list[str], results: list[HeldOut], groups: np.ndarray) -> list[Score]:
    """Return the score of each law, relative to the best."""
    most = max(each.predicted for each in results)
    if most == 0:
        return [
            Score(name, each, math.nan, math.nan, "predicts nothing") for name, each in zip(names, results, strict=True)
        ]
    whole = [each for each in results if each.predicted == most]
    best = next(each for each in whole if each.rmsle <= (1 + SAME) * min(other.rmsle for other in whole))
    scores, least = [], SAME * best.rmsle**2
    for name, each in zip(names, results, strict=True):
        excess, error = _paired(each.errors, best.errors, groups)
        if each is best:
            words = "best"
        elif each.predicted < most:
            words = "predicts fewer rows" if each.predicted else "predicts nothing"
        else:
            words = "worse" if excess > max(error, least) else "as good as the best"
        scores.append(Score(name, each, excess, error, words))
    return scores


def _paired(errors: np.ndarray, best: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Return the mean of d, and its standard error from the sums over groups.

    The mean is Σ sumᵢ / Σ nᵢ over the m groups, with sumᵢ the sum of d and nᵢ the number of rows of group i. The
    variance of this ratio is m/(m - 1) · Σ (sumᵢ - nᵢ · mean)² / n². For groups of one row, this is the usual variance
    of a mean.
    """
    both = np.isfinite(errors) & np.isfinite(best)
    difference, groups = errors[both] ** 2 - best[both] ** 2, groups[both]
    if not difference.size:
        return math.nan, math.nan
    mean = float(np.mean(difference))
    sums = np.array([float(np.sum(difference[groups == name] - mean)) for name in np.unique(groups)])
    if sums.size < 2:
        return mean, math.nan
    return mean, math.sqrt(sums.size / (sums.size - 1) * float(np.sum(sums**2))) / difference.size


# What this file does not do: intervals (`uncertainty.py`, `resampling.py`).
