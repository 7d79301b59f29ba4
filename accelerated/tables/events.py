"""Event files of TensorBoard, read by TensorBoard's reader (the extra `tensorboard`).

A run is a folder with event files. Its name is the path below the given folder, or the name of the given folder. Its
metrics are the scalars of any writer: TensorFlow, PyTorch, tensorboardX, Keras or JAX. Values of the tab HPARAMS are
settings of the run.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..wording import plural
from .log import STEP, Log, restart_remarks, whole_text

_FOLDER_OF_HPARAMS = re.compile(r"\d+\.\d+")
"""PyTorch's `add_hparams` writes into a subfolder of the run's folder; the subfolder's name is the time."""


def event_files(path) -> list[Path]:
    """Return the event files of a path (a file or a folder), sorted by name."""
    path = Path(path)
    paths = [path] if path.is_file() else sorted(path.rglob("*tfevents*")) if path.is_dir() else []
    return [file for file in paths if "tfevents" in file.name and file.is_file()]


def read_events(path, files: list[Path]) -> Log:
    """Return the scalars of event files as a piece of a log.

    If a metric has several values at a step, the last value counts. If a run restarts from an earlier step, its old
    values from this step on are excluded, as in TensorBoard's reader. A remark reports this. A restart is the start of
    a session at a step, or a metric that goes back to an earlier step. If a metric goes back in a later file of the
    run, the other metrics of the run are also cut back (our choice). An incomplete last record of a file is ignored.

    Raises:
        InputError: the extra is not installed, or no file has a scalar.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError:
        raise InputError(
            f"{path}: event files need the package tensorboard: pip install 'routelaws[tensorboard]'"
        ) from None
    top = Path(path) if Path(path).is_dir() else Path(path).parent
    runs, settings = {}, {}
    for file in files:
        run = _run_of(file, top)
        runs.setdefault(run, []).append(_read(EventFileLoader(str(file)), settings.setdefault(run, {})))
    settings = {run: values for run, values in settings.items() if values}
    _give_to_parents(settings, top)
    rows, restarts = {}, {}
    for run, read in runs.items():
        branch = _Branch()
        for events in sorted((events for events in read if events), key=lambda events: events[0].time):
            branch.take(events)
        for (tag, step), number in branch.values.items():
            rows.setdefault((run, whole_text(step)), {})[tag] = number
        if branch.abandoned:
            restarts[run] = branch.restart, len(branch.abandoned)
    if not rows:
        raise InputError(f"{path}: no scalar in {plural(len(files), 'event file')}; needed: at least one")
    return Log(STEP, rows, settings, restart_remarks(path, restarts))


class _Event(NamedTuple):
    """A scalar or, without a tag, the start of a session."""

    time: float
    step: int
    tag: str | None
    number: str


def _read(loader, settings: dict[str, str]) -> list[_Event]:
    """Return the events of a file, and add its hyperparameters to `settings`."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    events = []
    for event in loader.Load():
        if event.HasField("session_log") and event.session_log.status == SessionLog.START:
            events.append(_Event(event.wall_time, event.step, None, ""))
        for value in event.summary.value:
            kind = value.metadata.plugin_data.plugin_name
            if kind == "hparams":
                settings.update(_hparams(value))
            elif kind == "scalars" and (number := _scalar(value)) is not None:
                events.append(_Event(event.wall_time, event.step, value.tag, number))
    return events


class _Branch:
    """The scalars of a run, from its files in the order of their start, without values that a restart replaced."""

    def __init__(self):
        self.values: dict[tuple[str, int], str] = {}
        self.steps: dict[str, list[int]] = {}  # {tag: steps, rising}
        self.abandoned: set[int] = set()
        self.restart = self.end = 0.0  # the step of the last restart; the time of the last event

    def take(self, events: list[_Event]) -> None:
        if events[0].time >= self.end:
            firsts = {event.tag: event.step for event in reversed(events) if event.tag in self.steps}
            for first, last in [(step, max(self.steps[tag], default=step)) for tag, step in firsts.items()]:
                if first < last:
                    self._cut(first, last, self.steps)
        for event in events:
            self.end = max(self.end, event.time)
            if event.tag is None:
                self._cut(event.step, math.inf, self.steps)
                continue
            steps = self.steps.setdefault(event.tag, [])
            if steps and event.step < steps[-1]:
                self._cut(event.step, steps[-1], [event.tag])
            if not steps or event.step > steps[-1]:
                steps.append(event.step)
            self.values[event.tag, event.step] = event.number

    def _cut(self, first: int, last: float, tags: Iterable[str]) -> None:
        """Drop the values of these tags from a first to a last step."""
        for tag in tags:
            steps = self.steps[tag]
            start, end = bisect_left(steps, first), bisect_right(steps, last)
            for step in steps[start:end]:
                del self.values[tag, step]
                self.restart = first
            self.abandoned.update(steps[start:end])
            del steps[start:end]


def _run_of(file: Path, top: Path) -> str:
    run = file.parent.relative_to(top).as_posix()
    return top.resolve().name if run == "." else run


def _give_to_parents(settings: dict[str, dict], top: Path) -> None:
    """Give the hyperparameters in a folder of PyTorch to its run (see `_FOLDER_OF_HPARAMS`)."""
    for run in list(settings):
        parent, _, name = run.rpartition("/")
        if _FOLDER_OF_HPARAMS.fullmatch(name):
            settings.setdefault(parent or top.resolve().name, settings[run])


def _scalar(value) -> str | None:
    """Return a number as the shortest text of its type: a loss in float32 is 3.1, not 3.0999999046325684."""
    from tensorboard.util import tensor_util

    array = tensor_util.make_ndarray(value.tensor)
    return str(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "fiu" else None


def _hparams(value) -> dict[str, str]:
    from tensorboard.plugins.hparams import plugin_data_pb2

    content = plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
    hparams = {}
    for name, setting in content.session_start_info.hparams.items():
        kind = setting.WhichOneof("kind")
        setting_value = getattr(setting, kind) if kind else None
        hparams[name] = (
            whole_text(setting_value) if kind == "number_value" else "" if setting_value is None else str(setting_value)
        )
    return hparams
