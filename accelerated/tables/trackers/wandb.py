"""Exports of Weights & Biases: a panel, the history of a run, and a table of runs with dictionaries in its cells."""

import ast
import re
from collections import Counter
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..reading import flat, is_json
from ..schema import BLANK, name_column, shorten
from .identity import check_distinct, marks_of, name_of_runs
from .log import STEP, STEPS, Log, checked_numbers, latest_branch, restart_remarks, whole_text

PANEL = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<range>__MIN|__MAX)?")
"""The header of a column of a panel."""

_CLOCKS = {"_timestamp", "_runtime"}
_EMPTY = re.compile(r"(?<![\w'\"])(nan|inf|-inf)(?![\w'\"])")


def read_panel(path: Path, cells: dict[str, list[str]], matches: list[re.Match]) -> Log:
    first = next(iter(cells))
    axis = STEP if first.casefold() in STEPS else first
    numbers, rows, spread = checked_numbers(path, cells, first), {}, []
    for match in matches:
        name = match.string
        if match["range"]:
            beside = numbers.get(name.removesuffix(match["range"]), numbers[name])
            if ((numbers[name] != beside) & ~np.isnan(numbers[name]) & ~np.isnan(beside)).any():
                spread.append(match["run"])
        elif axis != STEP or match["metric"] not in STEPS:
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


def is_history(path, cells: dict[str, list[str]]) -> bool:
    """Return whether a table is a history, in which each row is an evaluation and not a run."""
    marks = marks_of(cells)
    if "_step" not in cells or not (is_json(path) or _CLOCKS & set(cells)) or {"start", "end"} & set(marks.values()):
        return False
    if not is_json(path) and marks:
        return False
    counts = Counter(cells.get(name_column(cells), ()))
    single = sum(count == 1 for count in counts.values())
    return single == len(counts) or 2 * single < len(counts)


def read_history(path: Path, cells: dict[str, list[str]], columns: dict[str, str]) -> Log:
    """Return the history of runs. Without a column of names, the file is one run and has its name."""
    steps = checked_numbers(path, {"_step": cells["_step"]}, "_step")["_step"].tolist()
    called = name_of_runs(cells, columns)
    runs = cells.get(called, [path.name.partition(".")[0]] * len(steps))
    if called:
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
    times = checked_numbers(path, {"_timestamp": cells.get("_timestamp", [])}, "")["_timestamp"]
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


def unfolded(path, cells: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return a table whose dictionaries became columns, such as config.d_model and summary.val_loss."""
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
    return dict(flat(value))
