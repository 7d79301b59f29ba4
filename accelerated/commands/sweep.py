"""What `routelaws sweep` does: train a grid of models and write its report."""

from pathlib import Path
from typing import Literal

import jinja2  # noqa: F401  # the report at the end needs these: what is missing is said before hours of training
import markdown_it  # noqa: F401
import matplotlib  # noqa: F401
import pandas  # noqa: F401
import tyro

from ..errors import InputError
from ..findings.registered import check_untouched, held_out, register
from ..report.engine import write_report
from ..training.board import Board
from ..training.grid import read_grid
from ..training.sweep import run_sweep
from ..training.sweep_folder import folder_of_run
from .progress import Progress


def sweep(
    grid: tyro.conf.Positional[str],
    out: Path,
    corpus: tuple[str, ...] = (),
    jobs: int | None = None,
    hold_out: Literal["largest"] | None = None,
    tensorboard: bool = False,
) -> None:
    """Train a grid of models, fit the law to it and write the report.

    Args:
        grid: Name of a preset, or a TOML file.
        out: Folder of the sweep; a sweep that was killed goes on there.
        corpus: Files, folders and globs of text; what the grid says if not given.
        jobs: Runs at a time, one thread each; as many as there are cores if not given.
        hold_out: Train the runs of the largest size last. Before that the law of the others predicts their losses, with
            intervals, in predictions.json of the folder, which is never written again; the report scores it.
        tensorboard: Write the log of each run for TensorBoard, too, below tensorboard/ in its folder.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: at least 1")
    chosen = read_grid(grid, {"corpus": list(corpus)} if corpus else {})
    boards = {i: (folder_of_run(out, i, run), run) for i, run in enumerate(chosen.runs)}
    if hold_out is not None:
        later = held_out(chosen.runs)
        check_untouched(out)
        with Progress(chosen.runs) as watch:
            run_sweep(chosen, out, jobs=jobs, watch=Board(watch, boards) if tensorboard else watch, later=later)
        print(register(out))
    with Progress(chosen.runs) as watch:
        run_sweep(chosen, out, jobs=jobs, watch=Board(watch, boards) if tensorboard else watch)
    print(write_report(out))
