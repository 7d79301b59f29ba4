"""What `routelaws fit` and `predict` do with a law that is not of the loss: of accuracy, or of leverage.

Words, JSON and messages are those of the laws of the loss where both have the same to say.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..findings.alike import proportional_tokens
from ..findings.law_fits import check_huber
from ..findings.measured_fits import (
    Group,
    MeasuredFit,
    accuracy_groups,
    fit_group,
    leverage_groups,
    leverage_of_runs,
    predict_group,
)
from ..laws.catalogue import Law
from ..laws.intervals import Predicted
from ..report.cautions import difference_words, left_out_lines
from ..tables.accuracies import read_accuracies, read_guess_rates
from ..tables.leverages import read_leverages
from ..tables.released import data_folder, released_table
from ..tables.several import named, read_tables, table_path
from ..tables.table import select_rows
from ..wording import by_reason, once
from .shown import plain, range_dict, shown, shown_ends
from .terminal import Terminal, say

NOT_KNOWN = "not known"

WHOLE = 3
"""Fits that are printed with every interval; of more, one line each."""


class Asked(NamedTuple):
    """What the flags say of a table, besides the law."""

    tables: tuple[Path, ...]
    loss: str | None = None
    rows: str | None = None
    huber: float | None = None
    task: tuple[str, ...] = ()
    tasks: Path | None = None
    guess_rate: float | None = None
    options: dict = {}


class MeasuredReport(NamedTuple):
    """All fits of one table."""

    law: Law
    level: float
    fits: list[MeasuredFit]
    not_fitted: dict[str, str]  # {label of a group: why}
    remarks: list[str]
    at: dict[str, float] | None = None
    predictions: list[tuple[Predicted | None, list[str]]] = []  # one for each of `fits`, where a point is asked for


def measured_report(law: Law, asked: Asked, level: float = 0.95, at: dict[str, float] | None = None, tell=None):
    """Fit a law of accuracy or of leverage to each group of a table, and predict at a point if one is given.

    Args:
        law: of `laws.law_of`.
        asked: the table, and what of it.
        level: of the intervals.
        at: the columns of the law at the point.
        tell: is called with a line on what is being done, if given.

    Raises:
        InputError: one line that says what is wrong with the table or the flags; or why no group could be fitted.
    """
    check_huber(law, asked.huber)
    groups, reasons, remarks = _groups(law, asked)
    fits, predictions = [], []
    for number, group in enumerate(groups, 1):
        if tell is not None:
            tell(f"fitting {group.label}, {number} of {len(groups)}")
        try:
            found = fit_group(law, group, level, asked.huber)
            if at is not None:
                predictions.append(_predicted(found, at, level))
            fits.append(found)
        except ValueError as error:
            reasons[group.label] = str(error)
    if not fits:
        lines = [f"{_short(labels)}: {reason}" for reason, labels in by_reason(reasons).items()]
        raise InputError(*(f"{named(asked.tables)}: {line}" for line in lines))
    return MeasuredReport(law, level, fits, reasons, remarks, at, predictions)


def as_dict(report: MeasuredReport) -> dict:
    """Return what --json prints.

    Returns:
        {"law", "measured", "remarks", "not_fitted": [{"group", "reason"}], "fits": [{"group": a task or a router,
        "training_set", "options", "rows", "coefficients": {name: number}, "rmsle", "rmse" of accuracies, "criterion",
        "objective", "status", "intervals": {name: {"value", "low", "high", "verdict"}} or None, "left_out": rows that
        the law does not take, "blank": rows without a number that it needs, "left_out_error", "warnings"}]}; and
        with a point "at", "level" and, in each fit, "prediction": {"value", "law_interval", "run_interval"}. What is
        infinite or not known is None.
    """
    found = {
        "law": report.law.name,
        "measured": report.law.measured,
        "remarks": report.remarks,
        "not_fitted": [{"group": label, "reason": reason} for label, reason in report.not_fitted.items()],
        "fits": [_fit_dict(entry) for entry in report.fits],
    }
    if report.at is None:
        return found
    for entry, (said, warnings) in zip(found["fits"], report.predictions, strict=True):
        entry["warnings"] = entry["warnings"] + warnings
        ends = {f"{name}_interval": [plain(end) for end in getattr(said, name)] for name in ("law", "run")}
        entry["prediction"] = {"value": plain(said.value)} | ends
    return found | {"at": report.at, "level": report.level}


def print_report(report: MeasuredReport, console=None) -> None:
    """Print fits, or predictions, for a reader."""

    console = console or Terminal()
    for line in [*_law_lines(report), *report.remarks]:
        console.print(line, markup=False)
    if report.at is not None:
        where = ", ".join(f"{name} = {value:,.6g}" for name, value in report.at.items())
        console.print(f"at {where}", markup=False)
        console.print(_predictions_table(report))
    elif len(report.fits) > WHOLE:
        console.print(_lines_table(report.fits))
        console.print("intervals: --json, or one task at a time with --task", markup=False)
    else:
        for entry in report.fits:
            console.print(_whole_table(entry, report.level))
    for reason, labels in by_reason(report.not_fitted).items():
        console.print(f"warning ({_short(labels)}): not fitted, and left out here: {reason}", markup=False)
    said = [(entry.group.label, warnings_of(entry)) for entry in report.fits]
    said += [(e.group.label, more) for e, (_, more) in zip(report.fits, report.predictions, strict=False)]
    for warning, labels in once(said).items():
        console.print(f"warning ({_short(labels)}): {warning}", markup=False)


def _law_lines(report: MeasuredReport) -> list[str]:
    """Return which law it is, how it is fitted, and its printed coefficients."""
    law = report.law
    lines = [f"law {law.name}, of {law.measured}: {law.formula}", f"fitted by: {report.fits[0].fit.criterion}"]
    for name, printed in law.published.items():
        values = ", ".join(f"{key} {value:g}" for key, value in printed.coefficients._asdict().items())
        lines.append(f"printed coefficients {name} ({printed.source}): {values}; {printed.attested}")
    return lines


def warnings_of(entry: MeasuredFit) -> list[str]:
    """Return what can make a fit wrong without showing, in sentences."""
    said = list(entry.group.remarks)
    design = proportional_tokens(entry.law.columns, entry.group.columns, entry.fit.coefficients)
    said += [difference_words(each) for each in design]
    if entry.fit.status != "interior":
        said.append(f"the optimum: {entry.fit.status}")
    if entry.ranges and all(math.isnan(item.low) for item in entry.ranges):
        first = entry.law.columns[0]
        said.append(f"no intervals: the law cannot be fitted without each value of {first} in turn; needed: more rows")
    return said


def print_published(law: Law, name: str, at: dict[str, float], json: bool) -> dict | None:
    """Print, or return for JSON, what printed coefficients say at a point.

    Raises:
        InputError: the law has no coefficients of that name.
    """
    if name not in law.published:
        there = ", ".join(law.published) or "none"
        raise InputError(
            f"--published {name}: the law {law.name} has no printed coefficients of that name; there: {there}"
        )
    printed = law.published[name]
    value = float(np.asarray(law.predict(printed, *(np.array([each]) for each in at.values())))[0])
    if json:
        found = {"law": law.name, "measured": law.measured, "published": name, "source": printed.source}
        return found | {"attested": printed.attested, "at": at, "value": plain(value)}
    where = ", ".join(f"{key} = {each:,.6g}" for key, each in at.items())
    say(f"law {law.name}: {law.formula}")
    say(f"printed coefficients {name}: {printed.source}; how well attested: {printed.attested}")
    say(f"{law.measured} {value:.4f} at {where}; no interval, since the runs behind the coefficients are not at hand")
    return None


def _groups(law: Law, asked: Asked) -> tuple[list[Group], dict[str, str], list[str]]:
    """Return the groups of a table, why some cannot be made, and what was derived or left out."""
    if len(asked.tables) > 1:
        raise InputError(f"{len(asked.tables)} tables are given; a law of {law.measured} takes one")
    [path] = asked.tables
    if law.measured == "accuracy":
        return _accuracy_groups(law, asked, path)
    path = table_path(path)
    table = read_leverages(path)
    if table is not None:
        if asked.rows is not None:
            raise InputError("--rows is for a results table; a table of leverages is fitted whole")
        if asked.loss is not None:
            raise InputError(f"--loss {asked.loss}: a table of leverages has no loss")
        return leverage_groups(table, asked.options), {}, []
    frame, groups, reasons = read_tables([path]), [], {}
    loss = asked.loss or "loss_validation"
    for selection in select_rows(frame, asked.rows, loss, axes="every"):
        left_out = left_out_lines(selection.left_out)
        try:
            group = leverage_of_runs(selection, loss, asked.options)
            groups.append(group._replace(remarks=[*group.remarks, *left_out]))
        except ValueError as error:
            reasons[selection.router] = "; ".join([str(error), *left_out])
    return groups, reasons, frame.attrs.get("remarks", [])


def _accuracy_groups(law: Law, asked: Asked, path: Path) -> tuple[list[Group], dict[str, str], list[str]]:
    table = read_accuracies(path)
    rates = None if asked.tasks is None else read_guess_rates(asked.tasks)
    if rates is None and path == data_folder() / "overtraining_runs.csv":
        rates = read_guess_rates(released_table("downstream_tasks.csv"))
    options = asked.options
    groups = accuracy_groups(table, law, asked.task, asked.guess_rate, rates, asked.loss, asked.rows, options)
    return groups, {}, table.remarks


def _predicted(found: MeasuredFit, at: dict[str, float], level: float) -> tuple[Predicted, list[str]]:
    point = tuple(at.values())
    if found.ranges:
        return predict_group(found, point, level)
    value = float(found.law.predict(found.fit, *(np.array([each]) for each in point))[0])
    return Predicted(value, (math.nan, math.nan), (math.nan, math.nan)), ["by Huber's sum there are no intervals"]


def _fit_dict(entry: MeasuredFit) -> dict:
    fit, group = entry.fit, entry.group
    found = {
        "group": group.name,
        "training_set": group.part or None,
        "options": group.options,
        "rows": fit.rows,
        "blank": group.blank,
        "left_out": int(group.measured.size - fit.rows),
        "coefficients": {name: plain(value) for name, value in fit.coefficients._asdict().items()},
        "rmsle": plain(fit.rmsle),
        "criterion": fit.criterion,
        "objective": plain(fit.objective),
        "status": fit.status,
    }
    if hasattr(fit, "rmse"):
        found["rmse"] = plain(fit.rmse)
    ranges = {item.name: range_dict(item) for item in entry.ranges}
    held_out = None if entry.held_out is None else plain(entry.held_out.rmsle)
    return found | {"intervals": ranges or None, "left_out_error": held_out, "warnings": warnings_of(entry)}


def _title(entry: MeasuredFit) -> str:
    missing = entry.group.measured.size - entry.fit.rows
    title = f"{entry.group.label}: {entry.fit.rows} rows"
    if missing:
        title += f" ({missing} more are too near guessing, or 1)"
    if entry.group.blank:
        title += f" ({entry.group.blank} more are blank)"
    if "guess_rate" in entry.group.options:
        title += f", guessing is right in {entry.group.options['guess_rate']:g}"
    return f"{title}, optimum: {entry.fit.status}"


def _whole_table(entry: MeasuredFit, level: float):
    """Return a table of one fit: coefficients, intervals, and what these are worth."""
    from rich.table import Table

    table = Table("", "best fit", f"{100 * level:g} % interval", "the data", title=_title(entry), title_justify="left")
    ranges = {item.name: item for item in entry.ranges}
    for name, value in entry.fit.coefficients._asdict().items():
        item = ranges.get(name)
        ends = "" if item is None else shown_ends(item.low, item.high, missing=NOT_KNOWN)
        table.add_row(name, shown(value, missing=NOT_KNOWN), ends, "" if item is None else item.words)
    table.add_section()
    for name, error in _errors(entry).items():
        table.add_row(name, error)
    return table


def _lines_table(fits: list[MeasuredFit]):
    """Return a table of one line for each fit."""
    from rich.table import Table

    names = fits[0].fit.coefficients._fields
    table = Table("fit of", "rows", *names, *_errors(fits[0]), title="best fits", title_justify="left")
    for entry in fits:
        values = (shown(value, ".3g", NOT_KNOWN) for value in entry.fit.coefficients)
        table.add_row(entry.group.label, str(entry.fit.rows), *values, *_errors(entry).values())
    return table


def _errors(entry: MeasuredFit) -> dict[str, str]:
    """Return the errors of a fit, of its rows and of values left out, under the names of a reader."""
    kind = "RMSE" if entry.law.measured == "accuracy" else "RMSLE"
    found = {kind: shown(entry.fit.rmse if kind == "RMSE" else entry.fit.rmsle, ".4f", NOT_KNOWN)}
    if entry.held_out is not None:
        found[f"{kind}, each {entry.law.columns[0]} left out in turn"] = shown(entry.held_out.rmsle, ".4f", NOT_KNOWN)
    return found


def _predictions_table(report: MeasuredReport):
    from rich.table import Table

    level = f"{100 * report.level:g} %"
    table = Table("fit of", "rows", report.law.measured, f"{level}, the law", f"{level}, one more run")
    for entry, (said, _) in zip(report.fits, report.predictions, strict=True):
        ends = [shown_ends(*each, ".4f", NOT_KNOWN) for each in (said.law, said.run)]
        table.add_row(entry.group.label, str(entry.fit.rows), f"{said.value:.4f}", *ends)
    return table


def _short(labels) -> str:
    labels = list(labels)
    return ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")
