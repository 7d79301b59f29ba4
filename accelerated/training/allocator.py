"""How a process gets its memory from the system: it keeps what it was given, in pages of 2 MB where it can.

XLA on CPU frees its buffers after every call. Returned to the system, they are faulted in again page by page at the
next one, which can take as long as the computation. All but `compute_where_called` is for glibc, the C library of most
Linux systems.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping

_MALLOPT = {-4: 0, -1: 2**31 - 1, -2: 64 << 20}
"""glibc's M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD. M_ARENA_MAX stays: threads with one arena wait for each other."""

_ASYNCHRONOUS = "jax_cpu_enable_async_dispatch"

TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
BEGUN_AGAIN = "ROUTELAWS_BEGUN_AGAIN"
"""Set in a process that was begun again. A Python with rights of its own gets no tunables, and would go on for ever."""


def has_glibc() -> bool:
    """Whether the C library of this process is glibc."""
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory; does nothing on other C libraries. Call before JAX starts its threads."""
    if has_glibc():
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOPT.items():
            libc.mallopt(parameter, value)


def compute_where_called() -> None:
    """Let XLA on CPU begin in the thread that calls it, in place of one of its own; call before JAX has any device.

    Then all buffers of a call are freed when it returns. And glibc keeps memory of any size for the main thread, for
    others only pieces of less than 64 MB: what is larger is mapped and faulted in anew by each call. JAX reads no
    environment variable for this. Not for a mesh: processes that share one then wait for each other without end.
    """
    import jax

    jax.config.update(_ASYNCHRONOUS, False)


def computes_where_called() -> bool:
    """Whether XLA on CPU has freed the buffers of a call when the call returns."""
    import jax

    return not jax.config.read(_ASYNCHRONOUS)


def huge_pages(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variable with which glibc asks for pages of 2 MB in a process that starts with it.

    Empty where it would change nothing: another C library, or an environment that says something of it already. A
    glibc before 2.35 passes over it. With fewer pages there are fewer faults, and addresses are found sooner.
    """
    before = environment.get(TUNABLES, "")
    if not has_glibc() or HUGE_PAGES in before:
        return {}
    return {TUNABLES: ":".join(filter(None, [before, f"{HUGE_PAGES}=1"]))}


def start_again_with_huge_pages() -> None:
    """Begin this process again with `huge_pages` in its environment; returns where it is there or is of no use.

    glibc reads the variable when a process starts, so that it is too late to set it for this one. A program that has
    imported JAX is not begun again: it has done something of its own before it called us.
    """
    settings = huge_pages()
    if settings and sys.executable and BEGUN_AGAIN not in os.environ and "jax" not in sys.modules:
        words = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, words, os.environ | settings | {BEGUN_AGAIN: "1"})
