"""A law and what it is fitted to, `Rows`: its columns, read from a results table or made from several of its columns.

A law names its columns by what they mean (`Law.columns`), a table by what was written down. A column of a law that has
no line in COLUMNS is the column of the table of the same name.
"""

import functools
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_VOCAB_SIZE

from ..errors import InputError
from ..laws.catalogue import LAWS, Law
from ..laws.utilisation import TABLE_TOKENS_PER_STEP, compute_columns
from ..tables.agreement import column_or_nan, or_one, tokens_per_step, training_steps, training_tokens
from ..tables.schema import RELEASED_COLUMNS, to_numbers
from ..tables.selection import RouterRows

TRAINING = 3.0
"""Training FLOPs over those of the forward pass alone, which is what a table's flops_per_step counts."""

FLOPS_PER_PARAMETER = 2.0
"""Forward FLOPs for each parameter and token, where a table does not count them."""

ESTIMATED = "flops: 6 · dense_parameter_count · tokens, where training_flops is not known"
TAKEN = "flops_per_step: a step is taken to have 524,288 tokens, as in the released table, where the table does not say"
PIECES = "active_parameters: a vocabulary of 32,000 is taken, as in the released table, where the table does not say"


def law_of(text: str, command: str | None = None) -> Law:
    """Return a law.

    Args:
        text: its name; or FILE.py:NAME, where the file calls `routelaws.accelerated.laws.register` for a law NAME. The
            file is run once, as Python code.
        command: that takes laws of the loss alone; any law will do if None.

    Raises:
        InputError: no such law, or the file cannot be run; or the law is not of the loss where it has to be.
    """
    path, _, name = text.rpartition(":")
    if path:
        _run(Path(path).absolute())
    if name not in LAWS:
        where = f" after {path} was run (by register of routelaws.accelerated.laws?)" if path else ""
        raise InputError(f"law {name!r} is not known{where}; allowed: {', '.join(LAWS)}")
    law = LAWS[name]
    if command is not None and law.measured != "loss":
        raise InputError(f"the law {name} is of {law.measured}; {command} takes laws of the loss")
    return law


def law_lines(fits) -> list[str]:
    """Return which law it is, how it is fitted, and, of laws that are not of the loss, the printed coefficients."""
    law, criterion = fits.law, fits[0].best.criterion
    if fits.loss:
        return [f"law {law.name}: {law.formula}", f"loss column {fits.loss}; {criterion}"]
    return [f"law {law.name}, of {law.measured}: {law.formula}", f"fitted by: {criterion}", *_printed_lines(law)]


def _printed_lines(law: Law) -> list[str]:
    lines = []
    for name, printed in law.published.items():
        values = ", ".join(f"{key} {value:g}" for key, value in printed.coefficients._asdict().items())
        lines.append(f"printed coefficients {name} ({printed.source}): {values}; {printed.attested}")
    return lines


def rows_of_released(law: Law, rows: str | None) -> str | None:
    """Return which rows of the released table a law is fitted to: those that are chosen, or else the paper's own.

    A law in compute takes every share of routed blocks and every k, which the paper's rows leave out.
    """
    return "clark" if rows is None and law.axes != "compute" else rows


@functools.cache  # a law can be registered once
def _run(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file; needed: a Python file that registers a law")
    try:
        runpy.run_path(str(path))
    except Exception as error:  # whatever a file of the user's own does
        raise InputError(f"{path}: {type(error).__name__}: {error}") from None


class Rows(NamedTuple):
    """What one law is fitted to.

    Attributes:
        name: router_type, or the task
        columns: of the law, and then those that only its fit takes, [n] each
        measured: [n], losses in nats per token, accuracies or leverages
        runs: the runs themselves, where the rows are runs of a results table and the law is of their loss
        loss: column of the loss
        part: the training set, "" where the table names none
        options: keyword arguments of the fit
        left_out: [{"hyper_id", "reason", "run"}], as `RouterRows`
        remarks: what has to be known of the rows
        blank: rows of the table that are not here, since the table lacks a number of theirs
    """

    name: str
    columns: tuple[np.ndarray, ...]
    measured: np.ndarray
    runs: RouterRows | None = None
    loss: str = ""
    part: str = ""
    options: dict = {}
    left_out: list[dict] = []
    remarks: list[str] = []
    blank: int = 0

    @property
    def label(self) -> str:
        """The name of the rows for a reader."""
        return f"{self.name} on {self.part}" if self.part else self.name


def rows_of_runs(selection: RouterRows, law: Law, loss_column: str) -> Rows:
    """Return the runs of one router as rows of a law of the loss.

    Raises:
        ValueError: no run is left, or the table lacks a column of the law, or a row of it.
    """
    if selection.frame.empty:
        reasons = sorted({run["reason"] for run in selection.left_out})
        raise ValueError(f"no rows are left ({'; '.join(reasons)})")
    columns, loss = law_columns(selection, law, loss_column)
    return Rows(selection.router, columns, loss, selection, loss_column, left_out=selection.left_out)


def law_columns(selection: RouterRows, law: Law, loss_column: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return the columns of a law and the loss, [n] each.

    Raises:
        ValueError: the table lacks a column, or a row of it; or as `compute_columns`, for the law in (F, B).
    """
    frame = selection.frame
    return tuple(_read(frame, name, law) for name in law.columns), _numbers(frame, loss_column)


def column_remarks(selections: Iterable[RouterRows], law: Law) -> list[str]:
    """Return remarks where a column of a law is an estimate, or takes steps or vocabulary of the released table."""
    frames = [each.frame for each in selections]
    own = [frame for frame in frames if not set(frame.columns) <= set(RELEASED_COLUMNS)]
    asked = {
        ESTIMATED: ("flops", counted_flops, frames),
        TAKEN: ("teraflops", tokens_per_step, own),
        PIECES: ("active_parameters", functools.partial(column_or_nan, name="vocab_size"), own),
    }
    return [
        remark
        for remark, (name, known, tables) in asked.items()
        if name in law.columns and any(np.isnan(known(frame)).any() for frame in tables)
    ]


def _read(frame, name: str, law: Law) -> np.ndarray:
    """Return a column of a law, [n]."""
    source = COLUMNS.get(name, name)
    followed = isinstance(source, Callable)
    values, source = (source(frame), name) if followed else (None, source)
    if source not in frame and not (followed and np.isfinite(values).all()):
        raise ValueError(f"column {source} is not in the table; the law {law.name} needs it")
    values = values if followed else _numbers(frame, source)
    blank = int(np.isnan(values).sum())
    if blank:
        raise ValueError(f"column {source} is blank in {blank} of {len(values)} rows; the law {law.name} needs it")
    return values


def _numbers(frame, name: str) -> np.ndarray:
    if name not in frame:
        raise ValueError(f"column {name} is not in the table; the law needs it")
    if frame[name].dtype.kind in "iuf":
        return frame[name].to_numpy(dtype=np.float64)
    values, wrong = to_numbers(frame[name].astype(str).tolist())  # as text stay numbers that are too large to be names
    if wrong.any():
        raise ValueError(f"column {name} has entries that are no numbers")
    return values


def _compute(frame):
    """Return F and B of the rows."""
    return compute_columns(
        *(_numbers(frame, name) for name in ("flops_per_step", "total_parameter_count")), taken_per_step(frame)
    )


def taken_per_step(frame) -> np.ndarray:
    """Return the tokens of a step of each row, [n]; those of the released table where the table does not say."""
    tokens = tokens_per_step(frame)
    return np.where(np.isnan(tokens), float(TABLE_TOKENS_PER_STEP), tokens)


def stated_flops(frame) -> np.ndarray:
    """Return the training FLOPs that the table states, in training_flops or else in flops; NaN elsewhere: [n]."""
    stated = np.full(len(frame), np.nan)
    for name in ("training_flops", "flops"):
        if name in frame:
            stated = np.where(np.isnan(stated), _numbers(frame, name), stated)
    return stated


def counted_flops(frame) -> np.ndarray:
    """Return the training FLOPs that are stated or follow from those of a forward step; NaN elsewhere: [n]."""
    flops = stated_flops(frame)
    if "flops_per_step" in frame:
        counted = TRAINING * _numbers(frame, "flops_per_step") * training_steps(frame)
        flops = np.where(np.isnan(flops), counted, flops)
    return flops


def training_flops(frame) -> np.ndarray:
    """Return the training FLOPs of each row, [n]; 6 N D where the table does not count them.

    Raises:
        ValueError: a row has neither FLOPs nor tokens.
    """
    flops = counted_flops(frame)
    estimate = TRAINING * FLOPS_PER_PARAMETER * _numbers(frame, "dense_parameter_count") * training_tokens(frame)
    flops = np.where(np.isnan(flops), estimate, flops)
    if unknown := int(np.isnan(flops).sum()):
        raise ValueError(
            f"the training FLOPs of {unknown} of {len(flops)} rows are not known; needed: training_flops, or "
            "flops_per_step, or tokens (6 N D)"
        )
    return flops


def _active(frame) -> np.ndarray:
    """Return N with the embedding and the unembedding, V d each, as the joint law counts it."""
    vocabulary = np.nan_to_num(column_or_nan(frame, "vocab_size"), nan=float(TABLE_VOCAB_SIZE))
    if "d_model" not in frame:
        raise ValueError("column d_model is not in the table; active parameters with embeddings need it")
    return _numbers(frame, "dense_parameter_count") + 2 * vocabulary * _numbers(frame, "d_model")


COLUMNS: dict[str, str | Callable] = {
    "flops": training_flops,
    "sparsity": lambda frame: 1 - or_one(frame, "k") / _numbers(frame, "num_experts"),
    "dense_parameters": "dense_parameter_count",
    "active_parameters": _active,
    "tokens": training_tokens,
    "total_parameters": "total_parameter_count",
    "granularity": lambda frame: or_one(frame, "granularity"),
    "teraflops": lambda frame: _compute(frame).teraflops,
    "utilisation": lambda frame: _compute(frame).utilisation,
}
"""For a column of a law the name of a column of the table, or a function of the table that gives [n] numbers."""
