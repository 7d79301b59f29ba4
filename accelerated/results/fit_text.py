"""Fits and predictions for a reader, as lines and tables: `blocks` prints them, or makes Markdown or HTML of them."""

import numpy as np

from ..laws.catalogue import Law
from ..laws.held_out import HeldOut
from ..wording import by_reason, in_short, once
from .blocks import Block, Notes, Table
from .cautions import NO_FLOOR, has_no_floor, left_out_lines, misfit_lines
from .numbers import figure, span

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

AT_ONE = "b and d are values at N = 1, far below every model: judge routing by its slope at trained sizes"

BY_SIZE = "By size allows for errors that runs of one size share; the others take errors as independent."

WHOLE = 3
"""Tasks that are printed with every interval; of more, one line each."""

NAMES = 7
"""Routers or tasks that a line names; of more, the first six and how many there are besides."""


def fits_blocks(fits) -> list[Block]:
    """Return what `routelaws fit` prints of a `Fits`."""
    law = fits.law
    blocks = [*_law_lines(fits), *fits.remarks]
    if law.measured == "accuracy" and len(fits) > WHOLE:
        blocks += [_lines_table(fits), "intervals: --json, or one task at a time with --task"]
    else:
        blocks += [block for fit in fits for block in fit_blocks(fit)]
    blocks += _warnings(fits.not_fitted, fits.cautions)
    if any(item.words for fit in fits for item in fit.intervals) and fits.loss:
        blocks.append(WORDS)
    if any(fit.slopes for fit in fits):
        blocks.append(AT_ONE)
    return blocks + _floor(law, fits)


def fit_blocks(fit) -> list[Block]:
    """Return one `Fit`: its coefficients and slopes, where it misses, and which runs are left out."""
    blocks: list[Block] = [_coefficients_table(fit), Notes([_error_words(fit)])]
    if not fit.determined:
        blocks.append(f"{fit.name}: {NOT_DETERMINED}.")
    if fit.slopes:
        blocks.append(_slopes_table(fit))
    lines = [] if fit.misfit is None else misfit_lines(fit.misfit)
    lines += left_out_lines(fit.rows.left_out)
    return [*blocks, Notes(lines)] if lines else blocks


def _law_lines(fits) -> list[str]:
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


def _warnings(not_fitted: dict[str, str], cautions: dict[str, list[str]]) -> list[str]:
    """Return a line for each reason why a router has no fit, and for each caution, with the routers it concerns."""
    lines = [
        f"warning ({in_short(names, NAMES)}): not fitted, and left out here: {reason}"
        for reason, names in by_reason(not_fitted).items()
    ]
    return lines + [f"warning ({in_short(names, NAMES)}): {caution}" for caution, names in cautions.items()]


def _floor(law, fits) -> list[str]:
    misfits = [fit.misfit for fit in fits if fit.misfit is not None]
    return [NO_FLOOR] if misfits and has_no_floor(law, misfits) else []


def _title(fit) -> str:
    """Return what a fit is of, how many rows it has, and where its optimum lies."""
    title, rows = f"{fit.name}: {fit.best.rows} rows", fit.rows
    if missing := rows.measured.size - fit.best.rows:
        title += f" ({missing} more are too near guessing, or 1)"
    if rows.blank:
        title += f" ({rows.blank} more are blank)"
    if "guess_rate" in rows.options:
        title += f", guessing is right in {rows.options['guess_rate']:g}"
    return f"{title}, optimum: {fit.status}"


def _coefficients_table(fit) -> Table:
    """Return a table of one fit: what was found, its interval, what that is worth, and the errors."""
    worded = any(item.words for item in fit.intervals)
    heads = ["", "best fit"] + [f"{100 * fit.level:g} % interval"] * bool(fit.intervals) + ["the data"] * worded
    heads += ["by least squares"] * (fit.least_squares is not None)
    rows = [
        [f"{item.name} at N = {item.at:,.0f}", figure(item.value), span(item)]
        for item in fit.intervals
        if item.at is not None
    ]
    values = {name: float(value) for name, value in fit.coefficients.items() if np.ndim(value) == 0}
    for name, value in (values | dict([fit.cutoff] if fit.cutoff else [])).items():
        own = fit.interval(name)
        row = [name, figure(value) if fit.is_found(name, value) else "not determined"]
        if fit.intervals:
            row.append("" if own is None else span(own))
        if worded:
            row.append("" if own is None else own.words)
        if fit.least_squares is not None and name in values:
            row.append(figure(float(getattr(fit.least_squares.coefficients, name))))
        rows.append(row)
    return Table(heads, rows, _title(fit), words=(heads.index("the data"),) if worded else ())


def _error_words(fit) -> str:
    """Return the errors of a fit as a line."""
    beside = "" if fit.least_squares is None else f" (by least squares {figure(fit.least_squares.rmsle, '.5f')})"
    (kind, own), *others = _errors(fit).items()
    return f"{kind} {own}{beside}" + "".join(f"; {name} {error}" for name, error in others)


def _errors(fit) -> dict[str, str]:
    """Return the errors of a fit, of its rows and of what is left out in turn, under the names of a reader."""
    kind = "RMSE" if fit.law.measured == "accuracy" else "RMSLE"
    digits = ".4f" if fit.rows.runs is None else ".5f"
    found = {kind: figure(fit.best.rmse if kind == "RMSE" else fit.rmsle, digits)}
    if fit.rows.runs is None:
        kinds = {f"each {fit.law.columns[0]} left out in turn": fit.held_out}
    else:
        kinds = {"leave one out": fit.held_out, "leave one size out": fit.held_out_size}
    return found | {name: _held_out_cell(each, digits) for name, each in kinds.items() if each is not None}


def _held_out_cell(held_out: HeldOut, digits: str) -> str:
    """Return the error on rows that were left out, and how many of them a fit without them cannot predict."""
    missing = held_out.errors.size - held_out.predicted
    note = f" ({missing} of {held_out.errors.size} rows not predicted)" if missing else ""
    return figure(held_out.rmsle, digits) + note


def _slopes_table(fit) -> Table:
    """Return a table of the slopes at the sizes of the rows."""
    rows = [[f"{item.at:,.0f}", figure(item.value, ".4f"), span(item, ".4f"), item.words] for item in fit.slopes]
    heads = ["N", "b + c log10 N", f"{100 * fit.level:g} % interval", "the data"]
    return Table(heads, rows, f"{fit.name}: change of log10 L per tenfold effective experts", words=(3,))


def _lines_table(fits) -> Table:
    """Return a table of one line for each fit."""
    rows = []
    for fit in fits:
        values = [figure(value, ".3g") for value in fit.coefficients.values()]
        rows.append([fit.name, str(fit.best.rows), *values, *_errors(fit).values()])
    return Table(["fit of", "rows", *fits[0].coefficients, *_errors(fits[0])], rows, "best fits")


def prediction_blocks(found) -> list[Block]:
    """Return what `routelaws predict` prints of `Predictions`."""
    fits, predictions = found.fits, found.predictions
    if fits.loss:
        blocks: list[Block] = [f"law {fits.law.name}, {fits.loss}, at {found.where}", *fits.remarks]
    else:
        blocks = [*_law_lines(fits), *fits.remarks, f"at {found.where}"]
    blocks.append(_predictions_table(found))
    if any(each.by_size for each in predictions):
        blocks.append(BY_SIZE)
    for each in predictions:
        if each.dense:
            worth = f"worth a dense model of N = {figure(each.dense.value, '.3g')} ({span(each.dense, '.3g')})"
            blocks.append(f"{each.fit.name}: {worth}")
    blocks += _floor(fits.law, [each.fit for each in predictions])
    left_out = once((each.fit.name, left_out_lines(each.fit.rows.left_out)) for each in predictions)
    blocks += [f"{in_short(names, NAMES)}: {line}" for line, names in left_out.items()]
    return blocks + _warnings(found.not_fitted, once((each.fit.name, each.cautions) for each in predictions))


def _predictions_table(found) -> Table:
    """Return the predictions as a table; those by Huber's sum have no intervals, and least squares beside them."""
    fits, predictions = found.fits, found.predictions
    first, measured = ("router", "loss") if fits.loss else ("fit of", fits.law.measured)
    if any(each.least_squares is not None for each in predictions):
        heads = [first, "rows", f"{measured} by Huber's sum", "by least squares"]
        rows = [
            [each.fit.name, str(each.fit.best.rows), f"{each.value:.4f}", figure(each.least_squares, ".4f")]
            for each in predictions
        ]
        return Table(heads, rows)
    level, sizes = f"{100 * found.level:g} %", any(each.by_size for each in predictions)
    heads = [first, "rows", measured, f"{level}, the law", *[f"{level}, by size"] * sizes, f"{level}, one more run"]
    rows = []
    for each in predictions:
        ends = [each.law, *[each.by_size] * sizes, each.run]
        cells = ["" if item is None else span(item, ".4f") for item in ends]
        rows.append([each.fit.name, str(each.fit.best.rows), f"{each.value:.4f}", *cells])
    return Table(heads, rows)


def published_blocks(found) -> list[Block]:
    """Return what `routelaws predict` prints of a `PublishedPrediction`."""
    law, printed = found.law, found.law.published[found.name]
    where = ", ".join(f"{column} = {value:,.6g}" for column, value in found.at.items())
    return [
        f"law {law.name}: {law.formula}",
        f"printed coefficients {found.name}: {printed.source}; how well attested: {printed.attested}",
        f"{law.measured} {found.value:.4f} at {where}; no interval, since the runs behind the coefficients are not at "
        "hand",
    ]
