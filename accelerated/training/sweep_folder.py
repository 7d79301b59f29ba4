"""What the folder of a sweep holds beside its runs: which sweep it is, and when the sweep was at work.

sweep.json         the resolved grid                                       `claim_sweep_folder`, `read_plan`
runs/000-dense-…/  one folder per run                                      `folder_of_run`
sessions.json      when the sweep was at work, on how many runs at a time  `session`, `read_sessions`
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from ..files import make_folder, write_atomically
from .config import TrainConfig, from_mapping
from .grid import Grid
from .workers import available_cores

HEARTBEAT = 2.0
"""Seconds between the notes of a session that it is still at work."""


def check_sweep_folder(folder: Path, grid: Grid) -> None:
    """Raise `InputError` where the folder of a sweep is in use for something else."""
    folder = Path(folder)
    if (folder / "sweep.json").exists():
        if read_plan(folder) != grid:
            raise InputError(f"--out {folder}: holds the results of another sweep; choose another folder")
    elif folder.is_dir() and any(not item.name.startswith(".") for item in folder.iterdir()):
        raise InputError(f"--out {folder}: is not empty and holds no sweep; choose another folder")


def claim_sweep_folder(folder: Path, grid: Grid) -> None:
    """Make the folder of a sweep and write down which sweep it is."""
    make_folder(folder)
    if not (Path(folder) / "sweep.json").exists():
        write_atomically(Path(folder) / "sweep.json", _description(grid))


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
        raise InputError(f"{folder}: holds no sweep (no sweep.json)") from None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is not the description of a sweep ({type(error).__name__}: {error})") from None


def folder_of_run(folder: Path, hyper_id: int, config: TrainConfig) -> Path:
    """Return the folder of one run of a sweep."""
    return Path(folder) / "runs" / f"{hyper_id:03d}-{config.name()}"


@contextmanager
def session(folder: Path, started: float, jobs: int) -> Iterator[None]:
    """Note in sessions.json when this session began and when it was last at work, whatever ends it."""
    path = folder / "sessions.json"
    sessions = read_sessions(folder)
    current = {"started": started, "last": time.time(), "jobs": jobs, "cores": available_cores()}
    over = threading.Event()

    def note():
        current["last"] = time.time()
        write_atomically(path, json.dumps([*sessions, current], indent=1))

    def beat():
        while not over.wait(HEARTBEAT):
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
    path = Path(folder) / "sessions.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
