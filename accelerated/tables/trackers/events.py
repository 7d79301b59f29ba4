"""Event files of TensorBoard, read by TensorBoard's reader (the extra `tensorboard`).

A run is a folder with event files. Its name is the path below the given folder, or the name of the given folder. Its
metrics are the scalars of any writer: TensorFlow, PyTorch, tensorboardX, Keras or JAX. Values of the tab HPARAMS are
settings of the run. Two kinds of folders are not runs of their own
(`sources.py` joins others, such as train and validation):

    the curves of `add_scalars("loss", {"val": ...})`, in loss_val (PyTorch) or loss/val (tensorboardX), are metrics
        such as loss/val of the folder above
    `add_hparams` writes into a folder of its own, named by the time; its hyperparameters belong to the folder above,
        and its scalars are no evaluations if the run has other scalars
"""

import math
import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path, PurePath
from typing import NamedTuple

from ...errors import InputError
from ...wording import in_short, plural
from .log import FOLDER, PART, STEP, Log, continues, restart_remarks, whole_text

_FOLDER_OF_HPARAMS = re.compile(r"\d+\.\d+")
"""The name of a folder by `add_hparams`, unless the user gives a name."""


def event_files(path) -> list[Path]:
    """Return the event files of a path (a file or a folder), sorted by name."""
    path = Path(path)
    paths = [path] if path.is_file() else sorted(path.rglob("*tfevents*")) if path.is_dir() else []
    return [file for file in paths if "tfevents" in file.name and file.is_file()]


def read_events(path, files: list[Path], columns: dict[str, str]) -> Log:
    """Return the scalars of event files as a piece of a log.

    If a metric has several values at a step, the last value counts. If a run restarts from an earlier step, its old
    values from this step on are excluded, as in TensorBoard's reader. A remark reports this. A restart is the start of
    a session at a step, or a metric that goes back to an earlier step. If a metric goes back in a later file of the
    run, the other metrics of the run are also cut back (our choice). An incomplete last record of a file is ignored.

    Args:
        columns: {column of the results table: metric}, by the user. If hyper_id is `folder`, the folders within one
            folder are one run.

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
    folders = [PurePath(file.parent.relative_to(top)) for file in files]
    read = [_File(folder, *_read(EventFileLoader(str(file)))) for folder, file in zip(folders, files, strict=True)]
    by_folder = columns.get("hyper_id") == FOLDER and not any(FOLDER in file.settings for file in read)
    runs, left_out = _with_summaries(_curves_joined(read))
    rows, settings, restarts, groups = {}, {}, {}, {}
    for folder, own in runs.items():
        above = folder.parent if folder.parts else PurePath("..")
        groups.setdefault(above if by_folder and not PART.fullmatch(folder.name) else folder, []).extend(own)
    for folder, own in groups.items():
        branch, there = _Branch(), (top / folder).resolve()
        run = folder.as_posix() if folder.name.strip(".") else there.name
        run = f"{there.parent.name}/{run}" if PART.fullmatch(run) else run  # such as train in the given folder
        settings[run] = {name: value for file in own for name, value in file.settings.items()}
        if by_folder:
            settings[run][FOLDER] = run
        for events in sorted((file.events for file in own if file.events), key=lambda events: events[0].time):
            branch.take(events)
        for tag, numbers in branch.values.items():
            for step, number in numbers.items():
                rows.setdefault((run, whole_text(step)), {})[tag] = number
        if branch.abandoned:
            restarts[run] = branch.restart, len(branch.abandoned)
    if not rows:
        raise InputError(f"{path}: no scalar in {plural(len(files), 'event file')}; needed: at least one")
    remarks = [f"{path}: {remark}" for remark in _continued(groups)]
    if left_out:
        names = in_short(path if run == PurePath() else run for run in left_out)
        remarks.append(f"{path}: left out: metrics that add_hparams logged with the hyperparameters, of {names}")
    settings = {run: values for run, values in settings.items() if values}
    return Log(STEP, rows, settings, remarks + restart_remarks(path, restarts))


class _Event(NamedTuple):
    """A scalar or, without a tag, the start of a session."""

    time: float
    step: int
    tag: str | None
    number: str


class _File(NamedTuple):
    """An event file."""

    folder: PurePath  # below the given folder
    events: list[_Event]
    settings: dict[str, str]  # the hyperparameters

    @property
    def tags(self) -> dict[str, None]:
        return dict.fromkeys(event.tag for event in self.events if event.tag is not None)

    @property
    def is_summary(self) -> bool:
        """Whether the file has hyperparameters and one value of each metric, all at one step."""
        steps = [event.step for event in self.events if event.tag is not None]
        return bool(self.settings) and len(steps) == len(self.tags) and len(set(steps)) < 2


def _curves_joined(files: list[_File]) -> dict[PurePath, list[_File]]:
    """Return {folder of a run: its files}; the curves of `add_scalars` are metrics of the folder above."""
    folders, runs = {file.folder for file in files}, {}
    for file in files:
        run, own = file.folder, list(file.tags)
        for above in (above for above in file.folder.parents if above in folders and len(own) == 1):
            below = file.folder.relative_to(above).as_posix()
            for start in (f"{own[0]}/", f"{own[0].replace('/', '_')}_"):
                if below.startswith(start) and run == file.folder:
                    run, tag = above, f"{own[0]}/{below.removeprefix(start)}"
                    file = file._replace(events=[event._replace(tag=event.tag and tag) for event in file.events])
        runs.setdefault(run, []).append(file)
    return runs


def _with_summaries(runs: dict[PurePath, list[_File]]) -> tuple[dict[PurePath, list[_File]], list[PurePath]]:
    """Give the hyperparameters of `add_hparams` to their runs. Drop its scalars if the run has other scalars.

    Returns:
        {folder of a run: its files}, and the runs with dropped scalars.
    """
    summaries = [(folder, file) for folder, own in runs.items() for file in own if file.is_summary]
    joined = {folder: [file for file in own if not file.is_summary] for folder, own in runs.items()}
    lasts = {
        run: max(event.step for file in own for event in file.events)
        for run, own in joined.items()
        if any(file.tags for file in own)
    }
    named = {folder for folder, _ in summaries if not _FOLDER_OF_HPARAMS.fullmatch(folder.name)}
    left_out = {}
    for folder, file in summaries:
        places = [folder, folder.parent]
        if folder in named and sum(other.parent == folder.parent for other in named) > 1:
            places = [folder]  # runs with one evaluation each, and not a folder of `add_hparams`
        run = next((place for place in places if place in lasts), folder if folder in named else folder.parent)
        if run in lasts and (folder not in named or all(event.step <= lasts[run] for event in file.events)):
            left_out |= dict.fromkeys([run] if file.tags else [])
            file = file._replace(events=[])
        elif folder in named:
            run = folder
        joined.setdefault(run, []).append(file)
    return joined, list(left_out)


def _continued(runs: dict[PurePath, list[_File]]) -> list[str]:
    """Return a remark on runs that may continue a run of the same folder with the same hyperparameters."""
    starts = {}
    for run, own in runs.items():
        if steps := [event.step for file in own for event in file.events if event.tag]:
            settings = {item for file in own for item in file.settings.items()}
            starts.setdefault((run.parent, frozenset(settings)), []).append((run.as_posix(), min(steps)))
    return continues(starts)


def _read(loader) -> tuple[list[_Event], dict[str, str]]:
    """Return the events and the hyperparameters of a file."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    events, settings = [], {}
    for event in loader.Load():
        if event.HasField("session_log") and event.session_log.status == SessionLog.START:
            events.append(_Event(event.wall_time, event.step, None, ""))
        for value in event.summary.value:
            kind = value.metadata.plugin_data.plugin_name
            if kind == "hparams":
                settings.update(_hparams(value))
            elif kind == "scalars" and (number := _scalar(value)) is not None:
                events.append(_Event(event.wall_time, event.step, value.tag, number))
    return events, settings


class _Branch:
    """The scalars of a run, from its files in the order of their start, without values that a restart replaced."""

    def __init__(self):
        self.values: dict[str, dict[int, str]] = {}  # {tag: {step: number}}, steps rising
        self.abandoned: set[int] = set()
        self.restart = self.end = 0.0  # the step of the last restart; the time of the last event

    def take(self, events: list[_Event]) -> None:
        if events[0].time >= self.end:
            firsts = {event.tag: event.step for event in reversed(events) if self.values.get(event.tag)}
            for first, last in [(step, next(reversed(self.values[tag]))) for tag, step in firsts.items()]:
                if first < last:
                    self._cut(first, last, self.values)
        for event in events:
            self.end = max(self.end, event.time)
            if event.tag is None:
                self._cut(event.step, math.inf, self.values)
                continue
            steps = self.values.setdefault(event.tag, {})
            if event.step < next(reversed(steps), 0):
                self._cut(event.step, math.inf, [event.tag])
            steps[event.step] = event.number

    def _cut(self, first: int, last: float, tags: Iterable[str]) -> None:
        """Drop the values of these tags from a first to a last step."""
        for tag in tags:
            for step in [step for step in takewhile(first.__le__, reversed(self.values[tag])) if step <= last]:
                del self.values[tag][step]
                self.abandoned.add(step)
                self.restart = first


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
