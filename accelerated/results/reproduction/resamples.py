"""Intervals of the law's constants by other methods: the jackknife by size, and the bootstrap of runs and of sizes.

The profile interval assumes independent residuals. If the law is slightly wrong at a size, all runs of this size share
a residual. Intervals from whole sizes, left out or resampled, include this error. With few sizes these methods are
rough. Some resamples give no value. The result has their number.
"""

import numpy as np

from ...laws.resampling import Bootstrap, bootstrap, bootstrap_weights, group_bootstrap_weights, jackknife
from ...laws.uncertainty import Interval, Quantity
from ..comparisons.runs import LEVEL
from ..encoding import constants
from .table import Table

SEED = 0
RESAMPLES = 1000


def other_intervals(table: Table, laws: list[dict]) -> list[dict]:
    """Return intervals for each router with a law: of c, E_start, E_max, N_cutoff, and slope and gain at the end sizes.

    Args:
        laws: result of `router_fits.router_laws`, in the order of the table's routers.

    Returns:
        [{"router", "seed", "resamples", "quantities": [{"name", "N", "E", "value", "profile", "jackknife", "runs",
        "sizes", "undefined_runs", "undefined_sizes"}], "undetermined_runs", "undetermined_sizes"}]. Each interval is
        [low, high], with NaN for a missing end. `undetermined` counts resamples that do not determine the law.
    """
    entries = []
    for (selection, fit), law in zip(table.fits(), laws, strict=True):
        if law["missing"] is None and len(law["sizes"]) > 1:
            columns = (*fit.rows.columns, fit.rows.measured)
            entries.append({"router": selection.router} | _resampled(columns, law))
    return entries


def _resampled(columns: tuple[np.ndarray, ...], law: dict) -> dict:
    size, experts, loss = columns
    wanted = _asked(law, float(experts.max()))
    quantities = [quantity for quantity, _ in wanted]
    random, sizes = np.random.default_rng(SEED), np.unique(size).size
    by_run = bootstrap_weights(random.random((RESAMPLES, size.size)))
    by_size = group_bootstrap_weights(random.random((RESAMPLES, sizes)), size)
    runs, groups = (bootstrap(size, experts, loss, weights, quantities, LEVEL) for weights in (by_run, by_size))
    knife = jackknife(size, experts, loss, size, quantities, LEVEL)
    entries = [
        {
            "name": quantity.name,
            "N": quantity.N,
            "E": quantity.E,
            "value": profile["value"],
            "profile": [profile["low"], profile["high"]],
            "jackknife": _ends(knife.intervals[i]),
            "runs": _ends(runs.intervals[i]),
            "sizes": _ends(groups.intervals[i]),
            "undefined_runs": runs.undefined[i],
            "undefined_sizes": groups.undefined[i],
        }
        for i, (quantity, profile) in enumerate(wanted)
    ]
    return {"seed": SEED, "resamples": RESAMPLES, "quantities": entries} | _undecided(runs, groups)


def _asked(law: dict, top: float) -> list[tuple[Quantity, dict]]:
    """Return coefficients, and slope and gain (at E = `top`) at the end sizes, each with its profile interval."""
    quantities = [(Quantity(name), constants(law)[name]) for name in ("c", "E_start", "E_max", "N_cutoff")]
    ends = (law["sizes"][0], law["sizes"][-1])
    quantities += [
        (Quantity("slope", N=float(n)), next(e for e in law["derived"]["slopes"] if e["N"] == n)) for n in ends
    ]
    return quantities + [
        (Quantity("gain", N=float(n), E=top), next(e for e in law["gains"] if e["N"] == n)) for n in ends
    ]


def _undecided(runs: Bootstrap, groups: Bootstrap) -> dict:
    return {
        "undetermined_runs": runs.undetermined,
        "undetermined_sizes": groups.undetermined,
        "unbounded_runs": _unbounded(runs),
        "unbounded_sizes": _unbounded(groups),
    }


def _ends(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _unbounded(resamples: Bootstrap) -> int:
    """Return the number of resamples without a finite E_max. Some are in the law's linear limit."""
    return sum(count for status, count in resamples.statuses.items() if "unbounded" in status or "linear" in status)
