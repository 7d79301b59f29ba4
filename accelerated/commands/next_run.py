"""What `routelaws plan TABLE --next` does: which run, added to the table, narrows the interval of one number most."""

import functools
import math
from typing import NamedTuple

from ..errors import InputError
from ..findings.law_fits import LEVEL, fit_law, fit_some
from ..findings.next_run import COLUMNS, NextRuns, Proposal, propose
from ..laws.next_run import ON_LOG_SCALE, Asked
from ..report.plan_words import amount, exponent
from ..tables.released import released_table
from ..tables.several import named, naming, read_tables
from ..tables.table import of_router, select_rows
from .fit import warnings_of
from .flags import check_level
from .laws import law_of, rows_of_released
from .shown import plain
from .terminal import Terminal

BEST_GUESS = (
    "Each run is given the loss that the law predicts for it, and the law is fitted again: a guess of what the run "
    "would do, not a promise. It trusts the form of the law, and says nothing of runs that could show the form to be "
    "wrong. One row more narrows every interval by a little, wherever the run is."
)


class NextReport(NamedTuple):
    """The runs that could be added to one router's table."""

    table: str
    level: float
    found: NextRuns
    flops: float  # the most that a run may cost


def check_flags(n: float | None, experts: int | None, level: float) -> None:
    """Raise InputError where a flag is wrong whatever the table says."""
    check_level(level)
    for flag, value, least in (("--n", n, 0.0), ("--experts", experts, 1.0)):
        if value is not None and not (math.isfinite(value) and value > 0 and value >= least):
            raise InputError(f"{flag} {value:g}: needed: a finite number {'at least 1' if least else 'above 0'}")


def next_report(
    paths,
    asked: str,
    n: float | None = None,
    experts: int | None = None,
    router: str | None = None,
    law: str = "routed-bounded",
    loss_column: str = "loss_validation",
    rows: str | None = None,
    level: float = LEVEL,
    flops: float = math.inf,
) -> NextReport:
    """Look for the run that narrows one interval most.

    Args:
        paths: a table or several, see `read_tables`; none for the released table and its rows clark.
        asked: "prediction", which takes n and experts; "slope", which takes n, or else that of the largest size; or a
            coefficient or derived number of the law.
        n, experts: N and E.
        router: its router_type; not needed where the table has one.
        law, loss_column, rows: as `fit_report`.
        level: of the interval, between 0 and 1.
        flops: the most that the run may cost.

    Raises:
        InputError: one line that says what is wrong.
    """
    check_flags(n, experts, level)
    chosen = law_of(law, "plan --next")
    if not paths:
        paths, rows = (released_table(),), rows_of_released(chosen, rows)
    selections = of_router(select_rows(read_tables(paths), rows, loss_column, axes=chosen.axes), router)
    if len(selections) != 1:
        there = ", ".join(selection.router for selection in selections)
        raise InputError(f"--router is missing: there are several; there: {there}")
    with naming(paths):
        fitted = functools.partial(fit_law, name=chosen, loss_column=loss_column, level=level)
        [fit], _ = fit_some(selections, loss_column, fitted)
        try:
            found = propose(fit, _asked(fit, asked, n, experts), flops, level)
        except ValueError as error:
            raise InputError(f"router {fit.selection.router}: {error}") from None
    return NextReport(named(paths), level, found, flops)


def _asked(fit, name: str, n: float | None, experts: int | None) -> Asked:
    """Return the number that is asked for, with its point; ValueError where the point does not belong to it."""
    flags = dict(zip(COLUMNS, ("--n", "--experts"), strict=True))
    given = dict(zip(COLUMNS, (n, experts), strict=True))
    needs = {
        "prediction": {column: given.get(column) for column in fit.law.columns},
        "slope": {"dense_parameters": n},
    }
    wanted = needs.get(name, {})
    if name == "slope" and n is None:
        wanted = {"dense_parameters": float(fit.selection.frame["dense_parameter_count"].max())}
    for column, value in wanted.items():
        if value is None:
            raise ValueError(f"--next {name} needs {flags.get(column, 'a law in N and E')}")
    for column, value in given.items():
        if value is not None and column not in wanted:
            raise ValueError(f"{flags[column]} {value:g}: --next {name} does not take it")
    return Asked(name, tuple(float(value) for value in wanted.values()))


def as_dict(report: NextReport) -> dict:
    """Return what `routelaws plan --next --json` prints.

    Returns:
        {"law", "table", "router", "rows", "asked": {"name", "at"}, "level", "now": {"low", "high", "width"}, "runs":
        [{"at": {column: number}, "flops", "low", "high", "width", "of_now", "trained"}], "too_dear", "note",
        "warnings"}. Runs stand with the narrowest first. An open end, and the width of an open interval, is None.
    """
    found = report.found
    return {
        "law": found.fit.law.name,
        "table": report.table,
        "router": found.fit.selection.router,
        "rows": found.fit.fit.rows,
        "asked": {"name": found.asked.name, "at": list(found.asked.at)},
        "level": report.level,
        "now": {"low": plain(found.low), "high": plain(found.high), "width": plain(found.width)},
        "runs": [_proposal(each, found) for each in found.proposals],
        "too_dear": found.too_dear,
        "note": BEST_GUESS,
        "warnings": warnings_of(found.fit),
    }


def _proposal(each: Proposal, found: NextRuns) -> dict:
    """Return one run that could be added as the entry of the JSON object."""
    return {
        "at": dict(zip(found.fit.law.columns, each.run.at, strict=True)),
        "flops": plain(each.flops),
        "low": plain(each.run.low),
        "high": plain(each.run.high),
        "width": plain(each.run.width),
        "of_now": plain(each.run.width / found.width) if math.isfinite(found.width) else None,
        "trained": each.trained,
    }


def print_next(report: NextReport, top: int = 10, console=None) -> None:
    """Print the runs for a reader.

    Args:
        report: of `next_report`.
        top: runs that are shown.
        console: a rich Console; a new one on standard output if None.
    """

    console, found = console or Terminal(), report.found
    asked, router = found.asked, found.fit.selection.router
    where = ", ".join(f"{letter} = {value:.6g}" for letter, value in zip("NE", asked.at, strict=False))
    console.print(f"{asked.name}{' at ' if where else ''}{where}, {router}, law {found.fit.law.name}", markup=False)
    rows = found.fit.fit.rows
    console.print(f"now, from the {rows} runs of {report.table}: {_interval(found)}", markup=False)
    console.print(_runs_table(report, top))
    if len(found.proposals) > top:
        console.print(f"{top} of {len(found.proposals)} runs are shown; --top shows more", markup=False)
    if found.too_dear:
        console.print(f"{found.too_dear} runs cost more than {exponent(report.flops)} FLOPs", markup=False)
    if not any(math.isfinite(each.run.width) for each in found.proposals):
        console.print("no single run gives the interval two ends", markup=False)
    console.print(BEST_GUESS, markup=False)
    for warning in warnings_of(found.fit):
        console.print(f"warning: {warning}", markup=False)


def _runs_table(report: NextReport, top: int):
    """Return a table of the runs that could be added, the narrowest interval first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = report.found
    unit = "width, decades" if found.asked.name in ON_LOG_SCALE else "width"
    heads = ["", "N", "E", "FLOPs", f"{100 * report.level:g} % with the run", unit, "of now", "in the table"]
    table = Table(*heads, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for i, each in enumerate(found.proposals[:top]):
        table.add_row(str(i + 1), *_cells(each, found.width))
    return table


def _cells(each: Proposal, now: float) -> list[str]:
    """Return one run as text: N, E, cost, interval, its width, that beside the width `now`, and whether it is new."""
    run = each.run
    return [
        amount(run.at[0]),
        f"{run.at[1]:g}" if len(run.at) > 1 else "1",
        "not known" if math.isnan(each.flops) else exponent(each.flops),
        _interval(run),
        f"{run.width:.3g}" if math.isfinite(run.width) else "open",
        f"{100 * run.width / now:.0f} %" if math.isfinite(now + run.width) else "",
        "again" if each.trained else "new",
    ]


def _interval(ends) -> str:
    """Return an interval as text; an end that is open says so."""
    low, high = (
        "not known" if math.isnan(end) else f"{end:.4g}" if math.isfinite(end) else "no end"
        for end in (ends.low, ends.high)
    )
    return f"{low} to {high}"
