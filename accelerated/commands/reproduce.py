"""What `routelaws reproduce` does: hold a results table against the paper."""

import sys
from pathlib import Path

import markdown_it  # noqa: F401  # the pages are written last: what is missing is said before minutes of work
import matplotlib  # noqa: F401
import tyro

from ..report.reproduce.write import write_reproduction
from ..tables.released import released_table


def reproduce(
    tables: tyro.conf.Positional[tuple[Path, ...]] = (),
    *,
    out: Path,
    rows: str | None = None,
    loss: str | None = None,
) -> None:
    """Hold a results table against the paper: report.md, report.html, results.json and figures.

    Args:
        tables: A results table, or the folder of a run or sweep, or several; if none is given, the one that the paper's
            authors released.
        out: Folder of the report; a report in it is replaced.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
            such as "k == 1 and num_experts in (1, 16, 64)"; if not given, clark for the released runs and
            every seed for others.
        loss: Column of the main loss; loss_validation if not given.
    """
    if not tables:
        tables = (released_table(),)
    print(write_reproduction(tables, out, rows, loss, say=lambda line: print(line, file=sys.stderr, flush=True)))
