"""Checked tables and the report of a fit: see `_smooth.py` of the reference.

Private to the accelerated package.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from routelaws.reference.laws import _smooth as reference
from routelaws.reference.laws._descent import Form, at_limits, signed, valley
from routelaws.reference.laws._projection import INDEPENDENT
from routelaws.reference.laws.hoffmann import KaplanCoefficients
from routelaws.reference.laws.joint import JointCoefficients
from routelaws.reference.laws.uncertainty import student_quantile

from . import _descent, additive, floored, hoffmann, joint

FAST = {KaplanCoefficients: hoffmann.KAPLAN, JointCoefficients: joint.JOINT, **floored.FAST}
"""The fast functions of laws that are not additive, by their coefficients."""


def _problem(form: Form, columns: tuple, loss: np.ndarray, huber: float | None) -> _descent.Problem | None:
    """Return a table in the format of the search; None if the law has no fast functions."""
    fast = additive.fast_additive(form.law) if form.law else FAST.get(form.kind)
    return fast and _descent.problem_of(form, fast, columns, loss, huber)


def fitted(form: Form, columns: tuple, loss: np.ndarray, huber: float | None, starts) -> tuple:
    """Return the report of the best start: the fields of `additive.AdditiveFit`, in their order."""
    if (problem := _problem(form, columns, loss, huber)) is None:
        return reference.fitted(form, columns, loss, huber, starts)
    best = _descent.best_of(problem, reference._begin(form, columns, form.centres(columns), problem, starts))
    residual, turn = _descent.look(problem, best.theta)
    away = np.abs(turn).max(axis=0) < _descent.GONE
    values = at_limits(form, _descent.coefficients(problem, best.theta)[0], away)
    reference.check_representable(form, values, away)
    status = "not determined" if _triangle(turn[:, ~away]) is None else "interior"
    if away.any():
        status = ", ".join(name for name, out in zip(form.kind._fields, away, strict=True) if out) + " at the limit"
    if not _descent.ended(problem, residual, turn, best.value):
        status = "the search did not converge"
    criterion = "half the sum of squared differences of ln losses"
    if huber is not None:
        criterion = f"sum of Huber terms of ln losses, delta = {huber:g}"
    rmsle = math.sqrt(float(residual @ residual) / residual.size) / math.log(10)
    covariance = _descent.covariance(problem, best.theta)
    return (
        form.kind(*values.tolist()), best.value, rmsle, status, covariance, residual.size, criterion, best.starts,
        best.reached,
    )  # fmt: skip


def intervals(
    form: Form, columns: tuple, loss, huber: float | None, level: float, points, derived: Sequence[tuple] = ()
) -> list[tuple]:
    """Return the fields of the `additive.AdditiveInterval` of each coefficient, point, or number of `derived`."""
    if (problem := _problem(form, columns, loss, huber)) is None:
        return reference.intervals(form, columns, loss, huber, level, points, derived)
    quantile = student_quantile(level, problem.log_loss.size - len(form.positive))
    starts = form.starts(columns, form.centres(columns), problem.log_loss)
    search = partial(_descent.best_of, problem)
    best = search(starts).theta
    theta, away = _descent.brought_back(problem, best)
    logs, known = (None, valley(form, best, search)) if points is None else (problem.fast.logs(points), None)
    profile_ends = _descent.profile(problem, theta, away, logs, quantile, [function for _, function in derived], known)
    names, positive = ["prediction"] * len(profile_ends), np.ones(len(profile_ends), bool)
    if derived:
        names, positive = [name for name, _ in derived], ~positive
    elif points is None:
        names, positive = form.kind._fields, np.array(form.positive)
    with np.errstate(over="ignore"):
        others = profile_ends if derived else signed(profile_ends)
        profile_ends = np.where(positive[:, None], np.exp(profile_ends), others)
    if points is None and not derived:
        profile_ends[:, 0] = at_limits(form, profile_ends[:, 0], away)
    profile_ends = profile_ends.tolist()
    return [(name, *ends, level) for name, ends in zip(names, profile_ends, strict=True)]


def _triangle(design: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the QR factors of `design`, scaled to columns of length 1; None if the columns are linearly dependent."""
    length = np.linalg.norm(design, axis=0)
    if not np.all(length > 0):
        return None
    unit, upper = np.linalg.qr(design / length)
    if np.linalg.svd(upper, compute_uv=False)[-1] <= INDEPENDENT:
        return None
    return unit, upper * length
