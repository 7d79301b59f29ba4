"""What `routelaws reproduce` does: read a table, compute everything, draw, and write the report.

1. READ     `rows.open_table`    the table, and which rows are the main ones
2. COMPUTE  `reproduction.gather`     every number, as one dictionary
3. DRAW     `figures.draw_all`   figures/NAME.png and .svg, from that dictionary
4. SAY      `text.markdown`      report.md, and `html.page` report.html
"""

import json
from collections.abc import Callable
from pathlib import Path

from ...errors import InputError
from ...files import make_folder, write_atomically
from ...findings.estimates import plain
from ...findings.reproduction import gather
from ...findings.rows import open_table
from ...tables.several import named
from .figures import draw_all
from .html import page
from .text import markdown


def write_reproduction(
    tables, out: Path, rows: str | None = None, loss: str | None = None, say: Callable = lambda line: None
) -> Path:
    """Write report.md, report.html, results.json and figures/ for a results table.

    Args:
        tables: a results table or several, see `several.read_tables`.
        out: folder of the report, made if missing; a report in it is replaced.
        rows: which rows the laws in N and E take, as `table.select_rows`; the paper's for the released table and every
            seed for others if None.
        loss: the main loss column; loss_validation if None.
        say: takes a line of progress.

    Returns:
        The path of report.md. The same table gives the same bytes.

    Raises:
        InputError: the table is wrong, or the folder cannot be written.
    """
    say(f"reading {named(tables)}")
    opened = open_table(tables, rows, loss)
    folder = make_folder(Path(out))
    results, runs = gather(opened, say)
    try:
        drawn = draw_all(folder / "figures", results, runs, say)
        content = json.dumps(plain(results), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / "results.json", content + "\n")
        text = markdown(results, drawn)
        write_atomically(folder / "report.html", page(text, folder))
        write_atomically(folder / "report.md", text)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    return folder / "report.md"
