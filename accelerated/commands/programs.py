"""Where the command line keeps what was compiled, so that a second run of the same shapes starts without a compiler.

JAX's persistent cache keeps programs, and that of numba keeps loops; here are their folders, which this user alone can
write to, and the limits of JAX's. A program that was compiled for one processor may not run on another, so each kind of
processor, and each version of the compiler, has a folder of its own.
"""

import contextlib
import hashlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from .. import kernels
from ..caches import cache_folder, private_folder

CACHE, LOOPS = "JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR"
FIRST = (0, 10, 2)
"""The first jaxlib whose programs for CPUs can be kept: earlier ones refuse what they have written themselves."""

LIMITS = {
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(1 << 30),  # bytes; what was not used for longest goes first
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
}


def keep_programs() -> None:
    """Let compiled programs be kept, in this process and in those that it starts. Call before JAX is imported.

    They are kept in `cache_folder`/programs/KIND, or in a folder that the user has named (JAX_COMPILATION_CACHE_DIR,
    empty for none). Nothing is kept where no folder can be made, or with a jaxlib before `FIRST`.

    Raises:
        InputError: others could write to the folder.
    """
    if not _named_folder(CACHE) and "jax" not in sys.modules and _version("jaxlib") >= FIRST:
        with contextlib.suppress(OSError):
            os.environ[CACHE] = str(private_folder(cache_folder(), "programs", kind_of_program()))
            os.environ |= {name: os.environ.get(name, value) for name, value in LIMITS.items()}


def keep_loops() -> None:
    """Let compiled loops be kept, in this process and in those that it starts. Call before numba is imported.

    They are kept in a folder that the user has named (NUMBA_CACHE_DIR), or else beside their source, or, where that is
    read-only, in `cache_folder`/loops.

    Raises:
        InputError: others could write to the folder.
    """
    if not _named_folder(LOOPS) and not os.access(Path(kernels.__file__).parent, os.W_OK):
        with contextlib.suppress(OSError):
            os.environ[LOOPS] = str(private_folder(cache_folder(), "loops"))


def _named_folder(variable: str) -> bool:
    """Return whether the user has named a folder by a variable; InputError where others could write to it."""
    named = os.environ.get(variable)
    if named and "://" not in named:  # a folder and no bucket
        with contextlib.suppress(OSError):
            private_folder(Path(named), variable=variable)
    return named is not None


def kind_of_program() -> str:
    """Return what stands for the version of jaxlib and the processor with all that it can do."""
    kind = "\n".join([platform.machine(), version("jaxlib"), *_abilities()])
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def _abilities() -> list[str]:
    """Return what the processor can do, as Linux lists it; elsewhere its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [platform.processor()]
    return next(([line] for line in lines if line.startswith(("flags", "Features"))), [platform.processor()])


def _version(package: str) -> tuple[int, ...]:
    """Return the numbers of a package's version."""
    return tuple(int(part) for part in version(package).split(".")[:3] if part.isdigit())
