"""The table and the log of a run, cut back to the checkpoint that it goes on from."""

import csv
from pathlib import Path

from ..errors import InputError
from .result_rows import read_rows


def rows_until(path: Path, step: int, evaluations: set[int]) -> list[dict]:
    """Return the rows of a run's table up to a step.

    The row of the step itself may be missing: the last row is written when the last checkpoint is whole.

    Args:
        path: results.csv.
        step: of the checkpoint.
        evaluations: the steps that have a row.

    Raises:
        InputError: a row before that step is missing, so the file is not as it was written.
    """
    try:
        rows = [row for row in read_rows(path) if int(row["step"]) <= step]
    except (ValueError, KeyError, TypeError, csv.Error):
        rows = []
    found, wanted = [int(row["step"]) for row in rows], sorted(s for s in evaluations if s <= step)
    if found not in (wanted, [s for s in wanted if s < step]):
        raise InputError(
            f"{path}: is damaged: it has {len(found)} of the {len(wanted)} rows up to step {step}, where the last "
            "checkpoint is; put it back, or delete the folder to train this run anew"
        )
    return rows


def lines_until(lines: list[dict], step: int, evaluated: bool) -> list[dict]:
    """Return the lines of a log up to a step, without the evaluation of that step where it is still to be made."""
    return [line for line in lines if line["step"] <= step and (evaluated or not _evaluates(line, step))]


def _evaluates(line: dict, step: int) -> bool:
    return line["step"] == step and line["kind"] == "evaluation"
