"""The inputs of `convert` before columns are renamed: tables, and the joined pieces of a log.

A table with more fields per run (`config`) is joined by the name of the run.
"""

import difflib
from typing import NamedTuple

from ..errors import InputError
from ..wording import in_short
from .exports import read_piece
from .log import RUN, STEP, Log, as_cells, put_together
from .reading import read_cells
from .schema import RELEASED_COLUMNS
from .table import SOURCE, check_once, named


class Source(NamedTuple):
    """An input of the conversion: a table, or all pieces of a log."""

    name: str  # the name in messages
    cells: dict[str, list[str]]
    at: list[str] | None  # for a log: the name of each row in messages
    remarks: list[str]


def sources_of(paths: list) -> list[Source]:
    """Return the inputs of the conversion in the given order. All pieces of a log form one input."""
    if not paths:
        raise InputError("nothing to convert is given; needed: a table, an export, or a folder of event files")
    check_once(paths)
    pieces = [(path, read_piece(path)) for path in paths]
    logs = [(path, piece) for path, piece in pieces if isinstance(piece, Log)]
    sources, names = [], [path for path, _ in logs]
    called = named(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
    for path, piece in pieces:
        if not isinstance(piece, Log):
            sources.append(Source(str(path), piece.cells, None, piece.remarks + _unfinished(piece.cells)))
        elif path == logs[0][0]:
            sources.append(_as_source(put_together(*zip(*logs, strict=True)), called))
    return sources


def _as_source(log: Log, name: str) -> Source:
    cells = as_cells(log)
    at = [f"run {run}, {log.axis} {value}" for run, value in zip(cells[RUN], cells[log.axis], strict=True)]
    return Source(name, cells, at, log.remarks)


def _unfinished(cells) -> list[str]:
    if not {"Name", "State"} <= set(cells):
        return []
    states = [
        f"{name} ({state})" for name, state in zip(cells["Name"], cells["State"], strict=True) if state != "finished"
    ]
    more = f" and {len(states) - 10} more" if len(states) > 10 else ""
    listed = f"{', '.join(states[:10])}{more}"
    return [f"not finished, by the column State: {listed}; their rows are kept like all others"] if states else []


def with_loss(source: Source, columns: dict[str, str]) -> Source:
    """Return the rows of a log with a logged loss (NaN counts). Return a table unchanged."""
    loss_columns = [column for name, column in columns.items() if name.startswith("loss_")]
    losses = [name for name in (*loss_columns, *RELEASED_COLUMNS) if name in source.cells]
    losses = [name for name in losses if name in loss_columns or name.startswith("loss_")]
    if source.at is None or (loss_columns and not losses):  # a later error names the missing column
        return source
    if not losses:
        metrics = ", ".join(name for name in source.cells if name not in (RUN, STEP))
        raise InputError(
            f"{source.name}: no column is known as a loss; name one with --columns loss_validation=NAME; available: "
            f"{metrics}"
        )
    rows = [i for i in range(len(source.at)) if any(source.cells[name][i] != "" for name in losses)]
    left = len(source.at) - len(rows)
    remarks = [f"left out: {left} of {len(source.at)} rows of the log, which have no loss"] if left else []
    cells = {name: [column[i] for i in rows] for name, column in source.cells.items()}
    return source._replace(cells=cells, at=[source.at[i] for i in rows], remarks=[*source.remarks, *remarks])


def configured(sources: list[Source], config, columns: dict[str, str]) -> list[Source]:
    """Return sources with the columns of `config` joined to the rows of each run.

    Sources without a run of `config` stay unchanged.
    """
    if config is None:
        return sources
    joined = [_configured(source, config, columns, alone=len(sources) == 1) for source in sources]
    if all(new is old for new, old in zip(joined, sources, strict=True)):
        raise InputError(f"{config}: has no run of {in_short(source.name for source in sources)}")
    return joined


def _configured(source: Source, config, columns: dict[str, str], alone: bool) -> Source:
    table, key = read_cells(config).columns, columns.get("hyper_id", "hyper_id" if source.at is None else RUN)
    if key not in source.cells and not alone:
        return source
    if key not in source.cells:
        raise InputError(f"{source.name}: has no column {key}, which joins it to the rows of {config}")
    first = next((name for name in (RUN, "Name") if name in table), next(iter(table)))
    names = [name.strip() for name in table[first]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{config}: {first} {twice} is in {names.count(twice)} rows; needed: one row for each run")
    row, runs = {name: i for i, name in enumerate(names)}, [name.strip() for name in source.cells[key]]
    if not alone and not set(runs) & set(names):
        return source
    if missing := dict.fromkeys(name for name in runs if name not in row):
        raise InputError(f"{config}: has no row for {', '.join(missing)}; needed: one for each {key} of {source.name}")
    known = [name for name in table if name in source.cells and name != first]
    more = {name: [cells[row[run]] for run in runs] for name, cells in table.items() if name not in (first, *known)}
    remarks = [*source.remarks]
    if known:
        remarks.append(f"not taken from {config}, because {source.name} has such a column: {', '.join(known)}")
    if unused := [name for name in names if name not in set(runs)]:
        remarks.append(f"{config}: these runs are not in {source.name}: {', '.join(unused)}")
    return source._replace(name=f"{source.name} with {config}", cells=source.cells | more, remarks=remarks)


def check_names(sources: list[Source], columns: dict[str, str], keep) -> None:
    """Raise `InputError` for a requested column that no source has."""
    there = list(dict.fromkeys(name for source in sources for name in source.cells))
    names = in_short(source.name for source in sources)
    for name in keep:
        if name not in there:
            raise InputError(f"--keep {name}: {names} has no such column; {_near(name, there)}")
        if name == SOURCE and len(sources) > 1:
            raise InputError(f"--keep {name}: this name is reserved for the source table of a row")
    for name, source in columns.items():
        if source not in there:
            raise InputError(f"--columns {name}={source}: {names} has no column {source}; {_near(source, there)}")


def _near(name: str, there) -> str:
    close = difflib.get_close_matches(name, list(there)) if len(there) > 12 else []
    return f"did you mean {', '.join(close)}? " * bool(close) + f"available: {in_short(there, 20)}"
