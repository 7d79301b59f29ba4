"""Decide which rows of a user's table are one run. Names of runs need not be unique.

    MARKS     `marks_of`         columns with an id, the start time or the end state of the run of a row
    KEYS      `told_apart`       rows of one name with several ids are several runs, unless `check_ids` doubts the ids
    DOUBT     `check_rows`       rows of one name and id are evaluations of one run; it is an error if each row seems
                                 to be a run, or if the steps go back

If hyper_id has whole numbers, nothing is checked: rows with the same number are one run, in any order. These rules are
our choice. Logs, where every row is an evaluation, are in `exports.py` and `events.py`.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from ..errors import InputError
from ..wording import in_short
from .cells import Cells
from .schema import BLANK, CONFIGURATION_COLUMNS, shorten

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


def told_apart(keys: list, cells: dict[str, list[str]], marks: dict[str, str]) -> tuple[list, str, dict]:
    """Return a key for each row, so that rows of one key have at most one id; and the column and the values of the ids.

    Args:
        keys: [rows], names of the runs.

    Returns:
        The unchanged keys, "" and {} if each name has one id. Otherwise (key, id) for every row, the first column in
        which a name has several ids, and {name: ids} of these names.
    """
    for column in (name for name, kind in marks.items() if kind != "end"):
        ids: dict = {}
        for key, cell in zip(keys, cells[column], strict=True):
            ids.setdefault(key, {})[cell.strip()] = None
        if several := {key: list(row_ids) for key, row_ids in ids.items() if len(row_ids) > 1}:
            return [(key, cell.strip()) for key, cell in zip(keys, cells[column], strict=True)], column, several
    return keys, "", {}


def check_rows(table: Cells, keys: list, called, marks: dict[str, str]) -> None:
    """Raise `InputError` if rows share a key but may belong to several runs. A column of ids prevents the error.

    Args:
        keys: [rows], the run of each row.
        called: key -> name of the run in messages.
    """
    places: dict = {}
    for i, row in enumerate(zip(keys, *table.cells.values(), strict=True)):
        places.setdefault(keys[i], {}).setdefault(hash(row), i)  # a repeated row counts once
    several = {key: list(rows.values()) for key, rows in places.items() if len(rows) > 1}
    if not several or {"id", "start"} & set(marks.values()):
        return
    first, rows = next(iter(several.items()))
    stands = f"{table.runs}: {called(first)} is in rows {in_short(row + 1 for row in rows)}"
    if marks:
        raise InputError(
            f"{stands}, but the column {next(iter(marks))} shows that the table has one row per run; give each run a "
            "unique name, or pass a column of ids: --columns hyper_id=ID"
        )
    if len(places) > 2 * len(several):
        raise InputError(
            f"{stands}, although most runs have one row; give each run a unique name, or, if these rows are "
            "evaluations of one run, use a whole number as hyper_id"
        )
    told = [table.cells[name] for name in CONFIGURATION_COLUMNS if name in table.cells]
    if any(len({cells[i] for i in rows_of_key}) > 1 for rows_of_key in several.values() for cells in told):
        return  # `check_runs` reports such rows
    _check_order(table, several, called, many=2 * len(several) > len(places))


def check_ids(table: Cells, keys: list, column: str, marks: dict[str, str]) -> None:
    """Raise `InputError` if the ids may belong to evaluations: each row has another id, and the steps of runs rise."""
    if len(marks) > 1 or column.casefold() not in ("id", "hash") or len(set(keys)) < len(keys):
        return
    steps, places = table.number("step"), {}
    for i, (name, _) in enumerate(keys):
        places.setdefault(name, []).append(i)
    if all(len(rows) > 1 and (np.diff(steps[rows]) > 0).all() for rows in places.values()):
        raise InputError(
            f"{table.runs}: column {column} has another value in each row, and the steps of each name rise; if each row"
            f" is a run, add --columns hyper_id={column}; if each row is an evaluation, remove the column"
        )


def _check_order(table: Cells, several: dict, called, many: bool) -> None:
    steps, tokens = table.number("step"), table.number("tokens")
    steps = tokens if np.isnan(steps).all() else steps
    back, forth = [], False
    for key, rows in several.items():
        pairs = [(i, j) for i, j in pairwise(rows) if np.isfinite(steps[[i, j]]).all()]
        back += [(key, i, j) for i, j in pairs if steps[j] < steps[i]][:1]
        forth = forth or any(steps[j] > steps[i] for i, j in pairs)
    if back and (forth or not many):
        key, i, j = back[0]
        back = f"from step {steps[i]:.0f} (row {i + 1}) to {steps[j]:.0f} (row {j + 1})"
        raise InputError(
            f"{table.runs}: {called(key)} goes back {back}; if it restarted, delete the rows that it abandoned; if the"
            " rows are unsorted, sort them by step; if these are two runs, give each its own name"
        )


def shown(name: str) -> str:
    return f"run {shorten(name)}"
