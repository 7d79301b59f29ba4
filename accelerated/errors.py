"""Exceptions that end a command with one line instead of a traceback."""

from .wording import in_line


class InputError(ValueError):
    """Raised for input that is wrong; its message says what, where, and what is allowed: one line, or, for a
    table with several things wrong, a line for each of the first of them.

    The command line prints the message and ends with exit code 2. Every other exception is a fault of ours.

    Args:
        lines: of the message, mostly one. Names in them may hold anything, so each is made one printable line.
    """

    def __init__(self, *lines: object):
        super().__init__(*(in_line(str(line)) for line in lines))

    def __str__(self) -> str:
        return "\n".join(self.args)


class StorageError(InputError):
    """A file could not be read or written: the disk is full, the folder read-only, the file gone. Exit code 2."""


class WorkerDiedError(RuntimeError):
    """A process of a sweep was killed from outside; starting the sweep again goes on. Exit code 1."""


def _check_k(k: int, num_experts: int) -> None:
    """Raise InputError unless a token can have k of E experts."""
    if not 1 <= k <= num_experts:
        raise InputError(f"k is {k}; it has to be between 1 and the number of experts, {num_experts}")
