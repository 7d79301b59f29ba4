"""Event files of TensorBoard, read by its own reader (the extra `tensorboard`).

A run is a folder with event files, and is called by its path below the folder that was given, or by the name of that
folder if it is that one. Its metrics are its scalars, whoever wrote them: TensorFlow, PyTorch, tensorboardX, Keras or
JAX. What was logged for the tab HPARAMS is taken as settings of the run.
"""

import re
from pathlib import Path

from ..errors import InputError
from ..wording import plural
from .log import STEP, Log, whole_text

_FOLDER_OF_HPARAMS = re.compile(r"\d+\.\d+")
"""PyTorch's `add_hparams` writes what it is given below the folder of the run, in a folder named by the time."""


def event_files(path) -> list[Path]:
    """Return the event files that a path means, by name: itself, or all below a folder; [] if there are none."""
    path = Path(path)
    found = [path] if path.is_file() else sorted(path.rglob("*tfevents*")) if path.is_dir() else []
    return [file for file in found if "tfevents" in file.name and file.is_file()]


def read_events(path, files: list[Path]) -> Log:
    """Return the scalars of event files as a piece of a log.

    Of several values of a metric at one step the one that was written last is taken: a run that went on from a
    checkpoint writes some steps again. A file that ends in the middle of a record is read as far as it goes.

    Raises:
        InputError: the extra is not installed, or no file holds a scalar.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError:
        raise InputError(
            f"{path}: event files need the package tensorboard: pip install 'routelaws[tensorboard]'"
        ) from None
    top = Path(path) if Path(path).is_dir() else Path(path).parent
    rows, settings, written = {}, {}, {}
    for file in files:
        run = _run_of(file, top)
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                kind = value.metadata.plugin_data.plugin_name
                if kind == "hparams":
                    settings.setdefault(run, {}).update(_hparams(value))
                elif kind == "scalars" and (number := _scalar(value)) is not None:
                    key = run, whole_text(event.step)
                    if event.wall_time >= written.get((key, value.tag), 0):
                        written[key, value.tag] = event.wall_time
                        rows.setdefault(key, {})[value.tag] = number
    _give_to_parents(settings, top)
    if not rows:
        raise InputError(f"{path}: no scalar in {plural(len(files), 'event file')}; needed: some")
    return Log(STEP, rows, settings, [])


def _run_of(file: Path, top: Path) -> str:
    """Return what the run of an event file is called, below the folder that was given."""
    run = file.parent.relative_to(top).as_posix()
    return top.resolve().name if run == "." else run


def _give_to_parents(settings: dict[str, dict], top: Path) -> None:
    """Give what PyTorch wrote below the folder of a run, see `_FOLDER_OF_HPARAMS`, to that run."""
    for run in list(settings):
        parent, _, name = run.rpartition("/")
        if _FOLDER_OF_HPARAMS.fullmatch(name):
            settings.setdefault(parent or top.resolve().name, settings[run])


def _scalar(value) -> str | None:
    """Return a number as text, as short as its type allows: a loss in float32 is 3.1, not 3.0999999046325684."""
    from tensorboard.util import tensor_util

    array = tensor_util.make_ndarray(value.tensor)
    return str(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "fiu" else None


def _hparams(value) -> dict[str, str]:
    """Return the hyperparameters of a run, {name: text}."""
    from tensorboard.plugins.hparams import plugin_data_pb2

    content = plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
    found = {}
    for name, setting in content.session_start_info.hparams.items():
        kind = setting.WhichOneof("kind")
        given = getattr(setting, kind) if kind else None
        found[name] = whole_text(given) if kind == "number_value" else "" if given is None else str(given)
    return found
