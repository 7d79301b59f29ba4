"""Which runs of a table are used for what, and which are left out and why.

A law in N and E is fitted to the rows that `table.select_rows` chooses. For the released runs these are the paper's
("clark": routing frequency 0.5, k 1, seed 42); for any other table the default of `select_rows`, every seed. The law in
(F, B) and the ablations take every run, less those of `paper.SUSPECTS`. A condition of the user's on a table of the
user's own holds for all of them, see `Table.part`: a run that diverged and was left out is in no section.
"""

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_SEQUENCE_LENGTH

from ..errors import InputError
from ..laws.catalogue import LAWS
from ..results.estimates import percent
from ..results.fit import Fit
from ..results.rows import rows_of_runs, taken_per_step
from ..results.runs import Runs
from ..tables.conditions import names_in, row_mask
from ..tables.selection import none_chosen
from ..tables.several import listed, named, read_tables
from ..tables.table import DENSE, RouterRows
from ..training.result_rows import size_label
from . import paper

BOUNDED = "routed-bounded"
"""The paper's final law in N and E."""


class Run(NamedTuple):
    """The last evaluation of one run. Columns that the table lacks have their default."""

    hyper_id: int
    router: str
    size: int  # N, dense parameters
    experts: int
    k: int
    frequency: float | None  # R, share of the blocks that are routed; None where not given, and for dense runs
    flop_increase: float
    seed: int
    total_parameters: float | None  # P
    flops: float | None  # F, TeraFLOPs of the forward pass of 2,048 tokens
    suspect: str  # why it must not be trusted, or ""
    loss: float | None  # of the main loss column, nats per token
    losses: dict[str, float | None]  # all loss columns

    @property
    def utilisation(self) -> float | None:
        """B, parameters per forward FLOP of one token."""
        if not self.flops or not self.total_parameters:
            return None
        return self.total_parameters * TABLE_SEQUENCE_LENGTH / (self.flops * 1e12)


class Table:
    """A table of runs and what is fitted of it; each choice of rows, and each fit to it, is made once.

    Attributes:
        name: of the file, without its folder
        frame: a pandas DataFrame, every evaluation
        last: the last one of each run, by hyper_id
        released: it holds the runs that the paper's authors released
        rows: as `select_rows` takes it
        loss_column: of every section but the transfer sets
        loss_columns: those with any value
    """

    def __init__(self, name: str, frame, released: bool, rows: str | None, loss_column: str, loss_columns: list[str]):
        self.name, self.frame, self.last = name, frame, _last(frame)
        self.released, self.rows = released, rows
        self.loss_column, self.loss_columns = loss_column, loss_columns
        self._chosen: dict[tuple, Runs] = {}
        self._fits: dict[tuple, list[tuple[RouterRows, Fit | str]]] = {}

    def with_frame(self, frame) -> "Table":
        """Return the same choices for other rows."""
        return Table(self.name, frame, self.released, self.rows, self.loss_column, self.loss_columns)

    @property
    def has_condition(self) -> bool:
        """Whether `rows` is a condition that holds for every section of a report, see `part`."""
        return not self.released and self.rows not in (None, "clark")

    @cached_property
    def part(self) -> "Table":
        """The table without the evaluations that a condition of the user's leaves out.

        The presets choose rows for the laws in N and E alone, and so does a condition on the released table, whose
        other runs are what the other sections are about. InputError: the condition is none, or no row is so.
        """
        if not self.has_condition:
            return self
        kept = row_mask(self.frame, self.rows)
        if not kept.any():
            raise InputError(none_chosen(self.frame, self.rows))
        return self.with_frame(self.frame[kept])

    @cached_property
    def runs(self) -> list[Run]:
        """Every run of the table, by hyper_id."""
        rows = self.last.to_dict("records")
        return [_run(self, row, tokens) for row, tokens in zip(rows, taken_per_step(self.last), strict=True)]

    def law_rows(self, loss_column: str | None = None, rows: str | None = None) -> list[RouterRows]:
        """Return the rows of each router's law in N and E; an empty list if the table has no routed run.

        Args:
            loss_column: the table's own if None.
            rows: the table's own if None; "all" is the default of `select_rows`, every seed.

        Raises:
            InputError: as `select_rows`.
        """
        if (self.last["router_type"] == DENSE).all():
            return []
        key = (self.rows if rows is None else None if rows == "all" else rows), loss_column or self.loss_column
        if key not in self._chosen:
            self._chosen[key] = Runs(self.frame, self.name, *key)
        return self._chosen[key].selections()

    def fits(self, loss_column: str | None = None, rows: str | None = None) -> list[tuple[RouterRows, Fit | str]]:
        """Return the rows of each router with the bounded law fitted to them, or why it is not; as `law_rows`."""
        key = loss_column or self.loss_column, rows
        if key not in self._fits:
            self._fits[key] = [(each, _bounded(each, key[0])) for each in self.law_rows(*key)]
        return self._fits[key]


def open_table(paths, rows: str | None = None, loss_column: str | None = None) -> Table:
    """Read a table and decide which rows and which loss are the main ones.

    Args:
        paths: a results table or several, see `read_tables`.
        rows: as `select_rows`; None decides as the top of this file says.
        loss_column: of the laws; None takes loss_validation, or the first loss with values where that is missing.

    Raises:
        InputError: as `read_tables`; or the loss column is not in the table or has no value.
    """
    name = ", ".join(Path(path).name for path in listed(paths))
    return as_table(read_tables(paths), name, named(paths), rows, loss_column)


def as_table(frame, name: str, where: str, rows: str | None = None, loss_column: str | None = None) -> Table:
    """Return a table that was read already, see `open_table`; `where` stands in its errors."""
    last = _last(frame)
    columns = [name for name in frame.columns if name.startswith("loss_") and last[name].notna().any()]
    if not columns:
        raise InputError(f"{where}: every loss is blank at the last evaluation of every run; nothing to report")
    if loss_column is None:
        loss_column = "loss_validation" if "loss_validation" in columns else columns[0]
    if loss_column not in columns:
        raise InputError(f"{where}: loss column {loss_column} has no values; there: {', '.join(columns)}")
    columns.sort(key=lambda name: (name != loss_column, name))
    released = _is_released(last)
    chosen = "clark" if released and rows is None else rows
    return Table(name, frame, released, chosen, loss_column, columns)


def columns_of(selection: RouterRows, loss_column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return N, E and the loss of some rows, [n] each."""
    names = ("dense_parameter_count", "num_experts", loss_column)
    size, experts, loss = (selection.frame[name].to_numpy(dtype=np.float64) for name in names)
    return size, experts, loss


def _bounded(selection: RouterRows, loss_column: str) -> Fit | str:
    """Return the bounded law of the rows of one router, or why there is none."""
    try:
        return Fit(rows_of_runs(selection, LAWS[BOUNDED], loss_column), BOUNDED)
    except ValueError as error:
        return str(error)


def trusted(runs: list[Run]) -> list[Run]:
    """Return the runs with a loss whose label nothing speaks against."""
    return [run for run in runs if run.loss is not None and not run.suspect]


def size_labels(table: Table) -> dict[int, str]:
    """Return what the table calls each N where its labels are one to one, or a rounded count."""
    sizes = sorted({int(size) for size in table.last["dense_parameter_count"]})
    if "model_size_label" in table.last:
        both = zip(table.last["dense_parameter_count"], table.last["model_size_label"], strict=True)
        pairs = {(int(size), str(label)) for size, label in both}
        labels = dict(pairs)
        if len(pairs) == len(labels) == len(set(labels.values())) and all(labels.values()):
            return {size: labels[size] for size in sizes}
    return {size: size_label(size) for size in sizes}


def usual_frequency(runs: list[Run]) -> float | None:
    """Return the commonest routing frequency of the routed runs with k = 1, the larger one of a tie."""
    values = [run.frequency for run in runs if run.router != DENSE and run.k == 1 and run.frequency is not None]
    return max(set(values), key=lambda value: (values.count(value), value)) if values else None


def usual(runs: list[Run]) -> list[Run]:
    """Return the runs of the paper's main grid: k 1, the usual routing frequency, dense ones no wider than N says."""
    frequency = usual_frequency(runs)
    return [
        run
        for run in runs
        if (run.flop_increase == 1 if run.router == DENSE else run.k == 1 and run.frequency in (frequency, None))
    ]


def twice(runs: list[Run]) -> list[list[Run]]:
    """Return the groups of runs that agree in everything, the seed included, but are separate runs."""
    groups: dict = {}
    for run in runs:
        key = (run.router, run.size, run.experts, run.k, run.frequency, run.flop_increase, run.seed)
        groups.setdefault(key, []).append(run)
    return [group for group in groups.values() if len(group) > 1]


def point_of(run: Run) -> tuple:
    """Return what runs have in common that differ in their seed alone, as far as a table tells."""
    return run.router, run.size, run.experts, run.k, run.frequency, run.flop_increase


def seed_scatter(runs: list[Run], point=point_of) -> dict | None:
    """Return how far log10 L scatters over seeds: the standard deviation pooled over the points that have several.

    Args:
        runs: of a table.
        point: returns, for a run, what all runs of its point have in common.

    Returns:
        {"deviation", "percent", "degrees", "runs", "points": [{"router", "N", "E", "seeds", "losses", "range",
        "deviation"}]}, the range and the deviation of a point in nats; None if no point has several seeds.
    """
    groups: dict = {}
    for run in trusted(runs):
        groups.setdefault(point(run), {}).setdefault(run.seed, run)
    points = [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]
    if not points:
        return None
    logs = [np.log10([run.loss for run in group]) for group in points]
    degrees = sum(values.size - 1 for values in logs)
    deviation = float(np.sqrt(sum(np.sum((values - values.mean()) ** 2) for values in logs) / degrees))
    return {
        "deviation": deviation,
        "percent": percent(deviation),
        "degrees": degrees,
        "runs": sum(map(len, points)),
        "points": sorted(map(_seeds, points), key=lambda entry: (entry["router"], entry["N"], entry["E"])),
    }


def seeds_chosen(table: Table) -> bool:
    """Return whether a condition of the user's names the seed: what seeds change is then in the runs it leaves out."""
    return table.has_condition and "seed" in names_in(table.rows)


def _seeds(group: list[Run]) -> dict:
    losses = [run.loss for run in group]
    return {
        "router": group[0].router,
        "N": group[0].size,
        "E": group[0].experts,
        "seeds": [run.seed for run in group],
        "losses": losses,
        "range": max(losses) - min(losses),
        "deviation": float(np.std(losses, ddof=1)),
    }


def _last(frame):
    """Return the last evaluation of each run, by hyper_id."""
    return frame.sort_values("step", kind="stable").groupby("hyper_id", sort=True).tail(1).sort_values("hyper_id")


def _is_released(last) -> bool:
    """Return whether the dense runs of the released table are there, told by their losses."""
    if "loss_validation" not in last:
        return False
    dense = last[last["router_type"] == DENSE]
    there = {
        (int(size), round(float(loss), 4))
        for size, loss in zip(dense["dense_parameter_count"], dense["loss_validation"], strict=True)
    }
    return there >= set(paper.DENSE_LOSSES.items())


def _run(table: Table, row: dict, tokens: float) -> Run:
    """Return one row of the table as a Run; `tokens` are those of a step."""
    router = row["router_type"]
    dense = router == DENSE
    frequency = None if dense else _number(row, "routing_frequency")
    losses = {name: _number(row, name) for name in table.loss_columns}
    return Run(
        int(row["hyper_id"]),
        router,
        int(row["dense_parameter_count"]),
        int(row["num_experts"]),
        1 if dense else int(_number(row, "k") or 1),
        frequency,
        _number(row, "flop_increase") or 1.0,
        int(_number(row, "seed") or 0),
        _number(row, "total_parameter_count"),
        _teraflops(_number(row, "flops_per_step"), tokens),
        _suspicion(row, frequency) if table.released else "",
        losses[table.loss_column],
        losses,
    )


def _suspicion(row: dict, frequency: float | None) -> str:
    """Return why a run of the released table is not trusted; "" where it is."""
    run = (row["hyper_id"], row["router_type"], row["num_experts"], frequency)
    for suspect in paper.SUSPECTS:
        cell = (suspect.hyper_id, suspect.router, suspect.experts, suspect.frequency)
        if cell == run and abs(suspect.loss - row["loss_validation"]) < 1e-4:
            return suspect.reason
    return ""


def _teraflops(flops: float | None, tokens: float) -> float | None:
    """Return forward TeraFLOPs of 2,048 tokens from the FLOPs of a step and its tokens."""
    return flops * TABLE_SEQUENCE_LENGTH / tokens / 1e12 if flops else None


def _number(row: dict, name: str) -> float | None:
    value = row.get(name)
    return None if value is None or value != value else float(value)
