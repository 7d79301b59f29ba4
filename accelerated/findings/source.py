"""The runs of a table for each analysis, and the excluded runs with reasons.

An (N, E) law is fitted to the rows of `selection.select_rows`. For the released runs these are the paper's rows
("clark": routing frequency 0.5, k 1, seed 42). For any other table they are the default of `select_rows`: every seed.
The (F, B) law and the ablations use every run except `paper.SUSPECTS`. A condition on a user's table holds for all
analyses (`Source.part`), so a run that it excludes appears in no section.
"""

import contextlib
from functools import cached_property
from pathlib import Path

from routelaws.reference.accounting import TABLE_SEQUENCE_LENGTH

from ..errors import InputError
from ..results.fit import Fit, fit_form
from ..results.planning.isoflop import Profile, kinds_profiles
from ..results.row_differences import left_out_lines
from ..results.rows import BOUNDED, taken_per_step
from ..results.runs import LOSS, Runs, read
from ..tables.conditions import names_in, row_mask
from ..tables.schema import DENSE
from ..tables.selection import UNLEARNED, RouterRows, learned, none_chosen, select_rows
from ..tables.table import listed, named
from ..tables.units import size_label
from . import paper
from .runs import TableRun, trusted


class Source:
    """The runs of a table and their fits. Each fit is computed once.

    Args:
        source: the runs, with the main choice of rows and the main loss (see `with_main_loss`).
        name: printed name of the table; "" for the names of its files.
        huber: delta in log10 units of an additional fit by a sum of Huber terms; None for no additional fit.

    Attributes:
        last: the last evaluation of each run, by hyper_id, without runs whose routers have not learned
        released: whether the table has the runs that the paper's authors released
        loss_columns: loss columns with any value, the main loss first
        remarks: sentences on excluded rows and runs

    Raises:
        InputError: no loss has a value, or the requested loss has none.
    """

    def __init__(self, source: Runs, name: str = "", huber: float | None = None):
        has_learned = learned(source.last, source.rows)
        self.frame, self.last = source.frame, source.last[has_learned]
        unlearned = [{"hyper_id": run, "reason": UNLEARNED} for run in source.last["hyper_id"][~has_learned]]
        self.remarks = source.remarks + left_out_lines(unlearned)
        self.name = name or ", ".join(Path(path).name for path in listed(source.paths))
        self.released = _is_released(self.last)
        self.rows = "clark" if self.released and source.rows is None else source.rows
        self.loss_column = source.loss
        self.loss_columns = sorted(_losses(self.last, source.paths), key=lambda each: (each != source.loss, each))
        if source.loss not in self.loss_columns:
            there = ", ".join(self.loss_columns)
            raise InputError(f"{named(source.paths)}: loss column {source.loss} has no values; available: {there}")
        self._source, self.huber = source, huber
        self._fits: dict[tuple, list[tuple[RouterRows, Fit | str]]] = {}

    @property
    def has_condition(self) -> bool:
        """Whether `rows` is a condition that holds for every section of a report (see `part`)."""
        return not self.released and self.rows not in (None, "clark")

    @cached_property
    def part(self) -> "Source":
        """The table, without the evaluations that a user's condition excludes.

        A preset chooses rows only for the (N, E) laws. So does a condition on the released table, because other
        sections describe its other runs. Raise `InputError` if the condition is invalid or no row matches.
        """
        if not self.has_condition:
            return self
        kept = row_mask(self.frame, self.rows)
        if not kept.any():
            raise InputError(none_chosen(self.frame, self.rows))
        return Source(Runs(self.frame[kept], self._source.paths, self.rows, self.loss_column), self.name)

    @cached_property
    def runs(self) -> list[TableRun]:
        rows = self.last.to_dict("records")
        return [_run(self, row, tokens) for row, tokens in zip(rows, taken_per_step(self.last), strict=True)]

    @cached_property
    def good(self) -> list[TableRun]:
        """The trusted runs that a user's condition does not exclude."""
        return trusted(self.part.runs)

    def law_rows(self, loss_column: str | None = None, rows: str | None = None) -> list[RouterRows]:
        """Return the rows of each router for the (N, E) law; an empty list if the table has no routed run.

        Args:
            loss_column: column of the loss; None for the table's main loss.
            rows: choice of rows; None for the table's choice; "all" for the default of `select_rows`, every seed.

        Raises:
            InputError: `select_rows` raises this error.
        """
        if (self.last["router_type"] == DENSE).all():
            return []
        loss, choice = self._key(loss_column, rows)
        return select_rows(self.frame, choice, loss)

    def fits(self, loss_column: str | None = None, rows: str | None = None) -> list[tuple[RouterRows, Fit | str]]:
        """Return the rows of each router (see `law_rows`), with the bounded law or the reason for no fit."""
        key = self._key(loss_column, rows)
        if key not in self._fits:
            self._fits[key] = [(each, fit_form(BOUNDED, each, key[0])) for each in self.law_rows(loss_column, rows)]
        return self._fits[key]

    def profiles(self) -> list[Profile]:
        """Return the isoFLOP profiles of each kind of model; [] if no budget has enough sizes."""
        rows = self.rows if self.has_condition else None
        with contextlib.suppress(InputError):  # no row is left
            return kinds_profiles(select_rows(self.frame, rows, self.loss_column, axes="one kind"), self.loss_column)
        return []

    def _key(self, loss_column: str | None, rows: str | None) -> tuple[str, str | None]:
        """Return the loss and the choice of rows for `Runs`; "all" becomes None."""
        return loss_column or self.loss_column, self.rows if rows is None else None if rows == "all" else rows


def open_runs(paths, rows: str | None = None, loss_column: str | None = None) -> Runs:
    """Read one table or several, with the main choice of rows and the main loss of a report.

    Args:
        rows: choice of rows for `select_rows`; None for the default of the table, see above.
        loss_column: column of the laws; None for the choice of `with_main_loss`.
    """
    runs = read(paths).where(rows)
    return with_main_loss(runs) if loss_column is None else runs.of_loss(loss_column)


def with_main_loss(runs: Runs) -> Runs:
    """Return runs with loss_validation as their loss or, if it has no values, the first loss with values."""
    columns = _losses(runs.last, runs.paths)
    return runs if runs.loss != LOSS or LOSS in columns else runs.of_loss(columns[0])


def _losses(last, paths) -> list[str]:
    """Return the loss columns with values. A table without them is an error."""
    columns = [name for name in last.columns if name.startswith("loss_") and last[name].notna().any()]
    if not columns:
        raise InputError(f"{named(paths)}: every loss is blank at the last evaluation of every run; nothing to report")
    return columns


def size_labels(table: Source) -> dict[int, str]:
    """Return the label of each N: the table's labels if each N has its own label, else rounded counts."""
    sizes = sorted({int(size) for size in table.last["dense_parameter_count"]})
    if "model_size_label" in table.last:
        both = zip(table.last["dense_parameter_count"], table.last["model_size_label"], strict=True)
        pairs = {(int(size), str(label)) for size, label in both}
        labels = dict(pairs)
        if len(pairs) == len(labels) == len(set(labels.values())) and all(labels.values()):
            return {size: labels[size] for size in sizes}
    return {size: size_label(size) for size in sizes}


def seeds_chosen(table: Source) -> bool:
    """Return whether a user's condition names the seed; if so, all runs give the scatter over seeds."""
    return table.has_condition and "seed" in names_in(table.rows)


def _is_released(last) -> bool:
    if "loss_validation" not in last:
        return False
    dense = last[last["router_type"] == DENSE]
    there = {
        (int(size), round(float(loss), 4))
        for size, loss in zip(dense["dense_parameter_count"], dense["loss_validation"], strict=True)
    }
    return there >= set(paper.DENSE_LOSSES.items())


def _run(table: Source, row: dict, tokens: float) -> TableRun:
    router = row["router_type"]
    dense = router == DENSE
    frequency = None if dense else _number(row, "routing_frequency")
    losses = {name: _number(row, name) for name in table.loss_columns}
    flops = _number(row, "flops_per_step") or None
    return TableRun(
        int(row["hyper_id"]),
        router,
        int(row["dense_parameter_count"]),
        int(row["num_experts"]),
        1 if dense else int(_number(row, "k") or 1),
        frequency,
        _number(row, "flop_increase") or 1.0,
        int(_number(row, "seed") or 0),
        _number(row, "tokens"),
        _number(row, "total_parameter_count"),
        flops and flops * TABLE_SEQUENCE_LENGTH / tokens / 1e12,
        _suspicion(row, frequency) if table.released else "",
        losses[table.loss_column],
        losses,
    )


def _suspicion(row: dict, frequency: float | None) -> str:
    run = (row["hyper_id"], row["router_type"], row["num_experts"], frequency)
    for suspect in paper.SUSPECTS:
        cell = (suspect.hyper_id, suspect.router, suspect.experts, suspect.frequency)
        if cell == run and abs(suspect.loss - row["loss_validation"]) < 1e-4:
            return suspect.reason
    return ""


def _number(row: dict, name: str) -> float | None:
    value = row.get(name)
    return None if value is None or value != value else float(value)
