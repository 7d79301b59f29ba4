"""Long tables, with a row for each metric, such as those of MLflow, Aim and Comet: each metric becomes a column."""

import re
from pathlib import Path

from ...errors import InputError
from ...wording import in_short
from ..schema import shorten
from .identity import check_distinct, is_kind, last_branch, name_of_runs
from .log import STEP, STEPS, Log, checked_numbers, restart_remarks, whole_text

_METRIC, _VALUE = r"(metric|key|tag|variable|_field)([ _.]?name)?", r"(metric[ _.]?|_)?value"
"""Names of the two columns of a long table."""


def long_columns(cells: dict[str, list[str]], columns: dict[str, str]) -> tuple[str, str] | None:
    """Return the columns with the metric and its value; None if the table is not long."""
    metrics = [n for n in cells if re.fullmatch(_METRIC, n, re.IGNORECASE) and n not in columns.values()]
    values = [n for n in cells if re.fullmatch(_VALUE, n, re.IGNORECASE)]
    return (metrics[0], values[0]) if len(metrics) == len(values) == 1 else None


def read_long(path: Path, cells: dict[str, list[str]], metric: str, value: str, columns: dict[str, str]) -> Log:
    """Return a long table, with a row for each metric, as a log. Other columns keep their last cell at a step."""
    names = [name.strip() for name in cells[metric]]
    if named := next((name for name, column in columns.items() if column == value), None):
        raise InputError(
            f"{path}: --columns {named}={value} names no metric: each {metric} is a column now, with the cells of"
            f" {value}; name one of {in_short(dict.fromkeys(names), 12)}"
        )
    if twice := next((name for name in names if name in cells), None):
        raise InputError(f"{path}: {twice} is a column and a {metric}; rename or delete the column")
    axis = next(
        (name for name in (columns.get("step"), *STEPS, columns.get("tokens"), "tokens") if name in cells), None
    )
    called = name_of_runs(cells, columns)
    runs = [run.strip() for run in cells.get(called, [path.name.partition(".")[0]] * len(names))]
    if axis is None and len({*zip(runs, names, strict=True)}) == len(names):
        axis, cells = STEP, cells | {STEP: ["1"] * len(names)}  # one value of each metric
    if axis is None:
        raise InputError(f"{path}: no column has the step of each {metric}; name one with --columns step=NAME")
    check_distinct(path, cells, called, columns)
    steps = checked_numbers(path, {axis: cells[axis]}, axis)[axis].tolist()
    curves, kept, restarts, rows = {}, [], {}, {}
    for i, key in enumerate(zip(runs, names, strict=True)):
        curves.setdefault(key, []).append(i)
    for (run, _), own in curves.items():
        own, restarted = last_branch(path, run, own, steps)
        kept, restarts = kept + own, restarts | restarted
    losses, at, again = {column for name, column in columns.items() if name.startswith("loss_")}, {}, {}
    for i in sorted(kept):
        key = runs[i], whole_text(steps[i])
        j = at.get((key, names[i]), i)
        if names[i] in losses and cells[value][j] != cells[value][i]:
            both = f"{cells[value][j]} and {cells[value][i]} (rows {j + 1} and {i + 1})"
            if differ := [name for name, texts in cells.items() if texts[j] != texts[i] and is_kind(texts[i])]:
                raise InputError(
                    f"{path}: {names[i]} of run {shorten(key[0])} at step {key[1]} is {both}, in rows that differ in "
                    f"{in_short(differ)}; keep the rows of one of them"
                )
            again[key[1]] = None
        at[key, names[i]] = i
        row = rows.setdefault(key, {})
        row |= {name: texts[i] for name, texts in cells.items() if name not in (metric, value)}
        row[names[i]] = cells[value][i]
    remarks = [f"{path}: each {metric} is a column now, with the cells of {value}", *restart_remarks(path, restarts)]
    if again:
        counts = f"at step {in_short(again)}, the later loss counts"
        remarks.append(f"{path}: {counts}; if these are two runs, give each its own name")
    return Log(STEP, rows, {}, remarks)
