"""Measure the effect of k (experts per token) and R (share of routed blocks) in runs that differ only in k or R.

More experts per token cost more FLOPs, so a lower loss alone proves little. This file computes the change of log10 L
per tenfold forward FLOPs for three uses of FLOPs. They are more experts per token, wider feed-forward layers of a dense
model (flop_increase), and the next larger model with k = 1.
"""

import math
from typing import NamedTuple

from ...tables.schema import DENSE
from ..blocks import log_percent
from .runs import Run, as_percent, mean_interval, usual_frequency

LEAST_FREQUENCY = 0.5
"""The paper recommends routing at least this share of the blocks."""


class Point(NamedTuple):
    """The mean loss of the runs of a configuration."""

    loss: float
    flops: float | None  # forward TeraFLOPs of 2,048 tokens
    runs: int


def experts_per_token(runs: list[Run]) -> dict:
    """Compare runs that differ in k: their losses at each (router, N, E), and the gain per FLOPs.

    Returns:
        {"cells": [{"router", "N", "E", "points": [{"k", "loss", "flops", "percent", "per_decade"}], "growth"}],
        "dense": [{"N", "points": [{"flop_increase", ...}]}], "versus_growth": {"2": interval, ...}, "versus_dense":
        {...}}. `percent` and `per_decade` (change of log10 L per tenfold FLOPs) compare a point with k = 1, or with
        flop_increase 1. `growth` is the per_decade from this size to the next larger size. `versus_growth` has, by k,
        the mean over the cells of per_decade minus growth. `versus_dense` has the mean of per_decade minus the
        per_decade of the dense runs with this N and flop_increase k. A positive mean says that k experts gain less. The
        intervals count each N once.
    """
    grid = _by_k(runs)
    cells = [
        {
            "router": router,
            "N": size,
            "E": experts,
            "growth": _growth(grid, router, size, experts),
            "points": _against_first(by_k, "k"),
        }
        for (router, size, experts), by_k in grid.items()
        if 1 in by_k and len(by_k) > 1
    ]
    dense = _wider_dense(runs)
    by_size = {
        entry["N"]: {point["flop_increase"]: point["per_decade"] for point in entry["points"]} for entry in dense
    }
    return {
        "cells": cells,
        "dense": dense,
        "versus_growth": _versus(cells, lambda cell, k: cell["growth"]),
        "versus_dense": _versus(cells, lambda cell, k: by_size.get(cell["N"], {}).get(k)),
    }


def _by_k(runs: list[Run]) -> dict[tuple, dict[int, Point]]:
    """Return {(router, N, E): {k: point}} of the routed runs with the usual share of routed blocks."""
    frequency = usual_frequency(runs)
    points: dict = {}
    for run in runs:
        if run.router != DENSE and run.frequency in (frequency, None):
            points.setdefault((run.router, run.size, run.experts), {}).setdefault(run.k, []).append(run)
    return {cell: {k: _point(group) for k, group in sorted(by_k.items())} for cell, by_k in sorted(points.items())}


def routing_frequency(runs: list[Run]) -> dict:
    """Compare runs with k = 1 that differ in R: their losses at each (router, N, E).

    Returns:
        {"usual": R, "cells": [{"router", "N", "E", "points": [{"R", "loss", "percent"}]}], "changes": [{"router", "R",
        "percent": interval, "cells", "lower"}], "below_half": [{"router", "percent", "cells", "lower"}]}. `percent`
        compares the loss with the loss at the usual R. A change is the mean of `percent` over the cells, as if they
        were independent. `lower` counts the cells with a lower loss than at the usual R. `below_half` has the same mean
        over every R below 0.5.
    """
    usual = usual_frequency(runs)
    points: dict = {}
    for run in runs:
        if run.router != DENSE and run.k == 1 and run.frequency is not None:
            points.setdefault((run.router, run.size, run.experts), {}).setdefault(run.frequency, []).append(run)
    cells, logs = [], {}
    for (router, size, experts), by_frequency in sorted(points.items()):
        if usual not in by_frequency or len(by_frequency) < 2:
            continue
        base, other_points = _point(by_frequency[usual]).loss, []
        for frequency, group in sorted(by_frequency.items()):
            change = math.log10(_point(group).loss / base)
            other_points.append({"R": frequency, "loss": _point(group).loss, "percent": log_percent(change)})
            if frequency != usual:
                logs.setdefault((router, frequency), []).append(change)
        cells.append({"router": router, "N": size, "E": experts, "points": other_points})
    changes = [
        {"router": router, "R": frequency} | _change(values) for (router, frequency), values in sorted(logs.items())
    ]
    below: dict = {}
    for (router, frequency), values in sorted(logs.items()):
        if frequency < LEAST_FREQUENCY:
            below.setdefault(router, []).extend(values)
    below_half = [{"router": router} | _change(values) for router, values in below.items()]
    return {"usual": usual, "cells": cells, "changes": changes, "below_half": below_half}


def _change(values: list[float]) -> dict:
    return {
        "cells": len(values),
        "lower": sum(value < 0 for value in values),
        "percent": as_percent(mean_interval(values)),
    }


def _point(group: list[Run]) -> Point:
    flops = [run.flops for run in group]
    mean = None if None in flops else sum(flops) / len(flops)
    return Point(sum(run.loss for run in group) / len(group), mean, len(group))


def _per_decade(low: Point, high: Point) -> float | None:
    """Return the change of log10 L per tenfold FLOPs between two points; None if their costs are equal."""
    if low.flops is None or high.flops is None or high.flops <= low.flops:
        return None
    return math.log10(high.loss / low.loss) / math.log10(high.flops / low.flops)


def _against_first(points: dict, name: str) -> list[dict]:
    first = points[1]
    return [
        {
            name: value,
            "loss": point.loss,
            "flops": point.flops,
            "runs": point.runs,
            "percent": log_percent(math.log10(point.loss / first.loss)),
            "per_decade": None if value == 1 else _per_decade(first, point),
        }
        for value, point in points.items()
    ]


def _growth(grid: dict, router: str, size: int, experts: int) -> float | None:
    """Return the gain of the next larger size at the same router, E and k = 1; None without a larger size."""
    larger = sorted(n for r, n, e in grid if (r, e) == (router, experts) and n > size and 1 in grid[r, n, e])
    return _per_decade(grid[router, size, experts][1], grid[router, larger[0], experts][1]) if larger else None


def _wider_dense(runs: list[Run]) -> list[dict]:
    points: dict = {}
    for run in runs:
        if run.router == DENSE:
            points.setdefault(run.size, {}).setdefault(run.flop_increase, []).append(run)
    return [
        {
            "N": size,
            "points": _against_first({f: _point(group) for f, group in sorted(by_width.items())}, "flop_increase"),
        }
        for size, by_width in sorted(points.items())
        if 1 in by_width and len(by_width) > 1
    ]


def _versus(cells: list[dict], other) -> dict:
    """Return {k: mean of per_decade minus another per_decade}, over the cells that have both.

    The interval counts each N once, because the cells of an N share their dense run.
    """
    differences: dict = {}
    for cell in cells:
        for point in cell["points"]:
            beside = other(cell, point["k"])
            if point["per_decade"] is not None and beside is not None:
                differences.setdefault(point["k"], []).append((point["per_decade"] - beside, cell["N"]))
    result = {}
    for k, pairs in sorted(differences.items()):
        values, sizes = zip(*pairs, strict=True)
        result[str(k)] = mean_interval(values, sizes) | {"less": sum(value > 0 for value in values)}
    return result
