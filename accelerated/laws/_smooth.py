"""Checked tables and the report of a fit: see `_smooth.py` of the reference.

Private to the accelerated package.
"""

import math
from collections.abc import Sequence

import numpy as np

from routelaws.reference.laws._projection import INDEPENDENT, check_range
from routelaws.reference.laws._smooth import check_representable, check_table  # noqa: F401 - check_table: for the laws
from routelaws.reference.laws.uncertainty import student_quantile

from ..errors import InputError
from . import _descent


def points_of(names: tuple[str, ...], at: Sequence) -> tuple[np.ndarray, ...]:
    """Return the columns [m] of points, checked."""
    checked = [np.atleast_1d(check_range(name, values, above=0.0)) for name, values in zip(names, at, strict=True)]
    return tuple(np.broadcast_arrays(*checked))


def fitted(form, kind: type, columns: tuple, loss: np.ndarray, huber: float | None, starts) -> tuple:
    """Return the report of the best start: the fields of `additive.AdditiveFit`, in their order."""
    problem = _descent.problem_of(form, columns, loss, huber)
    best = _descent.best_of(problem, _begin(form, problem, starts))
    residual, turn = _descent.look(problem, best.theta)
    away = np.abs(turn).max(axis=0) < _descent.GONE
    values = np.where(away, form.limits, _descent.coefficients(form, best.theta, problem.centres)[0])
    check_representable(form, values, away)
    status = "not determined" if _triangle(turn[:, ~away]) is None else "interior"
    if away.any():
        status = ", ".join(name for name, out in zip(form.names, away, strict=True) if out) + " at the limit"
    if not _descent.ended(problem, residual, turn, best.value):
        status = "the search did not converge"
    criterion = "half the sum of squared differences of ln losses"
    if huber is not None:
        criterion = f"sum of Huber terms of ln losses, delta = {huber:g}"
    rmsle = math.sqrt(float(residual @ residual) / residual.size) / math.log(10)
    covariance = _descent.covariance(problem, best.theta)
    return (
        kind(*values.tolist()), best.value, rmsle, status, covariance, residual.size, criterion, best.starts,
        best.reached,
    )  # fmt: skip


def intervals(
    form, columns: tuple, loss, huber: float | None, level: float, points, derived: Sequence[tuple] = ()
) -> list[tuple]:
    """Return the fields of the `additive.AdditiveInterval` of each coefficient and of `derived`, or of each point."""
    problem = _descent.problem_of(form, columns, loss, huber)
    quantile = student_quantile(level, problem.log_loss.size - len(form.names))
    theta, away = _descent.brought_back(problem, _descent.best_of(problem, _begin(form, problem, None)).theta)
    logs = None if points is None else form.logs(points)
    profile_ends = _descent.profile(problem, theta, away, logs, quantile, [function for _, function in derived])
    names, positive = ["prediction"] * len(profile_ends), [True] * len(profile_ends)
    if points is None:
        names = [*form.names, *(name for name, _ in derived)]
        positive = [*form.positive, *(False for _ in derived)]
    positive = np.array(positive)
    with np.errstate(over="ignore"):
        profile_ends = np.where(positive[:, None], np.exp(profile_ends), profile_ends)
    if points is None:
        profile_ends[np.flatnonzero(away), 0] = np.array(form.limits)[away]
    profile_ends = profile_ends.tolist()
    return [(name, *ends, level) for name, ends in zip(names, profile_ends, strict=True)]


def _begin(form, problem, starts: np.ndarray | None) -> np.ndarray:
    if starts is None:
        return form.starts(problem.logs, problem.log_loss)
    starts = np.atleast_2d(np.asarray(starts, dtype=np.float64))
    if starts.ndim != 2 or starts.shape[1] != len(form.names) or not np.all(np.isfinite(starts)):
        raise InputError(f"starts has shape {starts.shape}; needed: [starts, {len(form.names)}], finite")
    if np.any(starts[:, np.array(form.positive)] <= 0):
        positive = ", ".join(name for name, above in zip(form.names, form.positive, strict=True) if above)
        raise InputError(f"starts: {positive} have to be above 0")
    return np.array([form.internal(start, problem.centres) for start in starts])


def share_out(terms: int, floor: bool, log_loss: np.ndarray) -> list[np.ndarray]:
    """Return ln of each term in the middle of a table, for several ways to divide the mean loss between terms."""
    level, others = float(np.mean(log_loss)), terms - floor
    parts = np.array([[0.5, 0.5], [0.2, 0.8], [0.8, 0.2]] if others == 2 else [[1 / others] * others])
    if not floor:
        return list(np.log(parts) + level)
    rests = np.array([0.0, 0.2, 0.5, 0.8])
    with np.errstate(divide="ignore"):
        floors = np.where(rests > 0, np.log(rests) + level, _descent.ABSENT)
    shared = np.log(parts[:, None] * (1 - rests)[:, None]) + level
    return list(np.concatenate([shared, np.tile(floors[:, None], (len(parts), 1, 1))], axis=2).reshape(-1, terms))


def _triangle(design: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the QR factors of `design`, scaled to columns of length 1; None if the columns are linearly dependent."""
    length = np.linalg.norm(design, axis=0)
    if not np.all(length > 0):
        return None
    unit, upper = np.linalg.qr(design / length)
    if np.linalg.svd(upper, compute_uv=False)[-1] <= INDEPENDENT:
        return None
    return unit, upper * length
