"""Choose the next run for a table: for each possible run, predict the interval of a number after this run.

The sizes of the possible runs are the sizes of the table and twice its largest size. Their numbers of experts are 1,
the numbers of the table, and twice its largest number; with a law that uses tokens, their tokens are chosen like their
sizes. The costs come from the table (see `options.costs_of`).
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.plans.next_run import ON_LOG_SCALE, Asked, NextRun, interval_of, next_runs

from ..blocks import NOT_DETERMINED, Block, Table, count, exponent, figure, percent, shown_as, undetermined
from ..encoding import plain
from ..fit import LEVEL, Fit
from ..prediction import LETTERS
from ..rows import TRAINING
from .options import costs_of, law_point, tokens_of_runs

FLAGS = {"dense_parameters": "--n", "num_experts": "--experts", "tokens": "--tokens"}
"""The numbers that define a run, and the flag of each."""

SUPPORTED = {*FLAGS, "active_parameters"}
"""Columns of the supported laws."""

BEST_GUESS = (
    "For each proposed run, the law is fitted again with the loss that it predicts for this run. The result is an "
    "estimate. It assumes that the form of the law is right, so it does not show which runs would test this form. Any "
    "additional row narrows every interval a little."
)


class Cell(NamedTuple):
    """A possible run; N counts the embedding as the table does."""

    size: float
    experts: float
    tokens: float | None  # None if the law does not use them


class Proposal(NamedTuple):
    run: NextRun
    cell: Cell
    flops: float  # training FLOPs
    trained: bool  # whether the table already has this cell


@shown_as(lambda runs: next_blocks(runs))
class NextRuns(NamedTuple):
    """Possible runs, each with the interval of the requested number after this run.

    Attributes:
        now: the interval from the current rows alone
        proposals: narrowest interval first
        flops: largest cost of a run
        too_dear: number of runs with a larger cost
    """

    fit: Fit
    table: str
    asked: Asked
    level: float
    now: NextRun
    proposals: list[Proposal]
    flops: float
    too_dear: int

    def to_dict(self) -> dict:
        """Return the output of `routelaws plan --next --json`.

        Returns:
            {"law", "table", "router", "rows", "asked": {"name", "at"}, "level", "now": {"low", "high", "width"},
            "runs": [{"at": {column: number}, "flops", "low", "high", "width", "of_now", "trained"}], "too_dear",
            "note", "cautions"}. Runs are sorted by width. An open end is "inf" or "-inf".
        """
        fit, head = self.fit, {"law": self.fit.law.name, "table": self.table}
        head |= {"router": fit.name, "rows": fit.best.rows, "asked": self.asked, "level": self.level}
        runs = {"now": _ends(self.now), "runs": [self._proposal(each) for each in self.proposals]}
        return plain(head | runs | {"too_dear": self.too_dear, "note": BEST_GUESS, "cautions": fit.cautions})

    def _proposal(self, each: Proposal) -> dict:
        at = dict(zip(self.fit.law.columns, each.run.at, strict=True))
        of_now = each.run.width / self.now.width if math.isfinite(self.now.width) else None
        return {"at": at, "flops": each.flops} | _ends(each.run) | {"of_now": of_now, "trained": each.trained}


def propose(
    fit: Fit, table: str, name: str, at: dict[str, float | None], flops: float = math.inf, level: float = LEVEL
) -> NextRuns:
    """Return every possible run for the rows of a fit, narrowest interval first.

    Args:
        fit: a fit by least squares of a law that uses N, and perhaps E and tokens.
        name: "prediction", which takes those numbers; "slope", which takes N (default: the largest size); or a
            coefficient or derived number of the law.
        at: {name of `FLAGS`: number or None}.
        flops: largest cost of a run.
        level: confidence level of the interval, between 0 and 1.

    Raises:
        ValueError: the law has other columns or no such number, or every run costs more than `flops`.
    """
    law, frame, rows = fit.law, fit.rows.runs.frame, fit.rows
    if not set(law.columns) <= SUPPORTED:
        raise ValueError(
            f"the law {law.name} uses {', '.join(law.columns)}; --next needs a law that uses N, E and tokens"
        )
    quantity = _asked(fit, name, at)
    now = NextRun((), *interval_of(law, fit.best, rows.columns, rows.measured, quantity, level))
    costs = {cell: _cost(frame, cell) for cell in _cells(fit)}
    paid = {_point(fit, cell): cell for cell, cost in costs.items() if not cost > flops}
    if not paid:
        raise ValueError(f"{flops:.3g} FLOPs are too few for any run; the cheapest run costs {min(costs.values()):.3g}")
    proposals, there = [], set(_runs_of(fit))
    for run in next_runs(law, rows.columns, rows.measured, list(paid), quantity, level):
        cell = paid[run.at]
        proposals.append(Proposal(run, cell, costs[cell], cell in there))
    return NextRuns(fit, table, quantity, level, now, proposals, flops, len(costs) - len(paid))


def _asked(fit: Fit, name: str, at: dict[str, float | None]) -> Asked:
    """Return the requested number with its point. A point that does not fit the number raises ValueError."""
    frame, wanted = fit.rows.runs.frame, {}
    if name == "prediction":
        used = ["dense_parameters", *(column for column in ("num_experts", "tokens") if column in fit.law.columns)]
        wanted = {column: at.get(column) for column in used}
    if name == "slope":
        n = at.get("dense_parameters")
        wanted = {"dense_parameters": float(frame["dense_parameter_count"].max()) if n is None else n}
    for column, value in wanted.items():
        if value is None:
            raise ValueError(f"--next {name} needs {FLAGS[column]}")
    for column, value in at.items():
        if value is not None and column not in wanted:
            raise ValueError(f"{FLAGS[column]} {value:g}: it cannot be used with --next {name}; leave it out")
    if name == "prediction":
        size, experts, tokens = (wanted.get(column) for column in FLAGS)
        return Asked(name, _point(fit, Cell(size, experts or 1.0, tokens)))
    return Asked(name, tuple(float(value) for value in wanted.values()))


def _point(fit: Fit, cell: Cell) -> tuple[float, ...]:
    """Return the columns of the law at a run."""
    kind, tokens = (cell.experts, 1.0, 1.0), math.nan if cell.tokens is None else cell.tokens
    columns = law_point(fit.law, costs_of(fit.rows.runs.frame, cell.experts), kind, cell.size, tokens)
    return tuple(float(column[0]) for column in columns.values())


def _runs_of(fit: Fit) -> list[Cell]:
    """Return the runs of the table."""
    frame = fit.rows.runs.frame
    tokens = tokens_of_runs(frame) if "tokens" in fit.law.columns else [None] * len(frame)
    return [Cell(*run) for run in zip(frame["dense_parameter_count"], frame["num_experts"], tokens, strict=True)]


def _cells(fit: Fit) -> list[Cell]:
    sizes, experts, tokens = (list(dict.fromkeys(values)) for values in zip(*_runs_of(fit), strict=True))
    experts = sorted({1.0, *_with_twice(experts)}) if "num_experts" in fit.law.columns else [1.0]
    tokens = tokens if tokens == [None] else _with_twice(tokens)
    return [Cell(*each) for each in itertools.product(_with_twice(sizes), experts, tokens)]


def _with_twice(values) -> list[float]:
    known = sorted({float(value) for value in values})
    return [*known, 2 * known[-1]]


def _cost(frame, cell: Cell) -> float:
    costs = costs_of(frame, cell.experts)
    if cell.tokens is None and not costs.tokens:
        return np.nan
    tokens = costs.tokens(cell.size) if cell.tokens is None else cell.tokens
    return float(TRAINING * costs.flops(cell.size) * tokens)


def _ends(run: NextRun) -> dict:
    return {"low": run.low, "high": run.high, "width": run.width}


def next_blocks(found: NextRuns, top: int = 10) -> list[Block]:
    """Return the output of `routelaws plan --next` with the first `top` runs."""
    quantity, fit = found.asked, found.fit
    letters = [LETTERS[column] for column in fit.law.columns] if quantity.name == "prediction" else "N"
    where = ", ".join(f"{letter} = {value:.6g}" for letter, value in zip(letters, quantity.at, strict=False))
    blocks: list[Block] = [
        f"{quantity.name}{' at ' if where else ''}{where}, {fit.name}, law {fit.law.name}",
        f"interval now, for independent errors, from the {fit.best.rows} runs of {found.table}: {_interval(found.now)}",
        _runs_table(found, top),
    ]
    if len(found.proposals) > top:
        blocks.append(f"{top} of {len(found.proposals)} runs are shown; --top shows more")
    if found.too_dear:
        blocks.append(f"{found.too_dear} runs cost more than {exponent(found.flops)} FLOPs")
    if not any(math.isfinite(each.run.width) for each in found.proposals):
        blocks.append("no single run makes both ends of the interval finite")
    return [*blocks, BEST_GUESS, *(f"warning: {caution}" for caution in fit.cautions)]


def _runs_table(found: NextRuns, top: int) -> Table:
    unit = "width, decades" if found.asked.name in ON_LOG_SCALE else "width"
    tokens = ["tokens"] if found.proposals and found.proposals[0].cell.tokens else []
    heads = ["", "N", "E", *tokens, "FLOPs", f"{percent(found.level)} with the run", unit, "relative width"]
    rows = [[str(i + 1), *_row(each, found.now.width)] for i, each in enumerate(found.proposals[:top])]
    return Table([*heads, "in the table"], rows, keys=3 + len(tokens))


def _row(each: Proposal, now: float) -> list[str]:
    run, (size, experts, tokens) = each.run, each.cell
    return [
        count(size),
        f"{experts:g}",
        *([count(tokens)] if tokens else []),
        "not known" if math.isnan(each.flops) else exponent(each.flops),
        _interval(run),
        f"{run.width:.3g}" if math.isfinite(run.width) else "open",
        percent(run.width / now, ".0f") if math.isfinite(now + run.width) else "",
        "again" if each.trained else "new",
    ]


def _interval(run: NextRun) -> str:
    if undetermined(run.low, run.high):
        return NOT_DETERMINED
    low, high = ("no end" if math.isinf(end) else figure(end, ".4g", "not known") for end in (run.low, run.high))
    return f"{low} to {high}"
