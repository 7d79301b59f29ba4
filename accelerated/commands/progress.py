"""The progress display of training: live bars on a terminal, lines elsewhere, and a page that loads itself again.

Each finished run has a line. An earlier line gives the time for compiling the first programs and the time for all runs.
A single run also has a line at every evaluation and every half a minute. A bar shows the curve of the training loss.
"""

import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from ..results.blocks import Block, Table, Terminal, figure
from ..training.configuration import TrainConfig

QUIET = 30.0
"""Seconds between progress lines of a single run without bars."""

SURE = 5.0
"""Seconds of steps, summed over all runs, before the first estimate of the time left."""

EVERY, WRITES = 10.0, 0.01
"""Seconds between two pages, and the largest share of the time for writing pages."""

BARS, POINTS = "▁▂▃▄▅▆▇█", 20
"""The characters of a curve, and their number in the curve of a whole run."""


class LivePage:
    """The page of runs while they train. A thread writes it. An error of writing stops no run; `error` is the last one.

    Args:
        write: write(blocks, hyper_ids of the runs to draw, seconds until the page loads itself again or None).
    """

    def __init__(self, write: Callable[[list[Block], list[int], float | None], None]):
        self.write, self.thread, self.due, self.error = write, None, None, None

    def renew(self, state: Callable[[], tuple[list[Block], list[int]]]) -> None:
        """Write the page if it is due. The first page is due `EVERY` seconds after the first call."""
        self.due = self.due or time.monotonic() + EVERY
        if time.monotonic() >= self.due and not (self.thread and self.thread.is_alive()):
            is_first = self.thread is None  # and loads matplotlib
            self.thread = threading.Thread(target=self._write, args=(*state(), EVERY, is_first), daemon=True)
            self.thread.start()

    def end(self, state: Callable[[], tuple[list[Block], list[int]]], refresh: float | None) -> None:
        """Write the page again, if it has been written."""
        if self.thread:
            self.thread.join()
            self._write(*state(), refresh)

    def _write(self, blocks: list[Block], runs: list[int], refresh: float | None, is_first: bool = False) -> None:
        began = time.thread_time()
        try:
            self.write(blocks, runs, refresh)
            self.error = None
        except Exception as error:
            self.error = error
        seconds = 0.0 if is_first else time.thread_time() - began
        self.due = time.monotonic() + max(EVERY, seconds / WRITES)


class Progress:
    """A `Watch` that shows the current runs, loss, speed, and the time left for all runs.

    The time left is the work left (see `TrainConfig.cost`) divided by the speed of this session. The speed is
    measured from the end of the first call of each run, because compiling takes a quarter of the time of a small run.
    Each run that has not made a step adds the mean starting time of other runs.

    Args:
        runs: the configurations, by hyper_id.
        chosen: the hyper_ids of the runs of this process; None for all.
        console: a rich Console; None for standard error.
        page: the page of the runs, or None.
    """

    def __init__(
        self,
        runs: Sequence[TrainConfig],
        chosen: Sequence[int] | None = None,
        console: Console | None = None,
        page: LivePage | None = None,
    ):
        self.runs, self.console, self.page = runs, console or Terminal(stderr=True), page
        self.costs = {run: runs[run].cost() for run in (range(len(runs)) if chosen is None else chosen)}
        self.steps_done: dict[int, int] = {}  # {run: steps}, of running and finished runs
        self.finished: dict[int, float | None] = {}  # {run: loss}
        self.losses: dict[int, float] = {}
        self.curves: dict[int, dict[int, float]] = {}  # {run: {point: running mean of its training losses}}
        self.failures: dict[int, str] = {}
        self.rates: dict[int, float] = {}
        self.compiled: set[tuple[int, int]] = set()  # (run, steps of a call)
        self.started: dict[int, float] = {}  # {run: time}
        self.stepped: dict[int, tuple[float, int]] = {}  # {run: (time and steps after its first call)}
        self.ended: dict[int, float] = {}
        self.at_once = 1  # the largest number of simultaneous runs so far
        self.told_first = False
        self.began = self.said = self.now = time.monotonic()  # `now` is the time of the last event
        self.bars = Bars(
            TextColumn("{task.description:28}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.tasks: dict[int, int] = {}

    def __enter__(self):
        self.bars.start()
        self.all = self.bars.add_task("all runs", total=len(self.costs), note="")
        return self

    def __exit__(self, error, *_):
        self.bars.stop()
        if self.page:  # the report follows the page of several runs
            self.page.end(self._state, EVERY if error is None and len(self.costs) > 1 else None)
            if self.page.error and not isinstance(self.page.error, ImportError):  # without matplotlib there is no page
                self._say(0, f"report.html could not be written: {self.page.error}")

    def __call__(self, kind: str, run: int = 0, **fields) -> None:
        self.now = time.monotonic()
        getattr(self, f"_{kind}")(run, **fields)
        self.bars.update(self.all, completed=len(self.finished), note=self._time_left())
        if self.page and self.stepped:
            self.page.renew(self._state)

    def _say(self, run: int, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _start(self, run: int) -> None:
        config = self.runs[run]
        if not self.started and len(self.costs) > 1 and not self.console.is_terminal:
            self._say(run, f"compiling the first of {len(self.costs)} runs")
        self.started[run] = self.now
        self.at_once = max(self.at_once, len(self.started) - len(self.ended))
        usual = self._start_seconds()
        note = "compiling" if usual is None else f"compiling, about {usual:.0f} s"
        self.tasks[run] = self.bars.add_task(config.name(), total=config.steps, note=note)

    def _step(self, run: int, step: int, loss: float, tokens_per_second: float) -> None:
        self.stepped.setdefault(run, (self.now, step))
        call = run, step - self.steps_done.get(run, 0)
        if call in self.compiled:  # the first call of a number of steps compiles, which is not the speed of the run
            self.rates[run] = tokens_per_second
        self.compiled.add(call)
        self.steps_done[run] = step
        points, point = self.curves.setdefault(run, {}), step * POINTS // self.runs[run].steps
        points[point] = 0.9 * points.get(point, loss) + 0.1 * loss
        curve = f"{spark([*points.values()])}  " if "utf" in self.console.encoding else ""
        self.bars.update(self.tasks[run], completed=step, note=f"{curve}loss {loss:.3f}  {self._speed(run)}")
        if self.now - self.said > QUIET:
            self._say_how_far(run, step, f"training loss {loss:.4f}")
        self._say_first_time()

    def _evaluation(self, run: int, step: int, loss: float) -> None:
        self.losses[run] = loss
        self._say_how_far(run, step, f"validation loss {loss:.4f}")

    def _say_how_far(self, run: int, step: int, loss: str) -> None:
        if len(self.costs) > 1 or self.console.is_terminal:
            return
        self.said = self.now
        self._say(run, f"step {step:,} of {self.runs[run].steps:,}  {loss}  {self._speed(run)}{self._time_left()}")

    def _speed(self, run: int) -> str:
        """Return the speed of a run, without the time of compilation; "" before it is known."""
        rate = self.rates.get(run)
        return "" if rate is None else f"{rate / 1e3:.{0 if rate >= 9950 else 1}f}k tokens/s  "

    def _say_first_time(self) -> None:
        """Print the time for all of several runs once, before the first run ends."""
        if self.told_first or len(self.costs) == 1 or self.console.is_terminal or self._seconds_left() is None:
            return
        self.told_first = True
        if not any(run in self.started for run in self.finished):
            start, left = self._start_seconds(), self._time_left()
            self._say(0, f"compiled in about {start:.0f} s per run, {self.at_once} at a time  {left}")

    def _finished(self, run: int) -> None:
        self._remove(run)
        self.finished[run] = self.losses.get(run)
        if run not in self.started:
            return
        seconds = self.now - self.started[run]
        loss = "finished before" if run not in self.losses else f"validation loss {self.losses[run]:.4f}"
        self._say(
            run,
            f"{len(self.finished):3}/{len(self.costs)}  {self.runs[run].name():28} {loss}  {seconds:5.0f} s"
            f"  {self._time_left()}",
        )

    def _failed(self, run: int, line: str) -> None:
        self._remove(run)
        self.finished[run], self.failures[run] = None, line
        self._say(run, f"failed: {line}")

    def _state(self) -> tuple[list[Block], list[int]]:
        """Return a sentence on the time, a table of the runs that began, and the runs to draw, the current first."""
        rows, last = [], {run: [*points.values()][-1] for run, points in self.curves.items()}
        for run in sorted({*self.started, *self.finished}):
            step = self.steps_done.get(run)
            state = "finished" if run in self.finished else self._speed(run).strip() or "compiling"
            cells = [figure(losses[run], ".4f") if run in losses else "" for losses in (last, self.losses)]
            steps = "" if step is None else f"{step:,} of {self.runs[run].steps:,}"
            rows.append([self.runs[run].name(), steps, *cells, self.failures.get(run, state)])
        done = f"{len(self.finished)} of {len(self.costs)} runs are finished. " if len(self.costs) > 1 else ""
        table = Table(["run", "step", "training loss", "validation loss", ""], rows)
        ended = sorted(self.ended, key=self.ended.get, reverse=True)
        time_words = f"{self._time_left()}." if len(self.finished) < len(self.costs) else f"It took {self._elapsed()}."
        return [f"{done}{time_words}", table], [*(run for run in self.tasks if run in self.stepped), *ended]

    def _remove(self, run: int) -> None:
        if run in self.started:
            self.ended[run] = self.now
        if run in self.tasks:
            self.bars.remove_task(self.tasks.pop(run))

    def _start_seconds(self) -> float | None:
        taken = [at - self.started[run] for run, (at, _) in self.stepped.items() if run in self.started]
        return sum(taken) / len(taken) if taken else None

    def _seconds_left(self) -> float | None:
        if len(self.finished) == len(self.costs):
            return 0.0
        now, work, seconds = self.now, 0.0, 0.0
        for run, (at, steps) in self.stepped.items():
            work += self.costs[run] * (self.steps_done[run] - steps) / self.runs[run].steps
            seconds += self.ended.get(run, now) - at
        if work <= 0 or seconds < SURE:
            return None
        start, unfinished = self._start_seconds() or 0.0, [run for run in self.costs if run not in self.finished]
        left = 0.0  # seconds left if runs follow one another
        for run in unfinished:
            left += seconds / work * self.costs[run] * (1 - self.steps_done.get(run, 0) / self.runs[run].steps)
            if run not in self.stepped:
                left += max(0.0, start - (now - self.started.get(run, now)))
        return left / max(1, min(self.at_once, len(unfinished)))

    def _elapsed(self) -> str:
        return _clock(self.now - self.began)

    def _time_left(self) -> str:
        left = self._seconds_left()
        return f"{self._elapsed()} so far" + ("" if left is None else f", about {_clock(left)} left")


def spark(losses: Sequence[float]) -> str:
    """Return losses as a line of characters. The first loss of many is much higher, so it is left out.

    Example:
        >>> spark([9.0, 5.0, 4.5, 4.0, 2.0]), spark([3.0])
        ('█▇▆▁', '▁')
    """
    kept = losses[1:] if len(losses) > 2 else losses
    low, span = min(kept), max(max(kept) - min(kept), 1e-9)
    return "".join(BARS[round((loss - low) / span * (len(BARS) - 1))] for loss in kept)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
