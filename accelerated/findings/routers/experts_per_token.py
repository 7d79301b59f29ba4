"""How many experts should take each token? Runs that differ only in k, compared with other uses of FLOPs.

More experts per token cost more FLOPs, so a lower loss alone proves little. So each use of FLOPs is judged by its gain,
the change of log10 L per tenfold forward FLOPs: more experts per token, wider feed-forward layers of a dense model
(flop_increase), and the next larger model with k = 1.
"""

import numpy as np
import pandas

from ...results.blocks import Block, figure, span
from ...tables.schema import DENSE
from ..finding import Finding, Report, change, router_name, table
from ..runs import CELL, TableRun, frame_of, means, usual_frequency
from ..style import INK, colour_of, dots, loss_rows, panel_grid, plain_ticks, size_name, size_shade, with_room

LARGER = "the next larger model"


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    frame = points(source.good)
    return {"experts_per_token": frame, "gains_per_flop": versus(frame)}


def points(runs: list[TableRun]) -> pandas.DataFrame:
    """Return the models that differ only in k, or only in flop_increase, with their gains.

    Returns:
        router, N, E, times, loss, flops, runs, percent, gain, growth. `times` is k, or the flop_increase of a dense
        model. `percent` compares the loss with the loss at times 1, and `gain` does so per tenfold FLOPs. `growth` is
        the gain from the model with times 1 to the next larger one. A gain is NaN if the FLOPs are equal or unknown.
    """
    frame, by = frame_of(runs), [*CELL, "times"]
    frame["times"] = frame["k"].where(frame["router"] != DENSE, frame["flop_increase"]).astype(float)
    frame = frame[frame["R"].isna() | (frame["R"] == usual_frequency(runs))].groupby(by)
    frame = frame.agg(loss=("loss", "mean"), flops=("flops", _known_mean), runs=("loss", "size")).reset_index()
    first = frame[frame["times"] == 1].drop(columns=["times", "runs"])
    first["growth"] = _gain(first, first.groupby(["router", "E"])[["loss", "flops"]].shift(-1))
    frame = frame.merge(first, on=CELL, suffixes=("", "_first"))
    frame = frame[frame.duplicated(CELL, keep=False)].sort_values(
        "router", key=lambda router: router == DENSE, kind="stable"
    )
    first = frame[["loss_first", "flops_first"]].set_axis(["loss", "flops"], axis=1)
    frame["percent"], frame["gain"] = 100 * (frame["loss"] / first["loss"] - 1), _gain(first, frame)
    return frame[[*by, "loss", "flops", "runs", "percent", "gain", "growth"]]


def _known_mean(flops: pandas.Series) -> float:
    return flops.mean(skipna=False)


def _gain(low: pandas.DataFrame, high: pandas.DataFrame) -> pandas.Series:
    cost = np.log10(high["flops"] / low["flops"])
    return np.log10(high["loss"] / low["loss"]) / cost.where(cost > 0)


def versus(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Compare the gain of each k with the gain of the next larger model, and with that of a wider dense model.

    Returns:
        against, k, cells, less, mean, low, high. `mean` is the mean over the cells of the gain of k minus the other
        gain; above zero, k experts gain less. `less` counts these cells. The interval counts each N once, because the
        cells of an N share their dense run.
    """
    dense = frame[frame["router"] == DENSE].rename(columns={"gain": "wider"})[["N", "times", "wider"]]
    routed = frame[frame["router"] != DENSE].merge(dense, on=["N", "times"], how="left")
    others = {LARGER: routed["growth"], "wider dense layers": routed["wider"]}
    rows = pandas.concat([routed.assign(against=name, change=routed["gain"] - gain) for name, gain in others.items()])
    rows = rows.dropna(subset="change").assign(k=lambda rows: rows["times"].astype(int), cells=1)
    rows["less"], by = (rows["change"] > 0).astype(int), ["against", "k"]
    frame = means(means(rows, [*by, "N"], ("cells", "less")), by, ("cells", "less")).rename(columns={"change": "mean"})
    frame["low"], frame["high"] = frame["mean"] - frame["reach"], frame["mean"] + frame["reach"]
    return frame[[*by, "cells", "less", "mean", "low", "high"]]


def section(report: Report) -> list[Block]:
    columns = {
        "model": lambda row: "dense" if row.router == DENSE else f"{router_name(row.router)}, E = {row.E}",
        "N": lambda row: report.size(row.N),
        "what changes": lambda row: f"FFN ×{row.times:.3g}" if row.router == DENSE else f"k = {row.times:g}",
        "loss": lambda row: figure(row.loss, ".3f"),
        "change": lambda row: "" if row.times == 1 else change(row),
        "TeraFLOPs": lambda row: figure(row.flops, ".3f"),
        "log10 L per tenfold FLOPs": lambda row: figure(row.gain, ".4f", ""),
        "next larger N: log10 L per tenfold FLOPs": lambda row: figure(row.growth, ".4f", ""),
    }
    return [
        "More experts per token cost more FLOPs. So the table gives the gain per cost: the change of log10 L per "
        "tenfold forward FLOPs (more negative is better). It also shows two other ways to spend FLOPs: a dense model "
        "with wider feed-forward layers in half of its blocks (×2, ×4), and the next larger model with the same E and "
        "k = 1.",
        *report.figure(
            "k",
            "Loss against the cost of a forward pass",
            "At k = 1, 2 and more, and for dense models with wider feed-forward layers (×2, ×4). A steeper line "
            "means a larger gain per FLOP.",
        ),
        table(report.results["experts_per_token"], columns, keys=3),
        *_versus_table(report.results["gains_per_flop"]),
    ]


def _versus_table(frame: pandas.DataFrame) -> list[Block]:
    if frame.empty:
        return [
            "The table has no larger model with k = 1 and no wider dense model, so a larger k cannot be compared "
            "with them."
        ]
    columns = {
        "against": lambda row: row.against,
        "k": lambda row: f"k = {row.k}",
        "cells": lambda row: str(row.cells),
        "k gains less in": lambda row: str(row.less),
        "mean difference": lambda row: figure(row.mean, "+.4f"),
        "95 % interval": lambda row: span(row, "+.4f"),
    }
    return [
        "The next table compares a larger k with the other ways, in log10 L per tenfold FLOPs. Where the difference "
        "is above zero, the larger k gains less. Each size counts once.",
        table(frame, columns, keys=2),
    ]


def draw(results: dict, runs: list[TableRun]):
    """Return loss against forward FLOPs for each k and for wider dense models, a panel per router and size."""
    frame = results["experts_per_token"]
    frame = frame[frame.groupby(CELL)["flops"].transform(_known_mean).notna()]
    dense, shown = frame[frame["router"] == DENSE], frame[frame["router"] != DENSE].groupby(["router", "N"])
    if not len(shown):
        return None
    figure, panels = panel_grid(len(shown), 4.2, most=2)
    for panel, ((router, size), routed) in zip(panels, shown, strict=True):
        experts, wider = routed.groupby("E"), dense[dense["N"] == size]
        for i, (count, rows) in enumerate(experts):
            _draw_line(panel, f"E = {count}", rows, "k = {:g}", size_shade(colour_of(results, router), i, len(experts)))
        if len(wider):
            _draw_line(panel, "dense, wider", wider, "×{:g}", INK)
        flops, losses = (pandas.concat([routed[name], wider[name]]) for name in ("flops", "loss"))
        reach = max(flops.max() / flops.min(), 1.2)  # at least 1.2, to give the axis a length
        ends = (flops.min() / reach**0.1, flops.max() * reach**0.5)
        title = f"{router_name(router)}, N = {size_name(results, size)}"
        panel.set(title=title, xlim=ends, xlabel="forward TeraFLOPs of 2,048 tokens")
        with_room(panel, losses, 0.05, 0.1)
        plain_ticks(panel, *ends)
    loss_rows(panels, results)
    return figure


def _draw_line(panel, name: str, rows: pandas.DataFrame, label: str, colour) -> None:
    dots(panel, rows["flops"], rows["loss"], colour, line=1.4)
    beside = {"textcoords": "offset points"}
    for row in rows.itertuples():
        text = label.format(row.times)
        panel.annotate(text, (row.flops, row.loss), xytext=(0, 7), ha="center", fontsize=8.5, color="#555555", **beside)
    look = {"va": "center", "fontsize": 9.5, "fontweight": "bold", "color": colour}
    panel.annotate(name, (row.flops, row.loss), xytext=(21, 0), **look, **beside)


def recommended(results: dict) -> tuple[str, str] | None:
    """Judge the paper's "one expert per token" by the gain per FLOPs of k above 1, compared with a larger model."""
    frame, verdict = results["gains_per_flop"], "open"
    growth = frame[frame["against"] == LARGER]
    if growth.empty:
        return None
    if (growth["low"] > 0).all():
        verdict = "supported"
    elif (growth["high"] < 0).all():
        verdict = "not supported"
    elif growth["low"].notna().all() and (growth["low"] > 0).any() and not (growth["high"] < 0).any():
        verdict = "supported in part"
    return verdict, "; ".join(
        f"k = {row.k} gains less per FLOP than {row.against} in {row.less} of {row.cells} cells"
        for row in frame.itertuples()
    )


FINDING = Finding(
    key="experts_per_token",
    title="Experts per token",
    find=find,
    section=section,
    figures={"k": draw},
    lacking="no models differ only in k",
)
