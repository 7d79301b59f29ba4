"""Exceptions that end a command with one line instead of a traceback.

The command line prints the message of an `InputError` and ends with exit code 2. Every other exception is a bug of
ours.
"""

from routelaws.reference.errors import InputError, in_line, printable  # noqa: F401 - for the other files here


class StorageError(InputError):
    """A file could not be read or written, such as on a full disk or in a read-only folder. Exit code 2."""


class SlowerWarning(RuntimeWarning):
    """Something is not used, such as a cache, so the program is slower. Commands print the message as one line."""


class WorkerDiedError(RuntimeError):
    """A process of a sweep was killed; repeat the command to resume. Exit code 1."""
