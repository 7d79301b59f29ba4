"""Which router is better? Routers are compared at the same N and E, and by dense sizes of equal loss.

A dense size of equal loss is the N at which the power law of the dense runs has the measured loss. This size needs no
law of routing, but it extrapolates if it is beyond the largest dense run.
"""

import math

import numpy as np
import pandas

from ...laws.uncertainty import student_quantile
from ...results.blocks import Block, figure, span, ten_to
from ...results.misfit import CLEAR
from ...tables.schema import DENSE
from ...wording import plural
from ..finding import Finding, Report, change, ends, router_name, table
from ..runs import LEVEL, Scatter, TableRun, frame_of, in_percent, means, usual
from ..style import (
    DASHED,
    INK,
    colour_of,
    log_ticks,
    loss_rows,
    panel_grid,
    points_of,
    shared_legend,
    size_name,
    size_shade,
    with_room,
)

FIRST, SECOND, OPEN, UNKNOWN = "first", "second", "open", "not known"
"""The verdicts: the router that certainly has the lower loss, an interval that includes zero, and no interval."""

MANY_PAIRS = 6
"""The answer names up to this many pairs of routers, and the figure shows up to this many."""

LONGEST = 22
"""Number of letters of a router's name that fit above a panel."""

PAPERS = "S-Base"
"""The router that the paper recommends."""


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    dense = results.dense
    alpha = dense.constants["alpha"].value if dense.found else None
    return {"pairs": compare(source.good, alpha, results.scatter)}


def compare(runs: list[TableRun], alpha: float | None, scatter: Scatter | None) -> pandas.DataFrame:
    """Compare each pair of routers at each (N, E) that both have, and on average.

    Args:
        alpha: exponent of the dense power law, above 0; None without a law.
        scatter: result of `seed_scatter`; None if no seed was repeated.

    Returns:
        first, second, N, E, cells, percent, low, high, size_ratio, ratio_low, ratio_high, verdict, first_loss,
        second_loss. `percent` is the difference of the losses, first minus second, in percent of the second.
        `size_ratio` is the first router's dense size of equal loss divided by the second router's. A row with N and E
        is one cell; its 95 % interval is that of seeds. Without E, it is the mean over the E of a size, without N over
        the sizes of an E, and without both over the sizes, each counted once; these have Student intervals. `verdict`
        is FIRST, SECOND, OPEN or UNKNOWN.
    """
    pair = ["first", "second"]
    routed = frame_of([run for run in usual(runs) if run.router != DENSE]).rename(columns={"router": "first"})
    losses = routed.groupby(["first", "N", "E"])["loss"].agg(["mean", "size"]).reset_index()
    cells = losses.merge(losses.rename(columns={"first": "second"}), on=["N", "E"], suffixes=("_first", "_second"))
    cells = cells[cells["first"] < cells["second"]].sort_values([*pair, "N", "E"])
    cells = cells.rename(columns={"mean_first": "first_loss", "mean_second": "second_loss"})
    cells["change"] = np.log10(cells["first_loss"] / cells["second_loss"])
    shares = 1 / cells["size_first"] + 1 / cells["size_second"]
    cells["reach"] = [_reach(scatter, size, share) for size, share in zip(cells["N"], shares, strict=True)]
    cells["cells"] = 1
    by_size = means(cells, [*pair, "N"])
    frame = pandas.concat([means(by_size, pair), by_size, means(cells, [*pair, "E"]), cells], ignore_index=True)
    low, high, worth = frame["change"] - frame["reach"], frame["change"] + frame["reach"], -1 / (alpha or math.nan)
    for name, logs in {"size_ratio": frame["change"], "ratio_high": low, "ratio_low": high}.items():
        frame[name] = (logs * worth).map(ten_to)
    frame["verdict"] = np.select([high < 0, low > 0, low.notna()], [FIRST, SECOND, OPEN], UNKNOWN)
    shown = ["N", "E", "cells", "percent", "low", "high", "size_ratio", "ratio_low", "ratio_high", "verdict"]
    return in_percent(frame).astype({"N": "Int64", "E": "Int64"})[[*pair, *shown, "first_loss", "second_loss"]]


def _reach(scatter: Scatter | None, size: int, shares: float) -> float:
    """Return half the interval that seeds alone give a difference of log10 losses at one N; NaN if unknown.

    If the sizes have different scatter and runs of this N were repeated, only their scatter counts.
    """
    if scatter is None:
        return math.nan
    same = [each for each in scatter.sizes if each.N == size and scatter.equal_p < CLEAR]
    known = (same or [scatter])[0]
    return student_quantile(LEVEL, known.degrees) * math.sqrt(shares) * known.deviation


def minus(pair, router: str) -> tuple[float, float, float]:
    """Return the difference of the losses of a row, this router minus the other one, in percent: mean, low, high."""
    if router == pair.first:
        return pair.percent, pair.low, pair.high
    mean, high, low = (100 * (1 / (1 + change / 100) - 1) for change in (pair.percent, pair.low, pair.high))
    return mean, low, high


def better(pair) -> str | None:
    """Return the router that certainly has the lower loss; None if neither does."""
    return {FIRST: pair.first, SECOND: pair.second}.get(pair.verdict)


def of_pair(frame: pandas.DataFrame, pair) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the rows of the sizes and of the cells of a pair."""
    rows = frame[(frame["first"] == pair.first) & (frame["second"] == pair.second) & frame["N"].notna()]
    return rows[rows["E"].isna()], rows[rows["E"].notna()]


def overall(frame: pandas.DataFrame) -> list:
    """Return the rows of the pairs, over all N and E."""
    return list(frame[frame["N"].isna() & frame["E"].isna()].itertuples())


def sentence(report: Report) -> str:
    pairs = overall(report.results["pairs"])
    settled = sum(better(pair) is not None for pair in pairs)
    head = f"The runs show which router is better for {settled or 'none'} of {plural(len(pairs), 'pair')}."
    if settled == len(pairs):
        head = "The routers differ."
    elif len(pairs) == 1:
        head = "The runs do not show which of the two routers is better."
    if len(pairs) > MANY_PAIRS:
        return f"**{head}** See the differences under {report.see(FINDING.title)}."
    return f"**{head}** Mean losses at the same N and E: {'; '.join(map(_lower, pairs))}."


def _lower(pair) -> str:
    lower, higher = (pair.second, pair.first) if pair.percent > 0 else (pair.first, pair.second)
    mean, low, high = minus(pair, lower)
    ends = "" if pair.verdict == UNKNOWN else f" ({span((-high, -low), '.2f')})"
    words = f"{router_name(lower)} is {figure(-mean, '.2f')} % lower than {router_name(higher)}{ends}"
    return words if better(pair) == lower else f"{words}, not certain"


def recommended(results: dict) -> tuple[str, str] | None:
    """Judge the paper's S-BASE by its differences from the other routers."""
    frame = results["pairs"]
    pairs = [pair for pair in overall(frame) if PAPERS in (pair.first, pair.second)]
    if not pairs:
        return None
    winners, verdict = {better(pair) for pair in pairs}, OPEN
    if winners - {None, PAPERS}:
        verdict = "not supported"
    elif PAPERS in winners:
        verdict = "supported" if len(winners) == 1 else "supported in part"
    return verdict, "; ".join(_against(frame, pair) for pair in pairs)


def _against(frame: pandas.DataFrame, pair) -> str:
    (mean, *ends), (sizes, cells) = minus(pair, PAPERS), of_pair(frame, pair)
    known, lower = sizes[sizes["verdict"] != UNKNOWN], sum(minus(cell, PAPERS)[0] < 0 for cell in cells.itertuples())
    interval = "" if pair.verdict == UNKNOWN else f" ({span(ends, '+.2f')})"
    wins = sum(better(size) == PAPERS for size in known.itertuples())
    certain = f", certainly lower at {wins} of {len(known)} sizes" if len(known) else ""
    return (
        f"{router_name(PAPERS)} minus {router_name(pair.second if pair.first == PAPERS else pair.first)}: "
        f"{figure(mean, '+.2f')} % on average{interval}, lower in {lower} of {len(cells)} cells{certain}"
    )


def differences(report: Report) -> list[Block]:
    """Return the figure of the differences."""
    chance = " A hollow point is a difference that seeds alone can cause (95 %)." if report.results.scatter else ""
    return report.figure(
        "pairs",
        "Differences of the routers, in percent of the loss, one line for each size N",
        f"At points above zero, the second router in the title has the lower loss.{chance}",
    )


def section(report: Report) -> list[Block]:
    """Return the comparison of each pair of routers at the same N and E: overall and by size."""
    frame = report.results["pairs"]
    columns = {
        "pair": lambda row: f"{router_name(row.first)} minus {router_name(row.second)}",
        "N": lambda row: "all" if pandas.isna(row.N) else report.size(row.N),
        "cells": lambda row: str(row.cells),
        "difference of the loss": change,
        "95 % interval": ends,
        "ratio of equivalent dense sizes": lambda row: figure(row.size_ratio, ".3f", UNKNOWN),
        "95 % interval of the ratio": lambda row: span((row.ratio_low, row.ratio_high), ".3f"),
    }
    return [
        "Each pair of routers is compared at every N and E where both have a run. If the difference is below zero, "
        "the first router has the lower loss. For the ratio, the dense power law turns each loss into the size of a "
        "dense model with this loss. A ratio of 0.8 means that the dense model of the second router is 1.25 times as "
        "large.",
        *report.figure(
            "routers",
            "Loss against the number of experts, one panel for each size N",
            "Colours are the routers, the dashed line is the dense model. The axes of the panels differ.",
        ),
        *differences(report),
        "In a row for all N, each size has the same weight. In a row for one N, each E has the same weight.",
        table(frame[frame["E"].isna()], columns, keys=2),
        _opposite(report, frame),
        f"Every shared N and E is in `{report.numbers}` (`pairs`).",
    ]


def _opposite(report: Report, frame: pandas.DataFrame) -> str:
    """Return a sentence on the cells whose difference has another sign than the mean of their pair."""
    lines, pairs = [], overall(frame)
    for pair in pairs:
        cells = of_pair(frame, pair)[1]
        turned = cells[cells["percent"] * pair.percent < 0]
        if len(turned):
            most = turned.loc[turned["percent"].abs().idxmax()]
            lines.append(
                f"{router_name(pair.first)} and {router_name(pair.second)} have the opposite order in {len(turned)} of "
                f"{plural(len(cells), 'cell')}, most clearly at N = {report.size(most.N)}, E = {most.E} "
                f"({figure(most.percent, '+.2f')} %)."
            )
    if not lines:
        return "Each pair has the same order in all of its cells."
    return " ".join(lines) + " The other pairs have the same order in all of their cells." * (len(lines) < len(pairs))


def routers_figure(results: dict, runs: list[TableRun]):
    routers = [law.router for law in results.laws]
    if len(routers) < 2:
        return None
    points = {router: points_of(runs, router) for router in routers}
    sizes = sorted({n for shown in points.values() for n, e in shown if e > 1})
    if not sizes:
        return None
    figure, panels = panel_grid(len(sizes), 3.2)
    for panel, size in zip(panels, sizes, strict=True):
        here = {r: {e: loss for (n, e), loss in sorted(points[r].items()) if n == size} for r in routers}
        losses = [loss for shown in here.values() for e, loss in shown.items() if e > 1]
        for router, shown in here.items():
            at = [e for e in shown if e > 1]
            colour, label = colour_of(results, router), router_name(router)
            panel.plot(at, [shown[e] for e in at], "o-", color=colour, markersize=4.5, linewidth=1.4, label=label)
        dense = next((shown[1] for shown in here.values() if 1 in shown), None)
        if dense is not None:
            panel.axhline(dense, color=INK, linewidth=1.1, linestyle=DASHED, label="dense")
            losses.append(dense)
        log_ticks(panel, sorted({e for shown in here.values() for e in shown if e > 1}))
        panel.set(title=f"N = {size_name(results, size)}", xlabel="experts E")
        with_room(panel, losses)
    loss_rows(panels, results)
    shared_legend(figure, panels, columns=5)
    return figure


def pairs_figure(results: dict, runs: list[TableRun]):
    """Return the difference of each pair of routers against E, a line per size."""
    frame = results["pairs"]
    pairs, ends = overall(frame), [0, *frame.dropna(subset=["N", "E"])["percent"]]
    if not 0 < len(pairs) <= MANY_PAIRS:
        return None
    figure, panels = panel_grid(len(pairs), 3.9)
    room = 0.08 * (max(ends) - min(ends)) or 0.1
    for panel, pair in zip(panels, pairs, strict=True):
        cells = of_pair(frame, pair)[1]
        _draw_pair(panel, results, cells)
        panel.axhline(0, color=INK, linewidth=1.0)
        log_ticks(panel, sorted(cells["E"].unique()))
        names = [router_name(router) for router in (pair.first, pair.second)]
        names = [name if len(name) <= LONGEST else name[: LONGEST - 1] + "…" for name in names]
        title = f"{names[0]}{' ' if sum(map(len, names)) <= LONGEST else chr(10)}minus {names[1]}"
        panel.set(title=title, xlabel="experts E", ylim=(min(ends) - room, max(ends) + room))
    panels[0].set_ylabel("difference of the loss, %")
    shared_legend(figure, panels)
    return figure


def _draw_pair(panel, results: dict, cells: pandas.DataFrame) -> None:
    """Draw the differences of two routers, a line per size; a point is hollow if seeds alone can cause it."""
    sizes = cells.groupby("N")
    for i, (size, rows) in enumerate(sizes):
        experts, colour = rows["E"].astype(int), size_shade("#5b3a8c", i, len(sizes))
        panel.plot(experts, rows["percent"], "-", color=colour, linewidth=1.3)
        panel.plot([], [], "o", color=colour, markersize=4.5, label=f"N = {size_name(results, size)}")
        faces = ["white" if verdict == OPEN else colour for verdict in rows["verdict"]]
        panel.scatter(experts, rows["percent"], s=20, facecolor=faces, edgecolor=colour, zorder=3)


FINDING = Finding(
    key="pairs",
    title="Router against router",
    find=find,
    sentence=sentence,
    section=section,
    figures={"routers": routers_figure, "pairs": pairs_figure},
    lacking="no two routers have a run of the same N and E",
    last=differences,
)
