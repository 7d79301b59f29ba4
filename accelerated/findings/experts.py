"""How many experts are enough? The gain of each step from one E to the next, at the same router and N."""

import math
from itertools import pairwise

import numpy as np
import pandas

from ..results.blocks import Block, figure, span
from ..results.comparisons.runs import Run, as_percent, mean_interval, usual
from ..tables.schema import DENSE
from .finding import Finding, Report, router_name, table
from .style import points_of

COLUMNS = ["router", "before", "E", "sizes", "percent", "low", "high", "per_doubling"]
REACHED = ["reached", "reached_low", "reached_high", "reached_sizes"]


def steps(results: dict, runs: list[Run]) -> pandas.DataFrame:
    """Return the gain of each step in E for each router, as a mean over the sizes with both E.

    Returns:
        router, before (E before the step; 1 is dense), E, sizes, percent, low, high, per_doubling, reached,
        reached_low, reached_high, reached_sizes. `percent` is the change of the loss with its Student interval, and
        `per_doubling` the mean change of log10 L divided by log2 of the step. `reached` is the fall of log10 L from
        dense to E, in percent of the fall from dense to the largest E: the mean and the range over the sizes that have
        these three models and gain at the largest E.
    """
    rows = []
    for router in sorted({run.router for run in usual(runs)} - {DENSE}):
        losses = points_of(runs, router)
        counts = sorted({e for _, e in losses})
        for before, after in pairwise(counts):
            sizes = [n for n, e in losses if e == after]
            changes = [math.log10(losses[n, after] / losses[n, before]) for n in sizes if (n, before) in losses]
            falls = {n: math.log(losses[n, counts[-1]] / losses[n, 1]) for n in sizes
                     if {(n, 1), (n, counts[-1])} <= losses.keys()}  # fmt: skip
            shares = [100 * math.log(losses[n, after] / losses[n, 1]) / falls[n] for n in falls if falls[n] < 0]
            if not changes and not shares:
                continue
            mean = mean_interval(changes) or dict.fromkeys(("mean", "low", "high"), math.nan)
            change = [as_percent(mean)[name] for name in ("mean", "low", "high")]
            rows.append([router, before, after, len(changes), *change, mean["mean"] / math.log2(after / before)])
            rows[-1] += [np.mean(shares), min(shares), max(shares), len(shares)] if shares else [*[math.nan] * 3, 0]
    return pandas.DataFrame(rows, columns=[*COLUMNS, *REACHED]).astype({"low": float, "high": float})


def section(report: Report) -> list[Block]:
    columns = {
        "router": lambda row: router_name(row.router),
        "experts": lambda row: f"{row.before} → {row.E}",
        "sizes": lambda row: str(row.sizes),
        "change of the loss": lambda row: f"{figure(row.percent, '+.2f')} %",
        "95 % interval over sizes": lambda row: "not known" if row.low != row.low else f"{span(row, '+.2f')} %",
        "of the whole fall": lambda row: f"{figure(row.reached, '.0f')} %" * bool(row.reached_sizes),
        "range over sizes": lambda row: (
            f"{span((row.reached_low, row.reached_high), '.0f')} %" * bool(row.reached_sizes)
        ),
    }
    return [
        "Each row is the gain of a step in E, as a mean over the sizes with both values of E. *Of the whole fall*: the "
        "fall of log L from dense to the E after the step, as a share of its fall from dense to the largest E.",
        table(report.results["doublings"], columns, keys=2),
    ]


FINDING = Finding("doublings", "The gain of each step in E", steps, section)
