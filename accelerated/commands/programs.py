"""Where the command line keeps compiled programs, so that a second run of the same shapes starts without a compiler.

JAX's own persistent cache keeps what the compiler made; here are its folder and its limits. A program that was compiled
for one processor may not run on another, so each kind of processor, and each version of the compiler, has a folder of
its own.
"""

import hashlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from ..files import user_cache

CACHE = "JAX_COMPILATION_CACHE_DIR"
FIRST = (0, 10, 2)
"""The first jaxlib whose programs for CPUs can be kept: earlier ones refuse what they have written themselves."""

LIMITS = {
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(1 << 30),  # bytes; what was not used for longest goes first
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
}


def keep_programs() -> None:
    """Let compiled programs be kept, in this process and in those that it starts. Call before JAX is imported.

    Nothing happens where the user has named a folder (JAX_COMPILATION_CACHE_DIR, which may be empty for none), where no
    folder can be made, or with a jaxlib before `FIRST`.
    """
    if CACHE in os.environ or "jax" in sys.modules or _version("jaxlib") < FIRST:
        return
    folder = programs_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ |= {name: os.environ.get(name, value) for name, value in LIMITS.items()}
    os.environ |= {CACHE: str(folder)}


def programs_folder() -> Path:
    """Return ROUTELAWS_CACHE/programs/KIND or `routelaws/programs/KIND` in the user's cache folder.

    KIND stands for the version of jaxlib and the processor with all that it can do.
    """
    named = os.environ.get("ROUTELAWS_CACHE")
    kind = hashlib.sha256("\n".join([platform.machine(), version("jaxlib"), *_abilities()]).encode()).hexdigest()[:16]
    return (Path(named) if named else user_cache()) / "programs" / kind


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
