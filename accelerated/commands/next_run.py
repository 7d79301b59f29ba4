"""What `routelaws plan TABLE --next` does: which run, added to the table, narrows the interval of one number most."""

import math
from typing import NamedTuple

from routelaws.reference.laws.next_run import ON_LOG_SCALE, Asked

from ..errors import InputError
from ..findings.next_run import COLUMNS, NextRuns, Proposal, propose
from ..results.blocks import Block, Table
from ..results.encoding import plain
from ..results.fit import LEVEL
from ..results.numbers import count, exponent, figure
from ..results.runs import law_of, read, rows_of_released
from ..tables.released import released_table
from ..tables.several import named
from ..tables.table import of_router
from .flags import check_level

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
    runs = read(paths).where(rows).of_loss(loss_column)
    selections = of_router(runs.selections(chosen.axes), router)
    if len(selections) != 1:
        there = ", ".join(selection.router for selection in selections)
        raise InputError(f"--router is missing: there are several; there: {there}")
    [fit] = runs.fit(chosen, selections[0].router, level)
    try:
        found = propose(fit, _asked(fit, asked, n, experts), flops, level)
    except ValueError as error:
        raise InputError(f"{named(paths)}: router {fit.name}: {error}") from None
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
        wanted = {"dense_parameters": float(fit.rows.runs.frame["dense_parameter_count"].max())}
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
        "cautions"}. Runs stand with the narrowest first. An open end is "inf" or "-inf".
    """
    found = report.found
    return plain(
        {
            "law": found.fit.law.name,
            "table": report.table,
            "router": found.fit.name,
            "rows": found.fit.best.rows,
            "asked": {"name": found.asked.name, "at": found.asked.at},
            "level": report.level,
            "now": {"low": found.low, "high": found.high, "width": found.width},
            "runs": [_proposal(each, found) for each in found.proposals],
            "too_dear": found.too_dear,
            "note": BEST_GUESS,
            "cautions": found.fit.cautions,
        }
    )


def _proposal(each: Proposal, found: NextRuns) -> dict:
    """Return one run that could be added as the entry of the JSON object."""
    return {
        "at": dict(zip(found.fit.law.columns, each.run.at, strict=True)),
        "flops": each.flops,
        "low": each.run.low,
        "high": each.run.high,
        "width": each.run.width,
        "of_now": each.run.width / found.width if math.isfinite(found.width) else None,
        "trained": each.trained,
    }


def next_blocks(report: NextReport, top: int = 10) -> list[Block]:
    """Return what `routelaws plan --next` prints; `top` runs are shown."""
    found = report.found
    asked, fit = found.asked, found.fit
    where = ", ".join(f"{letter} = {value:.6g}" for letter, value in zip("NE", asked.at, strict=False))
    blocks: list[Block] = [
        f"{asked.name}{' at ' if where else ''}{where}, {fit.name}, law {fit.law.name}",
        f"now, from the {fit.best.rows} runs of {report.table}: {_interval(found)}",
        _runs_table(report, top),
    ]
    if len(found.proposals) > top:
        blocks.append(f"{top} of {len(found.proposals)} runs are shown; --top shows more")
    if found.too_dear:
        blocks.append(f"{found.too_dear} runs cost more than {exponent(report.flops)} FLOPs")
    if not any(math.isfinite(each.run.width) for each in found.proposals):
        blocks.append("no single run gives the interval two ends")
    return [*blocks, BEST_GUESS, *(f"warning: {caution}" for caution in fit.cautions)]


def _runs_table(report: NextReport, top: int) -> Table:
    """Return a table of the runs that could be added, the narrowest interval first."""
    found = report.found
    unit = "width, decades" if found.asked.name in ON_LOG_SCALE else "width"
    heads = ["", "N", "E", "FLOPs", f"{100 * report.level:g} % with the run", unit, "of now", "in the table"]
    rows = [[str(i + 1), *_cells(each, found.width)] for i, each in enumerate(found.proposals[:top])]
    return Table(heads, rows, keys=3)


def _cells(each: Proposal, now: float) -> list[str]:
    """Return one run as text: N, E, cost, interval, its width, that beside the width `now`, and whether it is new."""
    run = each.run
    return [
        count(run.at[0]),
        f"{run.at[1]:g}" if len(run.at) > 1 else "1",
        "not known" if math.isnan(each.flops) else exponent(each.flops),
        _interval(run),
        f"{run.width:.3g}" if math.isfinite(run.width) else "open",
        f"{100 * run.width / now:.0f} %" if math.isfinite(now + run.width) else "",
        "again" if each.trained else "new",
    ]


def _interval(ends) -> str:
    """Return an interval as text; an end that is open says so."""
    low, high = ("no end" if math.isinf(end) else figure(end, ".4g", "not known") for end in (ends.low, ends.high))
    return f"{low} to {high}"
