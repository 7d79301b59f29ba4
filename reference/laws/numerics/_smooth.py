"""Shared functions of the laws fitted by the sum of Huber terms: checked tables and the report of a fit.

Private to the reference. `additive.py`, `hoffmann.py` (Kaplan's law) and `joint.py` define the prediction of their law
as a `Form`, and `_descent.py` finds the best unknowns.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...errors import InputError
from ..confidence.uncertainty import student_quantile
from . import _descent, _profile
from ._columns import check_columns
from ._descent import Form
from ._projection import check_range, independent, need_rows


def check_table(name: str, columns: dict, loss: np.ndarray, coefficients: int) -> tuple[tuple, np.ndarray]:
    """Return the columns and the loss. Raise ValueError as `fit_additive` does."""
    *logs, log_loss = check_columns(**columns, loss=loss)
    need_rows(log_loss.size, coefficients, name)
    for column, log in zip(columns, logs, strict=True):
        count = np.unique(log).size
        if count < 3:
            raise InputError(
                f"{count} different {column}; the {name} law needs at least 3, to distinguish its power from the "
                "constant term"
            )
    if not independent(np.stack([log - log.mean() for log in logs], axis=1)):
        raise InputError(f"{', '.join(columns)} rise together in these rows, so their powers cannot be distinguished")
    return tuple(np.asarray(values, dtype=np.float64) for values in columns.values()), np.asarray(loss, np.float64)


def check_representable(form: Form, values: np.ndarray, away: np.ndarray) -> None:
    """Raise InputError if a coefficient [p] that has not vanished (`away` [p]) has no value in float64.

    The unknowns are relative to the middle of the table. A coefficient is a value at N = 1 or D = 1. With a steep power
    it overflows there, and then the law predicts nothing.
    """
    wrong = ~away & (~np.isfinite(values) | (np.array(form.positive) & (values == 0)))
    if wrong.any():
        names = ", ".join(name for name, out in zip(form.kind._fields, wrong, strict=True) if out)
        raise InputError(
            f"these rows do not determine the law: its best fit has {names} beyond the range of float64; add rows with "
            "other sizes, tokens or num_experts"
        )


def points_of(names: tuple[str, ...], at: Sequence) -> tuple[np.ndarray, ...]:
    """Return the columns [m] of points, checked."""
    checked = [np.atleast_1d(check_range(name, values, above=0.0)) for name, values in zip(names, at, strict=True)]
    return tuple(np.broadcast_arrays(*checked))


def fitted(form: Form, columns: tuple, loss: np.ndarray, huber: float | None, starts) -> tuple:
    """Return the report of the best start: the fields of `additive.AdditiveFit`, in their order."""
    centres = form.centres(columns)
    problem = _descent.problem_of(form, columns, loss, huber, centres)
    starts = _begin(form, columns, centres, problem, starts)
    best = _descent.best_of(problem, starts)
    away = _descent.gone(problem, best.theta)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        values = _descent.at_limits(form, form.natural(best.theta, centres), away)
    check_representable(form, values, away)
    status = "interior" if independent(problem.model(best.theta)[1][:, ~away]) else "not determined"
    if away.any():
        names = [name for name, out in zip(form.kind._fields, away, strict=True) if out]
        status = f"{', '.join(names)} at the limit"
    if not _descent.ended(problem, best.theta):
        status = "the search did not converge"
    residual = problem.model(best.theta)[0] - problem.log_loss
    criterion = "half the sum of squared differences of ln losses"
    if huber is not None:
        criterion = f"sum of Huber terms of ln losses, delta = {huber:g}"
    return (
        form.kind(*values.tolist()), best.value, math.sqrt(np.mean(residual**2)) / math.log(10), status,
        _descent.covariance(problem, form, best.theta, centres), residual.size, criterion, best.starts, best.reached,
    )  # fmt: skip


def intervals(
    form: Form, columns: tuple, loss, huber: float | None, level: float, points, derived: Sequence[tuple] = ()
) -> list[tuple]:
    """Return the fields of the `additive.AdditiveInterval` of each coefficient, of each point, or of each of `derived`.

    Args:
        form: the law.
        columns, loss: the checked table.
        huber, level: as in `additive.additive_intervals`.
        points: None, or columns [m], from `points_of`.
        derived: (name, function of θ [..., p]) of numbers to report instead of the coefficients.
    """
    centres = form.centres(columns)
    problem = _descent.problem_of(form, columns, loss, huber, centres)
    starts, search = form.starts(columns, centres, problem.log_loss), partial(_descent.best_of, problem)
    best = search(starts).theta
    valley = _descent.valley(form, best, search) if points is None else None
    theta, away = _descent.brought_back(problem, form, best), _descent.gone(problem, best)
    quantile = student_quantile(level, problem.log_loss.size - theta.size)
    if derived:
        targets = [(name, False, _derived(function)) for name, function in derived]
    elif points is None:
        targets = [(name, form.positive[i], _coefficient(form, centres, i)) for i, name in enumerate(form.kind._fields)]
    else:
        at = [tuple(column[i : i + 1] for column in points) for i in range(points[0].size)]
        targets = [("prediction", True, _prediction(form, centres, point)) for point in at]
    begin = [theta]
    for i in _descent.edges(form, away):
        target = _coefficient(form, centres, i)
        sign = -1 if form.limits[i] > 0 else 1  # away from the edge: from infinity downward, from 0 upward
        begin.append(_profile.far_end(problem, theta, target, quantile, sign))
    rows = []
    for i, (name, positive, target) in enumerate(targets):
        value, low, high = _profile.profile(problem, begin, target, quantile, valley)
        with np.errstate(over="ignore"):
            if positive:
                value, low, high = np.exp([value, low, high]).tolist()
            elif not derived:
                value, low, high = _descent.signed([value, low, high]).tolist()
        if points is None and not derived and away[i] and form.limits[i] is not None:
            value = form.limits[i]
        rows.append((name, value, low, high, level))
    return rows


def _coefficient(form: Form, centres: np.ndarray, i: int):
    """Return the function of θ that gives coefficient i, as ln or arsinh, and its derivatives [p]."""

    def at(theta: np.ndarray) -> np.ndarray:
        """Return the quantity, [1], in the form that `turns` needs."""
        value = form.natural(theta, centres)[i : i + 1]
        return np.log(value) if form.positive[i] else np.arcsinh(_descent.STEEP * value)

    return lambda theta: (float(at(theta)[0]), _descent.turns(at, theta)[0])


def _derived(function):
    """Return the function of θ that gives a number derived from θ and its derivatives [p]."""
    return lambda theta: (float(function(theta)), _descent.turns(lambda at: np.atleast_1d(function(at)), theta)[0])


def _prediction(form: Form, centres: np.ndarray, point: tuple):
    """Return the function of θ that gives ln L at a point, columns of one row each, and its derivatives [p]."""
    model = form.bind(point, centres)

    def at(theta: np.ndarray) -> tuple[float, np.ndarray]:
        predicted, J = model(theta)
        return float(predicted[0]), J[0]

    return at


def _begin(form: Form, columns: tuple, centres, problem, starts: np.ndarray | None) -> np.ndarray:
    """Return the starts, θ [s, p]."""
    if starts is None:
        return form.starts(columns, centres, problem.log_loss)
    starts = np.atleast_2d(np.asarray(starts, dtype=np.float64))
    if starts.ndim != 2 or starts.shape[1] != len(form.positive) or not np.all(np.isfinite(starts)):
        raise InputError(f"starts has shape {starts.shape}; needed: [starts, {len(form.positive)}], finite")
    if np.any(starts[:, np.array(form.positive)] <= 0):
        positive = ", ".join(name for name, above in zip(form.kind._fields, form.positive, strict=True) if above)
        raise InputError(f"starts: {positive} have to be above 0")
    return np.array([form.internal(start, centres) for start in starts])


def share_out(terms: int, floor: bool, log_loss: np.ndarray) -> list[np.ndarray]:
    """Return ln of each term in the middle of a table, for several ways to divide the mean loss between terms.

    A floor is the last term. It gets 0, 1/5, 1/2 or 4/5 of the loss. The share 0 is needed, because a search in ln c
    never reaches c = 0. The other terms share the rest equally. If there are two, they also share it 1 to 4 and 4 to 1.
    The shares are our choice.
    """
    powers = terms - 1 if floor else terms
    parts = [(1, 1), (1, 4), (4, 1)] if powers == 2 else [(1,) * powers]
    parts = [np.array(part) / sum(part) for part in parts]
    if not floor:
        return [np.log(part) + log_loss.mean() for part in parts]
    starts = []
    for part in parts:
        for share in (0.0, 0.2, 0.5, 0.8):  # of the floor
            log_floor = math.log(share) + log_loss.mean() if share > 0 else _descent.ABSENT
            starts.append(np.append(np.log(part * (1 - share)) + log_loss.mean(), log_floor))
    return starts
