"""Single runs beside each other: what each reached, how that differs from the first, and which settings differ."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...training.configuration import TrainConfig
from ...training.runs.run_folder import read_config, read_results
from ...training.window_losses import WindowLosses, loss_difference, mean_loss, standard_error
from ..blocks import Block, Table, figure, markdown
from .findings import CHANCE

HOW_IT_RAN = ("steps_per_call", "checkpoint_every", "evaluations")
"""Fields that change nothing in what a run trains or how it ends; a difference in them is not said."""


class RunBeside(NamedTuple):
    """One run, and how its last evaluation differs from that of the first."""

    folder: Path
    config: TrainConfig
    size: int  # N
    step: int  # of its last evaluation
    loss: float  # nats per token
    error: float  # standard error over documents; NaN if it is not known
    difference: float  # loss less that of the first run; 0 for the first
    difference_error: float  # its standard error over the same windows; NaN where the windows are not the same

    @property
    def unfinished(self) -> bool:
        """Whether its last evaluation is before its last step."""
        return self.step < self.config.steps

    @property
    def verdict(self) -> str:
        """unknown, chance (of the documents), lower or higher than the first."""
        if math.isnan(self.difference_error):
            return "unknown"
        if abs(self.difference) <= CHANCE * self.difference_error:
            return "chance"
        return "lower" if self.difference < 0 else "higher"


class RunsBeside(NamedTuple):
    """Runs beside each other."""

    runs: list[RunBeside]
    settings: dict[str, list]  # {field: [value of each run]} where they differ


def beside(folders: Sequence[str | Path]) -> RunsBeside:
    """Read runs and hold each against the first.

    Args:
        folders: of two or more runs.

    Raises:
        InputError: a folder holds no run, or no evaluation yet; a folder is given twice.
    """
    folders = [Path(folder) for folder in folders]
    if len(set(folders)) < len(folders):
        raise InputError(f"{next(f for f in folders if folders.count(f) > 1)}: is given twice")
    configs = [read_config(folder) for folder in folders]
    rows, windows = zip(*map(_last_evaluation, folders), strict=True)
    runs = []
    for folder, config, row, own in zip(folders, configs, rows, windows, strict=True):
        difference, error = _against(float(row["loss_validation"]), own, float(rows[0]["loss_validation"]), windows[0])
        runs.append(
            RunBeside(
                folder,
                config,
                int(float(row["dense_parameter_count"])),
                int(row["step"]),
                float(row["loss_validation"]),
                math.nan if own is None else standard_error(own),
                difference,
                error,
            )
        )
    return RunsBeside(runs, _settings(configs))


def _last_evaluation(folder: Path) -> tuple[dict, WindowLosses | None]:
    rows, windows = read_results(folder)
    if not rows:
        raise InputError(f"{folder}: has no evaluation yet")
    return rows[-1], windows


def _against(
    loss: float, windows: WindowLosses | None, first: float, its_windows: WindowLosses | None
) -> tuple[float, float]:
    """Return how far a loss is from the first, and the error of that; window by window where both have the same."""
    apart = None if None in (windows, its_windows) else loss_difference([windows], [its_windows])
    if apart is None:
        return loss - first, math.nan
    return mean_loss(apart), standard_error(apart)


def _settings(configs: list[TrainConfig]) -> dict[str, list]:
    """Return the fields in which runs differ, with the value of each."""
    fields = [config.fields() for config in configs]
    values = {name: [given[name] for given in fields] for name in fields[0] if name not in HOW_IT_RAN}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


VERDICTS = {
    "unknown": "on other windows: no error is known",
    "chance": "could be chance of the documents",
    "lower": "lower",
    "higher": "higher",
}


ABOUT_RUNS = (
    "Losses are in nats per token; ± is a standard error over documents. A difference is taken window by window "
    "where the runs have the same windows of the same text, and is then better known than either loss. What "
    "another seed would change is not in it: train both with several seeds to see that."
)


def run_table(found: RunsBeside) -> str:
    """Return what `routelaws report RUN RUN ...` prints, as Markdown: runs beside each other, and how they differ."""
    folders = [str(run.folder) for run in found.runs]
    heads = ["run", "what", "N", "step", "validation loss", f"less {folders[0]}", ""]
    blocks: list[Block] = [Table(heads, [_row(run, first=i == 0) for i, run in enumerate(found.runs)])]
    if found.settings:
        rows = [[f"`{name}`", *map(setting, values)] for name, values in found.settings.items()]
        blocks += ["They differ in", Table(["", *folders], rows)]
    else:
        blocks.append("The runs differ in no setting.")
    if any(run.unfinished for run in found.runs):
        blocks.append("A run that is not finished was trained for less; its loss is no measure of its router.")
    return markdown([*blocks, ABOUT_RUNS]).rstrip()


def _row(run: RunBeside, first: bool) -> list[str]:
    cells = [str(run.folder), run.config.name(), f"{run.size:,}", f"{run.step:,} of {run.config.steps:,}"]
    cells.append(figure(run.loss, ".4f") + _off_by(run.error))
    if first:
        return [*cells, "", ""]
    return [*cells, figure(run.difference, "+.4f") + _off_by(run.difference_error), VERDICTS[run.verdict]]


def _off_by(error: float) -> str:
    return f" ± {figure(error, '.4f')}" if error == error else ""


def setting(value) -> str:
    """Return the value of a field as a table shows it."""
    if value is None or value == ():
        return "none"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
