"""The rows of laws of accuracy and of leverage: one group for each task and training set, or for each router.

accuracies   `accuracy_groups`     the tasks of a table of accuracies, as columns of a law
leverages    `leverage_groups`     a whole table of leverages
runs         `leverage_of_runs`    the leverages of a router's runs over the dense runs of the same table
"""

import re
from pathlib import Path

import numpy as np

from routelaws.reference.laws.compute import fit_compute
from routelaws.reference.laws.tasks.downstream import LEAST_GAIN

from ..errors import InputError
from ..laws.catalogue import LAWS, Law
from ..tables.accuracies import Accuracies, loss_name, read_accuracies, read_guess_rates
from ..tables.columns import Leverages, read_leverages
from ..tables.conditions import row_mask
from ..tables.released import data_folder, released_table
from ..tables.schema import DENSE, shorten
from ..tables.selection import RouterRows, select_rows
from ..tables.table import read_tables, table_path
from ..wording import plural
from .row_differences import left_out_lines
from .rows import COLUMNS, RowChoice, Rows, column_remarks, training_flops

SOME = 0.1
"""A warning follows if more than this share of a task's accuracies is far below the guess rate. Our choice."""

_ATTEMPTS = re.compile(r"(.+?)[ _]pass@(\d+)")


def read_groups(law: Law, path: Path, choice: RowChoice) -> tuple[list[Rows], dict[str, str], list[str]]:
    """Read a table of accuracies, a table of leverages, or a results table with dense and routed runs.

    Returns:
        (rows, reasons, remarks): the rows of each task or router; {name: reason} for a task or router without rows;
        remarks on derived and excluded rows.

    Raises:
        InputError: the table or the argument `choice` is wrong.
    """
    if law.measured == "accuracy":
        table = read_accuracies(path)
        rates = None if choice.tasks is None else read_guess_rates(choice.tasks)
        if rates is None and path == data_folder() / "overtraining_runs.csv":
            rates = read_guess_rates(released_table("downstream_tasks.csv"))
        choices = choice.task, choice.guess_rate, rates, choice.loss, choice.rows, choice.options
        return accuracy_groups(table, law, *choices), {}, table.remarks
    path = table_path(path)
    table = read_leverages(path)
    if table is not None:
        if choice.rows is not None:
            raise InputError(
                "--rows is for a results table, but a table of leverages is fitted whole; leave --rows out"
            )
        if choice.loss is not None:
            raise InputError(f"--loss {choice.loss}: a table of leverages has no loss; leave --loss out")
        return leverage_groups(table, choice.options), {}, []
    frame, groups, reasons = read_tables([path]), [], {}
    loss = choice.loss or "loss_validation"
    for selection in select_rows(frame, choice.rows, loss, axes="every"):
        try:
            groups.append(leverage_of_runs(selection, loss, choice.options))
        except ValueError as error:
            reasons[selection.router] = "; ".join([str(error), *left_out_lines(selection.left_out)])
    return groups, reasons, frame.attrs.get("remarks", [])


def accuracy_groups(
    table: Accuracies,
    law: Law,
    tasks: tuple[str, ...] = (),
    guess: float | None = None,
    rates: dict[str, float] | None = None,
    loss: str | None = None,
    rows: str | None = None,
    options: dict | None = None,
) -> list[Rows]:
    """Return the rows of each task and training set.

    Args:
        tasks: names of tasks; all tasks if empty. For a law in attempts, give the name without pass@K.
        guess: guess rate of every task; None for the rates of `rates` or the table.
        rates: {task: guess rate}, from a table of tasks.
        loss: the text whose loss a two-stage law uses; None for "validation" or, without such a loss, the table's first
            text.
        rows: a condition on params, tokens, flops, run, training_set, loss_TEXT and acc_TASK.

    Raises:
        InputError: the table lacks the task, the loss or a column of the law, or a guess rate is not stated.
    """
    chosen = np.ones(len(table.flops), bool) if rows is None else row_mask(_frame(table), rows)
    if not chosen.any():
        raise InputError(f"rows {rows!r}: no row matches; the table has {len(chosen)} rows")
    columns = {"flops": table.flops, "parameters": table.parameters, "tokens": table.tokens}
    if loss is not None and "loss" not in law.beside:
        raise InputError(f"--loss {loss}: the law {law.name} does not use a loss; two-stage laws do")
    if "loss" in law.beside:
        columns["loss"] = table.losses[loss_name(table, loss)]
    tried = _columns_of_tasks(table, law, tasks)
    groups = []
    for task in tried:
        for part in dict.fromkeys(table.training_set[chosen].tolist()):
            mask, parts_found = chosen & (table.training_set == part), []
            for name, attempts in tried[task]:
                more = {} if attempts is None else {"attempts": np.full(len(chosen), float(attempts))}
                known = mask & np.isfinite(table.accuracies[name])
                parts_found.append([*_columns(columns | more, law, known), table.accuracies[name][known]])
            *values, measured = (np.concatenate(parts) for parts in zip(*parts_found, strict=True))
            whole = np.all([np.isfinite(column) for column in values], axis=0)
            option = _guess(law, task, guess, rates, table)
            remarks = _below_guessing(measured[whole], option.get("guess_rate"))
            whole_columns = tuple(column[whole] for column in values)
            blank = int(mask.sum()) * len(parts_found) - int(whole.sum())
            more = option | (options or {})
            groups.append(
                Rows(task, whole_columns, measured[whole], part=part, options=more, remarks=remarks, blank=blank)
            )
    return groups


def leverage_groups(table: Leverages, options: dict | None = None) -> list[Rows]:
    columns = (table.activation, table.tian_granularity, table.flops)
    return [Rows("all rows", columns, table.leverage, options=options or {})]


def leverage_of_runs(selection: RouterRows, loss_column: str, options: dict | None = None) -> Rows:
    """Return the leverages of the runs of one router, compared with the dense runs of the same table.

    A power law of the dense runs (`compute.fit_compute`) gives the compute of a dense model with the same loss. In the
    law of leverage, A is k/E, and G is half the table's granularity.

    Raises:
        ValueError: fewer than 3 dense runs of 2 budgets, a column is missing, or dense losses do not fall with compute.
    """
    frame = selection.frame
    dense, flops = (frame["router_type"] == DENSE).to_numpy(), training_flops(frame)
    loss = frame[loss_column].to_numpy(dtype=np.float64)
    if dense.sum() < 3 or np.unique(flops[dense]).size < 2:
        raise ValueError(
            f"{plural(int(dense.sum()), 'dense run')}; a leverage needs at least 3 dense runs, with 2 or more "
            "different budgets; add dense runs, or a column leverage"
        )
    fit = fit_compute(flops[dense], loss[dense])
    if fit.status != "interior":
        raise ValueError(
            "the losses of the dense runs do not fall with compute, so no leverage can be computed from them"
        )
    A, alpha = fit.coefficients.A, fit.coefficients.alpha
    leverage = (A / loss[~dense]) ** (1 / alpha) / flops[~dense]
    outside = int(((loss[~dense] < loss[dense].min()) | (loss[~dense] > loss[dense].max())).sum())
    remarks = [
        f"leverage: FLOPs of a dense model with the same loss (by a power law of the {dense.sum()} dense runs), "
        f"divided by the run's FLOPs; {outside} of {leverage.size} runs have losses outside the range of the dense runs"
    ]
    remarks += column_remarks([selection], LAWS["leverage"])
    activation = 1 - COLUMNS["sparsity"](frame)[~dense]
    columns = activation, COLUMNS["granularity"](frame)[~dense] / 2, flops[~dense]
    fields = {"options": options or {}, "left_out": selection.left_out, "remarks": remarks}
    return Rows(selection.router, columns, leverage, **fields)


def _columns(columns: dict, law: Law, mask: np.ndarray) -> list[np.ndarray]:
    for name in (*law.columns, *law.beside):
        if name not in columns:
            there = ", ".join((*columns, "attempts", "loss"))
            raise InputError(
                f"the law {law.name} needs {name}, which is not in a table of accuracies; available: {there}"
            )
    return [columns[name][mask] for name in (*law.columns, *law.beside)]


def _columns_of_tasks(table: Accuracies, law: Law, tasks: tuple[str, ...]) -> dict[str, list[tuple[str, int | None]]]:
    there = _by_attempts(table) if "attempts" in law.columns else {name: [(name, None)] for name in table.accuracies}
    for task in tasks:
        if task not in there:
            raise InputError(f"--task {task}: no such task in the table; available: {', '.join(there) or 'none'}")
    return {task: there[task] for task in tasks or there}


def _by_attempts(table: Accuracies) -> dict[str, list[tuple[str, int]]]:
    """Return {task: [(column, attempts)]} of the columns that end in pass@K."""
    columns: dict[str, list[tuple[str, int]]] = {}
    for name in table.accuracies:
        match = _ATTEMPTS.fullmatch(name)
        if match:
            columns.setdefault(match[1], []).append((name, int(match[2])))
    if not columns:
        raise InputError("the table has no accuracies named TASK pass@K, which a law of repeated sampling needs")
    return columns


def _guess(law: Law, task: str, guess: float | None, rates, table: Accuracies) -> dict:
    """Return the guess rate as an option of the fit.

    Raises:
        InputError: no flag and no table has the guess rate.
    """
    if "guess_rate" not in law.options:
        return {} if guess is None else {"guess_rate": guess}  # the law rejects the option by name
    rate = (table.guess_rates | (rates or {})).get(task) if guess is None else guess
    if rate is None:
        raise InputError(
            f"task {shorten(task)}: the guess rate is not stated; add --guess-rate RATE (one over the number of "
            "choices, 0 for generated answers), --tasks TABLE or a column guess_TASK"
        )
    return {"guess_rate": rate}


def _below_guessing(accuracies: np.ndarray, rate: float | None) -> list[str]:
    below = accuracies[accuracies < (rate or 0.0) - LEAST_GAIN]
    if below.size <= SOME * accuracies.size:
        return []
    return [
        f"{below.size} of {accuracies.size} accuracies are more than {LEAST_GAIN:g} below the guess rate "
        f"{rate:.4g} (lowest: {below.min():.4g}); check the guess rate of the task (--guess-rate)"
    ]


def _frame(table: Accuracies):
    import pandas

    columns = {"run": table.run, "training_set": table.training_set, "params": table.parameters}
    columns |= {"tokens": table.tokens, "flops": table.flops}
    columns |= {f"loss_{name}": values for name, values in table.losses.items()}
    return pandas.DataFrame(columns | {f"acc_{name}": values for name, values in table.accuracies.items()})
