"""The log of a run for TensorBoard: event files in the folder of the run, made from `log.jsonl`.

    tensorboard/events.out.tfevents…     scalars by step, and the configuration for the tab HPARAMS

When a run resumes, its log is cut back to the checkpoint, and the event files are written again from the log. So no
step appears twice, even after a kill. Only the time of day of earlier steps is lost. `routelaws convert` reads such a
folder back into a results table.

The package `tensorboard` (by Google, also used by PyTorch) writes the files, and reads them for `routelaws convert`.
"""

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
    """A `Watch` that writes the logs of runs as event files and passes all events to another `Watch`.

    Args:
        runs: {run: (folder, configuration)}.

    Raises:
        InputError: the package tensorboard is missing.
    """

    def __init__(self, watch: Watch, runs: dict[int, tuple[Path, TrainConfig]]):
        try:
            import tensorboard.summary.writer.event_file_writer  # noqa: F401
        except ImportError:
            raise InputError(
                "--tensorboard needs the package tensorboard: pip install 'routelaws[tensorboard]'"
            ) from None
        self.watch, self.runs = watch, runs
        self._followed: dict[int, _Follower] = {}

    def __call__(self, kind: str, run: int = 0, **fields) -> None:
        """Take an event. A run writes its log before it sends an event."""
        if kind == "start":
            self._followed.pop(run, None)  # the log may have been cut back
        elif kind in ("step", "evaluation", "finished", "failed") and self._log(run).exists():
            if run not in self._followed:
                folder, config = self.runs[run]
                self._followed[run] = _Follower(Path(folder), config)
            self._followed[run].follow(flush=kind != "step")
            if kind in ("finished", "failed"):
                self._followed.pop(run).close()
        self.watch(kind, run=run, **fields)

    def _log(self, run: int) -> Path:
        return Path(self.runs[run][0]) / "log.jsonl"


class _Follower:
    """Writes the event file of a run from its log, beginning at the first line."""

    def __init__(self, folder: Path, config: TrainConfig):
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.log, self.read, self.flushed = folder / "log.jsonl", 0, 0.0
        for old in (folder / FOLDER).glob("events.out.tfevents*"):
            old.unlink()
        self.writer = EventFileWriter(str(folder / FOLDER))
        settings = {name: value for name, value in run_columns(config).items() if value != ""}
        self.writer.add_event(event_pb2.Event(summary=hparams_pb(settings, trial_id=config.name()), wall_time=0.0))

    def follow(self, flush: bool) -> None:
        """Write the new lines of the log. An incomplete last line is written at the next call."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        with open(self.log, "rb") as file:
            file.seek(self.read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            fields = parse_line(line, str(self.log))
            for tag, value in scalars(fields).items():
                event = event_pb2.Event(step=fields["step"], wall_time=time.time(), summary=scalar_pb(tag, value))
                self.writer.add_event(event)
        if flush or time.monotonic() - self.flushed > FLUSHED:
            self.writer.flush()
            self.flushed = time.monotonic()

    def close(self) -> None:
        self.writer.close()


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
