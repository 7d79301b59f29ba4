"""Every report: one engine for a sweep and for tables of anybody's runs.

    1. READ     a table (`table.open_runs`) or the folder of a sweep (`sweeps.read_sweep`)
    2. FIND     `reproduction.gather`     every number, as one dictionary; of a sweep also `findings.find`
    3. DRAW     `figures.draw_all`        figures/NAME.png and .svg, from these
    4. SAY      `markdown`                report.md from the templates, and report.html from that

A report is written for somebody who has not read the paper. It says what is true of the runs that are in, whichever way
they came out.
"""

import time
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..files import make_folder, write_atomically
from ..results.encoding import dumps
from ..results.fit import MOST_HUBER
from ..results.reproduction.gather import gather
from ..results.reproduction.table import Table, open_runs
from ..results.sweeps.findings import find, gather_sweep, report_dict
from ..results.sweeps.folder import read_sweep
from ..tables.several import named
from ..wording import once
from .figures import draw_all
from .page import page
from .rendering import environment, render


def write_report(folder: Path, full: bool = False) -> Path:
    """Write report.md, report.html, report.json and figures/ into the folder of a sweep.

    Args:
        folder: of `training.sweep.run_sweep`, finished or not.
        full: with every table, instead of the answer, its figures and the cautions alone.

    Returns:
        The path of report.md.

    Raises:
        InputError: the folder holds no sweep, or no run of it is finished.
    """
    folder, started = Path(folder), time.perf_counter()
    sweep = read_sweep(folder)
    results, runs = gather_sweep(sweep)
    found = find(sweep, results)
    fitted = time.perf_counter()
    drawn = draw_all(folder / "figures", results, runs, sweep, found)
    seconds = {
        "training": sweep.seconds(),
        "fitting": fitted - started,
        "figures": time.perf_counter() - fitted,
    }
    text = markdown(results, drawn, found | {"seconds": seconds}, "report.json", full)
    return _write(folder, "report.json", report_dict(sweep, advised(results), found, seconds), text)


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
        tables: a results table or several, see `several.read_tables`.
        out: folder of the report, made if missing; a report in it is replaced.
        rows: which rows the laws in N and E take, as `table.select_rows`; the paper's for the released table and every
            seed for others if None.
        loss: the main loss column; loss_validation if None.
        huber: delta, in log10 units, of a fit by a sum of Huber terms beside that by least squares; None for none.
        tell: takes a line of progress.
        full: as `write_report`.

    Returns:
        The path of report.md. The same table gives the same bytes.

    Raises:
        InputError: the table is wrong, huber is not above 0, or the folder cannot be written.
    """
    check_huber(huber)
    tell(f"reading {named(tables)}")
    opened = open_runs(tables, rows, loss)
    Table(opened)  # what is wrong with it is said before a folder is made
    folder = make_folder(Path(out))
    results, runs = gather(opened, tell, huber)
    for words, routers in cautions_of(results).items():
        tell(f"caution ({', '.join(routers)}): {words}")
    try:
        drawn = draw_all(folder / "figures", results, runs, tell=tell)
        return _write(folder, "results.json", advised(results), markdown(results, drawn, full=full))
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror or error})") from None


def check_huber(huber: float | None) -> None:
    """Raise InputError unless --huber is a delta of Huber's terms, or not given."""
    if huber is not None and not 0 < huber <= MOST_HUBER:
        raise InputError(f"--huber {huber:g}: needed: a number above 0 and at most {MOST_HUBER:g}, in log10 units")


def markdown(
    results: dict, drawn: list[str], sweep: dict | None = None, numbers: str = "results.json", full: bool = False
) -> str:
    """Return the report.

    Args:
        results: of `reproduction.gather`.
        drawn: names of the figures that are there.
        sweep: of `findings.find`, with "seconds"; None for a table.
        numbers: name of the file of numbers.
        full: as `write_report`.
    """
    more = {"drawn": drawn, "sweep": sweep, "numbers": numbers, "full": full, "cautions": cautions_of(results)}
    return render("report.md.j2", results | more)


def cautions_of(results: dict) -> dict[str, list[str]]:
    """Return what can make the laws wrong without showing, each with the routers that it concerns.

    Of a table without routed runs these are those of the dense power law.
    """
    return once((law["router"], law["cautions"]) for law in results["laws"] or [results["dense"]])


def advised(results: dict) -> dict:
    """Return results with the words on each recommendation beside its verdict: why, and by which rule."""
    module = environment().get_template("because.md.j2").module
    words = [
        {name: " ".join(getattr(module, name)(entry).split()) for name in ("rule", "because")}
        for entry in results["advice"]
    ]
    return results | {"advice": [entry | own for entry, own in zip(results["advice"], words, strict=True)]}


def _write(folder: Path, numbers: str, content: dict, text: str) -> Path:
    write_atomically(folder / numbers, dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / "report.html", page(text, folder))
    write_atomically(folder / "report.md", text)
    return folder / "report.md"
