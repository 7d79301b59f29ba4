"""Compare routers at the same N and E, and with the dense model of the same loss.

The difference of two routers at the same (N, E) has three units: nats, percent, and a ratio of *dense sizes of equal
loss*. A dense size of equal loss is the N at which the power law of the dense runs has the measured loss. This size
needs no law of routing, but it extrapolates if it is beyond the largest dense run.
"""

import math

import numpy as np

from ...laws.uncertainty import student_quantile
from ...tables.schema import DENSE
from ..blocks import log_percent, ten_to
from ..misfit import CLEAR
from .runs import LEVEL, Run, as_percent, mean_interval, usual


def compare_routers(runs: list[Run], alpha: float | None, scatter: dict | None) -> list[dict]:
    """Compare each pair of routers at each (N, E) that both have.

    Args:
        alpha: exponent of the dense power law, above 0; None without a law.
        scatter: result of `rows.seed_scatter`; None if no seed was repeated.

    Returns:
        [{"first", "second", "cells": [{"N", "E", "first_loss", "second_loss", "nats", "nats_reach", "percent",
        "percent_reach", "size_ratio"}], "turned", "overall", "sizes": [{"N", ...}], "experts": [{"E", ...}]}].
        Differences are first minus second, so they are negative if the first router has the lower loss. `size_ratio` is
        the first router's dense size of equal loss divided by the second router's. The two entries that end in "reach"
        are half the 95 % interval of a difference, from the measured scatter over seeds. `turned` counts the cells
        whose sign differs from the sign of the mean. `overall`, `sizes` and `experts` have means of the percentages
        with Student intervals: `overall` over the sizes (each counted once), `sizes` over the E of each size, and
        `experts` over the sizes of each E.
    """
    losses = _losses(runs)
    means, seeds = _means(losses), {key: len(each) for key, each in losses.items()}
    routers = sorted({router for router, _, _ in means} - {DENSE})
    return [
        _pair(means, seeds, first, second, alpha, scatter)
        for i, first in enumerate(routers)
        for second in routers[i + 1 :]
        if any((first, n, e) in means and (second, n, e) in means for _, n, e in means)
    ]


def doublings(runs: list[Run]) -> list[dict]:
    """Return the gain of each step from one E to the next, for each router, as a mean over the sizes with both E.

    Returns:
        [{"router", "steps": [{"from", "to", "percent": interval, "per_doubling", "sizes"}], "reached": [{"E",
        "percent", "low", "high", "sizes"}]}]. `per_doubling` is the mean change of log10 L divided by log2 of the step.
        `reached` is a ratio: the fall of log10 L from dense to an E, divided by the fall from dense to the largest E.
        It has the mean and the range over the sizes that have these three models.
    """
    means = _means(_losses(runs))
    entries = []
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


def equal_dense_size(loss: float, line: dict) -> float:
    """Return the size of the dense model with this loss, by the dense power law.

    Args:
        loss: nats per token, above 0.
        line: {"intercept", "slope"} of log10 L = intercept + slope · log10 N, with a slope below 0. The form
            (N_c/N)^alpha is not used, because N_c can exceed the largest float.
    """
    return ten_to((math.log10(loss) - line["intercept"]) / line["slope"])


def _means(losses: dict) -> dict:
    return {key: float(np.mean(each)) for key, each in losses.items()}


def _losses(runs: list[Run]) -> dict:
    """Return {(router, N, E): [one loss per seed]} of the main grid."""
    groups: dict = {}
    for run in usual(runs):
        groups.setdefault((run.router, run.size, run.experts), []).append(run.loss)
    return groups


def _pair(means: dict, seeds: dict, first: str, second: str, alpha: float | None, scatter: dict | None) -> dict:
    both = [(n, e) for router, n, e in sorted(means) if router == first and (second, n, e) in means]
    cells, changes = [], []
    for size, experts in both:
        first_loss, second_loss = means[first, size, experts], means[second, size, experts]
        reach = _reach(scatter, size, seeds[first, size, experts], seeds[second, size, experts])
        cells.append({"N": size, "E": experts} | _difference(first_loss, second_loss, reach, alpha))
        changes.append((size, experts, math.log10(first_loss / second_loss)))
    overall = mean_interval([change for *_, change in changes], [size for size, *_ in changes])
    return {
        "first": first,
        "second": second,
        "cells": cells,
        "overall": as_percent(overall),
        "overall_size_ratio": None if alpha is None else _ratio(overall, alpha),
        "turned": _turned(cells, overall["mean"]),
        "sizes": _grouped(changes, 0, "N", alpha),
        "experts": _grouped(changes, 1, "E", alpha),
    }


def _reach(scatter: dict | None, size: float, first_seeds: int, second_seeds: int) -> float | None:
    """Return half the interval that seeds alone give a difference of log10 losses at one N; None if unknown.

    If the sizes have different scatter and runs of this N were repeated, only their scatter counts.
    """
    if scatter is None:
        return None
    own = [each for each in scatter["sizes"] if each["N"] == size and scatter["equal_p"] < CLEAR]
    known = (own or [scatter])[0]
    shares = 1 / first_seeds + 1 / second_seeds
    return student_quantile(LEVEL, known["degrees"]) * math.sqrt(shares) * known["deviation"]


def _difference(one: float, other: float, reach: float | None, alpha: float | None) -> dict:
    change = math.log10(one / other)
    return {
        "first_loss": one,
        "second_loss": other,
        "nats": one - other,
        "nats_reach": None if reach is None else reach * math.log(10) * other,
        "percent": log_percent(change),
        "percent_reach": None if reach is None else 100 * reach * math.log(10),
        "size_ratio": None if alpha is None else ten_to(-change / alpha),
    }


def _turned(cells: list[dict], mean: float) -> dict:
    other = [cell for cell in cells if cell["percent"] * mean < 0]
    worst = max(other, key=lambda cell: abs(cell["percent"]), default={"N": None, "E": None, "percent": None})
    return {"cells": len(other)} | {name: worst[name] for name in ("N", "E", "percent")}


def _grouped(changes: list[tuple], by: int, name: str, alpha: float | None) -> list[dict]:
    """Return the mean change at each N (`by` 0) or each E (`by` 1)."""
    entries = []
    for value in sorted({entry[by] for entry in changes}):
        mean = mean_interval([change for *key, change in changes if key[by] == value])
        ratio = None if alpha is None else _ratio(mean, alpha)
        entries.append({name: value, "percent": as_percent(mean), "size_ratio": ratio})
    return entries


def _ratio(mean: dict, alpha: float) -> dict:
    """Convert a mean change of log10 L to a ratio of dense sizes of equal loss. The ends of the interval swap."""
    low, high = (None if mean[name] is None else ten_to(-mean[name] / alpha) for name in ("high", "low"))
    return {"mean": ten_to(-mean["mean"] / alpha), "low": low, "high": high}


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
