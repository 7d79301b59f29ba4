"""Decide which rows of a user's table are one run: the rows of one name, so each run needs its own name.

Columns with an id, the start time or the end state of runs show a name that several runs share, which is an error. If
hyper_id has whole numbers, nothing is checked. Without names, all rows are one run. These rules are our choice.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import groupby, pairwise

import numpy as np

from ...errors import InputError
from ...wording import in_short
from ..schema import ABSENT, BLANK, CONFIGURATION_COLUMNS, name_column, shorten, to_numbers
from ..units import UNITS_OF
from .log import FOLDER, STEP, Source, latest_branch, restart_remarks

IDS = (
    "id", "run_id", "run id", "run.id", "run_uuid", "hash", "run_hash", "run hash", "run.hash", "sys/id",
    "experiment_key", "experimentkey", "trial_id",
)  # fmt: skip
"""Columns with the id of a run in Weights & Biases, MLflow, Aim, Neptune, Comet and TensorBoard, in small letters."""

STARTS = ("created", "createdat", "start_time", "start time", "sys/creation_time")
"""Columns with the start time of a run, for the same programs."""

ENDS = ("state", "status", "lifecycle_stage", "sys/state")
"""Columns with the end state of a run (values as in `_ENDED`); each row is then one run."""

_ENDED = {
    "finished", "crashed", "failed", "killed", "running", "preempted", "preempting", "pending", "queued", "scheduled",
    "completed", "complete", "success", "succeeded", "error", "aborted", "stopped", "done", "active", "inactive",
}  # fmt: skip


_CONTINUED = (
    r"((^|[/_ .-])((checkpoint|ckpt|step|iter|epoch|part|tokens)[-_ =]?\d+[kmbt]?|(resum|restart|cont)(inu)?e?d?\d*))+$"
)
"""The end of a name of a checkpoint or of a continued run."""
_UNNAMED = "a run without a name"
BY_ROW = "--columns hyper_id=row makes each row a run"


def marks_of(cells: dict[str, list[str]], apart: Iterable[str] = ()) -> dict[str, str]:
    """Return {column: "id", "start" or "end"} of the columns with an id, start time or end state, ids first.

    Args:
        apart: columns to ignore, such as the column of run names.
    """
    kinds = dict.fromkeys(IDS, "id") | dict.fromkeys(STARTS, "start") | dict.fromkeys(ENDS, "end")
    marks = {name: kinds[name.casefold()] for name in cells if name.casefold() in kinds and name not in apart}
    for name, kind in list(marks.items()):
        there = {cell.strip().casefold() for cell in cells[name]} - {each.casefold() for each in BLANK}
        counter = name.casefold() == "id" and all(cell.isdigit() for cell in there)  # this id counts rows, not runs
        if not there or counter or (kind == "end" and not there <= _ENDED):
            del marks[name]
    return dict(sorted(marks.items(), key=lambda item: ("id", "start", "end").index(item[1])))


def check_distinct(path, cells: dict[str, list[str]], called: str | None, columns: dict[str, str]) -> None:
    """Raise `InputError` if rows of one name, or rows without names, may be several runs.

    Args:
        called: the column with the names of the runs; None if there is none.
        columns: {column of the results table: column of the file}, by the user.
    """
    if called is None:
        marks, configuration = marks_of(cells), (columns.get(each, each) for each in CONFIGURATION_COLUMNS)
        for name in () if "hyper_id" in columns else (*marks, *configuration):
            texts, kind = [cell.strip() for cell in cells.get(name, ())], marks.get(name)
            if len(texts if kind == "end" else set(texts)) > 1:
                raise InputError(
                    f"{path}: no column names the runs, but rows are several runs by {name}; add --columns hyper_id="
                    f"{name if kind in ('id', 'start') else 'NAME'}, with a column that names each run; {BY_ROW}"
                )
        return
    if not to_numbers(cells[called])[1].any():
        return
    rows: dict[str, dict[tuple, int]] = {}
    for i, row in enumerate(zip(*cells.values(), strict=True)):
        rows.setdefault(cells[called][i].strip(), {}).setdefault(row, i)  # a repeated row counts once
    repeated = {name: list(of_name.values()) for name, of_name in rows.items() if len(of_name) > 1}
    for column, kind in marks_of(cells, [called]).items():
        for name, at in repeated.items():
            if kind == "end" or len({cells[column][i].strip() for i in at}) > 1:
                remedy = f"or add --columns hyper_id={'ID' if kind == 'end' else column}"
                raise InputError(
                    f"{path}: {_shown(name)} is in rows {in_short(i + 1 for i in at)}, which are several runs by "
                    f"the column {column}; give each run its own name, {remedy}; if the rows are evaluations of one "
                    f"run, delete the column {column}"
                )


def check_single(source: Source, columns: dict[str, str]) -> None:
    """Raise `InputError` if a name is in several rows of a table without steps, or in which most runs have one row."""
    called, rows = name_of_runs(source.cells, columns), {}
    if source.is_log or called is None or not to_numbers(source.cells[called])[1].any():
        return
    for at, name in zip(source.at, source.cells[called], strict=True):
        rows.setdefault(name.strip(), []).append(at)
    repeated = [name for name, of_name in rows.items() if len(of_name) > 1]
    steps, why = steps_of(source.cells, columns), "although most runs have one row"
    if repeated and (not steps or len(rows) > 2 * len(repeated)):
        if not steps:
            column = columns.get(STEP, STEP)
            why = f"but no column has the step or the tokens of every row (--columns step={step_like(source.cells)})"
            why = f"but {column} is no number in every row" if column in source.cells else why
        stands = f"{source.name}: {_shown(repeated[0])} is in {in_short(rows[repeated[0]])}"
        raise InputError(f"{stands}, {why}; give each run its own name, or number the runs; {BY_ROW}")


def _shown(name: str) -> str:
    return name if name == _UNNAMED else f"run {shorten(name)}"


def name_of_runs(cells: dict[str, list[str]], columns: dict[str, str]) -> str | None:
    """Return the column with the names of the runs; None if there is none."""
    return next((name for name in (columns.get("hyper_id"), "hyper_id", name_column(cells)) if name in cells), None)


def step_like(names: Iterable[str]) -> str:
    """Return the first name that may be that of a step; NAME if there is none."""
    return next((name for name in names if re.search("step|epoch|iter", name, re.IGNORECASE)), "NAME")


def steps_of(cells: dict[str, list[str]], columns: dict[str, str]) -> list[float]:
    """Return the steps of a table or else its tokens; [] if neither is known in every row."""
    for name, units in ((STEP, None), ("tokens", UNITS_OF["tokens"])):
        steps = to_numbers(cells.get(columns.get(name, name), [""]), units)[0]
        if np.isfinite(steps).all():
            return steps.tolist()
    return []


def on_one_branch(source: Source, columns: dict[str, str], losses: list[str]) -> Source:
    """Return a source with one row for each run and step, without the rows that a restart replaced.

    The rows of a run are in logging order. In each column, the last value of a step counts. Without steps, only rows
    that equal an earlier row are dropped.

    Args:
        losses: columns of losses.

    Raises:
        InputError: a name may be the name of several runs, or the rows of a run are not sorted.
    """
    called, steps = name_of_runs(source.cells, columns), steps_of(source.cells, columns)
    if not source.is_log:
        check_distinct(source.name, source.cells, called, columns)
    runs = [*dict.fromkeys(cell.strip() for cell in source.cells.get(called, ()))]
    bases = [re.sub(_CONTINUED, "", name, flags=re.IGNORECASE) for name in runs]
    counts = Counter(bases)
    parts = in_short(name for name, base in zip(runs, bases, strict=True) if counts[base] > 1)
    remarks = [f"{parts} seem to be one run, by their names; if so, give all one name"] * bool(parts)
    if not steps:
        equal: dict[tuple, list[int]] = {}
        for i, row in enumerate(zip(*source.cells.values(), strict=True)):
            equal.setdefault(row, []).append(i)
        again = in_short(source.at[i] for rows in equal.values() for i in rows[1:])
        remarks += [f"left out, because each equals an earlier row in every cell: {again}"] if again else []
        return source.of_rows([rows[0] for rows in equal.values()], *remarks)
    names, rows = [cell.strip() for cell in source.cells.get(called, [""] * len(steps))], {}
    for i, name in enumerate(names):
        rows.setdefault(name or _UNNAMED, []).append(i)
    kept, restarts, again = [], {}, []
    for name, own in rows.items():
        if not source.is_log or called == FOLDER:
            own, restarted = last_branch(source.name, name, own, steps, source.is_log)
            restarts |= restarted
        kept += _one_row_a_step(source, columns, name, own, steps, losses, again)
    remarks += restart_remarks(source.name, restarts)
    if again:
        later = f"at step {in_short(dict.fromkeys(again))}, the later loss counts"
        remarks.append(f"{later}; if these are two runs, give each its own name")
    return source.of_rows(sorted(kept), *remarks)


def last_branch(path, name: str, rows: list[int], steps: list[float], sure: bool = False) -> tuple[list[int], dict]:
    """Return the rows of a run that no restart replaced, and its restart (see `latest_branch`).

    A run restarted if its steps go back, it repeats a step, and it keeps its first row. Two runs of one name both begin
    at the first step, and unsorted rows repeat no step. If the name is a number, its rows may be in any order.

    Args:
        rows: the rows of the run, in logging order.
        steps: the step of each row of the table.
        sure: whether steps that go back are always a restart.

    Raises:
        InputError: the steps go back for another reason.
    """
    kept, restarted = latest_branch([name] * len(rows), [steps[i] for i in rows])
    at_once = [step for step, _ in groupby(steps[i] for i in rows)]
    if sure or not restarted or (kept[0] == 0 and len(set(at_once)) < len(at_once)):
        return [rows[i] for i in kept], restarted
    if not to_numbers([name])[1].any():
        return rows, {}
    i, j = next((i, j) for i, j in pairwise(rows) if steps[j] < steps[i])
    back = f"goes back from step {steps[i]:.0f} (row {i + 1}) to {steps[j]:.0f} (row {j + 1})"
    raise InputError(
        f"{path}: {_shown(name)} {back}; if it restarted, delete the rows that it abandoned; if the rows are unsorted, "
        "sort them by step; if these are two runs, give each its own name"
    )


def _one_row_a_step(source: Source, columns: dict, name: str, rows: list[int], steps, losses, again: list) -> list[int]:
    """Join the rows of a run and step in place; return the rows that stay, and add steps with two losses to `again`.

    Rows that differ in the configuration stay, and `read_table` reports them.

    Raises:
        InputError: the first step of a table has two losses, so two runs may share a name.
    """
    groups, kept = {}, []
    fixed = [column for each in CONFIGURATION_COLUMNS if (column := columns.get(each, each)) in source.cells]
    for i in rows:
        groups.setdefault(steps[i], []).append(i)
    for step, own in ((step, own) for step, own in groups.items() if len(own) > 1):
        values = {
            column: [cell for i in own if (cell := cells[i].strip()) not in ABSENT]
            for column, cells in source.cells.items()
        }
        if any(len(set(values[column])) > 1 for column in fixed):
            kept += own[1:]
            continue
        if column := next((column for column in losses if len(set(values[column])) > 1), None):
            several = [name for name, cells in values.items() if name not in losses and len(set(cells)) > 1]
            kinds = any(is_kind(cell) for name in several for cell in values[name])
            if kinds or (step == min(groups) and not source.is_log):
                both = " and ".join(dict.fromkeys(values[column]))
                where = f", in rows that differ in {in_short(several)}" if several else ""
                raise InputError(
                    f"{source.name}: {_shown(name)} has {both} in column {column} at step {step:.0f} "
                    f"({source.at[own[0]]}){where}; if two runs share this name, give each its own name, as by "
                    "--columns hyper_id=NAME; else keep one row for each step"
                )
            again.append(f"{step:.0f}")
        for column, cells in values.items():
            source.cells[column][own[0]] = cells[-1] if cells else ""
    return kept + [own[0] for own in groups.values()]


def is_kind(cell: str) -> bool:
    """Return whether a cell may name a kind of loss, such as train or c4: it is no number, date or time."""
    is_text = bool(to_numbers([cell])[1][0])
    return is_text and bool(re.search("[a-z]", cell, re.IGNORECASE)) and len(re.findall(r"\d", cell)) < 6
