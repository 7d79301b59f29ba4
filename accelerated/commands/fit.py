"""What `routelaws fit` does: read a table, choose rows, fit a law to each router, and say it as JSON or as text."""

import math
from json import dumps as dump_json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from ..errors import InputError
from ..findings.law_columns import column_remarks
from ..findings.law_fits import SIZE, LawFit, check_huber, fit_law, fit_some, is_known
from ..laws.catalogue import LAWS, Law
from ..laws.held_out import HeldOut
from ..laws.intervals import Range
from ..report.cautions import NO_FLOOR, has_no_floor, left_out_lines, misfit_lines, warnings
from ..tables.several import naming, read_tables
from ..tables.table import RouterRows, select_rows
from ..wording import once
from . import measured
from .laws import law_of
from .shown import plain, range_dict, shown, shown_ends
from .terminal import Terminal
from .working import Working

NOT_DETERMINED = (
    "these rows do not determine the law as a whole: they cannot tell it from a limit in which some of its coefficients"
    " run away together (the intervals of its slopes say so). A coefficient that stands here all the same has a closed"
    " interval of its own, and predictions inside the data stand"
)


WORDS = (
    "pinned down: the interval is narrower than half of the value (for E_start, E_max, cut-offs: its ends are within a"
    " factor of 2); soft: wider; loose: its ends are more than a factor of 10 apart; extrapolated: a statement about"
    " sizes or experts outside the table."
)


AT_SIZES = {"slope": "slopes", "b": "slopes", "d": "levels"}
"""What JSON calls the numbers that a law has at each size."""


class FitReport(NamedTuple):
    """All fits of one table; `as_dict` and `print_fit` are two ways to say it."""

    law: str
    loss_column: str
    fits: list[LawFit]
    remarks: list[str]  # what of the table was left out before rows were chosen, and what is an estimate
    not_fitted: dict[str, str] = {}  # routers that the law cannot be fitted to, and why

    def warnings(self) -> dict[str, list[str]]:
        """Return what can make a fit wrong without showing, each with the routers that it concerns."""
        return once((entry.selection.router, warnings_of(entry)) for entry in self.fits)


def fit_report(
    paths,
    law: str = "routed-bounded",
    loss_column: str = "loss_validation",
    rows: str | None = None,
    huber: float | None = None,
    tell=None,
    options: dict | None = None,
) -> FitReport:
    """Fit `law` to each router of a table.

    Args:
        paths: a table or several, see `read_tables`.
        law: as `laws.law_of`; `dense` is fitted once, to the dense runs.
        loss_column: which loss.
        rows: which rows, see `select_rows`.
        huber: delta in log10 units for the sum of Huber terms instead of least squares; for laws with `takes_huber`.
        tell: is called with a line on what is being done, if given.
        options: keyword arguments of the fit of the law, such as the floor of `compute`.

    Raises:
        InputError: one line that says what is wrong with the table, the choice of rows, the name of the law, or huber;
            or why no router could be fitted. A router that cannot be does not stop the others.
    """
    asked = with_options(law_of(law, "this table"), options)
    check_huber(asked, huber)
    frame = read_tables(paths)
    selections = select_rows(frame, rows, loss_column, axes=asked.axes)

    def fitted(selection: RouterRows) -> LawFit:
        return fit_law(selection, asked, loss_column, huber)

    with naming(paths):
        fits, not_fitted = fit_some(selections, loss_column, fitted, tell)
    remarks = frame.attrs.get("remarks", []) + column_remarks([entry.selection for entry in fits], asked)
    return FitReport(asked.name, loss_column, fits, remarks, not_fitted)


def fit_table(
    paths,
    law: str = "routed-bounded",
    loss_column: str = "loss_validation",
    rows: str | None = None,
    huber: float | None = None,
) -> dict:
    """Fit as `fit_report` and return what `routelaws fit --json` prints.

    Returns:
        {"law", "loss_column", "remarks": [text], "not_fitted": [{"router", "reason"}], "fits": [{"router", "rows",
        "left_out": [{"hyper_id", "reason", "run": its name where the table has one}],
        "coefficients": {name: number}, "rmsle", "criterion", "objective", "status", "determined", "derived":
        {"N_cutoff"}, "intervals": {name: {"value", "low", "high", "verdict"}, "slopes": [{"N", ...}],
        "levels": [{"N", ...}]},
        "leave_one_out_rmsle", "leave_one_size_out_rmsle", "misfit": {"sizes": [{"N", "rows", "log10"}], "bend":
        {"value", "p"}, "beyond_seeds": {"F", "p"}, "largest_size": {"N", "log10"}, "outliers": [{"hyper_id", "loss",
        "law", "times", "run", "by_others"}], "rmsle_without_outliers", "rise": {"experts", "sizes", "losses"} or None},
        "warnings": [text]}]}. Misses are log10 of the measured loss less that of the law (see `findings.misfit`).
        Strict JSON: what is infinite or was not found is None, and `status` says which (a coefficient at the edge of
        its domain was not found). A coefficient that its own interval leaves open is None too; `determined` says
        whether the rows determine the law as a whole. Intervals are at 95 %; an end that is None is unbounded.
        "derived" is there for laws with a cut-off, "least_squares" ({name: number}) beside a fit by Huber's sum.

    Raises:
        InputError: as `fit_report`.
    """
    return as_dict(fit_report(paths, law, loss_column, rows, huber))


def as_dict(report: FitReport) -> dict:
    """Return a report as `fit_table` does."""
    return {
        "law": report.law,
        "loss_column": report.loss_column,
        "remarks": report.remarks,
        "not_fitted": [{"router": router, "reason": reason} for router, reason in report.not_fitted.items()],
        "fits": [_as_dict(entry) for entry in report.fits],
    }


def print_fit(report: FitReport, console=None) -> None:
    """Print the fits for a reader: coefficients with 95 % intervals, errors on rows left out, slopes at trained sizes.

    Args:
        report: of `fit_report`.
        console: a rich Console; a new one on standard output if None.
    """

    console = console or Terminal()
    law = LAWS[report.law]
    console.print(f"law {law.name}: {law.formula}", markup=False)
    console.print(f"loss column {report.loss_column}; {report.fits[0].fit.criterion}", markup=False)
    for remark in report.remarks:
        console.print(remark, markup=False)
    for entry in report.fits:
        _print_entry(entry, console)
    for router, reason in report.not_fitted.items():
        console.print(f"warning ({router}): not fitted, and left out here: {reason}", markup=False)
    for warning, routers in report.warnings().items():
        console.print(f"warning ({', '.join(routers)}): {warning}", markup=False)
    if any(item.words for entry in report.fits for item in entry.ranges):
        console.print(WORDS, markup=False)
    if law.slopes is not None and law.columns[0] == SIZE:
        console.print("b and d are values at N = 1, far below every model: judge routing by its slope at trained sizes")
    if has_no_floor(report.fits[0].law, [entry.misfit for entry in report.fits]):
        console.print(NO_FLOOR, markup=False)


def _print_entry(entry: LawFit, console) -> None:
    """Print the fit of one router: its coefficients and slopes, where it misses, and which runs are left out."""
    console.print(_coefficients_table(entry))
    if not entry.determined:
        console.print(f"{entry.selection.router}: {NOT_DETERMINED}.", markup=False)
    if entry.slopes:
        console.print(_slopes_table(entry))
    for line in [*misfit_lines(entry.misfit), *left_out_lines(entry.selection.left_out)]:
        console.print(f"  {line}", markup=False)


def warnings_of(entry: LawFit) -> list[str]:
    """Return what can make one fit wrong without showing, in sentences."""
    found = entry.differences, entry.shorter, entry.misfit, entry.fit.rmsle
    return warnings(*found, huber=entry.least_squares is not None, takes_huber=entry.law.takes_huber)


def _misfit(entry: LawFit) -> dict:
    """Return how a law misses its rows, as JSON holds it."""
    found, largest = entry.misfit, entry.misfit.largest
    bend = None if found.bend is None else {"value": plain(found.bend.value), "p": plain(found.bend.test.p)}
    return {
        "sizes": [{"N": size, "rows": rows, "log10": plain(miss)} for size, rows, miss in found.sizes],
        "bend": bend,
        "beyond_seeds": None if found.seeds is None else {"F": plain(found.seeds.statistic), "p": plain(found.seeds.p)},
        "largest_size": None if largest is None else {"N": largest.size, "log10": plain(largest.miss)},
        "outliers": [run._asdict() | {"times": plain(run.times)} for run in found.outliers],
        "rmsle_without_outliers": found.without,
        "rise": None if found.rise is None else found.rise._asdict(),
    }


def _as_dict(entry: LawFit) -> dict:
    """Return one fit as the entry of the JSON object."""
    fit = entry.fit
    found = {
        "router": entry.selection.router,
        "rows": fit.rows,
        "left_out": entry.selection.left_out,
        "coefficients": {
            name: plain(value) if np.ndim(value) or _found(entry, name, value) else None
            for name, value in fit.coefficients._asdict().items()
        },
        "rmsle": fit.rmsle,
        "criterion": fit.criterion,
        "objective": fit.objective,
        "status": fit.status,
        "determined": entry.determined,
    }
    cutoff = _cutoff(entry)
    if cutoff is not None:
        found["derived"] = {cutoff[0]: plain(cutoff[1]) if _found(entry, *cutoff) else None}
    found["intervals"] = _intervals(entry)
    if entry.least_squares is not None:
        values = entry.least_squares.coefficients._asdict()
        found["least_squares"] = {name: plain(value) for name, value in values.items()}
    for name, held_out in (("leave_one_out_rmsle", entry.held_out), ("leave_one_size_out_rmsle", entry.held_out_size)):
        found[name] = None if held_out is None else plain(held_out.rmsle)
    return found | {"misfit": _misfit(entry), "warnings": warnings_of(entry)}


def _found(entry: LawFit, name: str, value: float) -> bool:
    """Return whether a coefficient or a cut-off was found: the rows determine it, and it is not at an edge.

    The rows determine it if its own interval says so; without intervals (Huber's sum), if they determine the law.
    """
    if f"{name} at" in entry.fit.status or math.isnan(value):
        return False
    if math.isinf(value) and not name.endswith("_cutoff"):
        return True  # no limit E_max is seen: the best fit has none
    own = next((item for item in entry.ranges if item.name == name), None)
    return entry.determined if own is None else is_known(name, value, own.words)


def _intervals(entry: LawFit) -> dict | None:
    """Return the intervals as JSON holds them; None where the criterion gives none."""
    if not entry.ranges:
        return None
    found = {item.name: range_dict(item) for item in entry.ranges if item.at is None}
    for item in [*entry.slopes, *(item for item in entry.ranges if item.at is not None)]:
        found.setdefault(AT_SIZES.get(item.name, item.name), []).append({"N": item.at} | range_dict(item))
    return found


def _cutoff(entry: LawFit) -> tuple[str, float] | None:
    """Return the name and value of the size at which routing stops helping, for laws that have one."""
    return None if entry.law.cutoff is None else entry.law.cutoff(entry.fit)


def _coefficients_table(entry: LawFit):
    """Return a table of one router's fit: what was found, its interval, and what that is worth."""
    from rich.table import Column, Table

    heads = ["best fit"] + ["95 % interval"] * bool(entry.ranges) + ["the data"] * _is_worded(entry)
    heads += ["by least squares"] * (entry.least_squares is not None)
    title = f"{entry.selection.router}: {entry.fit.rows} rows, optimum: {entry.fit.status}"
    table = Table(Column("", no_wrap=True), *heads, title=title, title_justify="left")
    for item in entry.ranges:
        if item.at is not None:
            table.add_row(f"{item.name} at N = {item.at:,.0f}", shown(item.value), _ends(item))
    plain_fit = entry.least_squares
    for name, value in entry.fit.coefficients._asdict().items():
        if np.ndim(value) == 0:
            beside = [] if plain_fit is None else [shown(float(getattr(plain_fit.coefficients, name)))]
            table.add_row(name, *_found_cells(entry, name, float(value)), *beside)
    cutoff = _cutoff(entry)
    if cutoff:
        table.add_row(cutoff[0], *_found_cells(entry, *cutoff))
    table.add_section()
    table.add_row("RMSLE", f"{entry.fit.rmsle:.5f}", *([] if plain_fit is None else [f"{plain_fit.rmsle:.5f}"]))
    for name, held_out in (("leave one out", entry.held_out), ("leave one size out", entry.held_out_size)):
        if held_out is not None:
            table.add_row(f"RMSLE, {name}", _held_out_cell(held_out))
    return table


def _is_worded(entry: LawFit) -> bool:
    """Return whether the intervals of a fit have words on how well the data pin them down."""
    return any(item.words for item in entry.ranges)


def _found_cells(entry: LawFit, name: str, value: float) -> list[str]:
    """Return a coefficient or a cut-off as text with, where it has one, its interval and what that is worth."""
    found = shown(value) if _found(entry, name, value) else "not determined"
    item = next((item for item in entry.ranges if item.name == name and item.at is None), None)
    if item is None:
        return [found]
    return [found, _ends(item), item.words] if _is_worded(entry) else [found, _ends(item)]


def _held_out_cell(held_out: HeldOut) -> str:
    """Return the error on rows that were left out, and how many of them a fit without them cannot predict."""
    missing = held_out.errors.size - held_out.predicted
    note = f" ({missing} of {held_out.errors.size} rows not predicted)" if missing else ""
    return shown(held_out.rmsle, ".5f") + note


def _slopes_table(entry: LawFit):
    """Return a table of the slopes at the sizes of the rows."""
    from rich.table import Table

    table = Table(
        "N",
        "b + c log10 N",
        "95 % interval",
        "the data",
        title_justify="left",
        title=f"{entry.selection.router}: change of log10 L per tenfold effective experts",
    )
    for item in entry.slopes:
        table.add_row(f"{item.at:,.0f}", shown(item.value, ".4f"), _ends(item, ".4f"), item.words)
    return table


def _ends(item: Range, form: str = ".4g") -> str:
    return shown_ends(item.low, item.high, form)


def fit(
    tables: tyro.conf.Positional[tuple[Path, ...]],
    law: str = "routed-bounded",
    loss: str | None = None,
    rows: str | None = None,
    huber: float | None = None,
    task: tuple[str, ...] = (),
    guess_rate: float | None = None,
    tasks: Path | None = None,
    floor: float | None = None,
    json: bool = False,
) -> None:
    """Fit a law to a results table, or to a table of accuracies or leverages.

    Args:
        tables: A results table, .csv or .jsonl, also packed (.gz), or the folder of a run or sweep; several are read as
            one, and their runs numbered anew. Laws of accuracy take a table as `routelaws downstream` does, and
            leverage one with the columns activation, tian_granularity, flops and leverage, or a results table with
            dense runs. One row stands for each evaluation of a run, with the columns hyper_id,
            step, router_type (Dense for the dense runs), num_experts, dense_parameter_count (without the embedding)
            and a loss in nats per token. `routelaws convert` makes one of your own log.
        law: Of the loss: dense, per-size, separable, bilinear, routed-bounded or routed-utilisation; compute; with the
            training tokens D, hoffmann or kaplan (dense runs), joint (experts), sparsity or fine-grained (runs of one
            num_experts, the commonest or chosen by --rows). Of accuracy, from a table of accuracies: direct, ratio,
            ceiling, broken, repeated (tasks named TASK pass@K), two-stage-linear, two-stage-logistic or
            two-stage-ratio. Of efficiency leverage: leverage. Or FILE.py:NAME, a law of your own that the file
            registers.
        loss: Column of the loss; loss_validation if not given. Two-stage laws of accuracy: the text whose loss they go
            through, loss_validation or else the first of the table.
        rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
            "k == 1 and num_experts in (1, 16, 64)". The last evaluation of every run that is kept is used;
            if not given, those with k = 1 and the commonest routing frequency, of every seed.
        huber: Minimise the sum of Huber terms with this delta (in log10 units) instead of the mean square, which stands
            beside it. Of the loss: routed-bounded, routed-utilisation, sparsity, kaplan, hoffmann, fine-grained and
            joint. Of accuracy, in the units of what is fitted: ratio and ceiling, ln(-ln Q'), and broken, the accuracy.
        task: Laws of accuracy: these tasks alone, as the table names them behind acc_; all if not given.
        guess_rate: Laws of log accuracy: the share of right answers by guessing. If not given, that of --tasks, of a
            column guess_TASK of the table, or of well-known tasks.
        tasks: A table with the columns task and random_accuracy.
        floor: The loss that no compute goes below, for the law compute; 0 if not given.
        json: Print one JSON object and nothing else.
    """
    asked, options = law_of(law), {} if floor is None else {"floor": floor}
    only_for_accuracy(asked, task=task, guess_rate=guess_rate, tasks=tasks)
    with Working("reading the table") as tell:
        if asked.measured != "loss":
            with_options(asked, options)
            wanted = measured.Asked(_given(tables), loss, rows, huber, task, tasks, guess_rate, options)
            report = measured.measured_report(asked, wanted, tell=tell)
        else:
            report = fit_report(_given(tables), law, loss or "loss_validation", rows, huber, tell, options)
    if isinstance(report, measured.MeasuredReport):
        return print(dump_json(measured.as_dict(report), allow_nan=False)) if json else measured.print_report(report)
    if json:
        print(dump_json(as_dict(report), allow_nan=False))
    else:
        print_fit(report)


def with_options(law: Law, options: dict | None) -> Law:
    """Return a law with options of its fit set; InputError where it takes none of that name."""
    try:
        return law.with_options(**(options or {}))
    except ValueError as error:
        raise InputError(*str(error).split("\n")) from None


def only_for_accuracy(law: Law, **flags) -> None:
    """Raise InputError where a flag of the laws of accuracy is given to another law."""
    for name, value in flags.items():
        if value not in ((), None) and law.measured != "accuracy":
            raise InputError(f"--{name.replace('_', '-')} is for laws of accuracy; {law.name} is of {law.measured}")


def _given(tables: tuple[Path, ...]) -> tuple[Path, ...]:
    if not tables:
        raise InputError("a results table, or the folder of a run or sweep, is needed")
    return tables
