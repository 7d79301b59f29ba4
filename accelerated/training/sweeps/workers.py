"""Processes that train the runs of a sweep, with one compute thread each, and end with the sweep.

A small model does not keep two threads busy. So two runs at the same time, with one thread each, finish sooner than two
runs in turn, with two threads each. The thread count is also fixed because the last bits of the losses depend on this
count.

XLA on CPU frees its buffers after every call. Workers tell glibc to keep freed memory. Otherwise the operating system
would map every page of the buffers again in the next call. The mapping can take as long as the computation.
"""

import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import platform
import sys
import threading
from collections.abc import Iterator
from multiprocessing import connection

from ..stopping import obey

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment variable that gives a process pages of 2 MB; glibc 2.35 or newer reads it when a process starts."""

_MALLOPT = {-4: 0, -1: 2**31 - 1, -2: 64 << 20}
"""glibc's M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD. M_ARENA_MAX keeps its default, because a single arena is slow for
several threads."""

_COMPILED, LONG_COMPILATION = "/jax/core/compile/backend_compile_duration", 0.5
"""JAX's event at the end of a compilation, and the seconds from which its memory is returned before the program runs.
"""

_ASYNCHRONOUS = "jax_cpu_enable_async_dispatch"

_THREAD_SETTINGS = {"NPROC": "{threads}", "OMP_NUM_THREADS": "{threads}", "OPENBLAS_NUM_THREADS": "{threads}"}
_SINGLE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"
_QUICK_COMPILE_XLA = "--xla_backend_optimization_level=1"  # a quarter less time to compile, the same time to run

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""New objects between two runs of Python's garbage collector in a worker; Python's default is 700."""


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that give a process this many compute threads, and pages of 2 MB.

    A GLIBC_TUNABLES of the user overrides ours.
    """
    settings = {name: value.format(threads=threads) for name, value in _THREAD_SETTINGS.items()}
    settings |= {name: os.environ.get(name, value) for name, value in HUGE_PAGES.items()}
    flags = [os.environ.get("XLA_FLAGS", ""), _QUICK_COMPILE_XLA, *([_SINGLE_THREAD_XLA] if threads == 1 else [])]
    return {**settings, "XLA_FLAGS": " ".join(filter(None, flags))}


def start_worker() -> None:
    """Prepare a worker process: keep freed memory, ignore Ctrl-C, stop on SIGTERM, and end with the parent.

    The garbage collector runs less often, because tracing a program makes many long-lived objects.
    """
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    obey()
    parent = multiprocessing.parent_process()

    def end_with_parent():
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@functools.cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, except that of a compiler. Other C libraries ignore this.

    Call before JAX starts its threads.
    """
    if _has_glibc():
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOPT.items():
            libc.mallopt(parameter, value)
        if "jax" in sys.modules:
            monitoring = sys.modules["jax"].monitoring
            monitoring.register_event_duration_secs_listener(_return_memory_of_compiler)


def _return_memory_of_compiler(event: str, seconds: float, **_) -> None:
    if event == _COMPILED and seconds > LONG_COMPILATION:
        _return_freed_memory()


def _has_glibc() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def separate_memory() -> Iterator[None]:
    """Return the memory that glibc keeps to the operating system, before and after a phase of a run.

    The next phase maps the pages that it needs again. Otherwise the heap has gaps of the last phase, in which the large
    buffers of the next phase do not fit. Do not use this for a training step, because the mapping takes time.
    """
    _return_freed_memory()
    try:
        yield
    finally:
        _return_freed_memory()


def _return_freed_memory() -> None:
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def compute_where_called() -> None:
    """Let XLA on CPU run in the calling thread. Call before JAX creates devices.

    Then all buffers of a call are free when the call returns. For the main thread, glibc keeps freed blocks of any
    size. For other threads, it keeps only blocks below 64 MB, so each call would map larger blocks again, page by page.
    JAX has no environment variable for this. Do not use this with a mesh: its processes would wait for each other
    forever.
    """
    import jax

    jax.config.update(_ASYNCHRONOUS, False)


def computes_where_called() -> bool:
    """Return whether XLA on CPU frees the buffers of a call before the call returns."""
    import jax

    return not jax.config.read(_ASYNCHRONOUS)
