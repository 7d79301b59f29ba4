"""Cache folders: find them, and check that only this user can write to them.

A user who can write to a cache can replace compiled programs and tokens, and so change results.
"""

import contextlib
import errno
import os
import stat
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .errors import InputError

CACHE = "ROUTELAWS_CACHE"
"""The environment variable with the folder of all caches."""

PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
"""JAX's variable for its cache of compiled programs; an empty value turns the cache off."""

_PROGRAM_LIMITS = {
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(1 << 30),  # bytes; JAX deletes the least recently used
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
}
_FIRST_JAXLIB = (0, 10, 2)  # earlier versions cannot read their own files on CPU

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_OPEN = _WRITABLE | stat.S_IXGRP | stat.S_IXOTH  # without these bits, no other user can pass through a folder


def user_cache() -> Path:
    """Return the default folder of caches: XDG_CACHE_HOME/routelaws or ~/.cache/routelaws.

    Raises:
        FileNotFoundError: the user has no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if named.startswith("~"):
        raise FileNotFoundError(errno.ENOENT, "there is no home folder", named)
    return Path(named) / "routelaws"


def cache_folder() -> Path:
    """Return the folder of caches: ROUTELAWS_CACHE, or else `user_cache`."""
    named = os.environ.get(CACHE)
    return Path(named) if named else user_cache()


def keep_programs() -> None:
    """Make JAX cache compiled programs in `cache_folder`/programs or the user's folder. Call this before importing JAX.

    Child processes inherit the settings. Without a writable folder, nothing is cached.

    Raises:
        InputError: other users can write to the folder.
    """
    named = os.environ.get(PROGRAMS)
    if named is None and "jax" not in sys.modules and _jaxlib() >= _FIRST_JAXLIB:
        with contextlib.suppress(OSError):
            os.environ[PROGRAMS] = str(private_folder(cache_folder(), "programs"))
            os.environ |= {name: os.environ.get(name, limit) for name, limit in _PROGRAM_LIMITS.items()}
    elif named and "://" not in named:  # a local folder, not a bucket
        with contextlib.suppress(OSError):
            private_folder(Path(named), variable=PROGRAMS)


def _jaxlib() -> tuple[int, ...]:
    """Return the version of jaxlib, () if it is not installed; then the command fails with a remedy."""
    with contextlib.suppress(PackageNotFoundError):
        return tuple(int(part) for part in version("jaxlib").split(".")[:3] if part.isdigit())
    return ()


def private_folder(root: Path, *below: str, variable: str = CACHE) -> Path:
    """Create a folder with mode 0700 and return its path without symbolic links.

    An existing empty folder that other users may write to becomes private. Windows has no check.

    Args:
        root: a cache folder, which other users must not be able to replace.
        below: names of folders inside it that belong to this program.
        variable: the environment variable by which the user can choose another folder, for the message.

    Raises:
        InputError: another user owns one of the folders, can write to it, or can replace it.
        OSError: a folder cannot be created.
    """
    folder, closed, checked = _made(Path(root)), False, hasattr(os, "geteuid")
    for depth, name in enumerate(("", *below)):
        parent, folder = folder, _made(folder / name)
        closed &= folder.parent == parent  # a link can lead out of a closed folder
        if checked and not closed:
            _check_above(folder, variable)
            closed = _check_private(folder, depth > 0, variable)
    return folder


def _check_above(folder: Path, variable: str) -> None:
    """Raise `InputError` if any user can replace a folder."""
    for above in folder.parents:
        if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise _refused(folder, f"any user may write to {above} and replace it", f"chmod +t {above}", variable)


def _made(folder: Path) -> Path:
    """Create a private folder and its parents. Return its path without symbolic links."""
    if not folder.is_dir():
        if folder.parent != folder:
            _made(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder.resolve(strict=True)


def _check_private(folder: Path, own: bool, variable: str) -> bool:
    """Raise `InputError` if other users can change a folder's content. Return whether the folder shuts them out."""
    me, status = os.geteuid(), folder.stat()
    if status.st_uid != me:
        reason = f"it belongs to user {status.st_uid} and you are user {me}"
        raise _refused(folder, reason, f"chown -R {me} {folder}", variable)
    if not status.st_mode & _OPEN:
        return True
    if status.st_mode & _WRITABLE and any(folder.iterdir()):
        reason = f"other users may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
        raise _refused(folder, reason, f"chmod -R go-w {folder}", variable)
    if own and any(_others_write(entry, me) for entry in folder.iterdir()):
        raise _refused(folder, "other users may write to files in it", f"rm -r {folder}", variable)
    if own or status.st_mode & _WRITABLE:
        folder.chmod(0o700)
    return own


def _others_write(entry: Path, me: int) -> bool:
    try:
        status = entry.lstat()
    except FileNotFoundError:  # another process removed it
        return False
    return status.st_uid != me or bool(status.st_mode & _WRITABLE) and not stat.S_ISLNK(status.st_mode)


def _refused(folder: Path, reason: str, remedy: str, variable: str) -> InputError:
    return InputError(
        f"{folder}: this cache is not used, because {reason}; name another folder with {variable}, or, if you trust "
        f"its content: {remedy}"
    )
