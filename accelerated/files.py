"""Atomic writes, and locks that end with their process."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from .errors import InputError, StorageError

REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space of your quota",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "choose another --out, or make it writable",
    errno.EACCES: "choose another --out, or make it writable",
    errno.EPERM: "choose another --out, or make it writable",
}
"""{error number: remedy}, if a file cannot be written."""

_REMEDIES_OF_NAMES = {
    errno.EACCES: "name another path, or change the permissions of this path",
    errno.EPERM: "name another path, or change the permissions of this path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the loop of symbolic links",
}

_BEGINNING = ".writing-"
"""Beginning of the names of unfinished files."""


@contextlib.contextmanager
def _written_beside(path: Path, content: str | bytes) -> Iterator[Path]:
    """Write a file under a random name next to `path`. Remove it at the end, unless it was renamed."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "exists already and is not a file", str(path))
    temporary = path.with_name(f"{_BEGINNING}{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except OSError as error:  # messages use the final name
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of `path`. A reader, also after a kill, finds the whole old or the whole new content.

    A symbolic link is replaced, and its target stays. Devices and pipes are errors. Every write of the package uses
    this function (see `tests/test_files.py`).
    """
    path = Path(path)
    with _written_beside(path, content) as temporary:
        os.replace(temporary, path)


def write_once(path: Path, content: str) -> None:
    """Write a file if it does not exist. Only one of several processes writes it, and a reader finds the whole file."""
    path = Path(path)
    with _written_beside(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                os.replace(temporary, path)


def append_to(path: Path) -> IO[str]:
    """Open a text file to append lines. A symbolic link is an error."""
    no_links = getattr(os, "O_NOFOLLOW", 0)
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | no_links, 0o666))


def exists(path: str | os.PathLike) -> bool:
    """Return whether there is something at a path.

    Raises:
        OSError: the system cannot tell, because the name is too long or a folder is closed to the user.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def opened(path: str | os.PathLike) -> IO[bytes]:
    """Open a user's file for reading.

    A shell's `<(command)` works. Devices and named pipes are errors, because a command could wait forever.

    Raises:
        OSError: the file cannot be read.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "the name of a file cannot contain a NUL character", os.fspath(path))
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or os.path.realpath(path).startswith(("/proc/", "/dev/fd/"))):
        raise OSError(errno.EINVAL, "is not a file", os.fspath(path))
    return open(path, "rb")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Return the content of a user's file (see `opened`)."""
    with opened(path) as file:
        return file.read()


def read_npy(path: str | os.PathLike) -> np.ndarray:
    """Return the array in a .npy file; archives and pickled objects are errors.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no such array; the message is one line.
    """
    with opened(path) as file:
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except OSError:
            raise
        except Exception as error:  # NumPy's reader and Python's tokenizer inside it raise many types
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"is not an array in a .npy file ({line or type(error).__name__})") from error


def remove_left(folder: Path) -> None:
    """Remove temporary files of killed processes from a locked folder."""
    for path in Path(folder).glob(f"{_BEGINNING}*"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Raise `StorageError` with a line and a remedy for errors of the file system.

    Raises:
        StorageError: the disk is full, the folder is read-only, or a file cannot be read or written.
    """
    try:
        yield
    except BrokenPipeError:  # the reader closed the pipe
        raise
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | os.PathLike) else folder
        raise StorageError(storage_line(where, error.strerror or str(error), error.errno)) from error


def file_line(error: OSError) -> str:
    """Return the message on a file that a command cannot use: where, why, and the remedy."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    remedy = {**REMEDIES, **_REMEDIES_OF_NAMES}.get(error.errno)
    return f"{where}{error.strerror or error}{f'; {remedy}' if remedy else ''}"


def storage_line(where: Path | str, reason: str, number: int | None) -> str:
    """Return the message on a file that cannot be read or written: where, why, and the remedy.

    Args:
        where: the file or the folder.
        reason: the system's text, such as "No space left on device".
        number: number of the error, one of `errno`; None if unknown.
    """
    remedy = REMEDIES.get(number, "make it readable and writable")
    return f"{where}: {reason}; {remedy} and repeat the command (complete files are kept)"


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool | float, holder: str) -> Iterator[None]:
    """Hold the lock of a folder. The system releases the lock at any end of the process.

    The lock is on the file `.lock`: flock on Linux and macOS, LockFileEx on Windows (untested).

    Args:
        folder: an existing folder.
        wait: whether to wait for the lock: True for forever, or a number of seconds.
        holder: the probable holder, for the message.

    Raises:
        InputError: another process holds the lock, and `wait` is False or the time is over.
    """
    import filelock  # here, because lessons with NumPy alone import this file

    lock = filelock.FileLock(Path(folder) / ".lock")
    try:
        lock.acquire(timeout=-1 if wait is True else float(wait))
    except filelock.Timeout:
        raise InputError(f"{folder}: {holder} is running there; wait until it ends or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def make_folder(path: Path) -> Path:
    """Create a folder and its parents.

    Raises:
        InputError: the folder cannot be created, or the path is a file.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: the folder cannot be created: {error.strerror}; name another") from error
    return Path(path)
