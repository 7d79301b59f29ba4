"""How loops are compiled: once on a machine, by the process that needs them first."""

from pathlib import Path

import filelock
from numba import config, njit
from numba.core.compiler_lock import global_compiler_lock


def compiler(**options):
    """Return a decorator that compiles, and keeps the machine code on disk where there is a place to keep it."""

    def compile_(function):
        try:
            return _by_one_process(njit(cache=True, error_model="numpy", **options)(function))
        except RuntimeError:  # numba finds no folder it may write to
            return njit(error_model="numpy", **options)(function)

    return compile_


def _by_one_process(dispatcher):
    """Let processes that start together wait for the first one, whose machine code they then read.

    Each file of loops has a lock, so that different files are compiled side by side. numba's own lock comes first: a
    thread that holds the lock of a file never waits for another thread of its process.
    """
    if config.DISABLE_JIT:  # a function as it was written, for a debugger
        return dispatcher
    module = dispatcher.py_func.__module__.rpartition(".")[-1]
    path = Path(dispatcher.stats.cache_path) / f"{module}.lock"
    lock = filelock.FileLock(path, thread_local=False, is_singleton=True)
    compile_ = dispatcher.compile

    def compile_alone(signature):
        path.parent.mkdir(parents=True, exist_ok=True)
        with global_compiler_lock, lock:
            return compile_(signature)

    dispatcher.compile = compile_alone
    return dispatcher


jit = compiler()
jit_sum = compiler(fastmath={"reassoc", "contract"})
jit_within = compiler(inline="always")  # of what one or two loops call: compiled with them, in less time
jit_free = compiler(nogil=True)  # of what threads share out
