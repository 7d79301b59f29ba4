"""The results table: reading one and checking it. The rows that a law is fitted to are chosen in `selection.py`.

One row is one evaluation of one training run. The released table of Clark et al. 2022 has the 22 columns of
RELEASED_COLUMNS; our own training writes those and then OWN_COLUMNS, so that both kinds concatenate. A table of a
user's own needs only NEEDED_COLUMNS and a loss column.
"""

import io
from typing import NamedTuple

import numpy as np

from ..errors import InputError, printable
from ..wording import LONGEST_NAME
from .agreement import compare
from .cells import printable_cells
from .reading import Block, Cells, is_json, read_blocks, take_apart
from .schema import (
    BLANK,
    DENSE,
    NAME_COLUMNS,
    NEEDED_COLUMNS,
    OWN_COLUMNS,
    RELEASED_COLUMNS,
    TEXT_COLUMNS,
    Problems,
    check_runs,
    outside,
    range_of,
    to_numbers,
    with_numbers,
)
from .selection import RouterRows, of_router, select_rows
from .units import UNITS_OF

__all__ = [
    "DENSE", "NEEDED_COLUMNS", "OWN_COLUMNS", "RELEASED_COLUMNS", "TEXT_COLUMNS", "RouterRows", "of_router",
    "read_table", "select_rows",
]  # fmt: skip


_PRINTED = (*TEXT_COLUMNS, *NAME_COLUMNS)
"""Columns of text that reports and messages print."""


class _Part(NamedTuple):
    """Some rows that were read."""

    rows: np.ndarray  # number of each row in the file, from 1
    columns: dict  # {name: [rows] values}


def read_table(path):
    """Read a results table and check every value in it.

    Args:
        path: the file: CSV, or JSON lines if it is named `.jsonl`; packed with gzip if it is named `.gz` besides. It is
            read block by block: ten million rows of ten columns took 17 seconds and 2.5 GB.

    Returns:
        A pandas DataFrame: numbers as float64 (blank is NaN), `hyper_id` and `step` as int64, text as str. Columns that
        the schema does not know are numbers where every cell is one, else text. `attrs["remarks"]` lists, in words,
        what was left out.

    Raises:
        InputError: the file is missing, a folder, or no such table; a needed column is missing; values are wrong, out
            of range or contradict each other. Each is named by its data row (the first one is 1) and column: one line
            for one problem; a first line with their number, and the first 20 below it, for more.
    """
    return _read(path)


def _read(path, *, careful: bool = False):
    """Read a table; where `careful` is on, every block is taken cell by cell, with the same result."""
    problems, parts, names, objects = Problems(path), [], {}, 0

    def take(block: Block) -> int:
        nonlocal objects
        if block.names and not parts:
            _check_columns(path, block.names)
        part, count = None if careful else _fast_part(block), 0
        if part is None:
            cells, count = take_apart(block, problems)
            names.update(cells.columns)
            objects += len(cells.rows)
            part = _careful_part(cells, problems)
        parts.append(part)
        return count or len(part.rows)

    read_blocks(path, take)
    if is_json(path) and objects:
        _check_columns(path, names)
    return with_numbers(_checked(path, parts, problems))


def _checked(path, parts: list[_Part], problems: Problems):
    """Return the parts of a table as one frame, without rows that repeat earlier ones.

    Raises:
        InputError: there are no rows, values were wrong, or runs contradict each other.
    """
    rows = np.concatenate([part.rows for part in parts])
    if not len(rows):
        problems.raise_if_any()
        raise InputError(f"{path}: no rows below the header")
    frame = _joined(parts)
    repeated = check_runs(frame, rows, problems)
    problems.raise_if_any()
    remarks = []
    if repeated.any():
        remarks = [_repeats(rows[repeated])]
        frame, rows = frame[~repeated].reset_index(drop=True), rows[~repeated]
    frame.attrs["remarks"] = remarks + compare(frame, rows, problems)
    problems.raise_if_any()
    return frame


CONVERTED = "; routelaws convert makes such a table of your own log"
"""The remark after the list of missing columns."""


def _check_columns(path, names) -> None:
    """Raise InputError where a column is missing that every table has."""
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    if missing:
        said = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
        raise InputError(f"{path}: {said} missing; needed: {', '.join(NEEDED_COLUMNS)}{CONVERTED}")
    if not any(name.startswith("loss_") for name in names):
        raise InputError(f"{path}: no column starts with loss_; needed: at least one, such as loss_validation")


def _fast_part(block: Block) -> _Part | None:
    """Return the rows and columns of a block read by pandas' parser; None if anything in it asks for a closer look."""
    data, width = block.text.encode(), len(block.names)
    if not block.names or b'"' in data or not _even(np.frombuffer(data, np.uint8), width):
        return None
    import pandas

    numbers = [name for name in block.names if range_of(name)]
    try:
        frame = _parsed(data, block.names, numbers)
    except ValueError:
        return None
    columns = {name: frame.pop(name).array for name in block.names}
    for name in numbers:
        columns[name] = np.array(columns[name])
        if any(mask.any() for mask, _ in outside(name, columns[name])):
            return None
    routers = pandas.unique(columns["router_type"])
    if any(router != router.strip() or router in BLANK or len(router) > LONGEST_NAME for router in routers):
        return None
    texts = (text for name in _PRINTED if name in columns for text in pandas.unique(columns[name]))
    if not all(map(str.isprintable, texts)):
        return None
    return _Part(np.arange(block.first, block.first + len(frame)), _with_whole(columns))


def _parsed(data: bytes, names: list[str], numbers: list[str]):
    """Return lines of CSV as pandas' parser reads them; ValueError where a number is none."""
    import pandas

    recent = tuple(map(int, pandas.__version__.split(".")[:2])) >= (3, 1)
    exact = {} if recent else {"float_precision": "round_trip"}  # later ones always give the nearest float64
    return pandas.read_csv(
        io.BytesIO(data),
        header=None,
        names=names,
        index_col=False,
        low_memory=False,
        keep_default_na=False,
        dtype={name: "float64" if name in numbers else str for name in names},
        na_values={name: list(BLANK) for name in numbers},
        **exact,
    )


def _even(data: np.ndarray, width: int) -> bool:
    """Return whether every line of the text has `width` cells and, if one, is not blank."""
    ends, commas = np.flatnonzero(data == ord("\n")), np.flatnonzero(data == ord(","))
    if width < 2 or not len(ends) or len(commas) != (width - 1) * len(ends):
        return False
    commas = commas.reshape(len(ends), width - 1)
    return bool((commas[:, -1] < ends).all() and (commas[1:, 0] > ends[:-1]).all())


def _careful_part(cells: Cells, problems: Problems) -> _Part:
    """Return the rows and columns of cells, without the rows that have a problem; every problem is noted."""
    rows, columns = np.array(cells.rows, dtype=np.int64), {}
    good = np.ones(len(rows), dtype=bool)
    absent = {name: [""] * len(rows) for name in NEEDED_COLUMNS if name not in cells.columns}  # of these JSON lines
    for name, texts in (cells.columns | absent).items():
        raw = texts
        if range_of(name):
            columns[name], wrong = to_numbers(texts, UNITS_OF.get(name))
            checks = [(mask & ~wrong, needed) for mask, needed in outside(name, columns[name])]
            checks.append((wrong, f"a number{', such as 370000000 or 370M' * (name in UNITS_OF)}"))
        elif name == "router_type":
            columns[name] = np.array([printable(text.strip()) for text in texts], dtype=object)
            long = np.array([len(text) > LONGEST_NAME for text in columns[name]], dtype=bool)
            checks = [(np.isin(columns[name], BLANK), "a value (it is blank)")]
            checks.append((long, f"a name of at most {LONGEST_NAME} characters"))
        else:
            columns[name], checks = np.array(printable_cells(texts) if name in _PRINTED else texts, dtype=object), []
        for mask, needed in checks:
            problems.add_each(mask, rows, name, raw.__getitem__, needed)
            good &= ~mask
    columns = {name: values[good] if range_of(name) else _texts(values[good]) for name, values in columns.items()}
    return _Part(rows[good], _with_whole(columns))


def _texts(values):
    """Return text as pandas holds it."""
    import pandas

    return pandas.Series(values, dtype=str).array


def _with_whole(columns: dict) -> dict:
    """Return the columns with hyper_id and step as int64."""
    return columns | {name: columns[name].astype(np.int64) for name in ("hyper_id", "step") if name in columns}


def _joined(parts: list[_Part]):
    """Return the columns of all parts as one frame; each part lets go of a column as soon as it is in the frame."""
    import pandas

    def missing(name, rows):
        return np.full(len(rows), np.nan) if range_of(name) else _texts(np.full(len(rows), "", dtype=object))

    joined = {}
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        pieces = [p.columns.pop(name) if name in p.columns else missing(name, p.rows) for p in parts]
        joined[name] = pandas.concat([pandas.Series(piece, copy=False) for piece in pieces], ignore_index=True)
    return pandas.DataFrame(joined, copy=False)


def _repeats(rows: np.ndarray) -> str:
    """Return the remark about rows that were left out since they repeat an earlier one."""
    listed = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    if len(rows) == 1:
        return f"left out: row {listed}, which repeats an earlier row cell by cell"
    return f"left out: {len(rows)} rows that each repeat an earlier row cell by cell: {listed}"
