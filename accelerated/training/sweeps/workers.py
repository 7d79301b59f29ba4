"""Processes that train the runs of a sweep, one compute thread each, and end when the sweep does.

A small model does not keep two threads busy, so two parallel runs on one thread each finish sooner than two runs in
sequence on two threads. The thread count is fixed for another reason too: the losses of a run depend on it
in the last bits.

On glibc a process keeps the memory that the system gave it. XLA on CPU frees its buffers after every call. If they
returned to the system, the next call would fault them in again page by page, which can take as long as the computation.
"""

import ctypes
import gc
import multiprocessing
import os
import platform
import sys
import threading
from multiprocessing import connection

from ..stopping import obey

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment variable that gives a process pages of 2 MB; glibc 2.35 or newer reads it when a process starts."""

_MALLOPT = {-4: 0, -1: 2**31 - 1, -2: 64 << 20}
"""glibc's M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD. M_ARENA_MAX stays: threads with one arena wait for each other."""

_ASYNCHRONOUS = "jax_cpu_enable_async_dispatch"

_THREAD_SETTINGS = {"NPROC": "{threads}", "OMP_NUM_THREADS": "{threads}", "OPENBLAS_NUM_THREADS": "{threads}"}
_SINGLE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"
_QUICK_COMPILE_XLA = "--xla_backend_optimization_level=1"  # a quarter less time to compile, the same time to run

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Objects between two collections of Python's garbage collector in a worker; Python's default is 700."""


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that give a process this many compute threads, and pages of 2 MB.

    A GLIBC_TUNABLES of the user stays.
    """
    settings = {name: value.format(threads=threads) for name, value in _THREAD_SETTINGS.items()}
    settings |= {name: os.environ.get(name, value) for name, value in HUGE_PAGES.items()}
    flags = [os.environ.get("XLA_FLAGS", ""), _QUICK_COMPILE_XLA, *([_SINGLE_THREAD_XLA] if threads == 1 else [])]
    return {**settings, "XLA_FLAGS": " ".join(filter(None, flags))}


def start_worker() -> None:
    """Prepare a worker process: keep freed memory, leave Ctrl-C to the parent, stop when told to, and die with it.

    Imported modules are never garbage, and tracing a program makes many long-lived objects: without garbage collection
    over them it takes a quarter less time.
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


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory; does nothing on other C libraries. Call before JAX starts its threads."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOPT.items():
            libc.mallopt(parameter, value)


def compute_where_called() -> None:
    """Let XLA on CPU run in the calling thread instead of its own; call before JAX creates devices.

    Then all buffers of a call are freed when it returns. For the main thread glibc keeps memory of any size, for other
    threads only pieces below 64 MB. Each call would map larger pieces and fault them in again. JAX has no
    environment variable for this. Not for a mesh: processes that share a mesh would wait for each other forever.
    """
    import jax

    jax.config.update(_ASYNCHRONOUS, False)


def computes_where_called() -> bool:
    """Return whether XLA on CPU has freed the buffers of a call when the call returns."""
    import jax

    return not jax.config.read(_ASYNCHRONOUS)
