"""Check the table and the log of a run, and cut both back to the checkpoint of the resumed run."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...files import read_bytes
from ..window_losses import read_window_losses
from .record import A_NEW_LOG, Record, check_log, check_rows
from .result_rows import as_text, read_rows
from .run_folder import check_losses, parse_line, read_log


class Kept(NamedTuple):
    """The log and table with which a run resumes."""

    rows: list[dict[str, str]]
    windows: list[str]  # see `record.Record`
    log: bytes


def kept_files(folder: Path, record: Record, step: int, steps: int, tell: Callable[[str], None]) -> Kept:
    """Return the table and the log of a run up to a checkpoint.

    Missing rows are restored from the record. A missing log begins again. Later rows and lines are dropped, because the
    run writes them again.

    Args:
        step: the step of the checkpoint.
        steps: the last step of the run.
        tell: called with a line for each missing file or row.

    Raises:
        InputError: a row or a line up to this step differs from the record, or the run would not write a later row or
            line again.
    """
    table, log, by = folder / "results.csv", folder / "log.jsonl", f"the checkpoint of step {step:,}"
    rows = [row for row in read_rows(table) if not step < int(row["step"]) <= steps]
    check_rows(table, rows, record, by)
    if len(rows) < len(record.rows):
        tell(f"{table}: has {len(rows)} of the {len(record.rows)} rows of {by}; the other rows are restored")
    if not os.path.exists(log):
        tell(f"{log}: is missing; a new log begins at step {step:,}")
        return Kept(record.rows, record.windows, b"")
    content = read_bytes(log)
    try:
        check_log(log, content, record, by)
    except InputError:
        read_log(log)  # raises an error that names a broken line
        raise
    ours, later = content[: record.log["bytes"]], content[record.log["bytes"] :]
    _check_later(log, ours.count(b"\n"), later, range(step + 1, steps + 1))
    return Kept(record.rows, record.windows, ours)


def _check_later(path: Path, before: int, later: bytes, steps: range) -> None:
    """Raise `InputError` if the run would not write a later line of the log again.

    Args:
        before: number of earlier lines.
        later: the later lines. A kill may have cut the last one, unless the run is finished.
        steps: the remaining steps.
    """
    *lines, cut = later.split(b"\n")
    lines += [cut] if cut and not steps else []
    for number, line in enumerate(lines, before + 1):
        step = parse_line(line, f"{path}, line {number}")["step"]
        if step not in steps:
            left = f"steps {steps[0]} to {steps[-1]} are left" if steps else "no step is left"
            raise InputError(f"{path}, line {number}: is of step {step}, but {left}; {A_NEW_LOG}")


def kept_files_of_older(folder: Path, step: int, evaluations: set[int], tell: Callable[[str], None]) -> Kept:
    """Return the table and the log of a run up to a checkpoint of an earlier version, which has no record.

    The row of the checkpoint's step may be missing, because it was written after the checkpoint.

    Args:
        evaluations: the steps of all evaluations; the last one is the last step of the run.
        tell: as in `kept_files`.

    Raises:
        InputError: a row before this step is missing, the run would not write a later row or line again, or a file is
            damaged.
    """
    path, log = folder / "results.csv", folder / "log.jsonl"
    read_window_losses(folder)  # raises errors before anything is written
    rows, lines = read_rows(path), read_log(log)
    for place, entries in ((path, rows), (log, lines)):
        last, end = max([int(entry["step"]) for entry in entries], default=0), max(evaluations)
        if last > end:
            raise InputError(f"{place}: has step {last:,}, but the run ends at step {end:,}; restore the file")
    rows = [row for row in rows if int(row["step"]) <= step]
    steps, wanted = [int(row["step"]) for row in rows], sorted(s for s in evaluations if s <= step)
    if steps not in (wanted, [s for s in wanted if s < step]):
        raise InputError(
            f"{path}: is damaged: it has {len(steps)} of the {len(wanted)} rows up to step {step}, the last "
            "checkpoint; restore it, or delete the folder to train this run again"
        )
    check_losses(path, rows, lines)
    if not os.path.exists(log):
        tell(f"{log}: is missing; a new log begins at step {step:,}")
    unfinished = step in evaluations and step not in steps
    lines = [line for line in lines if line["step"] <= step]
    anew = ("evaluation", "routing") if unfinished else ()
    lines = [line for line in lines if line["step"] < step or line["kind"] not in anew]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return Kept([as_text(row) for row in rows], [""] * len(rows), content)


def check_untrained(folder: Path, steps: int, checkpoints: set[int]) -> None:
    """Raise `InputError` if a run has no checkpoint, but its table or log proves that it had one.

    A run begins its second checkpoint only after the first is complete, and writes its last row after the last
    checkpoint.
    """
    rows = [int(row["step"]) for row in read_rows(folder / "results.csv")]
    reached = max([0, *rows, *(line["step"] for line in read_log(folder / "log.jsonl"))])
    if steps in rows or reached > sorted(checkpoints)[:2][-1]:
        raise InputError(
            f"{folder}: was trained up to step {reached:,} but has no checkpoint; restore its checkpoints, or delete "
            "the folder to train this run again"
        )
