"""Checked tables and the report of a fit: see `_smooth.py` of the reference.

Private to the accelerated package.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np

from routelaws.reference.laws import student_quantile
from routelaws.reference.laws.numerics import _smooth as reference
from routelaws.reference.laws.numerics._descent import Form, Found, at_limits, signed, valley
from routelaws.reference.laws.numerics._projection import INDEPENDENT

from . import _descent
from ._derivatives import FAST, fast_additive

LOW = 2.0  # a minimum with a larger sum, as a multiple of the least, is no start for tables like this one
OTHERS = 2  # tables whose ends, the lowest in a table, start its second search
SHORT = (60, 100)  # steps before the best ends of all tables are searched to the end, together
AT_ONCE = 50  # tables that are searched together; the arrays of more of them do not stay in the processor's cache


class _AskedError(Exception):
    """A law asked for the search of a table."""


def _problem(form: Form, columns: tuple, loss: np.ndarray, huber: float | None) -> _descent.Problem | None:
    """Return a table in the format of the search; None if the law has no fast functions."""
    fast = fast_additive(form.law) if form.law else FAST.get(form.kind)
    return fast and _descent.problem_of(form, fast, columns, loss, huber)


class TableSearch:
    """The search of a table from the default starts of its law."""

    def __init__(self, form: Form, columns: tuple, loss: np.ndarray, huber: float | None):
        self.problem, self.form, self._begins = _problem(form, columns, loss, huber), form, {}
        self._starts = partial(form.starts, columns, form.centres(columns))

    @functools.cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """θ [s, p] and the sums [s] at the ends of all starts."""
        return _descent.ends_of(self.problem, self._starts(self.problem.log_loss))

    @functools.cached_property
    def best(self) -> Found:
        return _descent.best_end(self.problem, *self.ends)

    @functools.cached_property
    def valley(self) -> tuple[np.ndarray, np.ndarray] | None:
        """See `valley` of the reference."""
        return valley(self.form, self.best.theta, partial(_descent.best_of, self.problem))

    def begin(self, quantile: float) -> list[np.ndarray]:
        """The starts of the search of intervals (see `_descent.profile`), which each kind of interval shares."""
        if quantile not in self._begins:
            theta, away = self.brought_back
            self._begins[quantile] = [theta, *_descent.far_ends(self.problem, theta, away, quantile)]
        return self._begins[quantile]

    @functools.cached_property
    def brought_back(self) -> tuple[np.ndarray, np.ndarray]:
        return _descent.brought_back(self.problem, self.best.theta)

    @functools.cached_property
    def lows(self) -> np.ndarray:
        """θ [m, p] of starts for tables like this one: different minima with a sum below `LOW` times the least."""
        theta, value = self.ends
        lows, last = [self.brought_back[0]], self.best.value
        for i in np.argsort(value):
            if last * (1 + _descent.REACHED) < value[i] < LOW * self.best.value:
                lows.append(theta[i])
                last = value[i]
        if self.problem.fast.far_minima:
            lows.extend(self._starts(self.problem.log_loss))
        return np.array(lows)


_KEPT: deque[tuple[tuple, TableSearch]] = deque(maxlen=8)


def searched(form: Form, columns: tuple, loss: np.ndarray, huber: float | None) -> TableSearch:
    """Return the search of a table. The last few are kept: a command asks for a fit and several of its intervals."""
    key = form.kind, form.law, huber, *(np.asarray(column).tobytes() for column in (*columns, loss))
    for known, search in _KEPT:
        if known == key:
            return search
    _KEPT.append((key, TableSearch(form, columns, loss, huber)))
    return _KEPT[-1][1]


def fit_each(fit: Callable, columns: Sequence[np.ndarray], loss: np.ndarray, weights: np.ndarray) -> list:
    """Return the fit of a law to each table, by one search, with its coefficients alone; None if it is not determined.

    Args:
        fit: as `Law.fit`, of a law of which `catalogue.searched_together` is true.
        columns: [n] each.
        loss: [n], or [tables, n] if each table has losses of its own. The minima of a search with the mean losses are
            the starts of all searches.
        weights: [tables, n], whole numbers of at least 0: how often each table has each row.
    """
    losses, counts = np.broadcast_to(loss, weights.shape), weights.astype(np.int64)

    def asked(*table) -> tuple | None:
        """Return the arguments of the search of a table; None if the table does not determine the law."""

        def ask(*arguments):
            raise _AskedError(*arguments)

        try:
            fit(*table, search=ask)
        except _AskedError as search:
            return search.args
        except ValueError:
            return None

    tables = (
        [np.repeat(column, times) for column in (*columns, own)] for own, times in zip(losses, counts, strict=True)
    )
    known = np.array([asked(*table) is not None for table in tables], dtype=bool)
    whole = asked(*columns, loss if np.ndim(loss) == 1 else np.exp(np.log(loss).mean(axis=0)))
    found = iter(_fit_lanes(searched(*whole[:4]), losses[known], weights[known]) if known.any() else [])
    return [next(found) if each else None for each in known]


def _fit_lanes(search: TableSearch, losses: np.ndarray, weights: np.ndarray) -> list:
    """Return the coefficients of the best fit of each table; the arguments are [tables, n]."""
    problem, lows = search.problem, search.lows
    tables = problem._replace(log_loss=np.log(losses), weight=weights)
    groups = [tables.of(slice(first, first + AT_ONCE)) for first in range(0, len(losses), AT_ONCE)]
    ends = [_second_ends(some, *_best_ends(some, np.tile(lows, (len(some.weight), 1, 1)))) for some in groups]
    found = []
    for end, log_loss, weight in zip(
        _descent.ends_of(tables, np.concatenate(ends))[0], tables.log_loss, weights, strict=True
    ):
        own = problem._replace(logs=problem.logs[:, weight > 0], log_loss=log_loss[weight > 0])
        try:
            values, _ = _coefficients(own, end, _descent.look(own, end)[1])
            found.append(SimpleNamespace(coefficients=problem.form.kind(*values.tolist())))
        except ValueError:
            found.append(None)
    return found


def _best_ends(tables: _descent.Problem, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return θ [tables, p] and the sum [tables] of the best end of each table after a short search; the starts are
    [tables, s, p]."""
    count, many, size = starts.shape
    theta, value = _descent.ends_of(tables.of(np.repeat(np.arange(count), many)), starts.reshape(-1, size), SHORT)
    theta, value = theta.reshape(starts.shape), value.reshape(count, many)
    best = np.arange(count), np.argmin(value, axis=1)
    return theta[best], value[best]


def _second_ends(tables: _descent.Problem, ends: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return θ [tables, p] of better ends, where a search from the end of another table finds one."""
    count = len(ends)
    if count <= OTHERS:
        return ends
    sums = _descent.sums_at(tables, ends, every=True)
    np.fill_diagonal(sums, np.inf)
    again, lower = _best_ends(tables, ends[np.argsort(sums, axis=0)[:OTHERS].T])
    return np.where((lower < least * (1 - _descent.REACHED))[:, None], again, ends)


def fitted(form: Form, columns: tuple, loss: np.ndarray, huber: float | None, starts) -> tuple:
    """Return the report of the best start: the fields of `additive.AdditiveFit`, in their order."""
    search = searched(form, columns, loss, huber)
    if (problem := search.problem) is None:
        return reference.fitted(form, columns, loss, huber, starts)
    if starts is None:
        best = search.best
    else:
        best = _descent.best_of(problem, reference._begin(form, columns, form.centres(columns), problem, starts))
    residual, turn = _descent.look(problem, best.theta)
    values, away = _coefficients(problem, best.theta, turn)
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
    search = searched(form, columns, loss, huber)
    if (problem := search.problem) is None:
        return reference.intervals(form, columns, loss, huber, level, points, derived)
    quantile = student_quantile(level, problem.log_loss.size - len(form.positive))
    logs, known = (None, search.valley) if points is None else (problem.fast.logs(points), None)
    functions = [function for _, function in derived]
    profile_ends = _descent.profile(problem, search.begin(quantile), logs, quantile, functions, known)
    names, positive = ["prediction"] * len(profile_ends), np.ones(len(profile_ends), bool)
    if derived:
        names, positive = [name for name, _ in derived], ~positive
    elif points is None:
        names, positive = form.kind._fields, np.array(form.positive)
    with np.errstate(over="ignore"):
        others = profile_ends if derived else signed(profile_ends)
        profile_ends = np.where(positive[:, None], np.exp(profile_ends), others)
    if points is None and not derived:
        profile_ends[:, 0] = at_limits(form, profile_ends[:, 0], search.brought_back[1])
    profile_ends = profile_ends.tolist()
    return [(name, *ends, level) for name, ends in zip(names, profile_ends, strict=True)]


def _coefficients(problem: _descent.Problem, theta: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients [p] at θ, and which have vanished [p]; `turn` is from `_descent.look`."""
    away = np.abs(turn).max(axis=0) < _descent.GONE
    values = at_limits(problem.form, _descent.coefficients(problem, theta)[0], away)
    reference.check_representable(problem.form, values, away)
    return values, away


def _triangle(design: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the QR factors of `design`, scaled to columns of length 1; None if the columns are linearly dependent."""
    length = np.linalg.norm(design, axis=0)
    if not np.all(length > 0):
        return None
    unit, upper = np.linalg.qr(design / length)
    if np.linalg.svd(upper, compute_uv=False)[-1] <= INDEPENDENT:
        return None
    return unit, upper * length
