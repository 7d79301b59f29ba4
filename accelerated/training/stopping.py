"""Being asked to stop: SIGTERM or Ctrl-C ends a run after the call at hand, with a checkpoint.

    stoppable   of a command: what the signals mean while it runs
    held        of a training loop: it looks at `asked` itself, after each call
    obey        of a worker of a sweep: the same, for its whole life

Outside a loop there is nothing to save, so a signal ends the command at once. A second Ctrl-C always does; a second
SIGTERM changes nothing, since schedulers send one to every process and wrappers pass it on.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Resumable(BaseException):
    """What ends a command that was asked to stop; the message is one line. Exit code 0.

    Not an `Exception`: whoever handles errors of a file, say, is not to take it for one.
    """


class _State:
    """Of this process."""

    asked = False
    holding = 0


def asked() -> bool:
    """Return whether this process was asked to stop."""
    return _State.asked


def _hear(number: int, _frame) -> None:
    _State.asked = True
    if number == signal.SIGINT:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not _State.holding:
        raise Resumable("stopped with nothing new to save; resumable: repeat the command")


@contextmanager
def stoppable() -> Iterator[None]:
    """Take SIGTERM and SIGINT as a wish to stop; does nothing outside the main thread, where no signal arrives.

    Raises:
        Resumable: a signal arrived where nothing was `held`.
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
    """Keep a signal from ending what is inside, which looks at `asked` where it can stop."""
    _State.holding += 1
    try:
        yield
    finally:
        _State.holding -= 1


def obey() -> None:
    """Take SIGTERM as a wish to stop and leave SIGINT to the parent, in a worker, for as long as it lives."""
    _State.holding += 1
    signal.signal(signal.SIGTERM, _hear)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
