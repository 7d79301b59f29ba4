"""The line that a terminal shows while a fit goes on: after a while, with what is done, and gone at the end."""

import io
import time

import pytest
from rich.console import Console

from routelaws.accelerated.commands.working import Working


def shown(terminal: bool, patience: float, seconds: float) -> str:
    """Return all that a console got while a block of so many seconds ran."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Working("reading [the table]", console, patience) as tell:
        time.sleep(seconds / 2)
        tell("fitting Hash, 1 of 3")
        time.sleep(seconds / 2)
    return console.file.getvalue()


def test_what_is_done_is_shown_after_a_while_and_then_gone():
    text = shown(True, patience=0.01, seconds=0.6)
    assert "reading [the table]" in text and "fitting Hash, 1 of 3" in text
    assert text.endswith("\x1b[2K") or text.rstrip("\x1b[?25h\r").endswith("\x1b[2K"), "the line is taken away"


@pytest.mark.parametrize(("terminal", "patience", "seconds"), [(True, 5.0, 0.02), (False, 0.01, 0.2)])
def test_nothing_is_shown_of_short_work_or_in_a_file(terminal, patience, seconds):
    assert not shown(terminal, patience, seconds).strip()


def test_an_error_ends_it_too():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with pytest.raises(ValueError, match="no"), Working("fitting", console, 0.0):
        time.sleep(0.2)
        raise ValueError("no")
    length = len(console.file.getvalue())
    time.sleep(0.2)
    assert len(console.file.getvalue()) == length
