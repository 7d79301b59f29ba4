"""Logs of training: metrics of runs, joined from pieces."""

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...wording import in_short, plural
from ..schema import Problems, to_numbers

RUN, STEP = "run", "step"
"""Columns of every log; another axis, such as tokens, may replace step."""
FOLDER = "folder"
"""The folder of a run's folder; `--columns hyper_id=folder` joins the runs in it."""
STEPS = ("step", "_step", "global_step", "trainer/global_step")
"""Names of steps in logs."""
ROW = "row"
"""The number of a row; `--columns hyper_id=row` makes each row of a table a run."""


PARTS = (
    "train(ing)?([ _-](set|loss))?",
    "(val(id(ation)?)?|eval(uation)?|test(ing)?|dev|held[ _-]?out)([ _-](set|loss))?",
)
"""Texts of training and of other losses."""
PART = re.compile("|".join(PARTS), re.IGNORECASE)


class Log(NamedTuple):
    axis: str  # column that distinguishes the rows of a run: "step", or the panel's axis, such as tokens
    rows: dict[tuple[str, str], dict[str, str]]  # {(run, value of the axis): {metric: cell}}
    settings: dict[str, dict[str, str]]  # {run: {name: cell}}, settings of each run
    remarks: list[str]


class Source(NamedTuple):
    """An input of the conversion: a table, or all pieces of a log."""

    name: str  # the name in messages
    cells: dict[str, list[str]]
    at: list[str]  # the name of each row in messages
    remarks: list[str]
    is_log: bool  # whether each row is an evaluation of the run in the column `run`

    def of_rows(self, rows: list[int], *remarks: str) -> "Source":
        """Return the source with these rows and more remarks."""
        cells = {name: [column[i] for i in rows] for name, column in self.cells.items()}
        return self._replace(cells=cells, at=[self.at[i] for i in rows], remarks=[*self.remarks, *remarks])


def put_together(paths: list, pieces: list[Log]) -> Log:
    """Join the pieces of a log.

    Raises:
        InputError: the axes differ, or two pieces give different values of a run's metric at a step.
    """
    whole, by = Log(pieces[0].axis, {}, {}, []), {}
    for path, piece in zip(paths, pieces, strict=True):
        if piece.axis != whole.axis:
            raise InputError(
                f"{path}: its rows are by {piece.axis}, but the rows of {paths[0]} are by {whole.axis}; export all "
                "files with the same x-axis"
            )
        whole.remarks.extend(remark for remark in piece.remarks if remark not in whole.remarks)
        for run, settings in piece.settings.items():
            whole.settings.setdefault(run, {}).update(settings)
        for key, metrics in piece.rows.items():
            row = whole.rows.setdefault(key, {})
            for metric, cell in metrics.items():
                if row.setdefault(metric, cell) != cell:
                    raise InputError(
                        f"{path}: {metric} of run {key[0]} at {whole.axis} {key[1]} is {cell}, but {row[metric]} in"
                        f" {by[key, metric]}; needed: one value"
                    )
                by.setdefault((key, metric), path)
    return whole


def parts_joined(log: Log, columns: dict[str, str]) -> Log:
    """Return a log in which runs such as moe8/val belong to moe8 if --columns names their metrics, such as val/loss."""
    metrics = {metric for row in log.rows.values() for metric in row}
    runs, names, rows, settings = {*log.settings, *(run for run, _ in log.rows)}, {}, {}, {}
    for name, metric in ((name, metric) for name in {*columns.values()} - metrics for metric in metrics):
        part = name.removesuffix(f"/{metric}")
        for run in (run for run in runs if part != name and re.search(f"[/_ .-]{re.escape(part)}$", run)):
            names.setdefault(run, (run[: -len(part) - 1], {}))[1][metric] = name
    for (run, step), row in log.rows.items():
        whole, renamed = names.get(run, (run, {}))
        own = {renamed.get(name, name): whole if cell == run else cell for name, cell in row.items()}
        rows.setdefault((whole, step), {}).update(own)
    for run, row in log.settings.items():
        settings.setdefault(names.get(run, (run,))[0], {}).update(row)
    return log._replace(rows=rows, settings=settings)


def latest_branch(runs: list[str], steps: list[float]) -> tuple[list[int], dict[str, tuple[float, int]]]:
    """Drop the rows of a log that a restart replaces.

    If a run restarts at a step, its previous rows at this step or later are dropped, as in TensorBoard's reader.

    Args:
        runs: [n] the run of each row, in logging order.
        steps: [n] the step of each row.

    Returns:
        The indices of the kept rows, in order, and {restarted run: (step of its last restart, number of dropped rows)}.
    """
    branches: dict[str, list[int]] = {}
    restarts: dict[str, tuple[float, int]] = {}
    for i, (run, step) in enumerate(zip(runs, steps, strict=True)):
        branch = branches.setdefault(run, [])
        if branch and step < steps[branch[-1]]:
            before = len(branch)
            while branch and steps[branch[-1]] >= step:
                branch.pop()
            restarts[run] = step, restarts.get(run, (0, 0))[1] + before - len(branch)
        branch.append(i)
    return sorted(i for branch in branches.values() for i in branch), restarts


def continues(starts: dict) -> list[str]:
    """Return a remark on runs that may continue another run: {group: [(name of a run, its first step)]}."""
    pairs = (pair for runs in starts.values() for pair in pairwise(sorted(runs, key=lambda run: by_number(run[0]))))
    found = in_short(
        f"{later} starts at a later step than {earlier}" for (earlier, step), (later, first) in pairs if first > step
    )
    remedy = "if a resumed run is in several folders, add --columns hyper_id=folder: then a folder of runs is one run"
    return [f"{found}; {remedy}"] * bool(found)


def by_number(name: str) -> list:
    """Return a name with its numbers as numbers, so that version_10 follows version_2."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def restart_remarks(path, restarts: dict[str, tuple[float, int]]) -> list[str]:
    """Return a remark on the restarted runs of `latest_branch`."""
    if not restarts:
        return []
    runs = in_short(
        f"{run} from step {whole_text(step)} ({plural(rows, 'row')})" for run, (step, rows) in restarts.items()
    )
    return [
        f"{path}: restarted from an earlier step: {runs}; the earlier rows at or after this step are left out;"
        " if these are two runs with one name, give each its own name"
    ]


def as_cells(log: Log) -> dict[str, list[str]]:
    """Return a log as {column: [rows]}: runs in the order of the log, and rows of a run in the order of the axis."""
    order = {run: i for i, run in enumerate(dict.fromkeys(run for run, _ in log.rows))}
    keys = sorted(log.rows, key=lambda key: (order[key[0]], float(key[1])))
    metrics = dict.fromkeys(metric for row in log.rows.values() for metric in row)
    settings = dict.fromkeys(name for row in log.settings.values() for name in row)
    cells = {RUN: [run for run, _ in keys], log.axis: [value for _, value in keys]}
    cells |= {name: [log.settings.get(run, {}).get(name, "") for run, _ in keys] for name in settings}
    return cells | {name: [log.rows[key].get(name, "") for key in keys] for name in metrics}


def whole_text(value: float) -> str:
    """Return a number as text. Whole numbers have no decimal point."""
    return str(int(value)) if value % 1 == 0 else repr(float(value))


def checked_numbers(path, cells: dict[str, list[str]], needed: str) -> dict[str, np.ndarray]:
    """Return columns of a log as numbers.

    Raises:
        InputError: a cell is not a number, or a cell of the column `needed` is blank or not finite.
    """
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
