"""Write results: numbers, lines and tables, for a terminal, Markdown and HTML.

A table that is wider than the terminal is printed in parts, and each part repeats the first columns. Only columns of
words wrap. Numbers are never truncated or split over two lines.
"""

import html
import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from rich.console import Console

from ..errors import in_line

LARGE = 1e6
"""Numbers from this size on have three digits and an exponent."""

WIDEST = 1e6
"""An interval whose ends differ by more than this factor reads "not determined" (our choice)."""

NOT_DETERMINED = "not determined"


def count(value: float | None) -> str:
    """Return a number of parameters with three digits: 27.3M, 1.31B, 783B."""
    if value is None or math.isnan(value):
        return "not found"
    if math.isinf(value):
        return "∞"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value:.2e}"
    return f"{value:.3g}"


def figure(value: float | None, form: str = ".4g", missing: str = "not found") -> str:
    """Return a number as text in a format. From LARGE on it has an exponent; None becomes `missing`."""
    if value is None or math.isnan(value):
        return missing
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = format(value, form if form.endswith("g") or abs(value) < LARGE else ".3g")
    return text if float(text.replace(",", "")) else text.lstrip("+-")  # no sign before zeros


def two_digits(value: float | None) -> str:
    """Return a number with two digits, or a whole number from 100 on.

    Example:
        >>> two_digits(0.1234), two_digits(43.2), two_digits(111.6)
        ('0.12', '43', '112')
    """
    return figure(value, ".2g" if value is None or not value >= 99.5 else ",.0f")


def times(value: float, digits: int = 2) -> str:
    """Return a ratio with this many digits, a whole number from 100 on; near 1, with enough digits to differ from 1.

    Example:
        >>> times(2.53), times(1.034), times(0.99996), times(111.6)
        ('2.5', '1.03', '0.99996', '112')
    """
    while digits < 10 and value != 1 and float(f"{value:.{digits}g}") == 1:
        digits += 1
    return two_digits(value) if digits == 2 else figure(value, f".{digits}g")


def experts(value: float | None, digits: int = 3) -> str:
    """Return a number of experts as text with this many digits; below a billion it has no exponent.

    Example:
        >>> experts(238.72), experts(33314.2), experts(1.234e12)
        ('239', '33300', '1.23e+12')
    """
    if value is None or not math.isfinite(value):
        return figure(value, "g")
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.10g}" if rounded < 1e9 else f"{rounded:.{digits}g}"


def undetermined(low: float, high: float) -> bool:
    """Return whether the ends of an interval of a positive number differ by more than `WIDEST`.

    The interval then reads "not determined" everywhere. It keeps an open end: from 5 to infinity is a bound.
    """
    return (WIDEST * low < high < math.inf) if low > 0 else low == 0 and high == math.inf


def verdict(item) -> str:
    """Return the words of a `Range`, or "not determined" (see `undetermined`)."""
    return NOT_DETERMINED if undetermined(item.low, item.high) else item.words


def span(ends, form: str = ".4g") -> str:
    """Return an interval as text, from [low, high], a record or a dictionary."""
    return _span(ends, lambda end: figure(end, form))


def counts_span(ends) -> str:
    return _span(ends, count)


def _span(ends, of_end: Callable[[float], str]) -> str:
    if isinstance(ends, dict):
        ends = ends["low"], ends["high"]
    low, high = (ends.low, ends.high) if hasattr(ends, "low") else ends
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "not known"
    if low == math.inf:  # of N_cutoff, or of a dense model of equal loss
        return "no finite size"
    return NOT_DETERMINED if undetermined(low, high) else f"{of_end(low)} to {of_end(high)}"


def constant(value: float, name: str) -> str:
    if name == "N_cutoff":
        return count(value)
    return experts(value, 4) if name.startswith("E_") else figure(value, ".4f")


def constant_span(ends, name: str) -> str:
    return _span(ends, lambda end: constant(end, name))


def rough_span(ends, name: str) -> str:
    """Return a rough interval: numbers of experts with three digits."""
    return _span(ends, experts) if name.startswith("E_") else constant_span(ends, name)


def range_of(values: list, form: str = ",", unit: str = "") -> str:
    """Return one value, or the smallest and largest of several."""
    return " to ".join(f"{format(value, form)}{unit}" for value in values)


def significant(value: float, digits: int = 2) -> str:
    """Return a positive number with this many digits, with an exponent only if it is very large or small."""
    if not 1e-4 <= value < 1e6:
        return f"{value:.{digits - 1}e}"
    return np.format_float_positional(value, precision=digits, unique=False, fractional=False, trim="-").rstrip(".")


def duration(seconds: float) -> str:
    """Return a duration in words, such as 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def log_percent(log_change: float | None) -> float | None:
    return None if log_change is None else 100 * (ten_to(log_change) - 1)


def ten_to(exponent: float) -> float:
    """Return 10 to the power of a number; inf beyond the largest float."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.power(10.0, exponent))


def percent(value: float, form: str = "g") -> str:
    """Return 0.95 as 95 %."""
    return f"{figure(100 * value, form)} %"


def share(value: float) -> str:
    """Return 0.25 as 1/4, and other numbers unchanged."""
    over = round(1 / value)
    return ("1" if over == 1 else f"1/{over}") if abs(value * over - 1) < 0.01 else f"{value:g}"


def exponent(value: float) -> str:
    """Return a large number as 1e21 rather than 1e+21."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:.2e}".replace("e+", "e").replace(".00e", "e").replace("0e", "e")


WORDS = 12
"""Smallest width of a column of words, in characters; if the terminal is too narrow, the table is split instead."""


class Terminal(Console):
    """A console that prints names literally: no markup, no emoji, no control characters."""

    def __init__(self, **options):
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options):
        return super().render_str(in_line(text), **options)


class Table(NamedTuple):
    """A table of texts.

    Attributes:
        heads: headings of the columns
        rows: a text for each column; a shorter row ends with empty cells
        keys: each part of a split table repeats this number of first columns
        words: the columns of words, which may wrap
    """

    heads: list[str]
    rows: list[list[str]]
    title: str = ""
    keys: int = 1
    words: tuple[int, ...] = ()


class Heading(NamedTuple):
    """A title; on a terminal, a line with a blank line above."""

    text: str
    level: int = 2


class Notes(NamedTuple):
    """A list of sentences; on a terminal, indented lines."""

    lines: list[str]


Block = str | Table | Heading | Notes
"""A line, heading, list or table; an empty line separates blocks on a terminal."""


def show(blocks: Iterable[Block], console=None) -> None:
    """Print blocks on a terminal.

    Args:
        console: a rich Console; None for a new console on standard output.
    """
    console = console or Terminal()
    for block in blocks:
        for line in _lines(block):
            console.print(line, markup=False)
        if isinstance(block, Table):
            for columns in split(block, console.width):
                console.print(_rich(block, columns, console.width))


def _lines(block: Block) -> list[str]:
    if isinstance(block, Table):
        return [block.title] * bool(block.title)
    if isinstance(block, Heading):
        return ["", block.text]
    return [block] if isinstance(block, str) else [f"  {line}" for line in block.lines]


def text(blocks: Iterable[Block], width: int = 120) -> str:
    """Return blocks as text for a terminal with this number of columns."""
    import io

    console = Terminal(file=io.StringIO(), width=width)
    show(blocks, console)
    return console.file.getvalue().rstrip()


def shown_as(blocks_of: Callable[..., Iterable[Block]]):
    """Return a decorator of a class whose objects are printed, and shown in a notebook, as these blocks."""

    def decorate(kind: type) -> type:
        kind.__repr__ = lambda self: text(blocks_of(self))
        kind._repr_html_ = lambda self: to_html(blocks_of(self))
        return kind

    return decorate


def split(table: Table, width: int) -> list[list[int]]:
    """Return the non-empty columns of each part of a table, so that no part is wider than a terminal."""
    widths = [_least(table, i) for i in range(len(table.heads))]
    keys = list(range(min(table.keys, len(widths) - 1)))
    parts = [keys[:]]
    for i in range(len(keys), len(widths)):
        if not any(_cell(row, i) for row in table.rows):
            continue
        if len(parts[-1]) > len(keys) and _drawn([widths[j] for j in [*parts[-1], i]]) > width:
            parts.append(keys[:])
        parts[-1].append(i)
    return parts


def _least(table: Table, column: int) -> int:
    """Return the smallest width at which a column breaks no number and no word."""
    from rich.cells import cell_len

    texts = [table.heads[column], *(in_line(row[column]) for row in table.rows if column < len(row))]
    full = max(map(cell_len, texts))
    if column not in table.words:
        return full
    return min(full, max(WORDS, *(cell_len(word) for text in texts for word in text.split()), 1))


def _drawn(widths: list[int]) -> int:
    """Return the width of a printed table with columns of these widths."""
    return sum(widths) + 2 * len(widths)


def _rich(table: Table, columns: list[int], width: int):
    """Return some columns as a table of rich. Fold names that are wider than the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column
    from rich.table import Table as RichTable

    widths = [_least(table, i) for i in columns]
    fits = _drawn(widths) <= width
    heads = [
        Column(
            table.heads[i], no_wrap=fits and i not in table.words, min_width=least if fits else None, overflow="fold"
        )
        for i, least in zip(columns, widths, strict=True)
    ]
    drawn = RichTable(*heads, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for row in table.rows:
        drawn.add_row(*(_cell(row, i) for i in columns))
    return drawn


def _cell(row: list[str], column: int) -> str:
    return in_line(row[column]) if column < len(row) else ""


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown, a paragraph for each line."""
    return "\n\n".join(_markdown_of(block) for block in blocks if block) + "\n"


def _markdown_of(block: Block) -> str:
    if isinstance(block, Table):
        return _markdown_table(block)
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    return block if isinstance(block, str) else "\n".join(f"- {line}" for line in block.lines)


def _markdown_table(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    columns = range(len(table.heads))
    lines = [line(table.heads), line("---:" if _of_numbers(table, i) else "---" for i in columns)]
    lines += [line(_cell(row, i) for i in columns) for row in table.rows]
    return "\n".join(([table.title, ""] if table.title else []) + lines)


_NUMBER = re.compile(r"[-+±×]?([\d,.]+(e[-+]?\d+)?|∞)[KMBT]?( %)?\*?|not known|not found|")


def _of_numbers(table: Table, column: int) -> bool:
    cells = [_cell(row, column) for row in table.rows]
    return any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def to_html(blocks: Iterable[Block]) -> str:
    return "\n".join(_html_of(block) for block in blocks if block)


def _html_of(block: Block) -> str:
    def tagged(tag: str, line: str) -> str:
        return f"<{tag}>{html.escape(in_line(line))}</{tag}>"

    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Heading):
        return tagged(f"h{block.level + 1}", block.text)
    return tagged("p", block) if isinstance(block, str) else f"<ul>{''.join(tagged('li', n) for n in block.lines)}</ul>"


def _html_table(table: Table) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    title = f"<caption>{html.escape(in_line(table.title))}</caption>" if table.title else ""
    rows = [line((_cell(row, i) for i in range(len(table.heads))), "td") for row in table.rows]
    return f"<table>{title}{line(map(in_line, table.heads), 'th')}{''.join(rows)}</table>"
