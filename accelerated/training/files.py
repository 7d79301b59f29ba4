"""Writing files so that a kill leaves the old content or the new, and locks that end with their process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError


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

    Args:
        folder: an existing folder.
        wait: wait for the lock instead of failing.
        holder: what would hold it, for the message.

    Raises:
        InputError: somebody else holds the lock and `wait` is off.
    """
    with open(Path(folder) / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise InputError(f"{folder}: {holder} is running there; wait for it or choose another --out") from error
        yield


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
