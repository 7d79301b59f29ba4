"""What a person sees while runs are being trained: on a terminal live bars, elsewhere lines.

A line stands for each run that is finished. Where a single run is trained, a line also says how far it is, at every
evaluation and every half a minute.
"""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from ..training.configuration import TrainConfig
from ..training.sweep import cost

QUIET = 30.0
"""Seconds after which a single run says how far it is, where there are no bars."""


class Progress:
    """A `Watch` that shows what runs, its loss, its speed, and the time left for all runs together.

    The time left is the work left, in units of `sweep.cost`, at the speed of this session so far.

    Args:
        runs: the configurations, by hyper_id.
        chosen: the hyper_ids of those that are trained here; all if None.
        console: where to show it; standard error if None.
    """

    def __init__(
        self, runs: Sequence[TrainConfig], chosen: Sequence[int] | None = None, console: Console | None = None
    ):
        self.runs, self.console = runs, console or Console(stderr=True)
        self.costs = {run: cost(runs[run]) for run in (range(len(runs)) if chosen is None else chosen)}
        self.steps_done: dict[int, int] = {}  # by run, of those at work or finished
        self.work_before: dict[int, float] = {}  # share of a run that was there when it started
        self.finished: dict[int, float | None] = {}  # by run, its loss
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.started: dict[int, float] = {}
        self.began = self.said = time.monotonic()
        self.bars = Bars(
            TextColumn("{task.description:28}"),
            BarColumn(None),
            MofNCompleteColumn(),
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

    def __exit__(self, *_):
        self.bars.stop()

    def __call__(self, kind: str, run: int = 0, **fields) -> None:
        """Take one event; see `training.watch.Watch`."""
        getattr(self, f"_{kind}")(run, **fields)
        self.bars.update(self.all, completed=len(self.finished), note=self._time_left())

    def _say(self, run: int, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _start(self, run: int) -> None:
        config = self.runs[run]
        self.started[run] = time.monotonic()
        self.tasks[run] = self.bars.add_task(config.name(), total=config.steps, note="compiling")

    def _step(self, run: int, step: int, loss: float, tokens_per_second: float) -> None:
        if run not in self.steps_done:
            self.work_before[run] = max(0, step - self.runs[run].steps_per_call) / self.runs[run].steps
        self.steps_done[run] = step
        self.rates[run] = tokens_per_second
        note = f"loss {loss:.3f}  {_speed(tokens_per_second)}"
        self.bars.update(self.tasks[run], completed=step, note=note)
        if time.monotonic() - self.said > QUIET:
            self._say_how_far(run, step, f"training loss {loss:.4f}")

    def _evaluation(self, run: int, step: int, loss: float) -> None:
        self.losses[run] = loss
        self._say_how_far(run, step, f"validation loss {loss:.4f}")

    def _say_how_far(self, run: int, step: int, loss: str) -> None:
        if len(self.costs) > 1 or self.console.is_terminal:
            return
        self.said = time.monotonic()
        speed = f"{_speed(self.rates[run])}  " if run in self.rates else ""
        self._say(run, f"step {step:,} of {self.runs[run].steps:,}  {loss}  {speed}{self._time_left()}")

    def _finished(self, run: int) -> None:
        self._remove(run)
        self.finished[run] = self.losses.get(run)
        if run not in self.started:
            self.work_before[run] = 1.0
            return
        seconds = time.monotonic() - self.started[run]
        loss = "finished before" if run not in self.losses else f"validation loss {self.losses[run]:.4f}"
        self._say(
            run,
            f"{len(self.finished):3}/{len(self.costs)}  {self.runs[run].name():28} {loss}  {seconds:5.0f} s"
            f"  {self._time_left()}",
        )

    def _failed(self, run: int, line: str) -> None:
        self._remove(run)
        self.finished[run] = None
        self._say(run, f"failed: {line}")

    def _remove(self, run: int) -> None:
        if run in self.tasks:
            self.bars.remove_task(self.tasks.pop(run))

    def _time_left(self) -> str:
        total = sum(self.costs.values())
        before = sum(self.costs[run] * share for run, share in self.work_before.items())
        done = sum(
            cost * (1.0 if run in self.finished else self.steps_done.get(run, 0) / self.runs[run].steps)
            for run, cost in self.costs.items()
        )
        elapsed = time.monotonic() - self.began
        if done - before <= 0.005 * total:
            return f"{_clock(elapsed)} so far"
        left = elapsed * (total - done) / (done - before)
        return f"{_clock(elapsed)} so far, about {_clock(left)} left"


def _clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours where there are any."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second / 1e3:.{0 if tokens_per_second >= 9950 else 1}f}k tokens/s"
