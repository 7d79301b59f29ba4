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


class Run(NamedTuple):
    """The last evaluation of a run, with defaults for columns that the table lacks."""

    hyper_id: int
    router: str
    size: int  # N, dense parameters
    experts: int
    k: int
    frequency: float | None  # R, share of the routed blocks; None if not given, and for dense runs
    flop_increase: float
    seed: int
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


def frame_of(runs: list[Run]) -> pandas.DataFrame:
    """Return runs as a frame, with the letters N, E and R as names."""
    frame = pandas.DataFrame(runs, columns=Run._fields).rename(columns={"size": "N", "experts": "E", "frequency": "R"})
    return frame.astype({"N": "Int64", "E": "Int64", "R": float, "flops": float, "loss": float})


def trusted(runs: list[Run]) -> list[Run]:
    """Return the runs that have a loss and are not in `paper.SUSPECTS`."""
    return [run for run in runs if run.loss is not None and not run.suspect]


def usual_frequency(runs: list[Run]) -> float | None:
    """Return the most common routing frequency of the routed runs with k = 1. A tie gives the larger frequency."""
    values = [run.frequency for run in runs if run.router != DENSE and run.k == 1 and run.frequency is not None]
    return max(set(values), key=lambda value: (values.count(value), value)) if values else None


def usual(runs: list[Run]) -> list[Run]:
    """Return the runs of the paper's main grid: k = 1, the usual routing frequency, no widened dense runs."""
    frequency = usual_frequency(runs)
    return [
        run
        for run in runs
        if (run.flop_increase == 1 if run.router == DENSE else run.k == 1 and run.frequency in (frequency, None))
    ]


def point_of(run: Run) -> tuple:
    """Return a key that is equal for runs whose rows differ only in the seed."""
    return run.router, run.size, run.experts, run.k, run.frequency, run.flop_increase


def seed_scatter(runs: list[Run], point=point_of) -> dict | None:
    """Return the scatter of log10 L over seeds: the standard deviation pooled over the points with several seeds.

    Args:
        point: returns the key of a run's point.

    Returns:
        {"deviation", "percent", "degrees", "runs", "sizes": [{"N", "deviation", "percent", "degrees"}], "equal_p",
        "points": [{"router", "N", "E", "seeds", "losses", "range", "deviation"}]}. None if no point has several seeds.
        The range and the deviation of a point are in nats. `equal_p` is the p-value of Bartlett's test: a small value
        means that the sizes have different scatter.
    """
    groups: dict = {}
    for run in trusted(runs):
        groups.setdefault(point(run), {}).setdefault(run.seed, run)
    points = [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]
    if not points:
        return None
    sizes = sorted({group[0].size for group in points})
    sums = {size: _squares([group for group in points if group[0].size == size]) for size in sizes}
    return {
        **_deviation(*map(sum, zip(*sums.values(), strict=True))),
        "runs": sum(map(len, points)),
        "sizes": [{"N": size} | _deviation(*each) for size, each in sums.items()],
        "equal_p": equal_variances(*zip(*sums.values(), strict=True)),
        "points": sorted(map(_seeds, points), key=lambda entry: (entry["router"], entry["N"], entry["E"])),
    }


def _squares(groups: list[list[Run]]) -> tuple[float, int]:
    logs = [np.log10([run.loss for run in group]) for group in groups]
    return sum(float(np.sum((each - each.mean()) ** 2)) for each in logs), sum(each.size - 1 for each in logs)


def _deviation(squares: float, degrees: int) -> dict:
    deviation = math.sqrt(squares / degrees)
    return {"deviation": deviation, "percent": log_percent(deviation), "degrees": degrees}


def _seeds(group: list[Run]) -> dict:
    losses = [run.loss for run in group]
    return {
        "router": group[0].router,
        "N": group[0].size,
        "E": group[0].experts,
        "seeds": [run.seed for run in group],
        "losses": losses,
        "range": max(losses) - min(losses),
        "deviation": float(np.std(losses, ddof=1)),
    }
