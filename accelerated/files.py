"""Writing files so that a kill leaves the old content or the new, and locks that end with their process."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import InputError


def user_cache() -> Path:
    """Return the folder of this program in the user's cache folder: XDG_CACHE_HOME/routelaws or ~/.cache/routelaws."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "routelaws"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of `path`: a reader, or a kill, sees the old content or the new, never a part."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool, holder: str) -> Iterator[None]:
    """Hold the lock of a folder; the system releases it when the process ends, however it ends.

    It is the lock of a file `.lock` there: flock on Linux and macOS, LockFileEx on Windows (not tried there).

    Args:
        folder: an existing folder.
        wait: wait for the lock instead of failing.
        holder: what would hold it, for the message.

    Raises:
        InputError: somebody else holds the lock and `wait` is off.
    """
    import filelock  # not at the top: reports write files too, and come without the extra that brings it

    lock = filelock.FileLock(Path(folder) / ".lock")
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        raise InputError(f"{folder}: {holder} is running there; wait for it or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def make_folder(path: Path) -> Path:
    """Make a folder, and those above it.

    Raises:
        InputError: it cannot be made, or is a file.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: cannot be made a folder: {error.strerror}") from error
    return Path(path)


SHOWN = 4
"""Paths that a message names; of more the first three, and how many there are besides."""


def in_short(paths) -> str:
    """Return paths as a message shows them: a pattern that a shell has expanded can be hundreds."""
    paths = list(map(str, paths))
    if len(paths) <= SHOWN:
        return ", ".join(paths)
    return f"{', '.join(paths[: SHOWN - 1])} and {len(paths) - SHOWN + 1} more"
