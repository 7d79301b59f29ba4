"""The log of a run for TensorBoard or Weights & Biases, made from `log.jsonl`.

    tensorboard/events.out.tfevents…     scalars by step, and the configuration for the tab HPARAMS

When a run resumes, its log is cut back to the checkpoint, and the event files are written again from the log. So no
step appears twice, even after a kill. Only the time of day of earlier steps is lost. `routelaws convert` reads such a
folder back into a results table.

The package `tensorboard` (by Google, also used by PyTorch) writes the files, and reads them for `routelaws convert`.
The package `wandb` sends the same numbers. A resumed run is a new run of Weights & Biases, with the whole log.
"""

import importlib
import time
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..configuration import TrainConfig
from ..runs.result_rows import run_columns
from ..runs.run_folder import parse_line
from ..watch import Watch

FOLDER = "tensorboard"
"""Subfolder of a run folder for the event files."""

FLUSHED = 5.0
"""Seconds after which a scalar is written to disk."""


class Board:
    """A `Watch` that writes the logs of runs for another program and passes all events to another `Watch`.

    Args:
        runs: {run: (folder, configuration)}.
        project: a project of Weights & Biases; None for event files of TensorBoard.

    Raises:
        InputError: the package tensorboard or wandb is missing.
    """

    def __init__(self, watch: Watch, runs: dict[int, tuple[Path, TrainConfig]], project: str | None = None):
        name = "wandb" if project is not None else "tensorboard"
        try:
            importlib.import_module("wandb" if project is not None else "tensorboard.summary.writer.event_file_writer")
        except ImportError:
            raise InputError(f"--{name} needs the package {name}: pip install 'routelaws[{name}]'") from None
        self.watch, self.runs, self.project = watch, runs, project
        self._followed: dict[int, _Follower] = {}

    def __call__(self, kind: str, run: int = 0, **fields) -> None:
        """Take an event. A run writes its log before it sends an event."""
        if kind == "start":
            self._followed.pop(run, None)  # the log may have been cut back
        elif kind in ("step", "evaluation", "finished", "failed") and self._log(run).exists():
            if run not in self._followed:
                folder, config = self.runs[run]
                writer = _Events(Path(folder), config) if self.project is None else _Project(config, self.project)
                self._followed[run] = _Follower(self._log(run), writer)
            self._followed[run].follow(flush=kind != "step")
            if kind in ("finished", "failed"):
                self._followed.pop(run).writer.close()
        self.watch(kind, run=run, **fields)

    def _log(self, run: int) -> Path:
        return Path(self.runs[run][0]) / "log.jsonl"


def _settings(config: TrainConfig) -> dict:
    return {name: value for name, value in run_columns(config).items() if value != ""}


class _Events:
    """The event files of a run, written again from the beginning."""

    def __init__(self, folder: Path, config: TrainConfig):
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        for old in (folder / FOLDER).glob("events.out.tfevents*"):
            old.unlink()
        self.writer = EventFileWriter(str(folder / FOLDER))
        summary = hparams_pb(_settings(config), trial_id=config.name())
        self.writer.add_event(event_pb2.Event(summary=summary, wall_time=0.0))
        self.flush, self.close = self.writer.flush, self.writer.close

    def add(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for tag, value in values.items():
            event = event_pb2.Event(step=step, wall_time=time.time(), summary=scalar_pb(tag, value))
            self.writer.add_event(event)


class _Project:
    """A run in a project of Weights & Biases. The environment variables of wandb apply, such as WANDB_MODE=offline."""

    def __init__(self, config: TrainConfig, project: str):
        import wandb

        options = {"reinit": "create_new", "settings": wandb.Settings(console="off", silent=True)}
        self.run = wandb.init(project=project, name=config.name(), config=_settings(config), **options)
        self.close = self.run.finish

    def add(self, step: int, values: dict[str, float]) -> None:
        if values:
            self.run.log(values, step=step)

    def flush(self) -> None:
        """Do nothing, because a process of wandb sends the numbers."""


class _Follower:
    """Passes the numbers of a log to a writer, beginning at the first line."""

    def __init__(self, log: Path, writer: _Events | _Project):
        self.log, self.writer, self.read, self.flushed = log, writer, 0, 0.0

    def follow(self, flush: bool) -> None:
        """Write the new lines of the log. An incomplete last line is written at the next call."""
        with open(self.log, "rb") as file:
            file.seek(self.read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            fields = parse_line(line, str(self.log))
            self.writer.add(fields["step"], scalars(fields))
        if flush or time.monotonic() - self.flushed > FLUSHED:
            self.writer.flush()
            self.flushed = time.monotonic()


def scalars(line: dict) -> dict[str, float]:
    """Return {tag: number} of a line of the log.

    Evaluation losses have the name of their table column (loss_validation). Training scalars have the prefix train/,
    and statistics of expert loads the prefix load/.
    """
    if line["kind"] == "evaluation":
        losses = {name: value for name, value in line.items() if name.startswith("loss_") and value is not None}
        load = np.asarray(line.get("load", []), np.float64)
        if load.size:
            losses |= {
                "load/max": float((load.max(axis=1) * load.shape[1]).mean()),
                "load/idle": float((load == 0).mean()),
            }
        return losses
    if line["kind"] != "train":
        return {}
    return {f"train/{name}": value for name, value in line.items() if name not in ("kind", "step")}
