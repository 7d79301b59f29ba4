"""Files of tables: comma-separated values or JSON lines, packed with gzip or not, read block by block.

A block is some 16 million characters that end where a row ends, so that a table of any length needs the memory of its
numbers and of one block. A packed file may unpack to `UNPACKED` times its size, or to `SMALL` characters if that is
more, and a row has at most some `LONGEST`; `routelaws --limit` changes both. `.jsonl` and `.ndjson` are JSON lines, one
object a row; every other name is CSV; `.gz` behind either is gzip. Text is UTF-8, with or without a byte order mark.
"""

import contextlib
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, printable
from ..files import opened
from ..wording import plural
from .limits import limit_of
from .schema import Problems, shorten

BLOCK = 1 << 24
"""Characters that are read at a time."""

LONGEST = 1 << 24
"""Characters of a row, such as the header, at most, unless the limit `row` is changed."""

UNPACKED, SMALL = 100, 1 << 26
"""Characters of text for each byte of a packed file, and those that every file may have; the limit `unpacked` is in
their place if it is changed. Tables of numbers are packed to a third or a tenth."""

LIMITS = ("unpacked", "row")
"""Limits of files, in characters."""

JSON_SUFFIXES = (".jsonl", ".ndjson")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class Block(NamedTuple):
    """Some rows of a table, as they stand in the file."""

    names: list[str]  # columns of the table; [] for JSON lines, in which every row has its own
    first: int  # number of the block's first row, from 1
    text: str  # whole lines, ended by \n


class Cells(NamedTuple):
    """Some rows of a table, taken apart; rows that could not be are left out."""

    rows: list[int]  # number of each row
    columns: dict[str, list[str]]  # {name: [rows] cells}


def is_json(path) -> bool:
    """Return whether a file of this name holds JSON lines."""
    return Path(str(path).removesuffix(".gz")).suffix in JSON_SUFFIXES


def read_blocks(path, take) -> None:
    """Read a table block by block.

    Args:
        path: the file.
        take: is called with every Block and returns how many rows it had; if there is only a header it is called with
            none of them in the block's text.

    Raises:
        InputError: the file cannot be read or unpacked, is empty, is not text, or is separated by something else than
            commas; a column stands twice in its header.
    """
    path = Path(path)
    with _opened(path) as stream:
        blocks = _ending_rows(path, stream)
        text = next(blocks, "")
        if not text.strip():
            raise InputError(f"{path}: is empty; needed: a CSV file with a header")
        names: list[str] = []
        if not is_json(path):
            header, text = _cut_header(text)
            names = _names(path, header)
        row = 1 + take(Block(names, 1, text))
        for text in blocks:
            row += take(Block(names, row, text))


def read_cells(path) -> Cells:
    """Return every cell of a table as text; one that a row of JSON lines lacks is "".

    Raises:
        InputError: the file cannot be read, a row cannot be taken apart, or there are no rows or no columns.
    """
    problems, parts = Problems(path), []

    def take(block: Block) -> int:
        cells, rows = take_apart(block, problems)
        parts.append(cells)
        return rows

    read_blocks(path, take)
    problems.raise_if_any()
    rows = [row for part in parts for row in part.rows]
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    names = dict.fromkeys(name for part in parts for name in part.columns)
    if not names:
        raise InputError(f"{path}: every row is empty; needed: JSON objects with a name for each value")
    columns = {name: [c for p in parts for c in p.columns.get(name, [""] * len(p.rows))] for name in names}
    return Cells(rows, columns)


def take_apart(block: Block, problems: Problems) -> tuple[Cells, int]:
    """Return the cells of a block as text, and the number of its rows; blank lines are no rows.

    A row with too many or too few cells, one that is the header once more, and one that is no JSON object are problems
    and are left out.
    """
    return _csv_cells(block, problems) if block.names else _json_cells(block, problems)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
    """Open a file as text; whatever goes wrong with it inside is an InputError."""
    try:
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(opened(path))
            if path.suffix == ".gz":
                raw = stack.enter_context(gzip.open(raw))
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline=None)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; needed: a CSV file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: cannot be unpacked ({error}); the file is cut short or is not gzip") from None
    except UnicodeError as error:
        raise InputError(f"{path}: is not a CSV table (not text in UTF-8: {error.reason})") from None
    except csv.Error as error:
        raise InputError(f"{path}: is not a CSV table ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _ending_rows(path: Path, stream: io.TextIOBase) -> Iterator[str]:
    """Yield the text in blocks that end with a row, at a line end that is not inside quotes, without blank lines."""
    rest, lines_only, longest = "", is_json(path), limit_of("row", LONGEST)
    for chunk in _chunks(path, stream):
        rest = (rest + chunk).lstrip("\n") if lines_only or not rest else rest + chunk
        cut = rest.rfind("\n") + 1
        inside = not lines_only and rest.count('"', 0, cut) % 2
        while cut and inside:
            earlier = rest.rfind("\n", 0, cut - 1) + 1
            inside = (inside + rest.count('"', earlier, cut)) % 2
            cut = earlier
        if cut:
            yield _without_blank_lines(rest[:cut], lines_only)
            rest = rest[cut:]
        elif len(rest) > longest:
            cause = "is a quote not closed?" if "\n" in rest else "are there no line ends?"
            raise InputError(
                f"{path}: a row is longer than {longest:,.0f} characters; {cause} (routelaws --limit row=NUMBER ...)"
            )
    if rest:
        yield _without_blank_lines(rest if rest.endswith("\n") else rest + "\n", lines_only)


def _chunks(path: Path, stream: io.TextIOBase) -> Iterator[str]:
    """Yield the text of a file; InputError where it is no text, or unpacks to more than is allowed."""
    most, read = math.inf, 0
    if path.suffix == ".gz":
        most = limit_of("unpacked", max(SMALL, UNPACKED * path.stat().st_size))
    while chunk := stream.read(BLOCK):
        read += len(chunk)
        if "\0" in chunk:
            raise InputError(f"{path}: is not a CSV table (it has bytes of value 0, so it is not text)")
        if read > most:
            more = "if it is a table: routelaws --limit unpacked=20GB ..."
            raise InputError(f"{path}: unpacks to more than {most:,.0f} characters; {more}")
        yield chunk


def _without_blank_lines(text: str, lines_only: bool) -> str:
    """Return text without blank lines, but for those inside quotes, which belong to a cell."""
    while "\n\n" in text and (lines_only or '"' not in text):
        text = text.replace("\n\n", "\n")
    return text


def _cut_header(text: str) -> tuple[str, str]:
    """Return the first line that is not blank, and what follows."""
    start = re.match(r"\n*", text).end()
    end = text.find("\n", start) + 1
    return text[start:end], text[end:]


def _names(path: Path, header: str) -> list[str]:
    """Return the names of the columns; one without a name gets that of its place, as in pandas."""
    if header.startswith("{"):
        raise InputError(f"{path}: begins like JSON lines; needed: a CSV file, or a name that ends in .jsonl")
    (cells,) = csv.reader([header], strict=True)
    for separator, called in _SEPARATORS.items():
        if len(next(csv.reader([header], delimiter=separator))) > len(cells):
            raise InputError(f"{path}: its cells are separated by {called}; needed: commas")
    names = [printable(name.strip()) or f"Unnamed: {i}" for i, name in enumerate(cells)]
    for i, name in enumerate(names):
        if name in names[:i]:
            places = f"{names.index(name) + 1} and {i + 1}"
            raise InputError(f"{path}: column {name} appears twice in the header, at {places}; needed: each name once")
    return names


def _csv_cells(block: Block, problems: Problems) -> tuple[Cells, int]:
    """Return the cells of a block of CSV, see `take_apart`."""
    rows, kept, row, width = [], [], block.first - 1, len(block.names)
    for cells in csv.reader(io.StringIO(block.text), strict=True):
        if not cells:
            continue
        row += 1
        if len(cells) != width:
            problems.add(row, None, plural(len(cells), "cell"), f"{width}, as many as the header has")
        elif [printable(cell.strip()) for cell in cells] == block.names:
            problems.add(row, None, "the header once more", "a row of values")
        else:
            rows.append(row)
            kept.append(cells)
    columns = zip(*kept, strict=True) if kept else [()] * width
    cells = Cells(rows, {name: list(column) for name, column in zip(block.names, columns, strict=True)})
    return cells, row + 1 - block.first


def _json_cells(block: Block, problems: Problems) -> tuple[Cells, int]:
    """Return the cells of a block of JSON lines, see `take_apart`; a name that a row lacks has "" there."""
    rows, kept, row = [], [], block.first - 1
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_Object)
    for line in block.text.split("\n"):
        if not line.strip():
            continue
        row += 1
        try:
            found = decoder.decode(line.strip())
        except (ValueError, RecursionError) as error:
            problems.add(row, None, shorten(line.strip()), f"one JSON object a line ({str(error).partition(':')[0]})")
            continue
        if not isinstance(found, _Object):
            problems.add(row, None, shorten(line.strip()), "one JSON object a line")
            continue
        pairs = list(_flat(found))
        if len(pairs) > len(dict(pairs)):
            names = [name for name, _ in pairs]
            name = next(name for i, name in enumerate(names) if name in names[:i])
            problems.add(row, None, f"the key {name} appears twice", "each key once")
            continue
        rows.append(row)
        kept.append(dict(pairs))
    names = dict.fromkeys(name for cells in kept for name in cells)
    columns = {name: [cells.get(name, "") for cells in kept] for name in names}
    return Cells(rows, columns), row + 1 - block.first


class _Object(list):
    """The pairs of a JSON object, kept as a list so that a key that is there twice is seen."""


def _flat(pairs: _Object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and cells of an object; what is nested is named with a dot between."""
    for name, value in pairs:
        name = prefix + printable(name.strip())
        if isinstance(value, _Object):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, str):
            yield name, value
        else:
            yield name, "" if value is None else json.dumps(value)
