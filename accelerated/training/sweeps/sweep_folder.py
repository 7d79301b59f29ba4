"""What the folder of a sweep holds beside its runs: which sweep it is, and when the sweep was at work.

sweep.json         the resolved grid                                       `claim_sweep_folder`, `read_plan`
runs/000-dense-…/  one folder per run                                      `folder_of_run`, `is_finished`
results.csv        the rows of every finished run                          `collect_rows`
have.csv           rows of runs that were trained elsewhere                `keep_had`, `read_had`
sessions.json      when the sweep was at work, on how many runs at a time  `session`, `read_sessions`
sessions/          the same of tasks of a job array, a file for each
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...cores import available_cores
from ...errors import InputError
from ...files import locked, make_folder, write_atomically, write_once
from ...json_files import NUMBER, read_json, shown
from ..configuration import TrainConfig, from_mapping
from ..runs.result_rows import as_text, read_rows, run_columns, write_rows
from ..runs.run_folder import read_config, read_results
from .grid import Grid

HAVE = "have.csv"
"""Rows of runs that a sweep need not train, since a table of the same grid has them (`routelaws sweep --have TABLE`).

Every later command counts these runs as finished. A run that is finished in the folder goes before its rows here.
"""

SESSION = {"started": NUMBER, "last": NUMBER, "jobs?": int, "cores?": int}
"""The form of a session."""

HEARTBEAT = 2.0
"""Seconds between the notes of a session that it is still at work."""


def check_sweep_folder(folder: Path, grid: Grid) -> None:
    """Raise `InputError` where the folder of a sweep is in use for something else."""
    folder = Path(folder)
    if os.path.exists(folder / "sweep.json"):
        planned = read_plan(folder).runs
        pairs = enumerate(zip(grid.runs, planned, strict=False))
        different = next(((i, *found) for i, (ours, theirs) in pairs if (found := ours.difference(theirs))), None)
        if different:
            i, name, ours, theirs = different
            what = f"another sweep: {name} of run {i} is {shown(theirs)} there, and {shown(ours)} here"
            raise InputError(f"--out {folder}: holds the results of {what}; choose another folder")
        if len(planned) != len(grid.runs):
            what = f"another sweep, of {len(planned)} runs and not {len(grid.runs)}"
            raise InputError(f"--out {folder}: holds the results of {what}; choose another folder")
    elif folder.is_dir() and any(not item.name.startswith(".") for item in folder.iterdir()):
        raise InputError(f"--out {folder}: is not empty and holds no sweep; choose another folder")


def claim_sweep_folder(folder: Path, grid: Grid) -> None:
    """Make the folder of a sweep and write down which sweep it is.

    Raises:
        InputError: another sweep claimed it first, be it a moment ago.
    """
    make_folder(folder)
    write_once(Path(folder) / "sweep.json", _description(grid))
    check_sweep_folder(folder, grid)
    make_folder(Path(folder) / "runs")


def _description(grid: Grid) -> str:
    return json.dumps({"name": grid.name, "runs": [run.plain() for run in grid.runs]}, indent=1)


def read_plan(folder: Path) -> Grid:
    """Return the grid of the sweep in a folder.

    Raises:
        InputError: the folder holds no sweep, or its description cannot be read.
    """
    path = Path(folder) / "sweep.json"
    try:
        content = read_json(path, {"name": str, "runs": [dict]})
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.isdir(folder):
            raise InputError(f"{folder}: no such folder") from None
        raise InputError(f"{folder}: holds no sweep (no sweep.json)") from None
    runs = (from_mapping(run, f"{path}: run {i}") for i, run in enumerate(content["runs"]))
    return Grid(content["name"], tuple(runs))


def folder_of_run(folder: Path, hyper_id: int, config: TrainConfig) -> Path:
    """Return the folder of one run of a sweep."""
    return Path(folder) / "runs" / f"{hyper_id:03d}-{config.name()}"


def is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether the last row of the table in the folder of a run is that of its last step."""
    try:
        rows = read_results(folder)[0]
    except InputError:
        return False  # a damaged table: the run itself says so
    return _are_of_all_steps(rows, config)


def _are_of_all_steps(rows: list[dict], config: TrainConfig) -> bool:
    return bool(rows) and int(rows[-1]["step"]) == config.steps


def collect_rows(folder: Path) -> list[dict]:
    """Write results.csv of a sweep from the tables of its finished runs, and return its rows.

    Tasks of a job array do so one at a time, each after its own runs: the last one writes the table of all.
    """
    folder, rows = Path(folder), []
    with locked(folder / "runs", wait=True, holder="another collection"):
        before, had = _collected(folder), read_had(folder)
        for i, (own, config) in enumerate(_runs(folder)):
            try:
                found = read_results(own)[0]
            except InputError:  # the run itself says so, or the report
                found = before.get(i, [])
            rows += found if _are_of_all_steps(found, config) else had.get(i, [])
        write_rows(folder / "results.csv", rows)
    return rows


def check_collected(folder: Path) -> None:
    """Raise `InputError` where results.csv of a sweep has other rows than its finished runs: they would be lost."""
    table = _collected(folder)
    for i, (own, config) in enumerate(_runs(folder) if table else []):
        if i in table and is_finished(own, config):
            if [as_text(row) for row in table[i]] != [as_text(row) for row in read_results(own)[0]]:
                raise InputError(
                    f"{Path(folder) / 'results.csv'}: the rows of run {i} are not those of {own / 'results.csv'}; "
                    "delete it: it is written anew from the runs (keep a table of your own elsewhere)"
                )


def check_plan(folder: Path) -> None:
    """Raise `InputError` where sweep.json describes other runs than there are in runs/."""
    path = Path(folder) / "sweep.json"
    for i, (own, config) in enumerate(_runs(folder)):
        others = [other.name for other in own.parent.glob(f"{i:03d}-*") if other.name != own.name]
        if others:
            raise InputError(f"{path}: run {i} is {own.name}, but runs/ has {others[0]}; put sweep.json back")
        if os.path.exists(own / "config.json") and (different := config.difference(read_config(own))):
            name, planned, found = different
            what = f"{name} of run {i} is {shown(planned)}, but {shown(found)} in {own / 'config.json'}"
            raise InputError(f"{path}: {what}; put sweep.json back")


def _collected(folder: Path) -> dict[int, list[dict]]:
    """Return the rows of the table of a sweep by hyper_id."""
    table = {}
    for row in read_rows(Path(folder) / "results.csv"):
        table.setdefault(int(row["hyper_id"]), []).append(row)
    return table


def _runs(folder: Path) -> list[tuple[Path, TrainConfig]]:
    """Return the folder and the configuration of each run of a sweep, by hyper_id."""
    return [(folder_of_run(folder, i, config), config) for i, config in enumerate(read_plan(folder).runs)]


@contextmanager
def session(folder: Path, started: float, jobs: int, task: str | None = None) -> Iterator[None]:
    """Note when this session began and when it was last at work, whatever ends it.

    Args:
        folder: of the sweep.
        started: in seconds since 1970.
        jobs: runs at a time.
        task: a name for a task of a job array, which has a file of its own in sessions/; None for sessions.json.
    """
    path = folder / "sessions.json" if task is None else make_folder(folder / "sessions") / f"{task}.json"
    sessions = _read_list(path)
    current = {"started": started, "last": started, "jobs": jobs, "cores": available_cores()}
    over, before = threading.Event(), time.monotonic() - max(0.0, time.time() - started)

    def note():
        current["last"] = started + time.monotonic() - before  # the clock of the day may jump
        write_atomically(path, json.dumps([*sessions, current], indent=1))

    def beat():
        while not over.wait(HEARTBEAT):
            with suppress(OSError):  # of a full disk the runs themselves will tell
                note()

    note()
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        note()


def read_sessions(folder: Path) -> list[dict]:
    """Return the sessions of a sweep so far: started and last in seconds since 1970, jobs, cores."""
    folder = Path(folder)
    paths = [folder / "sessions.json", *sorted((folder / "sessions").glob("*.json"))]
    return [session for path in paths for session in _read_list(path)]


def _read_list(path: Path) -> list[dict]:
    try:
        return read_json(path, [SESSION])
    except (FileNotFoundError, NotADirectoryError):
        return []
    except InputError as error:
        raise InputError(f"{error}; put it back, or delete it: only the times of the sweep are lost") from None


def read_had(folder: Path) -> dict[int, list[dict]]:
    """Return the rows in have.csv of a sweep by hyper_id; none if there is no such file."""
    return _by_run(read_rows(Path(folder) / HAVE))


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
    write_rows(Path(folder) / HAVE, [row for i in sorted(had) for row in had[i]])
