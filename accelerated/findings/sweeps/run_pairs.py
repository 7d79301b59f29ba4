"""Compare single runs: their losses, differences from the first run, and different settings."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas

from routelaws.reference.routers.records import OPTIONS

from ...errors import InputError
from ...results.blocks import Block, Table, figure, markdown
from ...tables.table import check_once
from ...training.configuration import TrainConfig
from ...training.runs.run_folder import read_config, read_results
from ...training.window_losses import documents, few_documents, loss_difference, mean_loss, shown_error
from ..finding import table
from .chance import CHANCE

HOW_IT_RAN = ("steps_per_call", "checkpoint_every", "evaluations")
"""Fields that do not affect the result of a run; the comparison does not show them."""


def beside(folders: Sequence[str | Path]) -> pandas.DataFrame:
    """Read runs and compare each run with the first.

    Returns:
        run (its folder), config, N, step (of the last evaluation), loss (nats per token), documents (of the validation
        text; NaN if unknown), error (standard error of the loss over documents; NaN if unknown, or with too few
        documents), difference (loss minus the first run's), difference_error (NaN also if the windows differ), verdict.

    Raises:
        InputError: a folder has no run or no evaluation, or is given twice.
    """
    folders = [Path(folder) for folder in folders]
    check_once(folders)
    configs, results = [read_config(folder) for folder in folders], [read_results(folder) for folder in folders]
    runs = []
    for folder, config, (rows, windows) in zip(folders, configs, results, strict=True):
        if not rows:
            raise InputError(f"{folder}: has no evaluation yet")
        first, its_windows = float(results[0][0][-1]["loss_validation"]), results[0][1]
        loss, apart = float(rows[-1]["loss_validation"]), None
        if windows is not None and its_windows is not None:
            apart = loss_difference([windows], [its_windows])  # window by window, if the windows are equal
        run = {"run": str(folder), "config": config, "N": int(float(rows[-1]["dense_parameter_count"]))}
        run |= {"step": int(rows[-1]["step"]), "loss": loss, "difference": loss - first, "difference_error": math.nan}
        run["documents"], run["error"] = (documents(windows), shown_error(windows)) if windows else (math.nan, math.nan)
        if apart is not None:
            run |= {"difference": mean_loss(apart), "difference_error": shown_error(apart)}
        runs.append(run)
    frame = pandas.DataFrame(runs)
    difference, error = frame["difference"], frame["difference_error"]
    cases = [error.isna(), difference.abs() <= CHANCE * error, difference < 0]
    return frame.assign(verdict=np.select(cases, VERDICTS[:-1], VERDICTS[-1]))


def settings_of(configs: Sequence[TrainConfig]) -> dict[str, list]:
    """Return {field: value of each run} of the fields that differ; None for an option that a router does not have."""
    chosen = [config.fields() for config in configs]  # None for a default, which may differ between routers
    names = [name for name, first in chosen[0].items() if any(each[name] != first for each in chosen)]
    values = {name: [_value(config, name) for config in configs] for name in names if name not in HOW_IT_RAN}
    return {name: column for name, column in values.items() if any(value != column[0] for value in column)}


def _value(config: TrainConfig, name: str):
    if name in OPTIONS.difference(config.model.record.options):
        return None
    return getattr(config.model if hasattr(config.model, name) else config, name)


POINTS = 20
"""Largest number of rows of a table at equal tokens."""


def at_equal_tokens(curves: dict[str, np.ndarray]) -> pandas.DataFrame:
    """Compare validation losses with the first run's after the same number of training tokens.

    Args:
        curves: {run: [2, evaluations], tokens and losses, tokens rising}.

    Returns:
        run, tokens, loss, difference (loss minus the first run's): at most `POINTS` evaluations of any run that lie
        between the first and the last evaluations of all runs. Losses between two evaluations are interpolated.
    """
    ends = [[tokens[0], tokens[-1]] for tokens, _ in curves.values()]
    low, high = max(first for first, _ in ends), min(last for _, last in ends)
    shared = np.unique(np.concatenate([tokens for tokens, _ in curves.values()]))
    shared = shared[(low <= shared) & (shared <= high)]
    shared = shared[np.unique(np.linspace(0, len(shared) - 1, POINTS).round().astype(int))] if len(shared) else shared
    losses = {run: np.interp(shared, *curve) for run, curve in curves.items()}
    first = losses[next(iter(losses))]
    columns = ({"run": run, "tokens": shared, "loss": loss, "difference": loss - first} for run, loss in losses.items())
    return pandas.concat(map(pandas.DataFrame, columns), ignore_index=True)


VERDICTS = (
    "no error: other windows, or too few documents", "could be due to the choice of documents", "lower", "higher",
)  # fmt: skip

ABOUT_RUNS = (
    "Losses are in nats per token; ± is a standard error over documents. Runs with the same windows of the same text "
    "are compared window by window, which gives the difference a smaller error than either loss. The errors do "
    "not include the effect of the seed. To see this effect, train both with several seeds."
)


def run_table(runs: pandas.DataFrame) -> str:
    """Return the output of `routelaws report RUN RUN ...` as Markdown."""
    return markdown(run_blocks(runs)).rstrip()


def run_blocks(runs: pandas.DataFrame) -> list[Block]:
    """Return the runs, their differences from the first run, and the settings that differ."""
    columns = {
        "run": lambda row: row.run,
        "what": lambda row: row.config.name(),
        "N": lambda row: f"{row.N:,}",
        "step": lambda row: f"{row.step:,} of {row.config.steps:,}",
        "validation loss": lambda row: _with_error(row.loss, row.error, ".4f"),
        f"minus {runs['run'][0]}": lambda row: (
            _with_error(row.difference, row.difference_error, "+.4f") * (row.Index > 0)
        ),
        "": lambda row: row.verdict * (row.Index > 0),
    }
    blocks: list[Block] = [table(runs, columns)]
    if settings := settings_of(runs["config"]):
        rows = [[f"`{name}`", *map(setting, values)] for name, values in settings.items()]
        blocks += ["The runs differ in these settings:", Table(["", *runs["run"]], rows)]
    else:
        blocks.append("The runs differ in no setting.")
    if any(row.step < row.config.steps for row in runs.itertuples()):
        blocks.append("Do not judge a router by an unfinished run: it was trained for fewer steps.")
    return [*blocks, few_documents(*runs["documents"]) or ABOUT_RUNS]


def equal_tokens_table(frame: pandas.DataFrame) -> Table:
    """Return the result of `at_equal_tokens` as a table: a row for each number of tokens."""
    wide, runs = frame.pivot(index="tokens", columns="run"), [*dict.fromkeys(frame["run"])]
    heads = ["tokens", *runs, *(f"{run} minus {runs[0]}" for run in runs[1:])]
    rows = [
        [f"{int(tokens):,}", *(figure(row["loss", run], ".4f") for run in runs)]
        + [figure(row["difference", run], "+.4f") for run in runs[1:]]
        for tokens, row in wide.iterrows()
    ]
    return Table(heads, rows)


def _with_error(value: float, error: float, form: str) -> str:
    return figure(value, form) + (f" ± {figure(error, '.4f')}" if error == error else "")


def setting(value) -> str:
    if value is None or value == ():
        return "none"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
