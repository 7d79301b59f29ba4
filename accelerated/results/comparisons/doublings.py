"""The gain of each step from one E to the next, at the same router and N."""

import math

import numpy as np

from ...tables.schema import DENSE
from .runs import Run, as_percent, mean_interval, usual


def doublings(runs: list[Run]) -> list[dict]:
    """Return the gain of each step from one E to the next, for each router, as a mean over the sizes with both E.

    Returns:
        [{"router", "steps": [{"from", "to", "percent": interval, "per_doubling", "sizes"}], "reached": [{"E",
        "percent", "low", "high", "sizes"}]}]. `per_doubling` is the mean change of log10 L divided by log2 of the step.
        `reached` is a ratio: the fall of log10 L from dense to an E, divided by the fall from dense to the largest E.
        It has the mean and the range over the sizes that have these three models.
    """
    groups: dict = {}
    for run in usual(runs):
        groups.setdefault((run.router, run.size, run.experts), []).append(run.loss)
    means, entries = {key: float(np.mean(each)) for key, each in groups.items()}, []
    for router in sorted({router for router, _, _ in means} - {DENSE}):
        losses = {(n, e): loss for (r, n, e), loss in means.items() if r in (router, DENSE)}
        counts = sorted({e for _, e in losses})
        sizes = sorted({n for n, _ in losses})
        steps = []
        for low, high in zip(counts, counts[1:], strict=False):
            both = [n for n in sizes if (n, low) in losses and (n, high) in losses]
            changes = [math.log10(losses[n, high] / losses[n, low]) for n in both]
            if changes:
                mean = mean_interval(changes)
                per_doubling = mean["mean"] / math.log2(high / low)
                steps.append(
                    {
                        "from": low,
                        "to": high,
                        "percent": as_percent(mean),
                        "per_doubling": per_doubling,
                        "sizes": len(both),
                    }
                )
        entries.append({"router": router, "steps": steps, "reached": _reached(losses, sizes, counts)})
    return entries


def _reached(losses: dict, sizes: list[int], counts: list[int]) -> list[dict]:
    top, entries = counts[-1], []
    for experts in counts[1:]:
        shares = [
            100 * math.log(losses[n, experts] / losses[n, 1]) / math.log(losses[n, top] / losses[n, 1])
            for n in sizes
            if {(n, 1), (n, experts), (n, top)} <= losses.keys() and losses[n, top] < losses[n, 1]
        ]
        if shares:
            entries.append(
                {
                    "E": experts,
                    "percent": float(np.mean(shares)),
                    "low": min(shares),
                    "high": max(shares),
                    "sizes": len(shares),
                }
            )
    return entries
