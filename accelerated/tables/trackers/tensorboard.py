"""A metric of a run, downloaded from TensorBoard as CSV. The file name gives both: run-RUN-tag-METRIC.csv."""

import re
from pathlib import Path

from .log import STEP, Log, checked_numbers, latest_branch, restart_remarks, whole_text

SCALARS = ["Wall time", "Step", "Value"]
"""The header of such a file."""

_FILE = re.compile(r"run-(?P<run>.+)-tag-(?P<tag>.+)\.csv(\.gz)?")

_UNNAMED = (
    "each file with the columns Wall time, Step and Value is a run with the name of the file; if files are metrics of "
    "one run, name them run-RUN-tag-METRIC.csv"
)


def read_scalars(path: Path, cells: dict[str, list[str]]) -> Log:
    """Return a metric of a run, downloaded from TensorBoard.

    A file with another name, such as RUN.csv, has the metric Value.
    """
    match = _FILE.fullmatch(path.name)
    run, metric = match.group("run", "tag") if match else (path.name.removesuffix(".gz").removesuffix(".csv"), "Value")
    steps = checked_numbers(path, {name: cells[name] for name in SCALARS[1:]}, "Step")["Step"].tolist()
    kept, restarts = latest_branch([run] * len(steps), steps)
    rows = {}
    for i in kept:
        rows[run, whole_text(steps[i])] = {metric: cells["Value"][i].strip()}  # the later of two rows at a step counts
    return Log(STEP, rows, {}, restart_remarks(path, restarts) + ([] if match else [_UNNAMED]))
