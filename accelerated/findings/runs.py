"""The runs for comparisons: one evaluation per run, the main grid, and the scatter over seeds."""

import math
from typing import NamedTuple

import numpy as np
import pandas

from routelaws.reference.accounting import TABLE_SEQUENCE_LENGTH

from ..laws.uncertainty import student_quantile
from ..results.blocks import log_percent
from ..results.misfit import equal_variances
from ..tables.schema import DENSE

LEVEL = 0.95
"""Confidence level of every interval of the report."""

REACH = 1e9
"""A size of equal loss is shown only within this factor of the largest and the smallest model (our choice). If size
hardly changes the loss, a size of equal loss can exceed every float."""


def means(rows: pandas.DataFrame, by: list[str], sums: tuple[str, ...] = ("cells",)) -> pandas.DataFrame:
    """Return the mean of `change` in each group, with half its Student interval (`reach`; NaN for one row).

    Args:
        sums: columns that are added up in each group.
    """
    statistics = {"change": ("change", "mean"), "error": ("change", "sem"), "n": ("change", "size")}
    groups = rows.groupby(by).agg(**statistics, **{name: (name, "sum") for name in sums})
    reaches = [student_quantile(LEVEL, row.n - 1) * row.error if row.n > 1 else math.nan for row in groups.itertuples()]
    return groups.assign(reach=np.array(reaches, float)).reset_index()


def in_percent(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return rows with `change` and `reach` of log10 L in percent of L: percent, low, high."""
    ends = {"percent": rows["change"], "low": rows["change"] - rows["reach"], "high": rows["change"] + rows["reach"]}
    return rows.assign(**{name: change.map(log_percent) for name, change in ends.items()})


class TableRun(NamedTuple):
    """The last evaluation of a run, with defaults for columns that the table lacks."""

    hyper_id: int
    router: str
    size: int  # N, dense parameters
    experts: int
    k: int
    frequency: float | None  # R, share of the routed blocks; None if not given, and for dense runs
    flop_increase: float
    seed: int
    tokens: float | None  # of the training up to this evaluation
    total_parameters: float | None  # P
    flops: float | None  # F, TeraFLOPs of the forward pass of 2,048 tokens
    suspect: str  # reason not to trust the run, or ""
    loss: float | None  # main loss column, nats per token
    losses: dict[str, float | None]  # all loss columns

    @property
    def utilisation(self) -> float | None:
        """B, parameters per forward FLOP of one token."""
        if not self.flops or not self.total_parameters:
            return None
        return self.total_parameters * TABLE_SEQUENCE_LENGTH / (self.flops * 1e12)


CELL = ["router", "N", "E"]


def frame_of(runs: list[TableRun]) -> pandas.DataFrame:
    """Return runs as a frame, with the letters N, E and R as names."""
    frame = pandas.DataFrame(runs, columns=TableRun._fields).rename(
        columns={"size": "N", "experts": "E", "frequency": "R"}
    )
    return frame.astype({"N": "Int64", "E": "Int64", "R": float, "flops": float, "loss": float})


def trusted(runs: list[TableRun]) -> list[TableRun]:
    """Return the runs that have a loss and are not in `paper.SUSPECTS`."""
    return [run for run in runs if run.loss is not None and not run.suspect]


def usual_frequency(runs: list[TableRun]) -> float | None:
    """Return the most common routing frequency of the routed runs with k = 1. A tie gives the larger frequency."""
    values = [run.frequency for run in runs if run.router != DENSE and run.k == 1 and run.frequency is not None]
    return max(set(values), key=lambda value: (values.count(value), value)) if values else None


def usual(runs: list[TableRun]) -> list[TableRun]:
    """Return the runs of the paper's main grid: k = 1, the usual routing frequency, no widened dense runs."""
    frequency = usual_frequency(runs)
    return [
        run
        for run in runs
        if (run.flop_increase == 1 if run.router == DENSE else run.k == 1 and run.frequency in (frequency, None))
    ]


def point_of(run: TableRun) -> tuple:
    """Return a key that is equal for runs whose rows differ only in the seed."""
    return run.router, run.size, run.experts, run.k, run.frequency, run.flop_increase, run.tokens


class Repeated(NamedTuple):
    """The runs of one point that differ only in their seed; the range and the deviation of their losses in nats."""

    router: str
    N: int
    E: int
    seeds: list[int]
    losses: list[float]
    range: float
    deviation: float


class SizeScatter(NamedTuple):
    """The scatter over seeds at one size, as in `Scatter`."""

    N: int
    deviation: float
    percent: float
    degrees: int


class Scatter(NamedTuple):
    """The scatter of log10 L over seeds.

    Attributes:
        deviation, percent: the standard deviation, pooled over the points; in percent of the loss
        degrees: its degrees of freedom
        equal_p: p-value of Bartlett's test; if it is small, the sizes have different scatter
    """

    deviation: float
    percent: float
    degrees: int
    runs: int
    sizes: list[SizeScatter]
    equal_p: float
    points: list[Repeated]


def seed_scatter(runs: list[TableRun], point=point_of) -> Scatter | None:
    """Return the scatter over seeds; None if no point has several seeds.

    Args:
        point: returns the key of a run's point.
    """
    groups: dict = {}
    for run in trusted(runs):
        groups.setdefault(point(run), {}).setdefault(run.seed, run)
    points = [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]
    if not points:
        return None
    sums = {size: [0.0, 0] for size in sorted({group[0].size for group in points})}  # squares, degrees of freedom
    for group in points:
        logs = np.log10([run.loss for run in group])
        sums[group[0].size][0] += float(np.sum((logs - logs.mean()) ** 2))
        sums[group[0].size][1] += logs.size - 1
    squares, degrees = zip(*sums.values(), strict=True)
    sizes = [SizeScatter(size, *_deviation(*each)) for size, each in sums.items()]
    known = sum(map(len, points)), sizes, equal_variances(squares, degrees)
    return Scatter(
        *_deviation(sum(squares), sum(degrees)), *known, sorted(map(_seeds, points), key=lambda each: each[:3])
    )


def _deviation(squares: float, degrees: int) -> tuple[float, float, int]:
    deviation = math.sqrt(squares / degrees)
    return deviation, log_percent(deviation), degrees


def _seeds(group: list[TableRun]) -> Repeated:
    first, losses = group[0], [run.loss for run in group]
    ends = max(losses) - min(losses), float(np.std(losses, ddof=1))
    return Repeated(first.router, first.size, first.experts, [run.seed for run in group], losses, *ends)
