"""How many blocks should be routed? Runs with k = 1 that differ only in R, the share of the routed blocks."""

import numpy as np
import pandas

from ...results.blocks import Block, Table, figure, share
from ...results.plotting import label_ends
from ...tables.schema import DENSE
from ..finding import Finding, Report, change, ends, router_name, table
from ..runs import CELL, TableRun, frame_of, in_percent, means, usual_frequency
from ..style import colour_of, dots, loss_rows, panel_grid, size_name, size_shade, with_room
from ..used_runs import suspects

LEAST = 0.5
"""The paper recommends routing at least this share of the blocks."""


def compare(runs: list[TableRun]) -> pandas.DataFrame:
    """Compare the loss at each R with the loss at the usual R, of the same router, N and E.

    Returns:
        router, R, usual, cells, lower, percent, low, high, N, E, loss. A row with N and E is one cell. Without them, it
        is the mean over the cells, with a Student interval as if they were independent; without R, over the cells of
        every R below `LEAST`. `lower` counts the cells with a lower loss than at the usual R.
    """
    usual = usual_frequency(runs)
    routed = [run for run in runs if run.router != DENSE and run.k == 1 and run.frequency is not None]
    cells = frame_of(routed).groupby([*CELL, "R"], as_index=False)["loss"].mean()
    cells = cells.merge(cells[cells["R"] == usual].drop(columns="R"), on=CELL, suffixes=("", "_usual"))
    cells = cells[cells.duplicated(CELL, keep=False)]
    cells["change"], cells["reach"] = np.log10(cells["loss"] / cells["loss_usual"]), np.nan
    cells = cells.assign(usual=usual, cells=1, lower=(cells["change"] < 0).astype(int))
    others, counts = cells[cells["R"] != usual], ("cells", "lower")
    below = means(others[others["R"] < LEAST], ["router", "usual"], counts)
    frame = pandas.concat([below, means(others, ["router", "usual", "R"], counts), cells], ignore_index=True)
    return in_percent(frame)[["router", "R", "usual", "cells", "lower", "percent", "low", "high", "N", "E", "loss"]]


def section(report: Report) -> list[Block]:
    frame = report.results["routing_frequency"]
    usual, cells = share(frame["usual"].iloc[0]), frame.dropna(subset="N")
    losses = cells.pivot(index=CELL, columns="R", values="loss")
    rows = [
        [router_name(router), report.size(size), str(experts), *(figure(loss, ".3f", "") for loss in row)]
        for (router, size, experts), *row in losses.itertuples()
    ]
    columns = {
        "router": lambda row: router_name(row.router),
        "R": lambda row: share(row.R),
        "change of the loss": change,
        "95 % interval": ends,
        "cells": lambda row: str(row.cells),
        "loss lower in": lambda row: str(row.lower),
    }
    short = " Runs with impossible labels are excluded, so some lines are short."
    return [
        f"R is the share of the blocks that are routed; the main runs have R = {usual}. More routed blocks add almost "
        "no FLOPs but many parameters. Losses at k = 1:",
        *report.figure(
            "frequency",
            "Loss against the share of the blocks that are routed",
            f"One line for each router and E.{short * bool(len(suspects(report)))}",
        ),
        Table(["router", "N", "E", *(f"R = {share(value)}" for value in losses)], rows, keys=3),
        f"The next table compares each R with R = {usual}. The change is a mean over the pairs of N and E; its "
        "interval assumes that the pairs are independent:",
        table(frame[frame["N"].isna() & frame["R"].notna()], columns, keys=2),
    ]


def draw(results: dict, runs: list[TableRun]):
    cells = results["routing_frequency"].dropna(subset="N")
    if cells.empty:
        return None
    sizes = cells.groupby("N")
    figure, panels = panel_grid(len(sizes), 4.2, most=2)
    for panel, (size, here) in zip(panels, sizes, strict=True):
        values = sorted(here["R"].unique())
        panel.set_xscale("log", base=2)
        panel.set_xticks(values, [share(value) for value in values])
        panel.minorticks_off()
        reach = values[-1] / values[0]
        xlim = (values[0] / reach**0.06, values[-1] * reach**0.58)
        panel.set(title=f"N = {size_name(results, size)}", xlabel="R, share of the blocks that are routed", xlim=xlim)
        with_room(panel, here["loss"])
        label_ends(
            panel, [end for router, rows in here.groupby("router") for end in _lines(panel, results, router, rows)]
        )
    loss_rows(panels, results)
    return figure


def _lines(panel, results: dict, router: str, rows: pandas.DataFrame):
    """Draw a line for each E of a router, in shades of its colour; yield the end of each line with its label."""
    colour, counts = colour_of(results, router), rows.groupby("E")
    for i, (experts, points) in enumerate(counts):
        dots(panel, points["R"], points["loss"], size_shade(colour, i, len(counts)), line=1.4)
        yield points["R"].iloc[-1], points["loss"].iloc[-1], f"{router_name(router)}, E = {experts}", colour


def recommended(results: dict) -> tuple[str, str] | None:
    """Judge the paper's "half of the blocks routed" by the changes in loss with fewer routed blocks."""
    frame = results["routing_frequency"]
    means = frame[frame["N"].isna()]
    below, more = means[means["R"].isna()], means[means["R"] > means["usual"]]
    if below.empty or below["usual"].iloc[0] < LEAST:
        return None
    verdict, higher = "open", below["low"] > 0
    if (below["high"] < 0).any():
        verdict = "not supported"
    elif higher.any():
        verdict = "supported" if higher.all() else "supported in part"
    reasons = [
        f"{router_name(row.router)}: the loss is higher with R below 0.5 in {row.cells - row.lower} of {row.cells} "
        "cells"
        for row in below.itertuples()
    ]
    reasons += [
        f"{router_name(row.router)}: the loss is lower with R = {row.R:.3g} than with R = {row.usual:.3g} in "
        f"{row.lower} of {row.cells} cells"
        for row in more.itertuples()
    ]
    return verdict, "; ".join(reasons)


FINDING = Finding(
    key="routing_frequency",
    title="Routing frequency",
    find=lambda results, source: {"routing_frequency": compare(source.good)},
    section=section,
    figures={"frequency": draw},
    lacking="no models differ only in the share of routed blocks",
)
