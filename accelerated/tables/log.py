"""Logs of training: metrics of runs, joined from pieces."""

import bisect
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..wording import in_short, plural

RUN, STEP = "run", "step"
"""Columns of every log; another axis, such as tokens, may replace step."""
FOLDER = "folder"
"""The folder of a run's folder; `--columns hyper_id=folder` joins the runs in it."""


class Log(NamedTuple):
    axis: str  # column that distinguishes the rows of a run: "step", or the panel's axis, such as tokens
    rows: dict[tuple[str, str], dict[str, str]]  # {(run, value of the axis): {metric: cell}}
    settings: dict[str, dict[str, str]]  # {run: {name: cell}}, settings of each run
    remarks: list[str]


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
        whole.remarks.extend(piece.remarks)
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


def abandoned(rows: list[int], often: list[int], steps) -> tuple[set[int], float]:
    """Return those rows of a run that a restart replaced, and the step of its last restart; NaN without a restart.

    A run restarted if its steps go back, it repeats a step, and it keeps its first row. Two runs of one name both begin
    at the first step, and unsorted rows repeat no step.

    Args:
        rows: rows of a metric, in logging order.
        often: rows of the metric that shows the restart: the same one, or one that the run logs more often.
        steps: the step of each row of the table.
    """
    logged = [steps[i] for i in often]
    kept, restarts = latest_branch([""] * len(logged), logged)
    if not restarts or kept[0] or len(set(logged)) == len(logged):
        return set(), math.nan
    later = [*np.minimum.accumulate(logged[::-1])[::-1], math.inf]  # the least step in and after a row
    # In a table that is sorted by metric, all rows of `often` are before or after a row of another metric.
    replaced = {i for i in rows if often[0] < i and later[bisect.bisect(often, i)] < steps[i]}
    return replaced | set(rows) & set(often) - {often[i] for i in kept}, restarts[""][0]


def continues(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a remark on (run, earlier run) if the first may continue the second."""
    found = in_short(f"{later} starts at a later step than {earlier}" for later, earlier in pairs)
    remedy = "if a resumed run is in several folders, add --columns hyper_id=folder: then a folder of runs is one run"
    return [f"{found}; {remedy}"] * bool(found)


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
