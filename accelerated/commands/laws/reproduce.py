"""The command `routelaws reproduce`: compare a results table with the paper."""

from pathlib import Path

import markdown_it  # noqa: F401  # the report needs these packages at the end: fail before minutes of work
import matplotlib  # noqa: F401

from ...errors import printable
from ...findings.report import write_reproduction
from ...laws.catalogue import LAWS
from ...results.fit import check_huber
from ...results.rows import BOUNDED
from ...tables.released import released_runs
from ..terminal import remark


def reproduce(
    tables: tuple[Path, ...] = (),
    /,
    *,
    out: Path,
    rows: str | None = None,
    loss: str | None = None,
    huber: float | None = None,
    full: bool = False,
) -> None:
    """Compare a results table with the paper: report.md, report.html, results.json and figures.

    The report and the terminal warn of differences that can bias a law unnoticed: runs that differ in training tokens,
    corpus, vocabulary or objective, runs that end early, and runs far from the law.

    Args:
        tables: Results tables, or folders of runs or sweeps. If not given: the runs that the paper's authors released.
        out: Folder of the report. An existing report in it is replaced.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or "k == 1 and
            num_experts in (1, 16, 64)". If not given: clark for the released runs; for other runs, as in `routelaws
            fit`.
        loss: Column of the main loss. If not given: loss_validation.
        huber: In addition to least squares, fit the law by the sum of Huber terms with this delta (in log10 units).
        full: Write every table, not only the results, their figures and the cautions.
    """
    check_huber(LAWS[BOUNDED], huber)  # check this before fetching a table
    tables = tables or (released_runs(rows),)
    report = write_reproduction(tables, out, rows, loss, huber, remark, full)
    print(printable(str(report)), printable(str(out / "report.html")), sep="\n")
