"""Compare single runs: their losses, differences from the first run, and different settings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...tables.table import check_once
from ...training.configuration import TrainConfig
from ...training.runs.run_folder import read_config, read_results
from ...training.window_losses import WindowLosses, documents, few_documents, loss_difference, mean_loss, shown_error
from ..blocks import Block, Table, figure, markdown
from .findings import CHANCE

HOW_IT_RAN = ("steps_per_call", "checkpoint_every", "evaluations")
"""Fields that do not affect the result of a run; the comparison does not show them."""


class RunBeside(NamedTuple):
    """A run, and the difference of its last loss from the first run's last loss."""

    folder: Path
    config: TrainConfig
    size: int  # N
    step: int  # step of the last evaluation
    loss: float  # nats per token
    documents: float  # number of validation documents; NaN if unknown
    error: float  # standard error over documents; NaN if unknown, or with too few documents
    difference: float  # loss minus the first run's
    difference_error: float  # the same for the difference; NaN also if the windows differ

    @property
    def unfinished(self) -> bool:
        """Whether the last evaluation is before the last step."""
        return self.step < self.config.steps

    @property
    def verdict(self) -> str:
        """The difference as a word: unknown, chance (other documents could reverse it), lower or higher."""
        if math.isnan(self.difference_error):
            return "unknown"
        if abs(self.difference) <= CHANCE * self.difference_error:
            return "chance"
        return "lower" if self.difference < 0 else "higher"


class RunsBeside(NamedTuple):
    """The comparison of runs."""

    runs: list[RunBeside]
    settings: dict[str, list]  # {field: [value of each run]} of the different fields


def beside(folders: Sequence[str | Path]) -> RunsBeside:
    """Read runs and compare each run with the first.

    Raises:
        InputError: a folder has no run or no evaluation, or is given twice.
    """
    folders = [Path(folder) for folder in folders]
    check_once(folders)
    configs = [read_config(folder) for folder in folders]
    rows, windows = zip(*map(_last_evaluation, folders), strict=True)
    runs = []
    for folder, config, row, losses in zip(folders, configs, rows, windows, strict=True):
        difference, error = _against(
            float(row["loss_validation"]), losses, float(rows[0]["loss_validation"]), windows[0]
        )
        runs.append(
            RunBeside(
                folder,
                config,
                int(float(row["dense_parameter_count"])),
                int(row["step"]),
                float(row["loss_validation"]),
                math.nan if losses is None else documents(losses),
                math.nan if losses is None else shown_error(losses),
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
    """Return the difference of a loss from the first loss, and its error. Equal windows are compared one by one."""
    apart = None if None in (windows, its_windows) else loss_difference([windows], [its_windows])
    if apart is None:
        return loss - first, math.nan
    return mean_loss(apart), shown_error(apart)


def _settings(configs: list[TrainConfig]) -> dict[str, list]:
    fields = [config.fields() for config in configs]
    values = {name: [settings[name] for settings in fields] for name in fields[0] if name not in HOW_IT_RAN}
    return {name: column for name, column in values.items() if any(value != column[0] for value in column)}


VERDICTS = {
    "unknown": "no error: other windows, or too few documents",
    "chance": "could be due to the choice of documents",
    "lower": "lower",
    "higher": "higher",
}


ABOUT_RUNS = (
    "Losses are in nats per token; ± is a standard error over documents. Runs with the same windows of the same text "
    "are compared window by window, which gives the difference a smaller error than either loss. The errors do "
    "not include the effect of the seed. To see this effect, train both with several seeds."
)


def run_table(found: RunsBeside) -> str:
    """Return the output of `routelaws report RUN RUN ...` as Markdown: the runs and their differences."""
    folders = [str(run.folder) for run in found.runs]
    heads = ["run", "what", "N", "step", "validation loss", f"minus {folders[0]}", ""]
    blocks: list[Block] = [Table(heads, [_row(run, first=i == 0) for i, run in enumerate(found.runs)])]
    if found.settings:
        rows = [[f"`{name}`", *map(setting, values)] for name, values in found.settings.items()]
        blocks += ["The runs differ in these settings:", Table(["", *folders], rows)]
    else:
        blocks.append("The runs differ in no setting.")
    if any(run.unfinished for run in found.runs):
        blocks.append("Do not judge a router by an unfinished run: it was trained for fewer steps.")
    few = few_documents(*(run.documents for run in found.runs))
    return markdown([*blocks, few or ABOUT_RUNS]).rstrip()


def _row(run: RunBeside, first: bool) -> list[str]:
    cells = [str(run.folder), run.config.name(), f"{run.size:,}", f"{run.step:,} of {run.config.steps:,}"]
    cells.append(figure(run.loss, ".4f") + _off_by(run.error))
    if first:
        return [*cells, "", ""]
    return [*cells, figure(run.difference, "+.4f") + _off_by(run.difference_error), VERDICTS[run.verdict]]


def _off_by(error: float) -> str:
    return f" ± {figure(error, '.4f')}" if error == error else ""


def setting(value) -> str:
    if value is None or value == ():
        return "none"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
