"""One law fitted to one router's rows, with everything that `fit`, `predict` and `plan` say about it.

    1. ROWS       `law_columns`     a choice of rows as the columns of a law (`law_columns.py`)
    2. FIT        `fit_law`         the law, its intervals, and its errors on rows that were left out
                  `fit_each`        the same for each router of a table, and why some routers have no fit
    3. DOUBT      `misfit_of`       where the law misses its own rows, and what these differ in beside its columns
    4. PREDICT    `predict_law`     a loss with two intervals: of the law, and of one more run

Intervals are the law's own (`Law.intervals`, `Law.predict_interval`). A fit with Huber's criterion instead of least
squares has none here, since it assumes no distribution.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..laws.catalogue import LAWS, Fit, Law
from ..laws.held_out import HeldOut, leave_one_group_out, leave_one_out
from ..laws.intervals import Predicted, Range
from ..tables.schema import DENSE, run_names
from ..tables.table import RouterRows
from ..wording import by_reason, plural
from .alike import Difference, Shorter, budgets, differences, proportional_tokens, row_doubts, shorter_runs
from .law_columns import law_columns
from .misfit import Misfit, Outlier, bend_in_size, beyond_seeds, by_size, largest_size, outliers, pulls, rise

LEVEL = 0.95
"""Confidence level of every interval, unless another is asked for."""

LOGARITHMIC = ("E_start", "E_max", "B_start", "B_max", "N_cutoff", "F_cutoff")
"""Sizes and numbers of experts, which are known well if they are known to a factor."""

OUTLIER = 4.0
"""Beyond how many robust standard deviations of the fit a row is left out in `_steepness`."""

SIZE = "dense_parameters"
"""The column of laws whose slopes are at sizes N."""

FAR = 10.0
"""How many times the nearer end of a slope's interval the farther one may be in a law that counts as determined."""


class LawFit(NamedTuple):
    """A law, fitted."""

    selection: RouterRows
    law: Law
    columns: tuple[np.ndarray, ...]  # of the law, [n] each
    loss: np.ndarray  # [n]
    fit: NamedTuple  # of `law.fit`
    ranges: list[Range]  # of `law.intervals`; empty with Huber's criterion
    slopes: list[Range]  # of `law.slopes` at each size N; empty with Huber's criterion, or for a law of other columns
    held_out: HeldOut | None  # leave one out; None with Huber's criterion, or where the fit fails
    held_out_size: HeldOut | None  # leave one size out
    determined: bool  # the law as a whole, see `is_determined`; a single coefficient by its own interval, `is_known`
    misfit: Misfit
    differences: list[Difference]  # what the rows differ in that the law does not know of
    shorter: list[Shorter]  # runs that end before most others of their size
    least_squares: tuple | None = None  # with Huber's criterion the fit by least squares, to stand beside it


def fit_law(
    selection: RouterRows, name: str | Law, loss_column: str, huber: float | None = None, level: float = LEVEL
) -> LawFit:
    """Fit a law to the rows of one router.

    Args:
        selection: of `select_rows`.
        name: of the law, a key of LAWS; or the law itself.
        loss_column: which loss.
        huber: delta in log10 units for the sum of Huber terms; for laws that have that option.
        level: of the intervals.

    Raises:
        ValueError: the rows do not determine the law, `huber` is given to a law without that option, or the fit of a
            registered law lacks a field.
    """
    law = LAWS[name] if isinstance(name, str) else name
    if selection.frame.empty:
        reasons = sorted({run["reason"] for run in selection.left_out})
        raise ValueError(f"no rows are left ({'; '.join(reasons)})")
    columns, loss = law_columns(selection, law, loss_column)
    check_huber(law, huber)
    fit = _fit(law, columns, loss, huber)
    ranges, slopes = [], []
    held_out = held_out_size = least_squares = None
    if huber is None:
        ranges, slopes = _intervals(law, fit, columns, loss, level)
        held_out = leave_one_out(law, columns, loss)
        held_out_size = leave_one_group_out(law, columns, loss, _sizes(selection))
    else:
        least_squares = law.fit(*columns, loss)
    determined = is_determined(slopes or _steepness(law, columns, loss, fit))
    misfit = misfit_of(selection, law, columns, loss, fit, held_out_size, huber)
    differing = _differences(selection, law, columns, loss) + row_doubts(selection, loss_column)
    differing += proportional_tokens(law.columns, columns, fit.coefficients)
    shorter = [] if "tokens" in law.columns else shorter_runs(selection.frame)
    return LawFit(
        selection, law, columns, loss, fit, ranges, slopes, held_out, held_out_size, determined, misfit, differing,
        shorter, least_squares,
    )  # fmt: skip


MOST_HUBER = 1e6
"""The largest delta of Huber's terms, in log10 units; long before it the fit is that by least squares."""


def check_huber(law: Law, huber: float | None) -> None:
    """Raise InputError where --huber is no delta, or is asked of a law that is fitted by least squares alone."""
    if huber is None:
        return
    if not law.takes_huber:
        able = ", ".join(each.name for each in LAWS.values() if each.takes_huber and each.measured == law.measured)
        raise InputError(
            f"--huber {huber:g}: the law {law.name} is fitted by least squares alone"
            + (f"; with --huber: {able}" if able else "")
        )
    if not 0 < huber <= MOST_HUBER:
        raise InputError(f"--huber {huber:g}: needed: a number above 0 and at most {MOST_HUBER:g}")


def _intervals(law: Law, fit, columns, loss, level: float) -> tuple[list[Range], list[Range]]:
    """Return the intervals of a fit by least squares, and those of its slopes where the law has them at sizes N."""
    ranges = law.intervals(fit, columns, loss, level)
    if law.slopes is None or law.columns[0] != SIZE:
        return ranges, []
    return ranges, law.slopes(fit, columns, loss, level)


def _sizes(selection: RouterRows) -> np.ndarray:
    """Return N of the rows, [n], whatever the columns of the law."""
    return selection.frame["dense_parameter_count"].to_numpy(dtype=np.float64)


def fit_some(
    selections: list[RouterRows], loss_column: str, fit: Callable, tell: Callable | None = None
) -> tuple[list, dict[str, str]]:
    """Return what `fit_each` does, where one router at least can be fitted.

    Raises:
        InputError: none can be; one line for each reason, with the routers that it holds for.
    """
    found, reasons = fit_each(selections, loss_column, fit, tell)
    if not found:
        lines = [f"router {', '.join(routers)}: {reason}" for reason, routers in by_reason(reasons).items()]
        raise InputError(*lines)
    return found, reasons


def fit_each(
    selections: list[RouterRows], loss_column: str, fit: Callable, tell: Callable | None = None
) -> tuple[list, dict[str, str]]:
    """Return what `fit` gives for each router, and why it gives nothing for some, by router.

    Args:
        selections: of `select_rows`.
        loss_column: which loss is fitted.
        fit: is called with one of the selections; a ValueError of it is the reason why that one cannot be fitted.
        tell: is called with a line on what is being done, if given.
    """
    found, reasons = [], {}
    for number, selection in enumerate(selections, 1):
        if tell is not None:
            tell(f"fitting {selection.router}, {number} of {len(selections)}: the law, intervals, rows left out")
        try:
            _check_losses_differ(selection, loss_column)
            found.append(fit(selection))
        except ValueError as error:
            left_out = f" ({plural(len(selection.left_out), 'run')} left out)" if selection.left_out else ""
            reasons[selection.router] = f"{error}{_perhaps_dense(selection)}{left_out}"
    return found, reasons


def _check_losses_differ(selection: RouterRows, loss_column: str) -> None:
    """Raise InputError where all rows have one loss, which a law would fit as a constant."""
    losses = selection.frame[loss_column]
    if len(losses) > 1 and losses.nunique() == 1:
        what = f"{loss_column} is {losses.iloc[0]:g} in all {len(losses)} rows"
        raise InputError(f"{what}; needed: losses that differ")


def _perhaps_dense(selection: RouterRows) -> str:
    """Return what to do where a router of the user's own has one expert in all of its rows."""
    own = selection.frame[selection.frame["router_type"] == selection.router]
    if selection.router == DENSE or own.empty or (own["num_experts"] != 1).any():
        return ""
    return (
        f"; its {len(own)} rows have num_experts 1: if they are dense, router_type has to be {DENSE}"
        f" (routelaws convert --map router_type:{selection.router}={DENSE})"
    )


def _fit(law: Law, columns, loss, huber: float | None):
    fit = law.fit(*columns, loss) if huber is None else law.fit(*columns, loss, huber=huber)
    missing = [name for name in Fit._fields if not hasattr(fit, name)]
    if missing:
        raise ValueError(f"the fit of the law {law.name} has no {missing[0]}; needed: {', '.join(Fit._fields)}")
    return fit


def _differences(selection: RouterRows, law: Law, columns, loss) -> list[Difference]:
    found = differences(selection.frame, law.axes == "compute", law.columns)
    return found + (budgets(selection.frame, columns[0], loss) if law.columns == ("flops",) else [])


def misfit_of(selection: RouterRows, law: Law, columns, loss, fit, held_out_size, huber: float | None) -> Misfit:
    """Return how a law misses its own rows; the F tests are those of least squares and are None with Huber's sum."""
    frame, found = selection.frame, np.asarray(law.predict(fit, *columns))
    size = _sizes(selection)
    miss = np.log10(loss) - np.log10(found)
    bend = seeds = None
    if huber is None:
        coefficients = law.coefficient_count(columns)
        if law.design is not None:
            said = np.isfinite(miss)  # not at a size without a line
            design = law.design(fit, *(column[said] for column in columns))
            bend = bend_in_size(size[said], miss[said], design, coefficients)
        differing = _differences(selection, law, columns, loss)
        if all(entry.where == "sizes" for entry in differing):  # else no point is one of seeds alone
            seeds = beyond_seeds(columns, miss, coefficients)
    far = outliers(frame["hyper_id"].to_numpy(), loss, found, run_names(frame))
    if not far and huber is None and np.isfinite(miss).all():
        far = _pulling_run(frame, law, columns, loss, miss)
    near = ~np.isin(frame["hyper_id"].to_numpy(), [run.hyper_id for run in far])
    return Misfit(
        by_size(size, miss),
        bend,
        seeds,
        largest_size(size, None if held_out_size is None else held_out_size.errors),
        far,
        _rmsle_of(law, [column[near] for column in columns], loss[near], huber) if far else None,
        rise(law, fit, columns),
    )


def _pulling_run(frame, law: Law, columns, loss, miss) -> list[Outlier]:
    """Return the run that misses most, alone, if it has pulled the law towards it; else nothing.

    Args:
        frame: the rows.
        law, columns, loss: as in `LawFit`.
        miss: [n], of the fit to all rows.
    """
    worst = int(np.argmax(np.abs(miss)))
    rest = np.arange(loss.size) != worst
    try:
        fit = _fit(law, [column[rest] for column in columns], loss[rest], None)
        predicted = np.asarray(law.predict(fit, *columns))
    except ValueError:
        return []
    again = np.log10(loss) - np.log10(predicted)
    if not (np.isfinite(again).all() and pulls(miss, again, worst, law.coefficient_count(columns))):
        return []
    spread, names = 1.4826 * float(np.median(np.abs(again[rest]))), run_names(frame) or {}
    times = abs(float(again[worst])) / spread if spread else math.inf
    one = int(frame["hyper_id"].iloc[worst])
    return [Outlier(one, float(loss[worst]), float(predicted[worst]), times, names.get(one, ""), by_others=True)]


def _rmsle_of(law: Law, columns, loss, huber: float | None) -> float | None:
    """Return the RMSLE of a fit to some rows; None where they do not determine the law."""
    try:
        return _fit(law, columns, loss, huber).rmsle
    except ValueError:
        return None


def _steepness(law: Law, columns, loss, fit) -> list[Range]:
    """Return the slopes by which a law is judged to be determined; none of a law that always is.

    They are those of least squares on the rows within OUTLIER robust standard deviations of the fit. Not asked where
    the fit's own slopes are there already (the law in (N, E) by least squares).
    """
    if law.slopes is None:
        return []
    residual = np.abs(np.log10(law.predict(fit, *columns) / loss))
    near = residual <= max(OUTLIER * 1.4826 * float(np.median(residual)), 1e-9)
    return law.slopes(fit, [column[near] for column in columns], loss[near], LEVEL)


def is_determined(slopes: list[Range]) -> bool:
    """Return whether the rows determine a bounded law: the slope b + c log10 N is known at every size given.

    Known means to a factor of FAR: no end of its interval is infinite, and the farther one is at most so many times the
    nearer one away from 0, or so many times the best value where 0 lies between them. If it is not, the rows cannot
    tell the law from a limit in which its coefficients run away together, and no coefficient should be read. Our
    choice.
    """
    for slope in slopes:
        far = max(abs(slope.low), abs(slope.high))
        near = abs(slope.value) if slope.low <= 0 <= slope.high else min(abs(slope.low), abs(slope.high))
        if not far <= FAR * near:
            return False
    return True


def is_known(name: str, value: float, words: str) -> bool:
    """Return whether a coefficient, or a number derived from them, is determined by its own interval.

    Both ends have to be there and, but for sizes and numbers of experts, at most a factor of ten apart: beyond that the
    best value is one of many that run away together. A law that is not determined as a whole can have coefficients
    that are: their intervals hold for every law that the rows allow. Our choice.

    Args:
        name: of the coefficient.
        value: the best value.
        words: of `laws.uncertainty.verdict`; "" where the interval is exact.
    """
    open_ended = ("bounded", "not") if name in LOGARITHMIC else ("bounded", "not", "loose")
    return math.isfinite(value) and not words.startswith(open_ended)


def predict_law(fitted: LawFit, at: tuple[float, ...], level: float = LEVEL) -> Predicted:
    """Return the loss at one point, the interval of the law there, and that of one more run, nats per token.

    Args:
        fitted: of `fit_law`, by the law's own criterion.
        at: the columns of the law.
        level: of the intervals.

    Raises:
        ValueError: the law says nothing there (per-size lines at a size without one), or a number is out of its range.
    """
    return fitted.law.predict_interval(fitted.fit, fitted.columns, fitted.loss, at, level)
