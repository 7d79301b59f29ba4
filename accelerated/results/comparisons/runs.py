"""The runs that comparisons take: one evaluation of each, the main grid among them, and what seeds alone change."""

from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_SEQUENCE_LENGTH

from ...tables.schema import DENSE
from ..estimates import percent


class Run(NamedTuple):
    """The last evaluation of one run. Columns that the table lacks have their default."""

    hyper_id: int
    router: str
    size: int  # N, dense parameters
    experts: int
    k: int
    frequency: float | None  # R, share of the blocks that are routed; None where not given, and for dense runs
    flop_increase: float
    seed: int
    total_parameters: float | None  # P
    flops: float | None  # F, TeraFLOPs of the forward pass of 2,048 tokens
    suspect: str  # why it must not be trusted, or ""
    loss: float | None  # of the main loss column, nats per token
    losses: dict[str, float | None]  # all loss columns

    @property
    def utilisation(self) -> float | None:
        """B, parameters per forward FLOP of one token."""
        if not self.flops or not self.total_parameters:
            return None
        return self.total_parameters * TABLE_SEQUENCE_LENGTH / (self.flops * 1e12)


def trusted(runs: list[Run]) -> list[Run]:
    """Return the runs with a loss whose label nothing speaks against."""
    return [run for run in runs if run.loss is not None and not run.suspect]


def usual_frequency(runs: list[Run]) -> float | None:
    """Return the commonest routing frequency of the routed runs with k = 1, the larger one of a tie."""
    values = [run.frequency for run in runs if run.router != DENSE and run.k == 1 and run.frequency is not None]
    return max(set(values), key=lambda value: (values.count(value), value)) if values else None


def usual(runs: list[Run]) -> list[Run]:
    """Return the runs of the paper's main grid: k 1, the usual routing frequency, dense ones no wider than N says."""
    frequency = usual_frequency(runs)
    return [
        run
        for run in runs
        if (run.flop_increase == 1 if run.router == DENSE else run.k == 1 and run.frequency in (frequency, None))
    ]


def twice(runs: list[Run]) -> list[list[Run]]:
    """Return the groups of runs that agree in everything, the seed included, but are separate runs."""
    groups: dict = {}
    for run in runs:
        key = (run.router, run.size, run.experts, run.k, run.frequency, run.flop_increase, run.seed)
        groups.setdefault(key, []).append(run)
    return [group for group in groups.values() if len(group) > 1]


def point_of(run: Run) -> tuple:
    """Return what runs have in common that differ in their seed alone, as far as a table tells."""
    return run.router, run.size, run.experts, run.k, run.frequency, run.flop_increase


def seed_scatter(runs: list[Run], point=point_of) -> dict | None:
    """Return how far log10 L scatters over seeds: the standard deviation pooled over the points that have several.

    Args:
        runs: of a table.
        point: returns, for a run, what all runs of its point have in common.

    Returns:
        {"deviation", "percent", "degrees", "runs", "points": [{"router", "N", "E", "seeds", "losses", "range",
        "deviation"}]}, the range and the deviation of a point in nats; None if no point has several seeds.
    """
    groups: dict = {}
    for run in trusted(runs):
        groups.setdefault(point(run), {}).setdefault(run.seed, run)
    points = [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]
    if not points:
        return None
    logs = [np.log10([run.loss for run in group]) for group in points]
    degrees = sum(values.size - 1 for values in logs)
    deviation = float(np.sqrt(sum(np.sum((values - values.mean()) ** 2) for values in logs) / degrees))
    return {
        "deviation": deviation,
        "percent": percent(deviation),
        "degrees": degrees,
        "runs": sum(map(len, points)),
        "points": sorted(map(_seeds, points), key=lambda entry: (entry["router"], entry["N"], entry["E"])),
    }


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
