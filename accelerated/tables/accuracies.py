"""Tables of downstream accuracies: a row for each run, or for each run, benchmark and metric.

    wide    params, tokens, acc_TASK..., loss_TEXT...; optional: run, training_set, flops, guess_TASK...
    long    tokens, benchmark, metric_type, score, tpr; optional: flops, params

Krajewski et al. 2025 (arXiv 2512.08894) published two tables in the long layout. Their first column has no name and
numbers the rows. The column `tpr` means tokens per parameter. One table has neither parameters nor FLOPs. Its
parameters are then tokens / tpr, and its FLOPs are 6 times parameters times tokens. These parameters are accurate to
about 10 %, because `tpr` is rounded. Rows with equal tokens, tpr and params belong to one run.

An accuracy is between 0 and 1, and a loss is above 0. A cell may be blank. In the long layout, the metrics `acc`,
`acc_norm`, `exact_match`, `sympy_equiv` and `pass@K` are accuracies of a task named "benchmark metric", and
`cross_entropy_loss` is a loss. Other metrics (counts, standard errors, probability scores) are ignored.
"""

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

import filelock
import numpy as np

from ..errors import InputError
from ..files import write_atomically
from ..wording import plural
from .agreement import compare
from .cells import harmless, printable_cells
from .columns import CheckedColumns
from .reading import read_cells
from .schema import Problems, shorten

FLOPS_PER_PARAMETER = 6.0
"""Training FLOPs per parameter and token, if a table does not give the FLOPs."""

_ACCURACY = re.compile(r"acc|acc_norm|exact_match|sympy_equiv|pass@\d+")
_WIDE, _LONG = ("params", "tokens"), ("tokens", "benchmark", "metric_type", "score", "tpr")


class Accuracies(NamedTuple):
    """Runs with their losses and accuracies; NaN for missing values."""

    run: np.ndarray  # [n] names
    training_set: np.ndarray  # [n] names, "" if the table has no such column
    parameters: np.ndarray  # [n]
    tokens: np.ndarray  # [n]
    flops: np.ndarray  # [n]
    losses: dict[str, np.ndarray]  # {text: [n]} nats per token
    accuracies: dict[str, np.ndarray]  # {task: [n]} between 0 and 1
    remarks: list[str]  # sentences on derived and excluded values
    guess_rates: dict[str, float] = {}  # {task: guess rate} from the table


def read_accuracies(path) -> Accuracies:
    """Read a table of accuracies in either layout.

    Raises:
        InputError: the file cannot be read, has the columns of neither layout, or has invalid cells; the message gives
            the row and the column of each.
    """
    rows, cells = read_cells(path)
    cells = {name: printable_cells(column) for name, column in cells.items()}
    if set(_LONG) <= set(cells):
        return _long(CheckedColumns(path, cells, rows))
    if set(_WIDE) <= set(cells) and any(name.startswith("acc_") for name in cells):
        return _wide(CheckedColumns(path, cells, rows))
    raise InputError(
        f"{path}: is not a table of accuracies; needed: the columns {', '.join(_WIDE)} and acc_TASK, or "
        f"{', '.join(_LONG)}; available: {', '.join(cells)}"
    )


def read_guess_rates(path) -> dict[str, float]:
    """Return {task: guess rate} of a table with the columns task and random_accuracy.

    Raises:
        InputError: the file cannot be read, a rate is not from 0 to 1, or a task has two rates.
    """
    rows, cells = read_cells(path)
    for name in ("task", "random_accuracy"):
        if name not in cells:
            raise InputError(f"{path}: has no column {name}; available: {', '.join(cells)}")
    columns = CheckedColumns(path, cells, rows)
    values = columns.number("random_accuracy", least=0.0, most=1.0)
    columns.raise_if_any()
    rates: dict[str, float] = {}
    for task, rate in zip(cells["task"], values.tolist(), strict=True):
        if rates.setdefault(task, rate) != rate:
            raise InputError(f"{path}: task {shorten(task)} has the rates {rates[task]:g} and {rate:g}; needed: one")
    return rates


def loss_name(table: Accuracies, loss: str | None = None) -> str:
    """Return the name of the text whose loss the two-stage laws use.

    Args:
        loss: name of the text, with or without the prefix loss_. None means "validation" or, if the table has no such
            loss, the first loss.

    Raises:
        InputError: the table does not have this loss, or has no loss.
    """
    if not table.losses:
        raise InputError("the table has no loss_TEXT column (or cross_entropy_loss rows), which two-stage laws need")
    if loss is None:
        return "validation" if "validation" in table.losses else next(iter(table.losses))
    name = loss if loss in table.losses else loss.removeprefix("loss_")
    if name not in table.losses:
        raise InputError(f"loss {loss!r} is not in the table; available: {', '.join(table.losses)}")
    return name


def add_run(path, run: dict) -> None:
    """Write the values of a run into its row of a table, or into a new row. The table has one row per run.

    A lock file next to the table serialises concurrent evaluations.

    Args:
        path: the table, `.csv`; made if missing.
        run: {column: value}; the column "run" has the name of the run.

    Raises:
        InputError: the file is not a CSV file with a column run, or cannot be written.
    """
    path = Path(path)
    [name] = harmless([str(run["run"])])
    run = run | {"run": name}
    try:
        if not path.parent.is_dir():
            raise InputError(f"{path.parent}: no such folder")
        with filelock.FileLock(path.with_name(f".{path.name}.lock")):
            rows = _rows_with(path, run)
            text = io.StringIO()
            writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
            writer.writeheader()
            writer.writerows(rows)
            write_atomically(path, text.getvalue())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: a run cannot be added ({getattr(error, 'strerror', None) or error})") from None


def _rows_with(path: Path, run: dict) -> list[dict]:
    rows = []
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval="", strict=True))
    if path.suffix != ".csv" or any(row.get("run") is None or None in row for row in rows):
        raise InputError(f"{path}: is not a table of runs; needed: a .csv file with a column run")
    place = next((row for row in rows if row["run"] == str(run["run"])), None)
    if place is None:
        rows.append(place := {})
    place |= run
    return rows


def _wide(columns: CheckedColumns) -> Accuracies:
    parameters, tokens = (columns.number(name, above=0.0) for name in _WIDE)
    flops, remarks = _with_flops(columns, parameters, tokens, columns.number("flops", above=0.0, blank=True))
    losses, accuracies = {}, {}
    for name in columns.cells:
        if name.startswith("loss_"):
            losses[name.removeprefix("loss_")] = columns.number(name, above=0.0, blank=True)
        elif name.startswith("acc_"):
            accuracies[name.removeprefix("acc_")] = columns.share(name)
    rates = _own_rates(columns, accuracies)
    columns.raise_if_any()
    run = columns.text("run")
    run = np.where(run == "", [f"row {row}" for row in columns.rows], run)
    return Accuracies(run, columns.text("training_set"), parameters, tokens, flops, losses, accuracies, remarks, rates)


def _own_rates(columns: CheckedColumns, accuracies: dict) -> dict[str, float]:
    """Return the guess rates of the table. Add a problem for each rate that differs from the task's first rate."""
    rates = {}
    for name in (name for name in accuracies if f"guess_{name}" in columns.cells):
        column = f"guess_{name}"
        values, cells = columns.share(column), columns.cells[column]
        known = values[np.isfinite(values)]
        if known.size:
            other = np.isfinite(values) & (values != known[0])
            columns.problems.add_each(other, columns.rows, column, cells.__getitem__, f"{known[0]:g}, as above")
            rates[name] = float(known[0])
    return rates


def _long(columns: CheckedColumns) -> Accuracies:
    benchmark, metric = columns.text("benchmark"), columns.text("metric_type")
    right = np.array([bool(_ACCURACY.fullmatch(name)) for name in metric])
    wanted = right | (metric == "cross_entropy_loss")
    tokens, tpr = (columns.number(name, above=0.0, where=wanted) for name in ("tokens", "tpr"))
    parameters = columns.number("params", above=0.0, blank=True, where=wanted)
    flops = columns.number("flops", above=0.0, blank=True, where=wanted)
    # An accuracy is from 0 to 1, a loss above 0; a blank score has no value.
    chosen, score = np.flatnonzero(wanted), columns.share("score", where=right)
    score = np.where(right, score, columns.number("score", above=0.0, blank=True, where=wanted & ~right))
    columns.raise_if_any()
    if not chosen.size:
        raise InputError(f"{columns.path}: no row has a metric_type that is an accuracy or a loss; see --help")
    remarks = []
    if np.isnan(parameters[wanted]).any():
        remarks.append("params: tokens / tpr, where blank; tpr is nominal, so these are accurate to about 10 per cent")
        parameters = np.where(np.isnan(parameters), tokens / tpr, parameters)
    flops, more = _with_flops(columns, parameters, tokens, flops, wanted)
    keys = [(tokens[i], tpr[i], parameters[i]) for i in chosen]
    names = [f"{benchmark[i]} {metric[i]}" if right[i] else str(benchmark[i]) for i in chosen]
    losses, accuracies, twice = _scores_of_runs(keys, names, right[chosen], score[chosen])
    again, passed = plural(twice, "row"), plural(len(columns.rows) - chosen.size, "row")
    remarks += more + [f"{again} skipped: an earlier row has the same run, benchmark and metric"] * bool(twice)
    remarks += [f"{passed} of other metrics skipped"] * (len(columns.rows) > chosen.size)
    first: dict[tuple, int] = {}
    for key, i in zip(keys, chosen, strict=True):
        first.setdefault(key, i)
    order = list(first.values())
    run = np.array([f"{parameters[i]:.3g} parameters, {tokens[i]:.3g} tokens" for i in order])
    blank = np.full(len(order), "")
    return Accuracies(run, blank, parameters[order], tokens[order], flops[order], losses, accuracies, remarks)


def _with_flops(columns: CheckedColumns, parameters, tokens, flops, wanted=True) -> tuple[np.ndarray, list[str]]:
    """Return FLOPs with derived values in blank cells, and remarks on them and on implausible numbers."""
    import pandas

    blank, problems = np.isnan(flops), Problems(columns.path)
    remarks = ["flops: 6 · params · tokens" + ", where blank" * (not blank.all())] * bool((blank & wanted).any())
    flops = np.where(blank, FLOPS_PER_PARAMETER * parameters * tokens, flops)
    numbers = {"hyper_id": columns.rows, "dense_parameter_count": parameters, "tokens": tokens, "training_flops": flops}
    frame = pandas.DataFrame(numbers | {"router_type": "", "num_experts": 1})[np.broadcast_to(wanted, len(flops))]
    for said in compare(frame, frame["hyper_id"].to_numpy(), problems) or problems.lines():
        size = "params" if "params" in columns.cells else "tokens / tpr"
        said = said.replace("dense_parameter_count", size).replace("training_flops", "flops")
        remarks.append(said.partition("; routelaws convert")[0])
    return flops, remarks


def _scores_of_runs(keys: list[tuple], names: list[str], right: np.ndarray, score: np.ndarray):
    """Return the losses and the accuracies, {name: [runs]} each, and the number of rows that repeat a run and name.

    Args:
        keys: [rows], equal for rows of one run; runs are in the order of their first rows.
        names: [rows], names of the text or the task.
        right: [rows] bool, True for an accuracy, False for a loss.
        score: [rows], NaN for blank. If several rows have the same run and name, the first score is used.
    """
    place = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    columns: tuple[dict, dict] = ({}, {})  # losses, accuracies
    twice = 0
    for key, name, is_right, value in zip(keys, names, right, score, strict=True):
        column = columns[int(is_right)].setdefault(name, np.full(len(place), np.nan))
        if np.isnan(column[place[key]]):
            column[place[key]] = value
        else:
            twice += 1
    return *columns, twice
