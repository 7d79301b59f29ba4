"""Exports of Weights & Biases and TensorBoard, as rows for `convert`.

The header of a file determines its kind:

    Step, "RUN - METRIC", "RUN - METRIC__MIN", ...    a panel of Weights & Biases: a column for each run and metric
    Wall time, Step, Value                            a metric of a run, downloaded from TensorBoard
    _step, in JSON lines, or with _timestamp          the history of runs, from the API of Weights & Biases
    metric (or key, tag) and value                    a long table: each metric becomes a column
    anything else                                     a table, such as the table of runs in Weights & Biases

Event files have known names (`events.py`). The first three kinds and event files are pieces of a log. A log has columns
`run` and `step`, and a column for each metric. Several pieces, such as a panel for each metric or a file for each run,
are joined by run and step. If a run restarted from an earlier step, its old rows from this step on are dropped.

The script in the manual of Weights & Biases writes a table of runs with dictionaries in its cells. Each entry becomes a
column, such as `config.d_model` and `summary.val_loss`.
"""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..wording import in_short
from .events import event_files, read_events
from .identity import check_distinct, last_branch, marks_of
from .log import STEP, Log, latest_branch, restart_remarks, whole_text
from .reading import is_json, read_cells
from .schema import BLANK, Problems, name_column, shorten, to_numbers
from .table import table_path

SCALARS = ["Wall time", "Step", "Value"]
"""The header of a metric downloaded from TensorBoard."""

_PANEL = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<range>__MIN|__MAX)?")
_FILE_OF_SCALARS = re.compile(r"run-(?P<run>.+)-tag-(?P<tag>.+)\.csv(\.gz)?")
_STEPS = ("step", "_step", "global_step", "trainer/global_step")
_CLOCKS = {"_timestamp", "_runtime"}
_LONG = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in (
    ("metric", r"(metric|key|tag)([ _.]?name)?"), ("value", r"(metric[ _.]?)?value"),
)}  # fmt: skip
"""Names of the two columns of a long table, such as those of MLflow, Aim, Comet and TensorBoard."""
_EMPTY = re.compile(r"(?<![\w'\"])(nan|inf|-inf)(?![\w'\"])")


class Table(NamedTuple):
    """A table, and remarks on dropped rows."""

    cells: dict[str, list[str]]
    remarks: list[str]


def read_piece(path, columns: dict[str, str]) -> Log | Table:
    """Return a file or a folder of event files as a piece of a log or as a table.

    Args:
        columns: {column of the results table: column of the file}, by the user.

    Raises:
        InputError: the file cannot be read, or a cell of a log is not a number.
    """
    if files := event_files(path):
        return read_events(path, files, columns)
    path = table_path(path)
    cells = read_cells(path).columns
    if list(cells) == SCALARS:
        return _scalars(path, cells)
    matches = [_PANEL.fullmatch(name) for name in list(cells)[1:]]
    if matches and all(matches):
        return _panel(path, cells, matches)
    if _is_history(path, cells):
        return _history(path, cells, columns)
    metrics = [name for name in cells if _LONG["metric"].fullmatch(name) and name not in columns.values()]
    values = [name for name in cells if _LONG["value"].fullmatch(name)]
    if len(metrics) == len(values) == 1:
        return _turned(path, cells, metrics[0], values[0], columns)
    return Table(_unfolded(path, cells), [])


def _is_history(path, cells: dict[str, list[str]]) -> bool:
    """Return whether a table is a history, in which each row is an evaluation and not a run."""
    marks = marks_of(cells)
    if "_step" not in cells or not (is_json(path) or _CLOCKS & set(cells)) or {"start", "end"} & set(marks.values()):
        return False
    if not is_json(path) and marks:
        return False
    counts = Counter(cells.get(name_column(cells), ()))
    single = sum(count == 1 for count in counts.values())
    return single == len(counts) or 2 * single < len(counts)


def _checked(path, cells: dict[str, list[str]], needed: str) -> dict[str, np.ndarray]:
    problems, numbers = Problems(path), {}
    for name, texts in cells.items():
        numbers[name], wrong = to_numbers(texts)
        rows = range(1, len(texts) + 1)
        problems.add_each(wrong, rows, name, texts.__getitem__, "a number")
        if name == needed:
            absent = ~wrong & ~np.isfinite(numbers[name])
            problems.add_each(absent, rows, name, texts.__getitem__, "a number that is finite")
    problems.raise_if_any()
    return numbers


def _scalars(path: Path, cells: dict[str, list[str]]) -> Log:
    """Return a metric of a run, downloaded from TensorBoard.

    The file name gives run and metric: run-RUN-tag-METRIC.csv, or RUN.csv with the metric Value.
    """
    match = _FILE_OF_SCALARS.fullmatch(path.name)
    run, metric = match.group("run", "tag") if match else (path.name.removesuffix(".gz").removesuffix(".csv"), "Value")
    steps = _checked(path, {name: cells[name] for name in SCALARS[1:]}, "Step")["Step"].tolist()
    kept, restarts = latest_branch([run] * len(steps), steps)
    rows = {}
    for i in kept:
        rows[run, whole_text(steps[i])] = {metric: cells["Value"][i].strip()}  # the later of two rows at a step counts
    return Log(STEP, rows, {}, restart_remarks(path, restarts))


def _panel(path: Path, cells: dict[str, list[str]], matches: list[re.Match]) -> Log:
    first = next(iter(cells))
    axis = STEP if first.casefold() in _STEPS else first
    numbers, rows, spread = _checked(path, cells, first), {}, []
    for match in matches:
        name = match.string
        if match["range"]:
            beside = numbers.get(name.removesuffix(match["range"]), numbers[name])
            if ((numbers[name] != beside) & ~np.isnan(numbers[name]) & ~np.isnan(beside)).any():
                spread.append(match["run"])
        elif axis != STEP or match["metric"] not in _STEPS:
            for at, cell in zip(numbers[first].tolist(), cells[name], strict=True):
                if cell.strip():  # NaN was logged, and stays
                    rows.setdefault((match["run"], whole_text(at)), {})[match["metric"]] = cell.strip()
    remarks = []
    if spread:
        runs = ", ".join(dict.fromkeys(spread))
        remarks.append(
            f"{path}: __MIN and __MAX differ from the value of {runs}: the value is a mean over runs of a group or"
            " neighbouring steps, not the value of one evaluation"
        )
    return Log(axis, rows, {}, remarks)


def _turned(path: Path, cells: dict[str, list[str]], metric: str, value: str, columns: dict[str, str]) -> Log:
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
        (name for name in (columns.get("step"), *_STEPS, columns.get("tokens"), "tokens") if name in cells), None
    )
    if axis is None:
        raise InputError(f"{path}: no column has the step of each {metric}; name one with --columns step=NAME")
    called = columns.get("hyper_id", name_column(cells))
    runs = [run.strip() for run in cells.get(called, [path.name.partition(".")[0]] * len(names))]
    steps = _checked(path, {axis: cells[axis]}, axis)[axis].tolist()
    curves, kept, restarts, rows = {}, [], {}, {}
    for i, key in enumerate(zip(runs, names, strict=True)):
        curves.setdefault(key, []).append(i)
    for (run, _), own in curves.items():
        own, restarted = last_branch(path, run, own, steps)
        kept, restarts = kept + own, restarts | restarted
    for i in sorted(kept):
        row = rows.setdefault((runs[i], whole_text(steps[i])), {})
        row |= {name: texts[i] for name, texts in cells.items() if name not in (metric, value)}
        row[names[i]] = cells[value][i]
    remark = f"{path}: each {metric} is a column now, with the cells of {value}"
    return Log(STEP, rows, {}, [remark, *restart_remarks(path, restarts)])


def _history(path: Path, cells: dict[str, list[str]], columns: dict[str, str]) -> Log:
    """Return the history of runs. Without a column of names, the file is one run and has its name."""
    steps = _checked(path, {"_step": cells["_step"]}, "_step")["_step"].tolist()
    called = columns.get("hyper_id", name_column(cells))
    runs = cells.get(called, [path.name.partition(".")[0]] * len(steps))
    if called in cells:
        check_distinct(path, cells, called, columns)
    order = _as_logged(path, cells, runs, steps)
    kept, restarts = latest_branch([runs[i] for i in order], [steps[i] for i in order])
    remarks, kept = restart_remarks(path, restarts), [order[i] for i in kept]
    metrics, rows = [name for name in cells if name not in ("_step", *_CLOCKS)], {}
    for i in kept:
        row = rows.setdefault((runs[i], whole_text(steps[i])), {})
        row.update((name, cells[name][i]) for name in metrics if cells[name][i].strip())
    return Log(STEP, rows, {}, remarks)


def _as_logged(path: Path, cells: dict[str, list[str]], runs: list[str], steps: list[float]) -> list[int]:
    """Return the indices of the rows, sorted by time. If a row has no time, they keep their order.

    Raises:
        InputError: a run goes back in step and in time, so it is probably two runs with the same name.
    """
    times = _checked(path, {"_timestamp": cells.get("_timestamp", [])}, "")["_timestamp"]
    if not times.size or not np.isfinite(times).all():
        return list(range(len(steps)))
    before: dict[str, int] = {}
    for i, run in enumerate(runs):
        j = before.get(run, i)
        if steps[i] < steps[j] and times[i] < times[j]:
            raise InputError(
                f"{path}: run {shorten(run)} goes back from step {whole_text(steps[j])} (row {j + 1}) to"
                f" {whole_text(steps[i])} (row {i + 1}) and back in time, so two runs share this name; needed: a name"
                " for each run"
            )
        before[run] = i
    return np.argsort(times, kind="stable").tolist()


def _unfolded(path, cells: dict[str, list[str]]) -> dict[str, list[str]]:
    folded = [
        name
        for name, texts in cells.items()
        if all(t.strip() in BLANK or (t.strip()[0], t.strip()[-1]) == ("{", "}") for t in texts) and any(texts)
    ]
    table, count = {}, len(next(iter(cells.values())))
    for name, texts in cells.items():
        if name not in folded or all(text.strip() in BLANK for text in texts):
            table[name] = texts
            continue
        for i, text in enumerate(texts):
            for key, value in _entries(path, i + 1, name, text).items():
                table.setdefault(f"{name}.{key}", [""] * count)[i] = value
    return table


def _entries(path, row: int, column: str, text: str) -> dict[str, str]:
    if text.strip() in BLANK:
        return {}
    try:
        value = ast.literal_eval(_EMPTY.sub("None", text.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{path}: row {row}, column {column}: {shorten(text)}; needed: a Python dictionary")
    return dict(_flat(value))


def _flat(found: dict, prefix: str = ""):
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "" if value is None else str(value)
