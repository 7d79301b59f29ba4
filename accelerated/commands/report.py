"""What `routelaws report` does: write the report of a sweep again, or compare runs."""

import os
from pathlib import Path

import tyro

from ..errors import InputError
from ..files import storage_errors
from ..report.sweep_report import write_report
from ..results.sweeps.run_pairs import beside, run_table
from ..training.sweeps.sweep_folder import check_collected, check_plan, collect_rows
from .terminal import Working


def report(folders: tyro.conf.Positional[tuple[Path, ...]], full: bool = False) -> None:
    """Write the report of a sweep again, or compare runs.

    Args:
        folders: The folder of one sweep: its report (report.md, report.html, report.json and figures) is written again.
            Or the folders of two or more runs of `routelaws train`: they are printed side by side, with differences
            from the first.
        full: For a sweep: write every table, not only the answer, its figures and the cautions.
    """
    if not folders:
        raise InputError("no folder is given; give the folder of a sweep, or the folders of two or more runs")
    if len(folders) == 1:
        _collect(folders[0])
    with Working("writing the report: fits, intervals, figures"):
        text = write_report(folders[0], full) if len(folders) == 1 else run_table(beside(folders))
    print(text)


def _collect(folder: Path) -> None:
    """Write the table of a sweep: a task of a job array may have been killed just before it did."""
    if os.path.exists(folder / "sweep.json") and os.path.isdir(folder / "runs"):
        with storage_errors(folder):
            check_plan(folder)
            check_collected(folder)
            collect_rows(folder)
