"""A process for each library and number of threads, which runs the blocks of its sides and otherwise sleeps.

Two libraries in one process cause thread contention. A library fixes its number of threads when it starts.
"""

import contextlib
import gc
import importlib
import math
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

from .figure import Job, Side

LIBRARIES = {"jax": {}, "jax without loops": {"ROUTELAWS_CPU_LOOPS": "0"}, "torch": {}}
"""The environment variables of the process of each library."""

SLOW = 2.0
"""A call that takes more seconds than this has no warm-up call."""

MOST_CALLS = 200
"""Largest number of calls in a block."""

_THREAD_COUNTS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_JOBS: dict[str, tuple[Job, float]] = {}  # jobs of this process, each with the seconds of a call


class Worker:
    """A process for the sides of one library. `close` ends it."""

    def __init__(self, library: str, threads: int):
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start, (library, threads))
        with _environment(environment(library, threads)):  # the process starts here
            self.pid = self.pool.submit(os.getpid).result()

    def ask(self, function, *arguments):
        """Call a function of this file in the process, and return its result or raise its exception."""
        return self.pool.submit(function, *arguments).result()

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def environment(library: str, threads: int) -> dict[str, str]:
    """Return the environment variables of a process with this many threads and without a cache of programs."""
    from routelaws.accelerated.training.sweeps.workers import HUGE_PAGES

    single_thread = " --xla_cpu_multi_thread_eigen=false" if threads == 1 else ""
    settings = {"JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    flags = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + single_thread}
    return dict.fromkeys(_THREAD_COUNTS, str(threads)) | settings | flags | HUGE_PAGES | LIBRARIES[library]


@contextlib.contextmanager
def _environment(settings: dict[str, str]):
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _start(library: str, threads: int) -> None:
    """Pin a new process to as many cores as threads, with the memory settings of `routelaws train`."""
    from routelaws.accelerated.training.sweeps.workers import compute_where_called, keep_freed_memory

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    keep_freed_memory()
    if library != "torch":
        compute_where_called()


def build(name: str, side: Side) -> None:
    """Make a job and call it twice (once if slow), to compile it."""
    file, function = side.job.split(":")
    job = getattr(importlib.import_module(f"{__package__}.{file}"), function)(**side.options)
    took = _timed(job)
    _JOBS[name] = job, took if took > 5 * SLOW else _timed(job)


def block(name: str, seconds: float) -> list[float]:
    """Call a job for some seconds. Return the seconds of each call."""
    job, took = _JOBS[name]
    if took < SLOW:
        _timed(job)
    return [_timed(job) for _ in range(max(1, min(MOST_CALLS, math.ceil(seconds / max(took, 1e-9)))))]


def facts(name: str) -> dict:
    return _JOBS[name][0].facts()


def drop(name: str) -> None:
    _JOBS.pop(name, None)
    gc.collect()


def describe() -> dict:
    """Return the backend, device and processor of JAX on this machine."""
    import platform

    import jax

    device = jax.devices()[0].device_kind
    return {"backend": jax.default_backend(), "device": device, "cores": os.cpu_count(), "jax": jax.__version__,
            "machine": platform.machine(), "system": platform.system()}  # fmt: skip


def _timed(job: Job) -> float:
    """Return the seconds of a call, or the number that the job measures itself."""
    begin = time.perf_counter()
    measured = job.run()
    return measured if job.measures else time.perf_counter() - begin
