"""Laws of accuracy and of leverage, fitted to tables: one fit for each task and training set, or for each router.

    1. GROUP     `accuracy_groups`, `leverage_groups`    the rows of one fit, as the columns of a law
    2. FIT       `fit_group`                             the law, its intervals, and its errors on rows left out
    3. PREDICT   `predict_group`                         a number with two intervals, and what makes it an extrapolation

The laws of the loss are fitted in `law_fits.py`, whose tables have other columns.
"""

import re
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..laws.catalogue import LAWS, Law
from ..laws.compute import fit_compute
from ..laws.downstream import LEAST_GAIN
from ..laws.held_out import HeldOut, leave_one_group_out
from ..laws.intervals import Predicted, Range
from ..tables.accuracies import Accuracies, loss_name
from ..tables.conditions import row_mask
from ..tables.guess_rates import guess_rate
from ..tables.leverages import Leverages
from ..tables.table import DENSE, RouterRows
from ..wording import plural
from .hull import beyond, extrapolation, inside_hull
from .law_columns import COLUMNS, column_remarks, training_flops
from .law_fits import check_huber

SOME = 0.1
"""Share of the accuracies of a task beyond which those far below the rate of guessing are no chance. Our choice."""

_ATTEMPTS = re.compile(r"(.+?)[ _]pass@(\d+)")


class Group(NamedTuple):
    """The rows of one fit."""

    name: str  # of the task, or of the router
    part: str  # the training set, "" where the table names none
    columns: tuple[np.ndarray, ...]  # of the law, and then those that only its fit takes, [n] each
    measured: np.ndarray  # [n]
    options: dict  # of the fit
    remarks: list[str]
    blank: int = 0  # rows of the table that are not here, since the table lacks a number of theirs

    @property
    def label(self) -> str:
        return f"{self.name} on {self.part}" if self.part else self.name


class MeasuredFit(NamedTuple):
    """A law, fitted to one group."""

    group: Group
    law: Law  # with the options of the group
    fit: NamedTuple  # of `law.fit`
    ranges: list[Range]  # of `law.intervals`; empty with Huber's criterion
    held_out: HeldOut | None  # one value of the first column left out at a time


def accuracy_groups(
    table: Accuracies,
    law: Law,
    tasks: tuple[str, ...] = (),
    guess: float | None = None,
    rates: dict[str, float] | None = None,
    loss: str | None = None,
    rows: str | None = None,
    options: dict | None = None,
) -> list[Group]:
    """Return the rows of each task and training set.

    Args:
        table: of `read_accuracies`.
        law: of accuracy.
        tasks: those that are wanted; all if none is named. For a law in attempts, the task without its pass@K.
        guess: rate of guessing of every task; that of `rates`, of the table or of well-known tasks if None.
        rates: {task: rate of guessing}, of a table of tasks.
        loss: the text whose loss a law takes that goes through one; "validation", or the table's first, if None.
        rows: a condition on params, tokens, flops, run, training_set, loss_TEXT and acc_TASK.
        options: more keyword arguments of the fit.

    Raises:
        InputError: no such task or loss, or the law takes a column that no table of accuracies has.
    """
    chosen = np.ones(len(table.flops), bool) if rows is None else row_mask(_frame(table), rows)
    if not chosen.any():
        raise InputError(f"rows {rows!r}: no row of the table is so; {len(chosen)} rows are there")
    columns = {"flops": table.flops, "parameters": table.parameters, "tokens": table.tokens}
    if loss is not None and "loss" not in law.beside:
        raise InputError(f"--loss {loss}: the law {law.name} goes through no loss; two-stage laws do")
    if "loss" in law.beside:
        columns["loss"] = table.losses[loss_name(table, loss)]
    tried = _columns_of_tasks(table, law, tasks)
    groups = []
    for task in tried:
        for part in dict.fromkeys(table.training_set[chosen].tolist()):
            mask, found = chosen & (table.training_set == part), []
            for name, attempts in tried[task]:
                more = {} if attempts is None else {"attempts": np.full(len(chosen), float(attempts))}
                known = mask & np.isfinite(table.accuracies[name])
                found.append([*_columns(columns | more, law, known), table.accuracies[name][known]])
            *given, measured = (np.concatenate(parts) for parts in zip(*found, strict=True))
            whole = np.all([np.isfinite(column) for column in given], axis=0)
            option, remarks = _guess(law, task, guess, rates, table)
            remarks += _below_guessing(measured[whole], option.get("guess_rate"))
            own, blank = tuple(column[whole] for column in given), int(mask.sum()) * len(found) - int(whole.sum())
            groups.append(Group(task, part, own, measured[whole], option | (options or {}), remarks, blank))
    return groups


def leverage_groups(table: Leverages, options: dict | None = None) -> list[Group]:
    """Return the rows of a table of leverages, as one group."""
    columns = (table.activation, table.tian_granularity, table.flops)
    return [Group("all rows", "", columns, table.leverage, options or {}, [])]


def leverage_of_runs(selection: RouterRows, loss_column: str, options: dict | None = None) -> Group:
    """Return the leverages of the runs of one router over the dense runs beside them.

    The compute of a dense model of equal loss is that at which a power law of the dense runs, fitted by
    `compute.fit_compute`, has the loss of the run. A is k/E and G half of the table's granularity.

    Raises:
        ValueError: fewer than 3 dense runs of 2 budgets, a column is missing, or dense losses do not fall with compute.
    """
    frame = selection.frame
    dense, flops = (frame["router_type"] == DENSE).to_numpy(), training_flops(frame)
    loss = frame[loss_column].to_numpy(dtype=np.float64)
    if dense.sum() < 3 or np.unique(flops[dense]).size < 2:
        raise ValueError(
            f"{plural(int(dense.sum()), 'dense run')}; a leverage needs at least 3 of 2 budgets, or a column leverage"
        )
    fit = fit_compute(flops[dense], loss[dense])
    if fit.status != "interior":
        raise ValueError(
            "the losses of the dense runs do not fall with compute, so that there is no leverage over them"
        )
    A, alpha = fit.coefficients.A, fit.coefficients.alpha
    found = (A / loss[~dense]) ** (1 / alpha) / flops[~dense]
    outside = int(((loss[~dense] < loss[dense].min()) | (loss[~dense] > loss[dense].max())).sum())
    remarks = [
        f"leverage: training FLOPs at which a power law of the {dense.sum()} dense runs has the loss of a run, over "
        f"those of the run; {outside} of {found.size} runs have losses beyond those of the dense runs"
    ]
    remarks += column_remarks([selection], LAWS["leverage"])
    activation = 1 - COLUMNS["sparsity"](frame)[~dense]
    columns = activation, COLUMNS["granularity"](frame)[~dense] / 2, flops[~dense]
    return Group(selection.router, "", columns, found, options or {}, remarks)


def fit_group(law: Law, group: Group, level: float = 0.95, huber: float | None = None) -> MeasuredFit:
    """Fit a law to one group.

    Args:
        law: of the catalogue.
        group: its rows.
        level: of the intervals.
        huber: delta of Huber's terms, in the units of the fit, for laws that take it; their own criterion if None.

    Raises:
        ValueError: the rows do not determine the law, or it takes no such option.
    """
    law = law.with_options(**group.options)
    check_huber(law, huber)
    if huber is not None:
        fit = law.fit(*group.columns, group.measured, huber=huber)
        return MeasuredFit(group, law, fit, [], None)
    fit = law.fit(*group.columns, group.measured)
    ranges = law.intervals(fit, group.columns, group.measured, level)
    held_out = leave_one_group_out(law, group.columns, group.measured, group.columns[0])
    return MeasuredFit(group, law, fit, ranges, held_out)


def predict_group(fitted: MeasuredFit, at: tuple[float, ...], level: float = 0.95) -> tuple[Predicted, list[str]]:
    """Return what a fit says at one point, and in words why that leans on the form of the law.

    Raises:
        ValueError: as `Law.predict_interval`.
    """
    law, (_, _, columns, measured, *_) = fitted.law, fitted.group
    said = law.predict_interval(fitted.fit, columns, measured, at, level)
    own = columns[: len(law.columns)]
    found = extrapolation(beyond(law.columns, own, at), inside_hull(own, at))
    if law.measured == "accuracy" and not 0 <= said.value <= 1:
        found.append(f"the law gives {said.value:.4f}, which is no share of right answers: it does not hold there")
    elif law.measured == "accuracy" and not all(0 <= end <= 1 for end in (*said.law, *said.run) if np.isfinite(end)):
        found.append("an interval goes beyond 0 or 1, where no share of right answers is: read 0 or 1 there")
    return said, found


def _columns(columns: dict, law: Law, mask: np.ndarray) -> list[np.ndarray]:
    for name in (*law.columns, *law.beside):
        if name not in columns:
            there = ", ".join((*columns, "attempts", "loss"))
            raise InputError(f"the law {law.name} needs {name}, which a table of accuracies has not; there: {there}")
    return [columns[name][mask] for name in (*law.columns, *law.beside)]


def _columns_of_tasks(table: Accuracies, law: Law, tasks: tuple[str, ...]) -> dict[str, list[tuple[str, int | None]]]:
    """Return {task: [(column, attempts)]} of the tasks that are wanted; InputError where one is not there."""
    there = _by_attempts(table) if "attempts" in law.columns else {name: [(name, None)] for name in table.accuracies}
    for task in tasks:
        if task not in there:
            raise InputError(f"--task {task}: no such task in the table; there: {', '.join(there) or 'none'}")
    return {task: there[task] for task in tasks or there}


def _by_attempts(table: Accuracies) -> dict[str, list[tuple[str, int]]]:
    """Return {task: [(column, attempts)]} of the columns that end in pass@K."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name in table.accuracies:
        match = _ATTEMPTS.fullmatch(name)
        if match:
            found.setdefault(match[1], []).append((name, int(match[2])))
    if not found:
        raise InputError("the table has no accuracies named TASK pass@K, which a law of repeated sampling needs")
    return found


def _guess(law: Law, task: str, guess: float | None, rates, table: Accuracies) -> tuple[dict, list[str]]:
    """Return the guess rate as an option of the fit, and a remark where nobody says it."""
    if "guess_rate" not in law.options:
        return ({} if guess is None else {"guess_rate": guess}), []  # which the law refuses by its name
    if guess is not None:
        return {"guess_rate": guess}, []
    rate = guess_rate(task, table.guess_rates | (rates or {}))
    remarks = ["the rate of guessing is not known and taken as 0 (--guess-rate)"] if rate is None else []
    return {"guess_rate": rate or 0.0}, remarks


def _below_guessing(accuracies: np.ndarray, rate: float | None) -> list[str]:
    """Return a warning where many accuracies are far below the rate of guessing: it may be that of another task."""
    below = accuracies[accuracies < (rate or 0.0) - LEAST_GAIN]
    if below.size <= SOME * accuracies.size:
        return []
    return [
        f"{below.size} of {accuracies.size} accuracies are more than {LEAST_GAIN:g} below the rate of guessing, "
        f"{rate:.4g}, the least {below.min():.4g}: is this the rate of the task (--guess-rate)?"
    ]


def _frame(table: Accuracies):
    import pandas

    columns = {"run": table.run, "training_set": table.training_set, "params": table.parameters}
    columns |= {"tokens": table.tokens, "flops": table.flops}
    columns |= {f"loss_{name}": values for name, values in table.losses.items()}
    return pandas.DataFrame(columns | {f"acc_{name}": values for name, values in table.accuracies.items()})
