"""Train a grid of runs in parallel, and resume it after a kill.

sweep folder/
    sweep.json         the resolved grid
    runs/000-dense-…/  one folder per run (see `loop`)
    results.csv        the rows of every finished run
    sessions.json      times of the sweep's sessions, and numbers of parallel runs
    sessions/          the same for the tasks of a job array
"""

import concurrent.futures
import gc
import math
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import jax

from ...errors import InputError, WorkerDiedError
from ...files import locked, storage_errors
from ..configuration import TrainConfig
from ..loop import Run
from ..runs.trunk import Trunk
from ..step import NOT_IN_PROGRAMS
from ..stopping import Resumable, asked, held
from ..text.corpus import read_corpus
from ..text.texts import open_text
from ..text.tokens import TokenFiles, prepare_tokens
from ..watch import Watch
from .grid import Grid
from .sweep_folder import (
    check_collected,
    check_sweep_folder,
    checked_rows,
    claim_sweep_folder,
    collect_rows,
    folder_of_run,
    is_finished,
    keep_had,
    read_had,
    session,
)
from .workers import available_cores, start_worker, thread_environment

RUNS_KEPT = 8
"""Number of runs after which a process drops its compiled programs (about 15 MB per run in the demo)."""

STOPPED = "stopped"
"""What a worker returns for a run that a signal stopped, instead of the message of a failure."""


_number_trained = [0]  # runs trained by this process


class Part(NamedTuple):
    """A task of a job array. It trains the runs index, index + of, index + 2 of, ... of the grid."""

    index: int
    of: int


def runs_of_part(grid: Grid, part: Part | None) -> list[int]:
    """Return the hyper_ids of a task's runs. The runs of a trunk belong to the task of the trunk."""
    trunks = trunks_of(grid)
    runs = range(len(grid.runs))
    return [i for i in runs if part is None or trunks.get(i, i) % part.of == part.index]


def trunks_of(grid: Grid) -> dict[int, int]:
    """Return {hyper_id: hyper_id of the trunk} of the runs that begin at a checkpoint of another run (see `trunk`).

    Runs with schedule wsd that differ only in steps share a trunk: the longest run.
    """
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(grid.runs):
        if run.schedule == "wsd":
            groups.setdefault(str(run.fields() | {"steps": None}), []).append(i)
    longest = [max(runs, key=lambda i: grid.runs[i].steps) for runs in groups.values()]
    pairs = zip(groups.values(), longest, strict=True)
    return {i: trunk for runs, trunk in pairs for i in runs if i != trunk and grid.runs[i].stable_steps() > 0}


def saving(grid: Grid, part: Part | None = None) -> str:
    """Return a sentence on the steps that trunks save in a task's runs; "" if these have no trunks."""
    runs = runs_of_part(grid, part)
    trunks, steps = trunks_of(grid).keys() & runs, sum(grid.runs[i].steps for i in runs)
    if not trunks:
        return ""
    saved = sum(grid.runs[i].stable_steps() for i in trunks)
    return (
        f"{len(trunks)} of {len(runs)} runs train only their decay, from checkpoints of the longer runs: "
        f"{steps - saved:,} steps instead of {steps:,}, {saved / steps:.0%} fewer"
    )


def run_sweep(
    grid: Grid,
    folder: Path,
    *,
    jobs: int | None = None,
    watch: Watch,
    later: Collection[int] = (),
    part: Part | None = None,
    have: Path | None = None,
) -> list[dict]:
    """Train the unfinished runs of a grid, or of a part of it, and return the rows of all finished runs.

    Parts may run at the same time, overlap, be killed and be repeated. Each run has a lock. Each part ends by writing
    the table of all finished runs.

    Args:
        jobs: number of parallel runs, each on one thread; None for the number of cores; always 1 on an accelerator.
        later: hyper_ids of runs to skip now.
        part: the runs of this process; None for all runs.
        have: a table of the same grid; the sweep skips its finished runs.

    Raises:
        InputError: the folder has another sweep, the text cannot be used, `have` has runs of `later`, or runs diverged
            (other runs finish).
        WorkerDiedError: a worker was killed; start again to resume.
        Resumable: the process was asked to stop; start again to resume.
    """
    folder, on_cpu = Path(folder), jax.default_backend() == "cpu"
    jobs = (jobs or available_cores()) if on_cpu else 1
    started = time.time()
    check_sweep_folder(folder, grid)
    check_collected(folder)
    # Find errors of the text before anything is written.
    tokens = _prepare_tokens(grid, watch)
    rows = [] if have is None else checked_rows(have, grid, [files.train_tokens for files in tokens])
    if known := {int(row["hyper_id"]) for row in rows} & {*later}:
        raise InputError(f"--have {have}: has run {min(known)}, whose loss --hold-out predicts; leave out one flag")
    with storage_errors(folder):
        claim_sweep_folder(folder, grid)
        alone = locked(folder, wait=False, holder="another sweep") if part is None else nullcontext()
        task = None if part is None else f"{part.index}-of-{part.of}-{os.getpid()}-{round(1000 * started)}"
        with alone, session(folder, started, jobs, task):
            if rows:
                keep_had(folder, rows)
            tasks = _tasks(grid, folder, tokens)
            mine = [tasks[i] for i in runs_of_part(grid, part)]
            todo = in_order(_unfinished(mine, later, read_had(folder), watch))
            if todo and (line := saving(grid, part)):
                watch("say", line=line)
            failures = {}
            try:
                for stage in filter(None, ([t for t in todo if not t.trunk], [t for t in todo if t.trunk])):
                    failures |= _train_in_workers(stage, jobs, watch) if on_cpu else _train_here(stage, watch)
            except Resumable:
                done = sum(is_finished(task.folder, task.config) for task in mine)
                raise Resumable(
                    f"{folder}: stopped with {done} of {len(mine)} runs finished and the others saved; "
                    "repeat the command to resume"
                ) from None
            rows = collect_rows(folder)
    if failures:
        first = min(failures)
        raise InputError(f"{len(failures)} of {len(mine)} runs failed; the first failure: {failures[first]}")
    return rows


class Task(NamedTuple):
    """A run of a sweep, as sent to a worker."""

    hyper_id: int
    config: TrainConfig
    folder: Path
    tokens: TokenFiles
    trunk: Trunk | None = None  # the start of the run, if its checkpoint exists
    keep: tuple[int, ...] = ()  # steps at which other runs begin


def _tasks(grid: Grid, folder: Path, tokens: list[TokenFiles]) -> list[Task]:
    folders, trunks = [folder_of_run(folder, i, run) for i, run in enumerate(grid.runs)], trunks_of(grid)
    tasks = [Task(i, run, folders[i], tokens[i]) for i, run in enumerate(grid.runs)]
    for i, trunk in trunks.items():
        step = grid.runs[i].stable_steps()
        tasks[i] = tasks[i]._replace(trunk=Trunk(folders[trunk], step))
        tasks[trunk] = tasks[trunk]._replace(keep=(*tasks[trunk].keep, step))
    return tasks


def _unfinished(tasks: list[Task], later: Collection[int], had: Collection[int], watch: Watch) -> list[Task]:
    todo = []
    for task in tasks:
        if task.hyper_id in had or is_finished(task.folder, task.config):
            watch("finished", run=task.hyper_id)
        elif task.hyper_id not in later:
            todo.append(task)
    return todo


def _prepare_tokens(grid: Grid, watch: Watch) -> list[TokenFiles]:
    """Return the tokens of every run. Runs with the same text and vocabulary size share them.

    Raises:
        InputError: a text cannot be read, or is too small for a run.
    """
    corpora = {name: read_corpus(name or None) for name in dict.fromkeys(run.corpus for run in grid.runs)}
    for corpus in corpora.values():
        watch("say", line=corpus.summary())
    made = {
        (name, size): prepare_tokens(corpora[name], size, tell=lambda line: watch("say", line=line))
        for name, size in dict.fromkeys((run.corpus, run.model.vocab_size) for run in grid.runs)
    }
    tokens = [made[run.corpus, run.model.vocab_size] for run in grid.runs]
    for run, files in zip(grid.runs, tokens, strict=True):
        open_text(run, files)
    return tokens


def in_order(tasks: list[Task]) -> list[Task]:
    """Return the runs in starting order: the longest first, so that short runs fill the end.

    Lengths within a tenth of a decade count as equal. Among runs of equal length, runs that share programs with an
    earlier run come last, because the programs are then cached.
    """
    before = Counter()

    def place(task: Task) -> tuple:
        program, length = str(fields_of_programs(task.config)), task.config.cost()
        before[program] += 1
        return -round(math.log10(length), 1), before[program], -length

    return sorted(tasks, key=place)


def fields_of_programs(config: TrainConfig) -> dict:
    """Return the fields of a run that may change its programs."""
    return {name: value for name, value in config.fields().items() if name not in NOT_IN_PROGRAMS}


def _train_here(todo: list[Task], watch: Watch) -> dict[int, str]:
    failures = {}
    for task in todo:
        watch("start", run=task.hyper_id)
        try:
            _train(task, lambda kind, run=task.hyper_id, **fields: watch(kind, run=run, **fields))
            watch("finished", run=task.hyper_id)
        except InputError as error:
            failures[task.hyper_id] = str(error)
            watch("failed", run=task.hyper_id, line=str(error))
    return failures


def _train(task: Task, watch: Watch) -> None:
    """Train a run. Clear JAX's caches only after several runs, because a cleared cache slows the next run."""
    trunk = task.trunk if task.trunk and task.trunk.is_saved() else None  # the losses are the same without a trunk
    Run(task.config, task.folder, task.tokens, task.hyper_id, watch, trunk=trunk, keep=task.keep).train()
    _number_trained[0] += 1
    if _number_trained[0] % RUNS_KEPT == 0:
        jax.clear_caches()
    gc.collect()  # free the buffers and programs of the run


def _train_in_workers(todo: list[Task], jobs: int, watch: Watch) -> dict[int, str]:
    """Train runs in parallel, one thread each. Return {hyper_id: message} of the failed runs."""
    context = multiprocessing.get_context("spawn")
    events, sender = context.Pipe(duplex=False)
    over = threading.Event()
    listener = threading.Thread(target=_pass_on, args=(events, over, watch), daemon=True)
    with _environment(thread_environment(1)):
        listener.start()
        pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _start_worker, (sender, context.Lock()))
        try:
            return _failures(pool, todo)
        except Resumable:
            _stop_workers(pool)
            raise
        except BrokenProcessPool as error:
            raise WorkerDiedError("a training process was killed; repeat the command to resume the sweep") from error
        except BaseException:
            _kill_workers(pool)  # do not wait for unneeded runs
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            over.set()
            listener.join()


def _failures(pool: concurrent.futures.ProcessPoolExecutor, todo: list[Task]) -> dict[int, str]:
    """Send the runs to the workers, wait for all runs, and return {hyper_id: message} of the failed runs.

    Raises:
        Resumable: a worker got a signal to stop.
        BrokenProcessPool: a worker was killed.
    """
    failures = {}
    futures = {pool.submit(_train_in_worker, task): task for task in todo}
    for future in concurrent.futures.as_completed(futures):
        message = future.result()
        if message == STOPPED:
            raise Resumable("a training process got a signal to stop")
        if message is not None:
            failures[futures[future].hyper_id] = message
    return failures


def _stop_workers(pool: concurrent.futures.ProcessPoolExecutor) -> None:
    """Tell the workers to save and stop, and wait for them. A second Ctrl-C kills them."""
    with held():
        try:
            for process in list(pool._processes.values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:
            _kill_workers(pool)
            raise


def _kill_workers(pool: concurrent.futures.ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()


def _pass_on(events, over: threading.Event, watch: Watch) -> None:
    """Pass the workers' events to the watcher, in the parent.

    The parent takes no lock, because a killed worker could hold it forever.
    """
    while not over.is_set() or events.poll():
        if events.poll(0.1):
            kind, fields = events.recv()
            watch(kind, **fields)


def _start_worker(sender, lock) -> None:
    """Prepare a worker process. It sends events through `sender`, under `lock`."""
    global _sender, _lock
    _sender, _lock = sender, lock
    start_worker()


def _train_in_worker(task: Task) -> str | None:
    def watch(kind, **fields):
        with _lock:
            _sender.send((kind, {"run": task.hyper_id, **fields}))

    if asked():
        return STOPPED
    watch("start")
    try:
        _train(task, watch)
    except Resumable:
        return STOPPED
    except InputError as error:
        watch("failed", line=str(error))
        return str(error)
    watch("finished")
    return None


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
