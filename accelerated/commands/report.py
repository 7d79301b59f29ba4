"""The command `routelaws report`: write the report of a sweep or a run, or compare runs."""

import os
from pathlib import Path

import tyro

from ..errors import InputError
from ..files import storage_errors
from ..findings.sweeps.run_pairs import beside, run_table
from ..report.sweep_report import write_report
from ..training.sweeps.sweep_folder import check_collected, check_plan, collect_rows
from .terminal import Working, remark


def report(folders: tyro.conf.Positional[tuple[Path, ...]], full: bool = False) -> None:
    """Write the report of a sweep or of one run, or compare runs.

    Args:
        folders: The folder of one sweep: writes its report (report.md, report.html, report.json and figures) again. Or
            the folder of one run: writes report.html with its losses, loads, experts, settings and the command that
            repeats it. Or the folders of two or more runs: prints them side by side, with their differences from the
            first run.
        full: For a sweep: write every table, not only the results, their figures and the cautions.
    """
    if not folders:
        raise InputError("no folder is given; give the folder of a sweep, or the folders of runs")
    alone = len(folders) == 1 and os.path.exists(folders[0] / "config.json")
    if full and (alone or len(folders) > 1):
        raise InputError("--full is for the report of a sweep; leave --full out")
    if alone:
        from ..inspection.run_page import write_run_page

        print(write_run_page(folders[0], remark))
        return
    if len(folders) == 1:
        _collect(folders[0])
    with Working("writing the report: fits, intervals, figures"):
        text = write_report(folders[0], full) if len(folders) == 1 else run_table(beside(folders))
    print(text)
    if len(folders) == 1:
        print(folders[0] / "report.html")


def _collect(folder: Path) -> None:
    """Write the table of a sweep again, because a killed task of a job array may not have written it."""
    if os.path.exists(folder / "sweep.json") and os.path.isdir(folder / "runs"):
        with storage_errors(folder):
            check_plan(folder)
            check_collected(folder)
            collect_rows(folder)
