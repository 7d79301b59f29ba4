"""Rows of runs that a sweep need not train, since a table of the same grid has them: `routelaws sweep --have TABLE`.

have.csv in the folder of the sweep keeps them, so that every later command counts these runs as finished. A run that is
finished in the folder itself goes before its rows there.
"""

from pathlib import Path

from ..errors import InputError
from ..json_files import shown
from .configuration import TrainConfig
from .grid import Grid
from .result_rows import read_rows, run_columns, write_rows

FILE = "have.csv"


def read_had(folder: Path) -> dict[int, list[dict]]:
    """Return the rows in have.csv of a sweep by hyper_id; none if there is no such file."""
    return _by_run(read_rows(Path(folder) / FILE))


def _by_run(rows: list[dict]) -> dict[int, list[dict]]:
    """Return the rows of each run by hyper_id."""
    runs: dict[int, list[dict]] = {}
    for row in rows:
        runs.setdefault(int(row["hyper_id"]), []).append(row)
    return runs


def checked_rows(table: Path, grid: Grid, unique_tokens: list[int]) -> list[dict]:
    """Return the rows of those runs of a grid that are finished in a table.

    Args:
        table: results.csv of a sweep of the same grid.
        grid: the runs.
        unique_tokens: of the training text of each run.

    Raises:
        InputError: the table is missing, or a row of it is not of the run of the grid with this hyper_id.
    """
    rows = read_rows(table)
    if not rows:
        raise InputError(f"--have {table}: no such table, or no rows in it")
    last = {}
    for number, row in enumerate(rows, 1):
        i = int(row["hyper_id"])
        if i >= len(grid.runs):
            raise InputError(f"--have {table}, row {number}: hyper_id is {i}; the grid has {len(grid.runs)} runs")
        if wrong := _difference(row, grid.runs[i], unique_tokens[i]):
            raise InputError(f"--have {table}, row {number}: {wrong}; the table is of another grid")
        last[i] = int(row["step"])
    return [row for row in rows if last[int(row["hyper_id"])] == grid.runs[int(row["hyper_id"])].steps]


def _difference(row: dict, config: TrainConfig, unique_tokens: int) -> str:
    """Return in which column a row differs from what its run would write; "" where in none."""
    planned = run_columns(config) | {"unique_tokens": unique_tokens}
    for name, value in planned.items():
        cell = row.get(name, "")
        if cell != "" and cell != str(value):
            return f"{name} is {shown(cell)}, and {value} in the grid"
    return ""


def keep_had(folder: Path, rows: list[dict]) -> None:
    """Add rows of finished runs to have.csv of a sweep; rows of a run that is there already are replaced."""
    had = read_had(folder) | _by_run(rows)
    write_rows(Path(folder) / FILE, [row for i in sorted(had) for row in had[i]])
