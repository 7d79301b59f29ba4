"""What the folder of a sweep holds beside its runs: which sweep it is, and when the sweep was at work.

sweep.json         the resolved grid                                       `claim_sweep_folder`, `read_plan`
runs/000-dense-…/  one folder per run                                      `folder_of_run`, `is_finished`
results.csv        the rows of every finished run                          `collect_rows`
sessions.json      when the sweep was at work, on how many runs at a time  `session`, `read_sessions`
sessions/          the same of tasks of a job array, a file for each
"""

import csv
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..cores import available_cores
from ..errors import InputError
from ..files import locked, make_folder, write_atomically, write_once
from .configuration import CHANGEABLE, TrainConfig, from_mapping
from .grid import Grid
from .result_rows import read_rows, write_rows

HEARTBEAT = 2.0
"""Seconds between the notes of a session that it is still at work."""


def check_sweep_folder(folder: Path, grid: Grid) -> None:
    """Raise `InputError` where the folder of a sweep is in use for something else."""
    folder = Path(folder)
    if (folder / "sweep.json").exists():
        if _without_changeable(read_plan(folder)) != _without_changeable(grid):
            raise InputError(f"--out {folder}: holds the results of another sweep; choose another folder")
    elif folder.is_dir() and any(not item.name.startswith(".") for item in folder.iterdir()):
        raise InputError(f"--out {folder}: is not empty and holds no sweep; choose another folder")


def _without_changeable(grid: Grid) -> Grid:
    usual = {name: getattr(TrainConfig, name) for name in CHANGEABLE}
    return grid._replace(runs=tuple(dataclasses.replace(run, **usual) for run in grid.runs))


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
    return json.dumps({"name": grid.name, "runs": [json.loads(run.to_json()) for run in grid.runs]}, indent=1)


def read_plan(folder: Path) -> Grid:
    """Return the grid of the sweep in a folder.

    Raises:
        InputError: the folder holds no sweep, or its description cannot be read.
    """
    path = Path(folder) / "sweep.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Grid(str(content["name"]), tuple(from_mapping(run, str(path)) for run in content["runs"]))
    except (FileNotFoundError, NotADirectoryError):
        if not Path(folder).is_dir():
            raise InputError(f"{folder}: no such folder") from None
        one = "; it is one run: give two or more to hold them against each other"
        alone = one if (Path(folder) / "config.json").exists() else ""
        raise InputError(f"{folder}: holds no sweep (no sweep.json){alone}") from None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is not the description of a sweep ({type(error).__name__}: {error})") from None


def folder_of_run(folder: Path, hyper_id: int, config: TrainConfig) -> Path:
    """Return the folder of one run of a sweep."""
    return Path(folder) / "runs" / f"{hyper_id:03d}-{config.name()}"


def is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether the last row of the table in the folder of a run is that of its last step."""
    try:
        rows = read_rows(folder / "results.csv")
        return bool(rows) and int(rows[-1]["step"]) == config.steps
    except (ValueError, KeyError, TypeError, csv.Error):
        return False  # a damaged table: the run itself says so


def collect_rows(folder: Path) -> list[dict]:
    """Write results.csv of a sweep from the tables of its finished runs, and return its rows.

    Tasks of a job array do so one at a time, each after its own runs: the last one writes the table of all.
    """
    folder, rows = Path(folder), []
    with locked(folder / "runs", wait=True, holder="another collection"):
        for i, config in enumerate(read_plan(folder).runs):
            own = folder_of_run(folder, i, config)
            rows += read_rows(own / "results.csv") if is_finished(own, config) else []
        write_rows(folder / "results.csv", rows)
    return rows


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
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
