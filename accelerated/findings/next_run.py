"""Which run to add to a table: every size and number of experts that could be trained, and what each makes of a number.

The sizes are those of the table and twice its largest, the numbers of experts those of the table, 1, and twice the
largest. What a run would cost is read from the table, see `model_costs`.
"""

from typing import NamedTuple

import numpy as np

from routelaws.reference.laws.next_run import Asked, NextRun, interval_of, next_runs

from ..results.fit import LEVEL, Fit
from ..results.rows import TRAINING
from .model_costs import costs_of

COLUMNS = ("dense_parameters", "num_experts")


class Proposal(NamedTuple):
    """A run that could be added."""

    run: NextRun
    flops: float  # of its training
    trained: bool  # whether the table has a run of this size and number of experts already


class NextRuns(NamedTuple):
    """What each run would make of one number."""

    fit: Fit
    asked: Asked
    low: float  # of the interval now
    high: float
    width: float
    proposals: list[Proposal]  # the narrowest first
    too_dear: int  # runs that cost more than is allowed


def propose(fit: Fit, asked: Asked, flops: float = np.inf, level: float = LEVEL) -> NextRuns:
    """Return every run that could be added to the rows of a fit, the one that narrows the interval most first.

    Args:
        fit: by least squares; of a law in N, or in N and E.
        asked: the number.
        flops: the most that a run may cost.
        level: of the interval.

    Raises:
        ValueError: the law is one in other columns, it has no such number, or no run costs so little.
    """
    law, frame = fit.law, fit.rows.runs.frame
    if not set(law.columns) <= set(COLUMNS):
        raise ValueError(f"the law {law.name} is one in {', '.join(law.columns)}; a next run needs one in N and E")
    low, high, width = interval_of(law, fit.best, fit.rows.columns, fit.rows.measured, asked, level)
    costs, there = {}, set(zip(frame["dense_parameter_count"], frame["num_experts"], strict=True))
    cells = [(n, e) for n in _with_twice(frame["dense_parameter_count"]) for e in _experts(fit)]
    for n, e in cells:
        found = costs_of(frame, e)
        costs[n, e] = float(TRAINING * found.flops(n) * found.tokens(n)) if found.tokens else np.nan
    paid = [cell for cell in cells if not costs[cell] > flops]
    if not paid:
        raise ValueError(f"{flops:.3g} FLOPs: no run costs so little; the cheapest takes {min(costs.values()):.3g}")
    runs = next_runs(
        law, fit.rows.columns, fit.rows.measured, [cell[: len(law.columns)] for cell in paid], asked, level
    )
    proposals = []
    for run in runs:
        cell = run.at if len(run.at) == 2 else (*run.at, 1.0)
        proposals.append(Proposal(run, costs[cell], cell in there))
    return NextRuns(fit, asked, low, high, width, proposals, len(cells) - len(paid))


def _experts(fit: Fit) -> list[float]:
    if "num_experts" not in fit.law.columns:
        return [1.0]
    return sorted({1.0, *_with_twice(fit.rows.runs.frame["num_experts"])})


def _with_twice(values) -> list[float]:
    known = sorted({float(value) for value in values})
    return [*known, 2 * known[-1]]
