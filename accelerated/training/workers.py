"""Processes that train the runs of a sweep, one compute thread each, and end when the sweep does.

A small model does not keep two threads busy, so two runs side by side on one thread each finish sooner than one after
the other on two. The thread count of a run is fixed for another reason too: it is part of what makes its losses the
same, bit for bit, whenever and beside whatever it is run.
"""

import gc
import multiprocessing
import os
import threading
from multiprocessing import connection

from .allocator import HUGE_PAGES, keep_freed_memory
from .stopping import obey

_THREAD_SETTINGS = {"NPROC": "{threads}", "OMP_NUM_THREADS": "{threads}", "OPENBLAS_NUM_THREADS": "{threads}"}
_SINGLE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"
_QUICK_COMPILE_XLA = "--xla_backend_optimization_level=1"  # a quarter less time to compile, the same time to run

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Of Python's garbage collector, in a worker; its own choice is 700."""


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

    What has been imported is never garbage, and tracing a program makes many objects that live: without searches for
    garbage among all of them it takes a quarter less time.
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
