"""Write the report of any results table; `sweeps.report` writes that of a sweep.

    1. READ     `source.open_runs`    a table
    2. FIND     `gather`              every number, as a dictionary
    3. DRAW     `draw_all`            figures/NAME.png and .svg, from these numbers
    4. SAY      `markdown`            report.md from the sections, and report.html from that

A report is for readers who have not read the paper. It describes all finished runs, also if routing does not help.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..errors import InputError
from ..files import make_folder, write_atomically
from ..results.blocks import Block, Heading
from ..results.blocks import markdown as blocks_markdown
from ..results.encoding import dumps
from ..results.runs import Runs
from ..tables.schema import DENSE
from ..tables.table import named
from . import used_runs
from .closing import lacking_section, method_section, more_section
from .finding import Report, Results, TableFacts, anchor, bullets
from .laws import compute, dense, forms, isoflop, law, misses, printed, refits, slopes, texts, worth
from .opening import cautions_of, first_page, symbols_section
from .page import page
from .routers import advice, experts, experts_per_token, pairs, routing_frequency
from .runs import LEVEL, TableRun, point_of, seed_scatter, usual_frequency
from .source import Source, open_runs, seeds_chosen, size_labels
from .style import save_figure, styled

FINDINGS = (
    slopes.FINDING,
    law.FINDING,
    law.FLOOR,
    refits.FINDING,
    isoflop.FINDING,
    dense.FINDING,
    worth.FINDING,
    misses.FINDING,
    forms.FINDING,
    pairs.FINDING,
    experts.FINDING,
    experts_per_token.FINDING,
    routing_frequency.FINDING,
    compute.FINDING,
    texts.FINDING,
    advice.FINDING,
    printed.FINDING,
    used_runs.FINDING,
)
"""The findings in their order in the report, each after those whose numbers it uses."""

FIGURES = {name: draw for finding in FINDINGS for name, draw in finding.figures.items()}

ABOUT = (
    "Every number of report.md. Losses are in nats per token, logarithms decimal, N and N_cutoff in parameters,"
    ' intervals at 95 %. null: not found or not known. "inf" and "-inf": an infinite value or an open end of an'
    " interval."
)


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


def gather(
    source: Runs, tell=lambda line: None, huber: float | None = None, point=point_of, name: str = ""
) -> tuple[Results, list[TableRun]]:
    """Return the results of a table, from which text and figures take their numbers, and its trusted runs.

    Args:
        huber: delta in log10 units of an additional fit by a sum of Huber terms; None for no additional fit.
        point: function of a run, equal for runs that differ only in their seed (see `runs.seed_scatter`).
        name: printed name of the table; "" for the names of its files.

    Raises:
        InputError: `Source` or `Source.law_rows` raises this error.
    """
    table = Source(source, name, huber)
    runs, good = table.runs, table.good
    results = Results(
        about=ABOUT,
        level=LEVEL,
        huber=huber,
        table=_facts(table, runs),
        size_labels={str(size): label for size, label in size_labels(table).items()},
        seed_scatter=seed_scatter(runs if seeds_chosen(table) else good, point),
    )
    for finding in FINDINGS:
        tell(finding.title)
        results |= finding.find(results, table)
    return results, good


def _facts(table: Source, runs: list[TableRun]) -> TableFacts:
    routed = [run for run in runs if run.router != DENSE]
    return TableFacts(
        table.name, len(table.frame), len(runs), table.released, table.rows or "every seed", table.has_condition,
        table.loss_column, table.loss_columns,
        routers=sorted({run.router for run in routed}),
        sizes=sorted({run.size for run in runs}),
        experts=sorted({run.experts for run in routed}),
        ks=sorted({run.k for run in routed}),
        usual_frequency=usual_frequency(runs),
        frequencies=sorted({run.frequency for run in routed if run.frequency is not None}),
        seeds=sorted({run.seed for run in runs}) if "seed" in table.last else [],
        remarks=table.remarks,
        last_steps=[int(table.last["step"].min()), int(table.last["step"].max())],
    )  # fmt: skip


def draw_all(
    folder: Path, results: dict, runs: list[TableRun], sweep=None, facts=None, tell=lambda line: None
) -> list[str]:
    """Draw every figure for which the results have data, in temporary settings of matplotlib.

    Args:
        folder: folder of NAME.png and NAME.svg; made if missing. Old figures without data in these results are removed.
        sweep, facts: results of `read_sweep` and `sweeps.report.find`; None for a table.

    Returns:
        The names of the drawn figures, in the order of FIGURES and of the findings of sweeps.
    """
    make_folder(folder)
    drawings, drawn = {name: partial(draw, results, runs) for name, draw in FIGURES.items()}, []
    for finding in facts.findings if facts else ():
        drawings |= {name: partial(draw, results, sweep, facts) for name, draw in finding.figures.items()}
    for name, draw in drawings.items():
        with styled():
            if (figure := draw()) is not None:
                tell(f"figure {name}")
                save_figure(figure, folder / name)
                drawn.append(name)
    for name in {*drawings, "training", "load"} - {*drawn}:  # a sweep may have had a report in this folder
        for ending in (".png", ".svg"):
            (folder / (name + ending)).unlink(missing_ok=True)
    return drawn


def markdown(results: dict, drawn: list[str], sweep=None, numbers: str = "results.json", full: bool = False) -> str:
    """Return the report; arguments as the fields of `finding.Report`."""
    report = Report(results, drawn, sweep, numbers, full, (*(sweep.findings if sweep else ()), *FINDINGS))
    blocks = body(report)
    heads = re.findall(r"^## (.*)$", blocks_markdown(blocks), re.MULTILINE) if full else []
    contents = [Heading("Contents"), *bullets(f"[{head}](#{anchor(head)})" for head in heads)] if full else []
    return blocks_markdown([*first_page(report), *contents, *blocks])


def body(report: Report) -> list[Block]:
    """Return the sections after the first page: all sections, or the answer, its figures and the next steps."""
    blocks = [block for each in report.findings if report.full or each.short for block in each.blocks(report)]
    if report.full:
        return [*symbols_section(report), *blocks, *lacking_section(report), *method_section(report)]
    last = next(finding.last for finding in report.findings if finding.last)
    return [*blocks, *last(report), *more_section(report)]


def write_files(folder: Path, numbers: str, content: dict, text: str) -> Path:
    write_atomically(folder / numbers, dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / "report.html", page(text, folder))
    write_atomically(folder / "report.md", text)
    return folder / "report.md"
