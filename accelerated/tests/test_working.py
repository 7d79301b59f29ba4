"""What is shown while something goes on: of a fit a line that is gone at the end, of training the time that is left."""

import io
import time

import pytest
from rich.console import Console

from routelaws.accelerated.commands import progress
from routelaws.accelerated.commands.working import Working
from routelaws.accelerated.training.configuration import from_mapping


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


@pytest.mark.parametrize(("first", "now", "left"), [(10, 60, "about 0:20 left"), (60, 75, "about 0:30 left")])
def test_the_time_left_is_that_of_the_work_left_at_the_speed_of_this_session(monkeypatch, first, now, left):
    """Of 100 steps `now` are done after half a minute; of a run that goes on at 50 they are not all of now."""
    run = from_mapping({"d_model": 8, "heads": 1, "blocks": 1, "vocab_size": 300, "steps": 100, "steps_per_call": 10})
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=80)
    with progress.Progress([run], console=console) as watch:
        watch("start")
        watch("step", step=first, loss=5.0, tokens_per_second=1e4)
        clock[0] += 30
        watch("step", step=now, loss=4.0, tokens_per_second=1e4)
        watch("evaluation", step=now, loss=4.5)
    assert console.file.getvalue().splitlines()[-1].endswith(f"0:30 so far, {left}")
