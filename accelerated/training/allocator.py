"""How a process gets its memory from the system: on glibc it keeps what it was given.

XLA on CPU frees its buffers after every call. Returned to the system, they are faulted in again page by page at the
next one, which can take as long as the computation.
"""

import ctypes
import platform
import sys

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment variable that gives a process pages of 2 MB; glibc 2.35 or newer reads it when a process starts."""

_MALLOPT = {-4: 0, -1: 2**31 - 1, -2: 64 << 20}
"""glibc's M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD. M_ARENA_MAX stays: threads with one arena wait for each other."""

_ASYNCHRONOUS = "jax_cpu_enable_async_dispatch"


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory; does nothing on other C libraries. Call before JAX starts its threads."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
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
