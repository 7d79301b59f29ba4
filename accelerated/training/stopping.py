"""Requests to stop: SIGTERM or Ctrl-C ends a run after the current call, with a checkpoint.

    stoppable   for a command: handles the signals during the command
    held        for a training loop, which checks `asked` after each call
    obey        for a worker of a sweep: handles the signals until the worker ends

Outside a loop there is nothing to save, so a signal ends the command at once. A second Ctrl-C always ends it at once. A
second SIGTERM changes nothing, because a process can get the signal twice: from the scheduler and from a wrapper.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Resumable(BaseException):
    """Raised to end a command after a request to stop. The message is one line. Exit code 0.

    Not an `Exception`, so that handlers of other errors do not catch it.
    """


class _State:
    asked = False
    holding = 0


def asked() -> bool:
    """Return whether this process has received a request to stop (SIGTERM or SIGINT)."""
    return _State.asked


def _hear(number: int, _frame) -> None:
    _State.asked = True
    if number == signal.SIGINT:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not _State.holding:
        raise Resumable("stopped; nothing new to save; repeat the command to resume")


@contextmanager
def stoppable() -> Iterator[None]:
    """Treat SIGTERM and SIGINT as requests to stop; do nothing outside the main thread.

    Raises:
        Resumable: a signal arrived outside `held`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.asked = False
    before = {number: signal.signal(number, _hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Let the body continue after a signal. The body calls `asked` at points where it can stop."""
    _State.holding += 1
    try:
        yield
    finally:
        _State.holding -= 1


def obey() -> None:
    """In a worker, treat SIGTERM as a request to stop and leave SIGINT to the parent."""
    _State.holding += 1
    signal.signal(signal.SIGTERM, _hear)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
