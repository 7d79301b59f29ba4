"""Writing files so that a kill leaves the old content or the new, and locks that end with their process."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from .errors import InputError, StorageError

REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "choose another --out, or make it writable",
    errno.EACCES: "choose another --out, or make it writable",
    errno.EPERM: "choose another --out, or make it writable",
}
"""What helps where a file cannot be written, by the number of the error."""


def user_cache() -> Path:
    """Return the folder of this program in the user's cache folder: XDG_CACHE_HOME/routelaws or ~/.cache/routelaws."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "routelaws"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of `path`: a reader, or a kill, sees the old content or the new, never a part."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a killed process with this number, or a link that leads elsewhere
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_once(path: Path, content: str) -> None:
    """Write a file whole, unless it is there already: of several processes one writes it, and nobody sees a part."""
    path = Path(path)
    whole = path.with_name(f".{path.name}.whole.{os.getpid()}")
    write_atomically(whole, content)
    try:
        os.link(whole, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            os.replace(whole, path)
    finally:
        whole.unlink(missing_ok=True)


def remove_left(folder: Path) -> None:
    """Remove what killed processes left of `write_atomically` in a folder; call it with the folder locked."""
    for path in Path(folder).glob(".*.*"):
        if path.suffix[1:].isdigit() and path.is_file():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into one line that says what helps.

    Raises:
        StorageError: the disk is full, the folder is read-only, or a file could not be read or written otherwise.
    """
    try:
        yield
    except BrokenPipeError:  # whoever read our output has left
        raise
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | os.PathLike) else folder
        raise StorageError(storage_line(where, error.strerror or str(error), error.errno)) from error


def storage_line(where: Path | str, reason: str, number: int | None) -> str:
    """Return the line on a file that could not be read or written: where, why, and what helps.

    Args:
        where: the file or the folder.
        reason: as the system says it, such as "No space left on device".
        number: of the error, one of `errno`; None if it is not known.
    """
    remedy = REMEDIES.get(number, "make it readable and writable")
    return f"{where}: {reason}; what is whole there stays: {remedy} and start the same command again"


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool | float, holder: str) -> Iterator[None]:
    """Hold the lock of a folder; the system releases it when the process ends, however it ends.

    It is the lock of a file `.lock` there: flock on Linux and macOS, LockFileEx on Windows (not tried there).

    Args:
        folder: an existing folder.
        wait: wait for the lock instead of failing: for ever, or for this many seconds.
        holder: what would hold it, for the message.

    Raises:
        InputError: somebody else holds the lock, and `wait` is off or over.
    """
    lock = filelock.FileLock(Path(folder) / ".lock")
    try:
        lock.acquire(timeout=-1 if wait is True else float(wait))
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
