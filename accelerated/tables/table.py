"""Read and check one or several results tables. `selection.py` chooses the rows of a law.

A row is an evaluation of a training run. The released table of Clark et al. 2022 has the 22 columns of
RELEASED_COLUMNS. Our training writes these columns and then OWN_COLUMNS, so that both tables can be concatenated. A
user's table needs only NEEDED_COLUMNS and a loss column.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError, printable
from ..wording import LONGEST_NAME, in_short
from .agreement import compare
from .cells import printable_cells
from .reading import ParsedRows, Text, cut_short, read_text, take_apart
from .released import is_released
from .schema import (
    BLANK,
    NAME_COLUMNS,
    NAN,
    NEEDED_COLUMNS,
    TEXT_COLUMNS,
    Problems,
    bounds_of,
    called,
    check_runs,
    or_diverged,
    outside,
    run_names,
    spellings,
    to_numbers,
    with_numbers,
)
from .units import UNITS_OF

_PRINTED = (*TEXT_COLUMNS, *NAME_COLUMNS)
"""Columns of text that reports and messages print."""


class _Part(NamedTuple):
    rows: np.ndarray  # number of each row in the file, from 1
    columns: dict  # {name: [rows] values}


def read_table(path):
    """Read a results table and check every value in it.

    Args:
        path: a CSV file, or a file of JSON lines (`.jsonl`), perhaps packed with gzip (`.gz`). Ten million rows of ten
            columns take 4 GB of memory.

    Returns:
        A pandas DataFrame: numbers as float64 (blank is NaN), `hyper_id` and `step` as int64, text as str. Unknown
        columns are numbers if every cell is a number, else text. `attrs["remarks"]` lists the dropped rows.
        `attrs["diverged"]` has {loss column: {(hyper_id, step)}} of the losses that are NaN, and not empty.

    Raises:
        InputError: the file is missing, a folder, or not a table; a needed column is missing; values are wrong, out of
            range or contradict each other. The message gives the data row (from 1) and the column of each problem. For
            several problems, the first line has their number, and the first 20 follow.
    """
    return _read(path)


def _read(path, *, careful: bool = False):
    """Read a table. `careful` reads cell by cell, with the same result."""
    text, problems = read_text(path), Problems(path)
    if text.names:
        _check_columns(path, text.names)
    plain = None if careful else _plain_part(text)
    if plain is not None:
        return _with_diverged(with_numbers(_checked(path, [plain], problems)), text)
    parts, names, count = [], {}, 0
    for cells in take_apart(text, problems):
        names, count = names | dict.fromkeys(cells.columns), count + len(cells.rows)
        parts.append(_careful_part(cells, problems))
    if not text.names and count:
        _check_columns(path, names)
    return _with_diverged(with_numbers(_checked(path, parts, problems)), text)


def _with_diverged(frame, text: Text):
    """Return a table with `attrs["diverged"]`, see `read_table`."""
    diverged: dict[str, set[tuple[float, float]]] = {}
    for cells in take_apart(text, Problems(text.path)) if any(nan in text.rows for nan in NAN) else ():
        for name in (name for name in cells.columns if name.startswith("loss_")):
            rows = [i for i, cell in enumerate(cells.columns[name]) if cell.strip() in NAN]
            keys = ([cells.columns[key][i] for i in rows] for key in ("hyper_id", "step"))
            diverged.setdefault(name, set()).update(zip(*(to_numbers(key)[0].tolist() for key in keys), strict=True))
    frame.attrs["diverged"] = diverged
    return frame


def _checked(path, parts: list[_Part], problems: Problems):
    rows = np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)])
    if not len(rows):
        problems.raise_if_any()
        raise InputError(f"{path}: no rows below the header")
    frame = _joined(parts)
    repeated = check_runs(frame, rows, problems)
    problems.raise_if_any()
    remarks = cut_short(path)
    if repeated.any():
        remarks.append(_repeats(rows[repeated]))
        frame, rows = frame[~repeated].reset_index(drop=True), rows[~repeated]
    if not is_released(path):
        remarks += compare(frame, rows, problems) + _equal_runs(frame)
        problems.raise_if_any()
    frame.attrs["remarks"] = remarks
    return frame


def _equal_runs(frame) -> list[str]:
    """Return a remark on runs whose last rows are equal but for their names."""
    last = frame.drop_duplicates("hyper_id", keep="last")
    facts = last.drop(columns=["hyper_id", SOURCE, *NAME_COLUMNS], errors="ignore")
    facts = facts[facts.duplicated(keep=False)]
    if facts.empty:
        return []
    names, numbers = run_names(frame), facts.groupby(list(facts), dropna=False, sort=False).ngroup()
    runs = last["hyper_id"].groupby(numbers).agg(list)
    same = [" and ".join(called(run, names.get(run)) for run in own) for own in runs]
    return [f"equal runs: hyper_id {in_short(same)}; if they are one run, keep one"]


CONVERTED = "; routelaws convert makes such a table from your own log"
"""The remark after the list of missing columns."""


def _check_columns(path, names) -> None:
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    if missing:
        subject = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
        raise InputError(f"{path}: {subject} missing; needed: {', '.join(NEEDED_COLUMNS)}{CONVERTED}")
    if not any(name.startswith("loss_") for name in names):
        raise InputError(f"{path}: no column starts with loss_; needed: at least one, such as loss_validation")


def _plain_part(text: Text) -> _Part | None:
    """Return the rows and columns of a table, read by pandas; None if only the careful reader can read it."""
    data = text.rows.encode()
    special = any(word in data for word in (b'"', b"rue", b"RUE", b"alse", b"ALSE"))  # pandas reads True as 1
    if special or not text.names or not _even(np.frombuffer(data, np.uint8), len(text.names)):
        return None
    import pandas

    numbers = [name for name in text.names if bounds_of(name)]
    try:
        columns = dict(_parsed(data, text.names, numbers))
    except ValueError:
        return None
    if any(mask.any() for name in numbers for mask, _ in outside(name, columns[name].to_numpy())):
        return None
    routers = pandas.unique(columns["router_type"])
    if any(router != router.strip() or router in BLANK or len(router) > LONGEST_NAME for router in routers):
        return None
    printed = (cell for name in _PRINTED if name in columns for cell in pandas.unique(columns[name]))
    if not all(map(str.isprintable, printed)):
        return None
    return _Part(np.arange(1, 1 + len(columns["router_type"])), _with_whole(columns))


def _parsed(data: bytes, names: list[str], numbers: list[str]):
    """Return lines of CSV as read by pandas' parser. Raise `ValueError` for an invalid number."""
    import pandas

    recent = tuple(map(int, pandas.__version__.split(".")[:2])) >= (3, 1)
    exact = {} if recent else {"float_precision": "round_trip"}  # later versions always give the nearest float64
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
    """Return whether every line of the text has `width` cells, which must be two or more."""
    ends, commas = np.flatnonzero(data == ord("\n")), np.flatnonzero(data == ord(","))
    if width < 2 or not len(ends) or len(commas) != (width - 1) * len(ends):
        return False
    commas = commas.reshape(len(ends), width - 1)
    return bool((commas[:, -1] < ends).all() and (commas[1:, 0] > ends[:-1]).all())


def _careful_part(cells: ParsedRows, problems: Problems) -> _Part:
    import pandas

    rows, columns = np.array(cells.rows, dtype=np.int64), {}
    good = np.ones(len(rows), dtype=bool)
    absent = {name: [""] * len(rows) for name in NEEDED_COLUMNS if name not in cells.columns}  # absent here
    for name, texts in (cells.columns | absent).items():
        raw = texts
        if bounds_of(name):
            columns[name], wrong = to_numbers(texts, UNITS_OF.get(name))
            checks = [(mask & ~wrong, needed) for mask, needed in outside(name, columns[name])]
            checks.append((wrong, f"a number{', such as 370000000 or 370M' * (name in UNITS_OF)}{or_diverged(name)}"))
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
    columns = {name: values[good] for name, values in columns.items()}
    columns |= {name: pandas.Series(cells, dtype=str).array for name, cells in columns.items() if not bounds_of(name)}
    return _Part(rows[good], _with_whole(columns))


def _with_whole(columns: dict) -> dict:
    return columns | {name: columns[name].astype(np.int64) for name in ("hyper_id", "step") if name in columns}


def _joined(parts: list[_Part]):
    import pandas

    frames = [pandas.DataFrame(part.columns, copy=False) for part in parts]
    if len(frames) == 1:
        return frames[0]
    joined = pandas.concat(frames, ignore_index=True)
    return joined.fillna({name: "" for name in joined if not bounds_of(name)})


def _repeats(rows: np.ndarray) -> str:
    listed = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    if len(rows) == 1:
        return f"left out: row {listed}, which equals an earlier row in every cell"
    return f"left out: {len(rows)} rows, because each equals an earlier row in every cell: {listed}"


_LOGS = re.compile(r"\.(csv|jsonl|ndjson)(\.gz)?$|^trainer_state\.json$")
SOURCE = "source"
"""Column with the file of a row, if there are several."""


def table_path(path) -> Path:
    """Return the table of a path: the file, or `results.csv` of a folder.

    Raises:
        InputError: the folder has no results.csv.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    if not (path / "results.csv").is_file():
        logs = (file for level in ("*", "*/*", "*/*/*") for file in sorted(path.glob(level)))
        log = next((file for file in logs if _LOGS.search(file.name)), None)
        more = f"; to convert logs, name each file, such as {log} (--columns hyper_id=folder joins the files of a run)"
        what = f"{path}: is a folder without results.csv, so it holds no finished run or sweep"
        raise InputError(what + more * bool(log))
    return path / "results.csv"


def read_tables(paths):
    """Read one table, or several tables as one.

    Args:
        paths: a file or folder, or several; a folder means its `results.csv`.

    Returns:
        As `read_table`. Several tables get new hyper_ids, and the column `source` has the given path. A missing column
        of a table is blank in its rows.

    Raises:
        InputError: `read_table` raises this error; a path is given twice.
    """
    paths = listed(paths)
    check_once(paths)
    frames = [read_table(table_path(path)) for path in paths]
    return frames[0] if len(frames) == 1 else _numbered_anew(paths, frames)


def check_once(paths: list) -> None:
    """Raise `InputError` if a path is given twice."""
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(f"{twice}: is given twice; give it once")


def named(paths) -> str:
    """Return the paths of tables for a message; of many paths, the first."""
    return in_short(listed(paths))


@contextlib.contextmanager
def naming(paths) -> Iterator[None]:
    """Turn a ValueError of the body into an `InputError`, with the paths of the tables before each line.

    Raises:
        InputError: the body raises a ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise InputError(*(f"{named(paths)}: {line}" for line in str(error).split("\n"))) from None


def listed(paths) -> list:
    """Return one path, or several, as a list."""
    return [paths] if isinstance(paths, str | Path) else list(paths)


def ranges(columns: dict[str, np.ndarray]) -> str:
    """Return the smallest and the largest finite number of each column in words; columns without numbers are left out.

    Example:
        >>> ranges({"num_experts": np.array([1.0, 64.0]), "tokens": np.array([2e9, np.nan])})
        'num_experts 1 to 64, tokens 2e+09'
    """
    known = {name: numbers[np.isfinite(numbers)] for name, numbers in columns.items() if np.isfinite(numbers).any()}
    ends = {name: dict.fromkeys((f"{each.min():.4g}", f"{each.max():.4g}")) for name, each in known.items()}
    return ", ".join(f"{name} {' to '.join(each)}" for name, each in ends.items())


def _numbered_anew(paths: Sequence, frames: list):
    import pandas

    remarks, diverged, first = [], {}, 0
    for i, (path, frame) in enumerate(zip(paths, frames, strict=True)):
        codes, runs = pandas.factorize(frame["hyper_id"], sort=True)
        remarks += [f"{path}: {remark}" for remark in frame.attrs["remarks"]]
        remarks.append(f"{path}: {numbered(runs, first)}")
        number = {run: first + code for code, run in enumerate(runs)}
        for name, keys in frame.attrs["diverged"].items():
            diverged.setdefault(name, set()).update((number[run], step) for run, step in keys)
        frames[i] = frame.assign(hyper_id=first + codes, **{SOURCE: printable(str(path))})
        frames[i].attrs = {}
        first += len(runs)
    joined = pandas.concat(frames, ignore_index=True)
    for name in joined.columns:
        if not bounds_of(name) and joined[name].dtype.kind not in "iuf":  # numbers in every table stay numbers
            joined[name] = joined[name].fillna("").astype(str)
    for spelled, router in spellings(joined["router_type"].unique()).items():
        path = joined[SOURCE][joined["router_type"] == spelled].iloc[0]
        raise InputError(f"{path}: router_type {spelled}; needed: {router}, in this spelling, as in another table")
    joined = with_numbers(joined)
    joined.attrs |= {"remarks": remarks + _equal_runs(joined), "diverged": diverged}
    return joined


def numbered(runs, first: int) -> str:
    """Return a remark on the new numbers of a table's runs; `runs` are their numbers before, sorted."""
    ends = (runs[0], runs[-1]), (first, first + len(runs) - 1)
    before, now = (str(low) if low == high else f"{low} to {high}" for low, high in ends)
    return f"its runs have hyper_id {now}" + f" (before: {before})" * (before != now)
