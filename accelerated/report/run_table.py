"""Runs beside each other, in words: a table of losses and differences, and the settings in which the runs differ."""

from ..results.blocks import Block, Table, markdown
from ..results.numbers import figure
from ..results.sweeps.run_pairs import RunBeside, RunsBeside

VERDICTS = {
    "unknown": "on other windows: no error is known",
    "chance": "could be chance of the documents",
    "lower": "lower",
    "higher": "higher",
}


def run_table(found: RunsBeside) -> str:
    """Return what `routelaws report RUN RUN ...` prints, as Markdown."""
    return markdown(run_blocks(found)).rstrip()


def run_blocks(found: RunsBeside) -> list[Block]:
    """Return runs beside each other, and in what they differ."""
    folders = [str(run.folder) for run in found.runs]
    heads = ["run", "what", "N", "step", "validation loss", f"less {folders[0]}", ""]
    blocks: list[Block] = [Table(heads, [_row(run, first=i == 0) for i, run in enumerate(found.runs)])]
    if found.settings:
        rows = [[f"`{name}`", *map(_setting, values)] for name, values in found.settings.items()]
        blocks += ["They differ in", Table(["", *folders], rows)]
    else:
        blocks.append("The runs differ in no setting.")
    if any(run.unfinished for run in found.runs):
        blocks.append("A run that is not finished was trained for less; its loss is no measure of its router.")
    return [
        *blocks,
        "Losses are in nats per token; ± is a standard error over documents. A difference is taken window by window "
        "where the runs have the same windows of the same text, and is then better known than either loss. What "
        "another seed would change is not in it: train both with several seeds to see that.",
    ]


def _row(run: RunBeside, first: bool) -> list[str]:
    cells = [str(run.folder), run.config.name(), f"{run.size:,}", f"{run.step:,} of {run.config.steps:,}"]
    cells.append(figure(run.loss, ".4f") + _off_by(run.error))
    if first:
        return [*cells, "", ""]
    return [*cells, figure(run.difference, "+.4f") + _off_by(run.difference_error), VERDICTS[run.verdict]]


def _off_by(error: float) -> str:
    return f" ± {figure(error, '.4f')}" if error == error else ""


def _setting(value) -> str:
    if value is None or value == ():
        return "none"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
