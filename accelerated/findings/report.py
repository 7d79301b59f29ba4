"""Write reports: for any results table, and for a sweep (`sweep_report`).

    1. READ     `table.open_runs`         a table
    2. FIND     `gather.gather`           every number, as a dictionary
    3. DRAW     `figures.draw_all`        figures/NAME.png and .svg, from these numbers
    4. SAY      `markdown`                report.md from the sections, and report.html from that

A report is for readers who have not read the paper. It describes all finished runs, also if routing does not help.
"""

import re
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..files import make_folder, write_atomically
from ..results.blocks import Heading
from ..results.blocks import markdown as blocks_markdown
from ..results.encoding import dumps
from ..tables.table import named
from . import advice, isoflop, law, routers
from . import closing as table_sections
from .draw import draw_all
from .finding import Report, anchor, bullets
from .gather import FINDINGS, gather
from .opening import cautions_of, first_page
from .page import page
from .source import Source, open_runs
from .sweeps import routers as sweep_sections

SHORT = (
    sweep_sections.chance_section,
    sweep_sections.registered_section,
    law.FINDING.blocks,
    law.FLOOR.blocks,
    isoflop.FINDING.blocks,
    advice.FINDING.blocks,
)
"""The sections of the short report: the answer, its figures, and the next steps."""

FULL = (
    table_sections.symbols_section,
    sweep_sections.chance_section,
    sweep_sections.registered_section,
    sweep_sections.routers_section,
    sweep_sections.training_section,
    *(finding.blocks for finding in FINDINGS),
    table_sections.lacking_section,
    table_sections.method_section,
)
"""Every section, for `--full`."""


def write_reproduction(
    tables,
    out: Path,
    rows: str | None = None,
    loss: str | None = None,
    huber: float | None = None,
    tell: Callable = lambda line: None,
    full: bool = False,
) -> Path:
    """Write report.md, report.html, results.json and figures/ for a results table.

    Args:
        tables: a results table or several (see `tables.read_tables`).
        out: folder of the report, made if missing; an existing report is replaced.
        rows: the rows for the (N, E) laws (see `select_rows`); None for the paper's rows in the released table, and
            for every seed in other tables.
        loss: the main loss column; None for loss_validation.
        huber: delta above 0, in log10 units, of an additional fit by a sum of Huber terms; None for no additional fit.
        full: True adds every table to the answer, its figures and the cautions.

    Returns:
        The path of report.md. The same table gives the same bytes.

    Raises:
        InputError: the table is wrong, or the folder cannot be written.
    """
    tell(f"reading {named(tables)}")
    opened = open_runs(tables, rows, loss)
    Source(opened).law_rows()  # so that errors come before the folder exists
    folder = make_folder(Path(out))
    results, runs = gather(opened, tell, huber)
    for words, names in cautions_of(results).items():
        tell(f"caution ({', '.join(names)}): {words}")
    try:
        drawn = draw_all(folder / "figures", results, runs, tell=tell)
        return write_files(folder, "results.json", results, markdown(results, drawn, full=full))
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror or error})") from None


def markdown(results: dict, drawn: list[str], sweep=None, numbers: str = "results.json", full: bool = False) -> str:
    """Return the report; arguments as the fields of `finding.Report`."""
    report = Report(results, drawn, sweep, numbers, full)
    body = [block for section in (FULL if full else SHORT) for block in section(report)]
    if not full:
        last = sweep_sections.training_figure if sweep else routers.differences
        return blocks_markdown([*first_page(report), *body, *last(report), *table_sections.more_section(report)])
    heads = re.findall(r"^## (.*)$", blocks_markdown(body), re.MULTILINE)
    contents = bullets(f"[{head}](#{anchor(head)})" for head in heads)
    return blocks_markdown([*first_page(report), Heading("Contents"), *contents, *body])


def write_files(folder: Path, numbers: str, content: dict, text: str) -> Path:
    write_atomically(folder / numbers, dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / "report.html", page(text, folder))
    write_atomically(folder / "report.md", text)
    return folder / "report.md"
