"""A process that runs the blocks of a benchmark when it is told to, and sleeps in between.

Two libraries with threads of their own in one process wait for each other's threads, and the number of threads of each
is fixed when it starts. So every library has a process of its own for each number of threads. The one that measures
sends a line of JSON, waits for the answer, and sends the next line to the other process: one computes, the others are
asleep at the end of a pipe.

    {"do": "build", "key": "a", "job": "train_step:our_step", "options": {...}}  ->  {"took": seconds}
    {"do": "run", "key": "a", "calls": 8}   ->  {"seconds": [...]}
    {"do": "facts", "key": "a"}             ->  {"facts": {...}}
    {"do": "drop", "key": "a"}              ->  {}

A job is `module:function` of this folder. The function takes the options and returns a `Job`, whose `run` does the work
once and waits for its end; where `run` returns a number, that is the time, otherwise the clock around it.
"""

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from ..cores import available_cores
from ..training.allocator import HUGE_PAGES, compute_where_called, keep_freed_memory

SLOW = 2.0
"""Seconds from which a call is so long that a block has no call before it that does not count."""

LONG = 10.0
"""Seconds from which a first call is the only one before the blocks."""

_THREAD_COUNTS = (
    "NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip


@dataclasses.dataclass
class Job:
    """Something that can be timed.

    Attributes:
        run: does it once; returns None, or the seconds that count
        facts: numbers and words about what was done so far
    """

    run: Callable[[], float | None]
    facts: Callable[[], dict] = dict


class MissingError(Exception):
    """A library that a job needs is not installed; the message is its name."""


class NotHereError(Exception):
    """A job makes no sense on this backend; the message says why."""


class WorkerError(RuntimeError):
    """A process failed; the message is the last line that it said."""


ERRORS = {"missing": MissingError, "not_here": NotHereError, "failed": WorkerError}


class Worker:
    """A process for jobs, with a number of threads; the process ends with `close`.

    Args:
        threads: how many it may use; it is kept to as many cores.
        library: what its jobs run; "jax" is set up as `routelaws train` does it.
        settings: environment variables of the process.
    """

    def __init__(self, threads: int, library: str = "jax", settings: dict[str, str] | None = None):
        self.threads = threads
        self.said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main({threads}, {library!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            env=os.environ | environment(threads) | (settings or {}),
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self.process.pid

    def build(self, key: str, job: str, options: dict) -> float:
        """Make a job and call it twice, or once where that takes long; return how long the last call took.

        Raises:
            MissingError: a library is not installed.
            NotHereError: the job makes no sense on this backend.
            WorkerError: anything else.
        """
        return self._ask(do="build", key=key, job=job, options=options)["took"]

    def run(self, key: str, calls: int) -> list[float]:
        """Call a job so many times and return the seconds of each; a call before them does not count."""
        return self._ask(do="run", key=key, calls=calls)["seconds"]

    def facts(self, key: str) -> dict:
        """Return what a job says of itself."""
        return self._ask(do="facts", key=key)["facts"]

    def drop(self, key: str) -> None:
        """Forget a job and free its memory."""
        self._ask(do="drop", key=key)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.said.close()

    def _ask(self, **order) -> dict:
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"the process that measures ended: {self._last_words()}")
        answer = json.loads(line)
        for kind, error in ERRORS.items():
            if kind in answer:
                raise error(answer[kind])
        return answer

    def _last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read().strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {self.process.poll()}"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process with this many threads, which keeps no compiled programs."""
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1:
        flags = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    counts = dict.fromkeys(_THREAD_COUNTS, str(threads))
    own = {"JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return counts | own | HUGE_PAGES | {"XLA_FLAGS": flags, "TOKENIZERS_PARALLELISM": "false"}


def serve(orders, answers) -> None:
    """Carry out orders, a line each, until there are no more."""
    jobs: dict[str, tuple[Job, bool]] = {}
    for line in orders:
        try:
            answer = _carry_out(json.loads(line), jobs)
        except ModuleNotFoundError as error:
            answer = {"missing": (error.name or "?").partition(".")[0]}
        except NotHereError as error:
            answer = {"not_here": str(error)}
        except Exception as error:
            answer = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _carry_out(order: dict, jobs: dict) -> dict:
    key = order["key"]
    if order["do"] == "build":
        module, _, function = order["job"].partition(":")
        job = getattr(importlib.import_module(f"{__package__}.{module}"), function)(**order["options"])
        took = _took(job)
        if took < LONG:
            took = _took(job)
        jobs[key] = (job, took > SLOW)
        return {"took": took}
    if order["do"] == "drop":
        jobs.pop(key, None)
        gc.collect()
        return {}
    job, slow = jobs[key]
    if order["do"] == "facts":
        return {"facts": job.facts()}
    if not slow:
        _timed(job)
    return {"seconds": [_timed(job) for _ in range(order["calls"])]}


def _took(job: Job) -> float:
    begin = time.perf_counter()
    job.run()
    return time.perf_counter() - begin


def _timed(job: Job) -> float:
    begin = time.perf_counter()
    own = job.run()
    return time.perf_counter() - begin if own is None else own


def main(threads: int, library: str) -> None:
    """Keep to as many cores as there are threads, keep what libraries print away from the answers, and serve."""
    if hasattr(os, "sched_setaffinity") and threads < available_cores():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    keep_freed_memory()
    if library == "jax":
        compute_where_called()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
