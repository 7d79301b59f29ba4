"""The files in the folder of a sweep except its runs: the grid, the table and the sessions.

sweep.json         the resolved grid                                       `claim_sweep_folder`, `read_plan`
runs/000-dense-…/  one folder per run                                      `folder_of_run`, `is_finished`
results.csv        the rows of every finished run                          `collect_rows`
have.csv           rows of finished runs of another folder                 `keep_had`, `read_had`
sessions.json      times of the sweep's sessions, and parallel runs        `session`, `read_sessions`
sessions/          the same for the tasks of a job array, one file per task
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import InputError
from ...files import exists, locked, make_folder, write_atomically, write_once
from ...json_files import NUMBER, read_json, shown
from ..configuration import TrainConfig, from_mapping
from ..runs.result_rows import as_text, read_rows, run_columns, write_rows
from ..runs.run_folder import read_config, read_results
from .grid import Grid
from .workers import available_cores

HAVE = "have.csv"
"""File with the rows of runs that a sweep skips, from a table of the same grid (`routelaws sweep --have TABLE`).

Later commands treat these runs as finished. If a run is also finished in runs/, the rows from runs/ are used.
"""

SESSION = {"started": NUMBER, "last": NUMBER, "jobs?": int, "cores?": int}
"""The form of a session."""

HEARTBEAT = 2.0
"""Seconds between updates of a session's last time."""


def check_sweep_folder(folder: Path, grid: Grid) -> None:
    """Raise `InputError` if a folder has other content than this sweep."""
    folder = Path(folder)
    if exists(folder / "sweep.json"):
        planned = read_plan(folder).runs
        pairs = enumerate(zip(grid.runs, planned, strict=False))
        different = next(
            ((i, *difference) for i, (ours, theirs) in pairs if (difference := ours.difference(theirs))), None
        )
        if different:
            i, name, ours, theirs = different
            what = f"another sweep: {name} of run {i} is {shown(theirs)} there, and {shown(ours)} here"
            raise InputError(f"--out {folder}: holds the results of {what}; choose another folder")
        if len(planned) != len(grid.runs):
            what = f"another sweep, with {len(planned)} runs instead of {len(grid.runs)}"
            raise InputError(f"--out {folder}: holds the results of {what}; choose another folder")
    elif folder.is_dir() and any(not item.name.startswith(".") for item in folder.iterdir()):
        raise InputError(f"--out {folder}: is not empty and holds no sweep; choose another folder")


def claim_sweep_folder(folder: Path, grid: Grid) -> None:
    """Make the folder of a sweep and write its grid.

    Raises:
        InputError: the folder has another sweep.
    """
    make_folder(folder)
    content = {"name": grid.name, "runs": [run.plain() for run in grid.runs]}
    write_once(Path(folder) / "sweep.json", json.dumps(content, indent=1))
    check_sweep_folder(folder, grid)
    make_folder(Path(folder) / "runs")


def read_plan(folder: Path) -> Grid:
    """Return the grid of the sweep in a folder.

    Raises:
        InputError: the folder has no sweep, or sweep.json cannot be read.
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
    """Return whether the table of a run has the row of its last step."""
    try:
        rows = read_results(folder)[0]
    except InputError:
        return False  # the run itself reports a damaged table
    return _are_of_all_steps(rows, config)


def finished_runs(folder: Path) -> Iterator[tuple[int, Path, TrainConfig]]:
    """Yield hyper_id, folder and configuration of each finished run of a sweep."""
    for i, (run_folder, config) in enumerate(_runs(folder)):
        if is_finished(run_folder, config):
            yield i, run_folder, config


def _are_of_all_steps(rows: list[dict], config: TrainConfig) -> bool:
    return bool(rows) and int(rows[-1]["step"]) == config.steps


def collect_rows(folder: Path) -> list[dict]:
    """Write results.csv of a sweep from the tables of its finished runs, and return the rows.

    Each task of a job array calls this after its runs, under a lock, so the last task writes the complete table. A run
    whose own table is damaged or gone keeps its rows, until it is finished again.
    """
    folder, rows = Path(folder), []
    with locked(folder / "runs", wait=True, holder="another collection"):
        before, had = _by_run(read_rows(folder / "results.csv")), read_had(folder)
        for i, (run_folder, config) in enumerate(_runs(folder)):
            try:
                rows_of_run = read_results(run_folder)[0]
            except InputError:  # the run or the report reports this error
                rows_of_run = []
            rows += rows_of_run if _are_of_all_steps(rows_of_run, config) else before.get(i) or had.get(i, [])
        write_rows(folder / "results.csv", rows)
    return rows


def check_collected(folder: Path) -> None:
    """Raise `InputError` if a new results.csv of a sweep would lose rows."""
    table = _by_run(read_rows(Path(folder) / "results.csv"))
    for i, (run_folder, config) in enumerate(_runs(folder) if table else []):
        if i in table and is_finished(run_folder, config):
            if [as_text(row) for row in table[i]] != [as_text(row) for row in read_results(run_folder)[0]]:
                raise InputError(
                    f"{Path(folder) / 'results.csv'}: the rows of run {i} differ from {run_folder / 'results.csv'}; "
                    "delete it to write it again from the runs (keep your own tables elsewhere)"
                )


def check_plan(folder: Path) -> None:
    """Raise `InputError` if sweep.json does not match runs/."""
    path = Path(folder) / "sweep.json"
    for i, (run_folder, config) in enumerate(_runs(folder)):
        others = [other.name for other in run_folder.parent.glob(f"{i:03d}-*") if other.name != run_folder.name]
        if others:
            raise InputError(f"{path}: run {i} is {run_folder.name}, but runs/ has {others[0]}; restore sweep.json")
        if os.path.exists(run_folder / "config.json") and (different := config.difference(read_config(run_folder))):
            name, planned, saved = different
            what = f"{name} of run {i} is {shown(planned)}, but {shown(saved)} in {run_folder / 'config.json'}"
            raise InputError(f"{path}: {what}; restore sweep.json")


def _runs(folder: Path) -> list[tuple[Path, TrainConfig]]:
    return [(folder_of_run(folder, i, config), config) for i, config in enumerate(read_plan(folder).runs)]


@contextmanager
def session(folder: Path, started: float, jobs: int, task: str | None = None) -> Iterator[None]:
    """Record the start of this session and, until it ends, its last time.

    Args:
        started: start of the session, in seconds since 1970.
        task: name of a task of a job array (its file is in sessions/); None for sessions.json.
    """
    path = folder / "sessions.json" if task is None else make_folder(folder / "sessions") / f"{task}.json"
    sessions = _read_list(path)
    current = {"started": started, "last": started, "jobs": jobs, "cores": available_cores()}
    over, before = threading.Event(), time.monotonic() - max(0.0, time.time() - started)

    def note():
        current["last"] = started + time.monotonic() - before  # the time of day may jump
        write_atomically(path, json.dumps([*sessions, current], indent=1))

    def beat():
        while not over.wait(HEARTBEAT):
            with suppress(OSError):  # the runs themselves report a full disk
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
    """Return the sessions of a sweep: `started` and `last` in seconds since 1970, numbers of `jobs` and `cores`."""
    folder = Path(folder)
    paths = [folder / "sessions.json", *sorted((folder / "sessions").glob("*.json"))]
    return [session for path in paths for session in _read_list(path)]


def _read_list(path: Path) -> list[dict]:
    try:
        return read_json(path, [SESSION])
    except (FileNotFoundError, NotADirectoryError):
        return []
    except InputError as error:
        raise InputError(f"{error}; restore it, or delete it: only the times of the sweep are lost") from None


def read_had(folder: Path) -> dict[int, list[dict]]:
    """Return the rows in have.csv of a sweep by hyper_id; {} without such a file."""
    return _by_run(read_rows(Path(folder) / HAVE))


def _by_run(rows: list[dict]) -> dict[int, list[dict]]:
    runs: dict[int, list[dict]] = {}
    for row in rows:
        runs.setdefault(int(row["hyper_id"]), []).append(row)
    return runs


def checked_rows(table: Path, grid: Grid, unique_tokens: list[int]) -> list[dict]:
    """Return the rows of the finished runs of a table, after checks against the grid.

    Args:
        table: results.csv of a sweep of the same grid.
        unique_tokens: number of tokens of the training text of each run.

    Raises:
        InputError: the table is missing, or a row does not match the run of the grid with its hyper_id.
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
            raise InputError(f"--have {table}, row {number}: {wrong}; the table is for another grid")
        last[i] = int(row["step"])
    return [row for row in rows if last[int(row["hyper_id"])] == grid.runs[int(row["hyper_id"])].steps]


def _difference(row: dict, config: TrainConfig, unique_tokens: int) -> str:
    planned = run_columns(config) | {"unique_tokens": unique_tokens}
    for name, value in planned.items():
        cell = row.get(name, "")
        if cell != "" and cell != str(value):
            return f"{name} is {shown(cell)}, and {value} in the grid"
    return ""


def keep_had(folder: Path, rows: list[dict]) -> None:
    """Add rows of finished runs to have.csv of a sweep, replacing rows of the same run."""
    had = read_had(folder) | _by_run(rows)
    write_rows(Path(folder) / HAVE, [row for i in sorted(had) for row in had[i]])
