"""Progress displays: a temporary line for a fit, and the time left for training."""

import io
import time

import pytest
from rich.console import Console

from routelaws.accelerated.commands import progress
from routelaws.accelerated.commands.terminal import Working
from routelaws.accelerated.training.configuration import from_mapping


def shown(terminal: bool, patience: float, seconds: float) -> str:
    """Return the console output of a block that takes this many seconds."""
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


RUN = {"d_model": 8, "heads": 1, "blocks": 1, "vocab_size": 300, "steps": 100, "steps_per_call": 10}


@pytest.mark.parametrize(("first", "now", "left"), [(10, 60, "about 0:24 left"), (60, 75, "about 0:50 left")])
def test_the_time_left_is_that_of_the_work_left_at_the_speed_of_this_session(monkeypatch, first, now, left):
    """Half a minute after the first call, `now` of 100 steps are done. The time excludes the first call."""
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=80)
    with progress.Progress([from_mapping(RUN)], console=console) as watch:
        watch("start")
        watch("step", step=first, loss=5.0, tokens_per_second=1e4)
        clock[0] += 30
        watch("step", step=now, loss=4.0, tokens_per_second=1e4)
        watch("evaluation", step=now, loss=4.5)
    assert console.file.getvalue().splitlines()[-1].endswith(f"0:30 so far, {left}")


def test_the_time_left_of_several_runs_counts_what_each_has_to_compile(monkeypatch):
    """Four equal runs, two in parallel. A first call of 10 steps ends after 20 s. A later call takes 1 s."""
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=80)
    with progress.Progress([from_mapping(RUN | {"seed": seed}) for seed in range(4)], console=console) as watch:
        watch("start", run=0)
        watch("start", run=1)
        clock[0] += 20
        for step in (10, 20, 30, 40):
            for run in (0, 1):
                watch("step", run=run, step=step, loss=5.0, tokens_per_second=1e4)
            clock[0] += 1
    said = console.file.getvalue().splitlines()
    # 30 and 20 steps in twice 3 s; 60, 70 and twice 100 steps are left, and twice 20 s: (330 · 0.12 + 40) / 2.
    assert said[-1] == "compiled in about 20 s per run, 2 at a time  0:23 so far, about 0:40 left"
    assert len(said) == 2 and "compiling" in said[0]


def test_the_time_left_of_the_last_run_is_not_shared_among_idle_workers(monkeypatch):
    """Four equal runs, two in parallel: 90 s for 90 steps, but only 45 of run 3. Idle time after a run does not
    count."""
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=80)
    with progress.Progress([from_mapping(RUN | {"seed": seed}) for seed in range(4)], console=console) as watch:
        for pair, reached in (((0, 1), (100, 100)), ((2, 3), (100, 55))):
            for run in pair:
                watch("start", run=run)
                watch("step", run=run, step=10, loss=5.0, tokens_per_second=1e4)
            clock[0] += 90
            for run, step in zip(pair, reached, strict=True):
                watch("step", run=run, step=step, loss=4.0, tokens_per_second=1e4)
            for run, step in zip(pair, reached, strict=True):
                if step == 100:
                    watch("finished", run=run)
    # 315 steps took four times 90 s, and 45 steps are left.
    assert console.file.getvalue().splitlines()[-1].endswith("3:00 so far, about 0:51 left")


def test_a_page_is_written_now_and_then_and_stops_no_run(monkeypatch):
    """Writing takes 0.2 s, so 20 s pass between two pages. The last page does not load itself again."""
    clock, pages, took = [1000.0], [], iter(range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress.time, "thread_time", lambda: 0.2 * next(took))

    def write(blocks, runs, refresh):
        pages.append((blocks, runs, refresh))
        raise OSError("the disk is full")

    page, console = progress.LivePage(write), Console(file=io.StringIO(), width=80)
    with progress.Progress([from_mapping(RUN)], console=console, page=page) as watch:
        watch("start")
        counts = []
        for step in range(10, 60, 10):
            watch("step", step=step, loss=6.0 - step / 10, tokens_per_second=1e4)
            if page.thread:
                page.thread.join()
            counts.append(len(pages))
            clock[0] += 10.5
        watch("evaluation", step=50, loss=1.5)
        page.thread.join()
        watch("finished")
    assert counts == [0, 1, 2, 2, 3] and len(pages) == 4
    assert console.file.getvalue().endswith("report.html could not be written: the disk is full\n")
    (sentence, table), runs, refresh = pages[0]
    assert refresh == progress.EVERY and runs == [0] and pages[-1][2] is None
    assert table.rows == [["dense-d8-L1-s42", "20 of 100", "4.0000", "", "10k tokens/s"]]
    assert sentence == "0:10 so far, about 1:24 left." and "1.5000" in pages[-1][0][1].rows[0]
    with progress.Progress([from_mapping(RUN)], console=console, page=progress.LivePage(write)) as watch:
        watch("start")
        watch("step", step=100, loss=5.0, tokens_per_second=1e4)
    assert len(pages) == 4, "a run of less than ten seconds"
