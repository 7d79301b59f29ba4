"""Compile loops once per machine, by the first process that needs them."""

import functools
import time
import warnings
from pathlib import Path

import filelock
import llvmlite.binding
from numba import cfunc, config, njit, types
from numba.core.compiler_lock import global_compiler_lock

from ..caches import private_folder
from ..errors import InputError, SlowerWarning


def compiler(**options):
    """Return a decorator that compiles a loop, and caches the machine code on disk if a folder is writable."""

    def compile_(function):
        try:
            return _by_one_process(njit(cache=True, error_model="numpy", **options)(function))
        except RuntimeError:  # numba finds no folder that only this user may write to
            return njit(error_model="numpy", **options)(function)

    return compile_


def _by_one_process(dispatcher):
    """Let the first of several processes compile. The others wait and read its machine code.

    Each file of loops has a lock, so different files compile in parallel. A thread takes numba's own lock first, so
    with a file's lock it never waits for another thread of its process.

    numba would also compile a loop again for each constant argument, and for int32 besides int64.
    """
    if config.DISABLE_JIT:  # return the uncompiled function, for a debugger
        return dispatcher
    lock = _lock(dispatcher)
    compile_ = dispatcher.compile

    def compile_alone(signature):
        with global_compiler_lock, lock:
            return compile_(tuple(map(_widened, signature)))

    dispatcher.compile = compile_alone
    return dispatcher


def _widened(kind):
    """Return the type of an argument: any value instead of a constant, and int64 instead of shorter signed integers."""
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


def _lock(dispatcher) -> filelock.BaseFileLock:
    """Return the lock of a function's file. Raise RuntimeError if other users can write to its folder."""
    module = dispatcher.py_func.__module__.rpartition(".")[-1]
    folder, sources = Path(dispatcher.stats.cache_path), Path(dispatcher.py_func.__code__.co_filename).parent
    if not _is_trusted(folder, sources):
        raise RuntimeError(folder)
    _forget_stale(folder, sources)
    return filelock.FileLock(folder / f"{module}.lock", thread_local=False, is_singleton=True)


@functools.cache
def _is_trusted(folder: Path, sources: Path) -> bool:
    """Return whether machine code from a folder may run. Warn otherwise.

    A user who can write next to the sources can also change the sources.
    """
    if folder.parent == sources:
        folder.mkdir(exist_ok=True)
        return True
    try:
        private_folder(folder.parent, folder.name, variable="NUMBA_CACHE_DIR")
    except (InputError, OSError) as error:
        warnings.warn(f"loops are compiled again in each process: {error}", SlowerWarning, stacklevel=2)
        return False
    return True


@functools.cache
def _forget_stale(folder: Path, sources: Path) -> None:
    """Delete machine code that is older than any file of loops.

    numba detects a change in the file of a loop, but not in the files of inlined loops.
    """
    changed = (source.stat().st_mtime for source in sources.glob("*.py"))
    newest = max((moment for moment in changed if moment < time.time()), default=0.0)
    for kept in folder.glob("*.nb[ci]"):
        try:
            if kept.stat().st_mtime < newest:
                kept.unlink()
        except OSError:  # another process deleted the file, or we may not delete it
            pass


@functools.cache  # keep the function, because its machine code lives only as long
def c_function(function, signature, name: str | None = None):
    """Compile a function as a C function. Other loops call it by name. It is not inlined.

    Args:
        signature: numba's signature; all arguments are numbers.
        name: the name for callers in compiled loops (see `numba.types.ExternalFunction`); None if no loop calls it by
            name.
    """
    options = {"error_model": "numpy"}
    try:
        lock = _lock(njit(cache=True)(function))
    except RuntimeError:  # there is no such folder, or other users can write to it
        compiled = cfunc(signature, **options)(function)
    else:
        with global_compiler_lock, lock:
            compiled = cfunc(signature, cache=True, **options)(function)
    if name is not None:
        llvmlite.binding.add_symbol(name, compiled.address)
    return compiled


jit = compiler()
jit_sum = compiler(fastmath={"reassoc", "contract"})
jit_fused = compiler(fastmath={"contract"})  # a product and a sum become one instruction, with one rounding
jit_within = compiler(inline="always")  # for helpers of one or two loops: inlining compiles faster
