"""`Rows`: the columns of a law, read or computed from a results table.

The columns of a law (`Law.columns`) and of a table have different names. `COLUMNS` maps them. Other columns have the
same name in both.
"""

import functools
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_VOCAB_SIZE

from ..errors import InputError
from ..files import exists
from ..laws.catalogue import LAWS, Law
from ..laws.utilisation import TABLE_TOKENS_PER_STEP, compute_columns
from ..tables.agreement import counted_embeddings, or_one, tokens_per_step, training_steps, training_tokens
from ..tables.schema import RELEASED_COLUMNS, column_or_nan, to_numbers
from ..tables.selection import RouterRows
from ..tables.table import ranges

TRAINING = 3.0
"""Training FLOPs divided by forward FLOPs; a table's flops_per_step counts forward FLOPs."""

FLOPS_PER_PARAMETER = 2.0
"""Forward FLOPs per parameter and token, if a table does not give FLOPs."""

ESTIMATED = "flops: 6 · dense_parameter_count · tokens, where training_flops is not known"
TAKEN = (
    "flops_per_step: 524,288 tokens per step are assumed where the table does not give them, as in the released table"
)
PIECES = (
    "active_parameters: a vocabulary of 32,000 is assumed where the table does not give one, as in the released table"
)


BOUNDED = "routed-bounded"
"""The law of the paper. If no law is given, `predict` and `plan` add a floor if this predicts left-out sizes better."""


def law_of(text: str | None, command: str | None = None) -> Law:
    """Return a law.

    Args:
        text: the name of the law, or FILE.py:NAME for a law that the file registers with
            `routelaws.accelerated.laws.register`. The file runs once, as Python code. None for `BOUNDED`.
        command: the name of a command that needs a law of the loss; None allows any law.

    Raises:
        InputError: the law is unknown, the file cannot run, or `command` needs a law of the loss.
    """
    path, _, name = (text or BOUNDED).rpartition(":")
    if path:
        _run(Path(path).absolute())
    if name not in LAWS:
        where = f" after running {path} (does it call register of routelaws.accelerated.laws?)" if path else ""
        raise InputError(f"law {name!r} is not known{where}; allowed: {', '.join(LAWS)}, or FILE.py:NAME")
    law = LAWS[name]
    if command is not None and law.measured != "loss":
        raise InputError(f"the law {name} is for {law.measured}; {command} needs a law of the loss")
    return law


def law_lines(fits) -> list[str]:
    law, criterion = fits.law, fits[0].best.criterion
    if fits.loss:
        frames = [fit.rows.runs.frame for fit in fits if fit.rows.runs is not None]
        names = ("dense_parameter_count", "num_experts", "tokens", fits.loss)
        read = {name: np.concatenate([column_or_nan(frame, name) for frame in frames]) for name in names if frames}
        return [f"law {law.name}: {law.formula}", f"loss column {fits.loss}; {criterion}", f"runs: {ranges(read)}"]
    lines = [f"law {law.name}, for {law.measured}: {law.formula}", f"fitted by: {criterion}"]
    for name, printed in law.published.items():
        values = ", ".join(f"{key} {value:g}" for key, value in printed.coefficients._asdict().items())
        lines.append(f"printed coefficients {name} ({printed.source}): {values}; {printed.attested}")
    return lines


def rows_of_released(law: Law, rows: str | None) -> str | None:
    """Return the choice of rows of the released table for a law: the user's choice, or by default the paper's rows.

    A law in compute has no default. It uses runs that the paper's rows exclude: every share of routed blocks and every
    k.
    """
    return "clark" if rows is None and law.axes != "compute" else rows


@functools.cache  # a second run would register the law again
def _run(path: Path) -> None:
    if not exists(path) or not path.is_file():
        raise InputError(f"{path}: no such file; needed: a Python file that registers a law")
    try:
        runpy.run_path(str(path))
    except Exception as error:  # a user's file may raise anything
        raise InputError(f"{path}: {type(error).__name__}: {error}") from None


class Rows(NamedTuple):
    """The input of one fit.

    Attributes:
        columns: [n] each: the columns of the law, then columns that only its fit uses
        measured: [n], losses in nats per token, accuracies or leverages
        runs: the runs; None unless the rows are from a results table and the law is for their loss
        part: the training set, "" if the table names none
        left_out: [{"hyper_id", "reason", "run"}], as in `RouterRows`
        blank: number of rows excluded because a value is blank
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
        """The printed name of the rows."""
        return f"{self.name} on {self.part}" if self.part else self.name


class RowChoice(NamedTuple):
    """A user's choices for a table of accuracies or leverages, besides the law."""

    loss: str | None = None  # the text whose loss a two-stage law uses; for leverages: column of the loss
    rows: str | None = None
    task: tuple[str, ...] = ()
    tasks: Path | None = None  # a table of guess rates
    guess_rate: float | None = None
    options: dict = {}  # more keyword arguments of the fit
    embeddings: int | None = None  # how often N and P count the embedding; None: as in the table
    intervals: str | None = None  # method of the intervals, as for `Fit`


def rows_of_runs(selection: RouterRows, law: Law, loss_column: str) -> Rows:
    """Return the runs of one router as rows of a law of the loss.

    Raises:
        ValueError: no run is left, or the table lacks a column of the law or a value in this column.
    """
    if selection.frame.empty:
        reasons = sorted({run["reason"] for run in selection.left_out})
        raise ValueError(f"no rows are left ({'; '.join(reasons)})")
    columns, loss = law_columns(selection, law, loss_column)
    return Rows(selection.router, columns, loss, selection, loss_column, left_out=selection.left_out)


def law_columns(selection: RouterRows, law: Law, loss_column: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return the columns of a law and the loss, [n] each.

    Raises:
        ValueError: the table lacks a column or a value in the column; or `compute_columns` raises this error.
    """
    frame = selection.frame
    return tuple(read_column(frame, name, law) for name in law.columns), _numbers(frame, loss_column)


def column_remarks(selections: Iterable[RouterRows], law: Law) -> list[str]:
    """Return remarks on estimated columns, and on defaults for the tokens per step and the vocabulary."""
    frames = [each.frame for each in selections]
    user_frames = [frame for frame in frames if not set(frame.columns) <= set(RELEASED_COLUMNS)]
    sources = {
        ESTIMATED: ("flops", counted_flops, frames),
        TAKEN: ("teraflops", tokens_per_step, user_frames),
        PIECES: ("active_parameters", _vocabulary_of_active, user_frames),
    }
    return [
        remark
        for remark, (name, known, tables) in sources.items()
        if name in law.columns and any(np.isnan(known(frame)).any() for frame in tables)
    ]


def read_column(frame, name: str, law: Law) -> np.ndarray:
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
    values, wrong = to_numbers(frame[name].astype(str).tolist())  # numbers beyond float64 stay text
    if wrong.any():
        raise ValueError(f"column {name} has entries that are not numbers")
    return values


def _compute(frame):
    return compute_columns(
        *(_numbers(frame, name) for name in ("flops_per_step", "total_parameter_count")), taken_per_step(frame)
    )


def taken_per_step(frame) -> np.ndarray:
    """Return the tokens per step of each row, [n]. The default is the released table's number."""
    tokens = tokens_per_step(frame)
    return np.where(np.isnan(tokens), float(TABLE_TOKENS_PER_STEP), tokens)


def stated_flops(frame) -> np.ndarray:
    """Return the table's training FLOPs, from training_flops or else flops, [n]; NaN if blank."""
    stated = np.full(len(frame), np.nan)
    for name in ("training_flops", "flops"):
        if name in frame:
            stated = np.where(np.isnan(stated), _numbers(frame, name), stated)
    return stated


def counted_flops(frame) -> np.ndarray:
    """Return the training FLOPs, stated or computed from flops_per_step, [n]; NaN if unknown."""
    flops = stated_flops(frame)
    if "flops_per_step" in frame:
        counted = TRAINING * _numbers(frame, "flops_per_step") * training_steps(frame)
        flops = np.where(np.isnan(flops), counted, flops)
    return flops


def training_flops(frame) -> np.ndarray:
    """Return the training FLOPs of each row, [n]; by default 6 N D.

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
    """Return N of the joint law, which includes the embedding and the unembedding, V d each."""
    uncounted = 2 - counted_embeddings(frame)
    vocabulary = np.nan_to_num(column_or_nan(frame, "vocab_size"), nan=float(TABLE_VOCAB_SIZE))
    more = np.where(uncounted > 0, uncounted * vocabulary * column_or_nan(frame, "d_model"), 0.0)
    if unknown := int(np.isnan(more).sum()):
        raise ValueError(
            f"d_model is not known in {unknown} of {len(frame)} rows; active parameters with embeddings need it; if N "
            "counts embedding and unembedding, routelaws convert --set counted_embeddings=2 states it"
        )
    return _numbers(frame, "dense_parameter_count") + more


def _vocabulary_of_active(frame) -> np.ndarray:
    """Return the vocabulary that `_active` needs, [n]; NaN if unknown."""
    return np.where(counted_embeddings(frame) < 2, column_or_nan(frame, "vocab_size"), 0.0)


COLUMNS: dict[str, str | Callable] = {
    "flops": training_flops,
    # A dense run may have the k of the routed runs.
    "sparsity": lambda frame: 1 - np.minimum(or_one(frame, "k") / _numbers(frame, "num_experts"), 1),
    "dense_parameters": "dense_parameter_count",
    "active_parameters": _active,
    "tokens": training_tokens,
    "total_parameters": "total_parameter_count",
    "granularity": lambda frame: or_one(frame, "granularity"),
    "teraflops": lambda frame: _compute(frame).teraflops,
    "utilisation": lambda frame: _compute(frame).utilisation,
}
"""{column of a law: the name of the table's column, or a function from the table to [n] numbers}."""
