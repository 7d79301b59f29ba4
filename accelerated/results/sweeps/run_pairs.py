"""Single runs beside each other: what each reached, how that differs from the first, and which settings differ."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...training.configuration import TrainConfig
from ...training.run_folder import read_config, read_results
from ...training.window_losses import WindowLosses, loss_difference, mean_loss, standard_error
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
