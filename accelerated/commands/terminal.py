"""Printed lines, except tables; names with special characters stay on a line."""

import sys
import threading

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..errors import in_line
from ..results.blocks import Terminal


def say(line: str) -> None:
    print(in_line(line))


def remark(line: str) -> None:
    """Print a line that is not a result to standard error, and flush."""
    print(in_line(line), file=sys.stderr, flush=True)


PATIENCE = 1.0
"""Seconds before the line appears; most fits take less."""


class Working:
    """A progress line on standard error during a `with` block. Call it with a text to update the line.

    Args:
        what: the initial text.
        patience: seconds before the line appears.
    """

    def __init__(self, what: str, console: Console | None = None, patience: float = PATIENCE):
        console = console or Terminal(stderr=True)
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self.line = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.line.add_task(what)
        self.timer = threading.Timer(patience, self._show)
        self.lock, self.over = threading.Lock(), False

    def __enter__(self):
        self.timer.daemon = True
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        with self.lock:  # the timer may show the line at any moment
            self.over = True
            self.line.stop()

    def __call__(self, what: str) -> None:
        self.line.update(self.task, description=what)

    def _show(self) -> None:
        with self.lock:
            if not self.over:
                self.line.start()
