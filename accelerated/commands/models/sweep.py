"""The command `routelaws sweep`: train a grid of models and write its report."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import markdown_it  # noqa: F401  # the report needs these packages at the end: fail before hours of training
import matplotlib  # noqa: F401
import numpy as np
import pandas  # noqa: F401

from ...errors import InputError, printable
from ...findings.sweeps.folder import read_sweep
from ...findings.sweeps.loads import learning, not_learned_sentence
from ...findings.sweeps.registered import check_untouched, held_out, register
from ...findings.sweeps.report import write_report
from ...laws.fitting import level_table
from ...training.sweeps.board import Board
from ...training.sweeps.grid import MOST_RUNS, Grid, read_grid
from ...training.sweeps.sweep import Part, run_sweep, runs_of_part
from ...training.sweeps.sweep_folder import folder_of_run
from ...training.watch import Watch
from ...wording import by_reason
from ..flags import check_counts
from ..progress import LivePage, Progress
from ..terminal import remark, say
from .train import boards_of, with_rates

DRAWN = 5
"""Number of runs in the figure of a sweep that trains: the current ones, then the last that ended."""


def sweep(
    grid: str,
    /,
    *,
    out: Path,
    corpus: tuple[str, ...] = (),
    jobs: int | None = None,
    hold_out: Literal["largest"] | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
    index: int | None = None,
    of: int | None = None,
    have: Path | None = None,
    most_runs: int = MOST_RUNS,
    recipe: str | None = None,
) -> None:
    """Train a grid of models, fit the law to it and write the report.

    Args:
        grid: Name of a preset, or a TOML file.
        out: Folder of the sweep. If it holds a stopped sweep, that sweep resumes. While it trains, OUT/report.html
            shows its runs and loads itself again; at the end it is the report.
        corpus: Files, folders and globs of text. If not given: the corpus of the grid.
        jobs: Number of runs at a time, one thread each. If not given: the number of cores.
        hold_out: Train the models of the largest size last. Before that, fit a law to the other runs and predict the
            losses of the largest size, with intervals. predictions.json stores the predictions and is never rewritten;
            the report scores them.
        tensorboard: Also write the log of each run for TensorBoard, into the subfolder tensorboard of the run.
        wandb: Also send the log of each run to this project of Weights & Biases, by its package.
        index: Index I of this task in a job array, such as $SLURM_ARRAY_TASK_ID; the first task is 0. Without --of, the
            task trains only run I of the grid. After the last task, results.csv has all runs. Then run `routelaws
            report OUT` to write the report.
        of: Number M of tasks. If not given: the number of runs. With --index I, the task trains the runs I, I + M, I +
            2 M, ...
        have: results.csv of another sweep of the same grid. Its finished runs are not trained again.
        most_runs: Largest allowed number of runs. A grid with more runs is an error, since its lists may multiply to
            more runs than you expect.
        recipe: Recipe of the peak learning rate of runs without one, see `routelaws train`. All runs use one recipe.
    """
    check_counts({"jobs": jobs})
    chosen = read_grid(grid, {"corpus": list(corpus)} if corpus else {}, most_runs)
    part = None if index is None and of is None else _part(index, of, hold_out, len(chosen.runs))
    runs, lines = with_rates(chosen.runs, recipe)
    chosen = chosen._replace(runs=tuple(runs))
    for line in lines:
        remark(f"{grid}: {line}")
    for reason, routers in by_reason(without_law(chosen)).items():
        say(f"{grid}: there will be no law for {', '.join(routers)}: {reason}; add sizes or values of experts")

    def told(watch: Watch) -> Watch:
        boards = {i: (folder_of_run(out, i, run), run) for i, run in enumerate(chosen.runs)}
        return functools.reduce(lambda to, project: Board(to, boards, project), boards_of(tensorboard, wandb), watch)

    def write(blocks: list, current: list[int], refresh: float | None) -> None:
        from ...inspection.run_page import write_live_page

        shown = {folder_of_run(out, i, chosen.runs[i]): chosen.runs[i] for i in sorted(current[:DRAWN])}
        write_live_page(out, shown, blocks, refresh)

    if part is not None:
        _train_part(chosen, out, part, jobs, have, told)
        return
    if hold_out is not None:
        later = held_out(chosen.runs)
        check_untouched(out)
        with Progress(chosen.runs, page=LivePage(write)) as watch:
            run_sweep(chosen, out, jobs=jobs, watch=told(watch), later=later, have=have)
        print(printable(str(register(out))))
    with Progress(chosen.runs, page=LivePage(write)) as watch:
        run_sweep(chosen, out, jobs=jobs, watch=told(watch), have=have)
    report = write_report(out)
    if sentence := not_learned_sentence(learning(read_sweep(out))):
        say(f"{out}: {sentence}")
    print(printable(str(report)), printable(str(out / "report.html")), sep="\n")


def without_law(grid: Grid) -> dict[str, str]:
    """Return {router: reason} of the routers whose runs with k = 1 are too few for the bounded law, with dense runs."""
    dense = [run for run in grid.runs if run.model.router == "dense"]
    reasons = {}
    for router in dict.fromkeys(run.model.router for run in grid.runs if run not in dense):
        runs = dense + [run for run in grid.runs if run.model.router == router and run.model.k == 1]
        points = [(run.accounting().dense_parameters, run.model.experts, 1.0) for run in runs]
        try:
            level_table(*np.array(points, dtype=np.float64).reshape(-1, 3).T)
        except InputError as error:
            reasons[router] = str(error)
    return reasons


def _part(index: int | None, of: int | None, hold_out: str | None, runs: int) -> Part:
    if index is None:
        raise InputError(f"--of {of}: --index is missing; add the index of this task")
    if hold_out is not None:
        raise InputError("--hold-out: cannot be used with --index, because the largest runs wait for all others")
    if of is not None and not 1 <= of <= runs:
        raise InputError(f"--of {of} is out of range: the grid has {runs} runs; use 1 to {runs}")
    tasks = of or runs
    if not 0 <= index < tasks:
        whose = f"the grid has {runs} runs" if of is None else f"there are {of} tasks"
        raise InputError(f"--index {index}: {whose}; allowed: 0 to {tasks - 1} (a job array 0-{tasks - 1})")
    return Part(index, tasks)


def _train_part(
    grid: Grid, out: Path, part: Part, jobs: int | None, have: Path | None, told: Callable[[Watch], Watch]
) -> None:
    with Progress(grid.runs, runs_of_part(grid, part)) as watch:
        rows = run_sweep(grid, out, jobs=jobs, watch=told(watch), part=part, have=have)
    done = len({row["hyper_id"] for row in rows})
    then = f"; routelaws report {out} writes the report" if done == len(grid.runs) else ""
    say(f"{out}: {done} of {len(grid.runs)} runs are finished{then}")
