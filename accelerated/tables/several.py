"""Several results tables as one: from files, and from the folders of runs and sweeps."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InputError, printable
from ..wording import in_short
from .schema import range_of, with_numbers
from .table import read_table

SOURCE = "source"
"""Column that says which file a row is from, where there are several."""


def table_path(path) -> Path:
    """Return the table that a path means: the file itself, or `results.csv` of a folder.

    Raises:
        InputError: a folder without one.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    if not (path / "results.csv").is_file():
        raise InputError(f"{path}: is a folder without results.csv, so it holds no finished run or sweep")
    return path / "results.csv"


def read_tables(paths):
    """Read one table, or several as one.

    Args:
        paths: a file or folder, or several; a folder stands for its `results.csv`.

    Returns:
        As `read_table`. Of several, hyper_id is numbered anew, table by table, and the column `source` holds the path
        as it was given. A column that a table lacks is blank in its rows.

    Raises:
        InputError: as `read_table`; a path is given twice.
    """
    paths = listed(paths)
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(f"{twice}: is given twice")
    frames = [read_table(table_path(path)) for path in paths]
    return frames[0] if len(frames) == 1 else _joined(paths, frames)


def named(paths) -> str:
    """Return the paths of tables as a message shows them, the first of many."""
    return in_short(listed(paths))


@contextlib.contextmanager
def naming(paths) -> Iterator[None]:
    """Put the paths of the tables before each line of what is raised inside, as an InputError.

    Raises:
        InputError: whatever ValueError is raised inside.
    """
    try:
        yield
    except ValueError as error:
        raise InputError(*(f"{named(paths)}: {line}" for line in str(error).split("\n"))) from None


def listed(paths) -> list:
    """Return one path, or several, as a list."""
    return [paths] if isinstance(paths, str | Path) else list(paths)


def _joined(paths: Sequence, frames: list):
    """Return the tables as one, with their runs numbered anew."""
    import pandas

    remarks, first = [], 0
    for i, (path, frame) in enumerate(zip(paths, frames, strict=True)):
        codes, runs = pandas.factorize(frame["hyper_id"], sort=True)
        remarks += [f"{path}: {remark}" for remark in frame.attrs["remarks"]]
        remarks.append(f"{path}: hyper_id {span(runs[0], runs[-1])} is numbered {span(first, first + len(runs) - 1)}")
        frames[i] = frame.assign(hyper_id=first + codes, **{SOURCE: printable(str(path))})
        frames[i].attrs = {}
        first += len(runs)
    joined = pandas.concat(frames, ignore_index=True)
    for name in joined.columns:
        if not range_of(name) and joined[name].dtype.kind not in "iuf":  # numbers in every table stay numbers
            joined[name] = joined[name].fillna("").astype(str)
    joined = with_numbers(joined)
    joined.attrs["remarks"] = remarks
    return joined


def span(first: int, last: int) -> str:
    """Return numbers from the first to the last as a message shows them."""
    return f"{first}" if first == last else f"{first} to {last}"
