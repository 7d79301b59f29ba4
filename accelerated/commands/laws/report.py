"""The command `routelaws report`: write the report of a sweep or a run, or compare runs."""

import os
from pathlib import Path

from ...errors import InputError
from ...files import storage_errors
from ...findings.sweeps import run_pairs
from ...findings.sweeps.curves import curves_figure
from ...findings.sweeps.report import write_report
from ...results.blocks import Heading
from ...training.sweeps.sweep_folder import check_collected, check_plan, collect_rows
from ..output import write_folder
from ..terminal import Working, remark


def report(folders: tuple[Path, ...] = (), /, *, full: bool = False, out: Path | None = None) -> None:
    """Write the report of a sweep or of one run, or compare runs.

    Args:
        folders: The folder of one sweep: writes its report (report.md, report.html, report.json and figures) again. Or
            the folder of one run: writes report.html with its losses, loads, experts, settings and the command that
            repeats it. Or the folders of two or more runs: prints them side by side, with their differences from the
            first run.
        full: For a sweep: write every table, not only the results, their figures and the cautions.
        out: For several runs: the folder for comparison.md, comparison.html, comparison.json and a figure of the runs
            and of their differences after the same number of tokens.
    """
    if not folders:
        raise InputError("no folder is given; give the folder of a sweep, or the folders of runs")
    alone = len(folders) == 1 and os.path.exists(folders[0] / "config.json")
    if full and (alone or len(folders) > 1):
        raise InputError("--full is for the report of a sweep; leave --full out")
    if out is not None and len(folders) < 2:
        raise InputError(f"--out {out}: it is for the comparison of runs; name two or more, or leave out --out")
    if alone:
        from ...inspection.run_page import write_run_page

        print(write_run_page(folders[0], remark))
        return
    if len(folders) > 1:
        runs = run_pairs.beside(folders)
        print(run_pairs.run_table(runs))
        if out is not None:
            _write_comparison(folders, runs, out)
        return
    _collect(folders[0])
    with Working("writing the report: fits, intervals, figures"):
        text = write_report(folders[0], full)
    print(text, folders[0] / "report.html", sep="\n")


def _write_comparison(folders: tuple[Path, ...], runs: "pandas.DataFrame", out: Path) -> None:  # noqa: F821
    """Write the comparison of runs as a page with their curves and their differences at equal tokens."""
    from ...inspection.run_page import read_run

    read = {str(folder): read_run(folder) for folder in folders}
    curves = {name: rows[["tokens", "loss_validation"]].to_numpy().T for name, (_, rows) in read.items()}
    apart, blocks, figures = run_pairs.at_equal_tokens(curves), [Heading("Runs compared", 1)], {}
    if all(run.log for run, _ in read.values()):
        blocks += ["![Losses of the runs, and their differences](curves.svg)", CURVES]
        figures["curves"] = lambda: curves_figure({name: run for name, (run, _) in read.items()}, apart)
    blocks += [*run_pairs.run_blocks(runs), Heading("After the same number of tokens"), EQUAL]
    settings = run_pairs.settings_of(runs["config"])
    content = {"runs": runs.drop(columns="config"), "settings": settings, "at_equal_tokens": apart}
    write_folder(out, "comparison", [*blocks, run_pairs.equal_tokens_table(apart)], content, figures)
    print(out / "comparison.html")


CURVES = (
    "*Left: losses; dots are evaluations, and lines without dots are running means of the training loss. Right: "
    "validation loss minus that of the first run, after the same number of tokens.*"
)
EQUAL = "Validation losses in nats per token. Losses between two evaluations of a run are interpolated linearly."


def _collect(folder: Path) -> None:
    """Write the table of a sweep again, because a killed task of a job array may not have written it."""
    if os.path.exists(folder / "sweep.json") and os.path.isdir(folder / "runs"):
        with storage_errors(folder):
            check_plan(folder)
            check_collected(folder)
            collect_rows(folder)
