"""Runs beside each other, in words: a table of losses and differences, and the settings in which the runs differ."""

import math

from ..findings.run_pairs import RunBeside, RunsBeside
from ..findings.sweep_findings import CHANCE
from ..findings.words import table


def run_table(found: RunsBeside) -> str:
    """Return what `routelaws report RUN RUN ...` prints."""
    runs = found.runs
    rows = [
        (run.folder, run.config.name(), f"{run.size:,}", f"{run.step:,} of {run.config.steps:,}", _loss(run))
        + (("", "") if run is runs[0] else (_difference(run), _verdict(run)))
        for run in runs
    ]
    head = ("run", "what", "N", "step", "validation loss", f"less {runs[0].folder}", "")
    parts = [table(head, rows), _settings(found)]
    if any(run.step < run.config.steps for run in runs):
        parts.append("A run that is not finished was trained for less; its loss is no measure of its router.")
    parts.append(
        "Losses are in nats per token; ± is a standard error over documents. A difference is taken window by window"
        " where the runs have the same windows of the same text, and is then better known than either loss. What"
        " another seed would change is not in it: train both with several seeds to see that."
    )
    return "\n\n".join(part for part in parts if part)


def _loss(run: RunBeside) -> str:
    return f"{run.loss:.4f}" + ("" if math.isnan(run.error) else f" ± {run.error:.4f}")


def _difference(run: RunBeside) -> str:
    known = "" if math.isnan(run.difference_error) else f" ± {run.difference_error:.4f}"
    return f"{run.difference:+.4f}{known}"


def _verdict(run: RunBeside) -> str:
    if math.isnan(run.difference_error):
        return "on other windows: no error is known"
    if abs(run.difference) <= CHANCE * run.difference_error:
        return "could be chance of the documents"
    return "lower" if run.difference < 0 else "higher"


def _settings(found: RunsBeside) -> str:
    """Return the settings in which the runs differ."""
    if not found.settings:
        return "The runs differ in no setting."
    rows = [(f"`{name}`", *map(_shown, values)) for name, values in found.settings.items()]
    return "They differ in\n\n" + table(("", *(run.folder for run in found.runs)), rows)


def _shown(value) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
