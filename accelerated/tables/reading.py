"""Files of tables: comma-separated values or JSON lines, plain or packed with gzip.

A JSON document over several lines is read if it is a list of rows, or the `trainer_state.json` of a Hugging Face
Trainer, whose list `log_history` has the rows.

A table is read whole. A packed file may unpack to `UNPACKED` times its size, or to `SMALL` characters if this is more;
`routelaws --limit` changes the limit. Files `.jsonl` and `.ndjson` have JSON lines, an object for each row. Other files
are CSV. The ending `.gz` means gzip. Text is UTF-8, with or without a byte order mark.

pandas reads CSV without quotes and errors (`table._plain_part`). This file reads all other tables. The reader of pandas
silently pads short rows and truncates long rows. It does not name the row and the column of an error.
"""

import contextlib
import csv
import gzip
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, printable
from ..files import opened
from ..wording import in_short, plural
from .schema import Problems, limit_of, shorten, to_numbers

PIECE = 1 << 24
"""Number of characters to read at a time."""

CHUNK = 1 << 16
"""Number of rows to read at a time; text needs about twenty times the memory of numbers."""

UNPACKED, SMALL = 100, 1 << 26
"""A packed file may have `UNPACKED` characters per byte, and any file may have `SMALL` characters. A user's limit
`unpacked` replaces both. Packing reduces tables of numbers to a third or a tenth."""

LIMITS = ("unpacked",)
"""Limits of files, in characters."""

JSON_SUFFIXES = (".jsonl", ".ndjson")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class Text(NamedTuple):
    path: Path
    names: list[str]  # columns; [] for JSON lines, because rows may have different columns
    rows: str  # whole lines, ended by \n


class ParsedRows(NamedTuple):
    """Some rows of a table as cells, without malformed rows."""

    rows: list[int]  # number of each row
    columns: dict[str, list[str]]  # {name: [rows] cells}


def is_json(path) -> bool:
    return Path(str(path).removesuffix(".gz")).suffix in JSON_SUFFIXES


def read_text(path) -> Text:
    """Read a table.

    Raises:
        InputError: the file cannot be read or unpacked, is empty, is not text, or has another separator than commas; or
            the header repeats a column.
    """
    path = Path(path)
    with _opened(path) as stream:
        text = "".join(_pieces(path, stream)).lstrip("\n")
        if not text.strip():
            raise InputError(f"{path}: is empty; needed: a CSV file with a header")
        while "\n\n" in text and (is_json(path) or '"' not in text):  # blank lines inside quotes belong to a cell
            text = text.replace("\n\n", "\n")
        text += "" if text.endswith("\n") else "\n"
        if text.startswith(("{", "[")) and (lines := _lines_of_document(path, text)):
            return Text(path, [], lines)
        if is_json(path):
            return Text(path, [], text)
        header, _, rows = text.partition("\n")
        return Text(path, _names(path, header), rows)


def read_cells(path) -> ParsedRows:
    """Return every cell of a table as text. Missing fields of JSON lines are "".

    Raises:
        InputError: the file cannot be read, a row is malformed, or there are no rows or no columns.
    """
    problems = Problems(path)
    parts = list(take_apart(read_text(path), problems))
    problems.raise_if_any()
    rows = [row for part in parts for row in part.rows]
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    names = dict.fromkeys(name for part in parts for name in part.columns)
    if not names:
        raise InputError(f"{path}: every row is empty; needed: JSON objects with a name for each value")
    columns = {name: [c for p in parts for c in p.columns.get(name, [""] * len(p.rows))] for name in names}
    return ParsedRows(rows, columns)


def cut_short(path) -> list[str]:
    """Return a remark if the last line of a CSV file seems to be cut: no line break, and the shortest last cell."""
    if not Path(path).is_file() or Path(path).suffix == ".gz" or is_json(path):
        return []
    with opened(path) as file:
        file.seek(max(0, Path(path).stat().st_size - (1 << 16)))
        *lines, last = file.read().decode(errors="replace").split("\n")
    ends = [line.strip().rpartition(",")[2] for line in (*lines[1:], last) if line.strip()]
    if not last.strip() or len(ends) < 3 or len(ends[-1]) >= min(map(len, ends[:-1])):
        return []
    return [
        f"{path}: the last line has no line break, and its last cell {shorten(ends[-1])} is shorter than the others; "
        "if the file was cut, delete this line"
    ]


def take_apart(text: Text, problems: Problems) -> Iterator[ParsedRows]:
    """Yield the cells of a table as text, some rows at a time, numbered from 1. Skip blank lines.

    A row is a problem if it has too many or too few cells, repeats the header, or is not a JSON object. Such rows are
    skipped. Raise `InputError` for text that is not CSV.
    """
    rows = _csv_rows(text, problems) if text.names else _json_rows(text, problems)
    while chunk := list(itertools.islice(rows, CHUNK)):
        names = text.names or dict.fromkeys(name for _, cells in chunk for name in cells)
        columns = {name: [cells.get(name, "") for _, cells in chunk] for name in names}
        yield ParsedRows([row for row, _ in chunk], columns)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
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
        raise InputError(
            f"{path}: is not a CSV table (not text in UTF-8: {error.reason}); save it as CSV in UTF-8"
        ) from None
    except csv.Error as error:
        raise InputError(f"{path}: is not a CSV table ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _pieces(path: Path, stream: io.TextIOBase) -> Iterator[str]:
    most, read = math.inf, 0
    if path.suffix == ".gz":
        most = limit_of("unpacked", max(SMALL, UNPACKED * path.stat().st_size))
    while piece := stream.read(PIECE):
        read += len(piece)
        if "\0" in piece:
            raise InputError(f"{path}: is not a CSV table (it has bytes of value 0, so it is not text); save it as CSV")
        if read > most:
            more = "for a larger table, raise the limit: routelaws --limit unpacked=20GB ..."
            raise InputError(f"{path}: unpacks to more than the limit of {most:,.0f} characters; {more}")
        yield piece


def _lines_of_document(path: Path, text: str) -> str:
    """Return the rows of a JSON document as JSON lines; "" if the text is not one document, or a single line of them.

    Raises:
        InputError: the document has no list of rows.
    """
    if text.count("\n") == 1 and not path.name.removesuffix(".gz").endswith(".json"):
        return ""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    rows = document.get("log_history") if isinstance(document, dict) else document
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        keys = f" with the keys {in_short(map(printable, document))}" if isinstance(document, dict) else ""
        raise InputError(f"{path}: is one JSON document{keys}, not JSON lines; write one object per row and line")
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _names(path: Path, header: str) -> list[str]:
    """Return the names of the columns. An unnamed column gets a name from its position, as in pandas."""
    if header.startswith("{"):
        raise InputError(f"{path}: begins like JSON lines; needed: a CSV file, or a name that ends in .jsonl")
    (cells,) = csv.reader([header], strict=True)
    for separator, called in _SEPARATORS.items():
        if len(next(csv.reader([header], delimiter=separator))) > len(cells):
            raise InputError(
                f"{path}: its cells are separated by {called}; needed: a CSV file with commas and a first line of names"
            )
    if header.startswith("\\") or any(re.search(r": ([a-zA-Z]+ )*[-+]?[\d.]+[a-zA-Z%]*$", cell) for cell in cells):
        raise InputError(
            f"{path}: its first line {shorten(header)} is one of a text log or of LaTeX; write its numbers into a CSV "
            "file with a header, such as step,val_loss"
        )
    if not to_numbers(cells)[1].any():
        raise InputError(f"{path}: its first line {shorten(header)} has no names; needed: a header")
    names = [printable(name.strip()) or f"Unnamed: {i}" for i, name in enumerate(cells)]
    for i, name in enumerate(names):
        if name in names[:i]:
            places = f"{names.index(name) + 1} and {i + 1}"
            raise InputError(f"{path}: column {name} appears twice in the header, at {places}; needed: each name once")
    return names


def _csv_rows(text: Text, problems: Problems) -> Iterator[tuple[int, dict[str, str]]]:
    width, widths = len(text.names), set()
    try:
        rows = (cells for cells in csv.reader(io.StringIO(text.rows), strict=True) if cells)
        for row, cells in enumerate(rows, 1):
            widths.add(len(cells))
            if len(cells) != width:
                problems.add(row, None, plural(len(cells), "cell"), f"{width}, as in the header")
            elif [printable(cell.strip()) for cell in cells] == text.names:
                problems.add(row, None, "the header once more", "a row of values")
            else:
                yield row, dict(zip(text.names, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{text.path}: is not a CSV table ({error})") from None
    if widths and width not in widths:
        header, each = shorten(",".join(text.names)), " or ".join(map(str, sorted(widths)))
        needed = "needed: a header with a name for each cell, in the first line"
        raise InputError(
            f"{text.path}: {plural(width, 'name')} in the header {header}, but rows of {each} cells; {needed}"
        )


def _json_rows(text: Text, problems: Problems) -> Iterator[tuple[int, dict[str, str]]]:
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_Object)
    for row, line in enumerate((line.strip() for line in text.rows.split("\n") if line.strip()), 1):
        try:
            value = decoder.decode(line)
        except (ValueError, RecursionError) as error:
            problems.add(row, None, shorten(line), f"one JSON object per line ({str(error).partition(': line ')[0]})")
            continue
        if not isinstance(value, _Object):
            problems.add(row, None, shorten(line), "one JSON object per line")
            continue
        pairs = list(flat(value))
        names = [name for name, _ in pairs]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            problems.add(row, None, f"the key {twice} appears twice", "each key once")
        else:
            yield row, dict(pairs)


class _Object(list):
    """The pairs of a JSON object as a list, for the detection of repeated keys."""


def flat(value: _Object | dict, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of an object; the names of nested objects are joined by dots."""
    for name, cell in value.items() if isinstance(value, dict) else value:
        name = prefix + printable(str(name).strip())
        if isinstance(cell, _Object | dict):
            yield from flat(cell, f"{name}.")
        else:
            yield name, cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell, default=str)
