"""The figures of the (N, E) law: loss against E and level curves, like Figure 1 of the paper, and its constants."""

import numpy as np
import pandas

from ..laws.fitting import predict_curve
from ..results.blocks import count
from ..results.plotting import label_ends
from .finding import router_name
from .runs import TableRun
from .style import (
    INK,
    colour_of,
    dots,
    log_ticks,
    loss_axis,
    losses_of,
    panel_grid,
    points_of,
    round_ticks,
    shared_legend,
    size_axis,
    size_name,
    size_shade,
)

FAR = 1e3
"""The axis includes the end of an interval if it is within this factor of the values."""


def loss_figure(results: dict, runs: list[TableRun]):
    """Return loss against E at each size with the fitted law, one panel per router: the first panel of Figure 1."""
    laws = [law for law in results["laws"] if losses_of(runs, law.router)]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 3.9)
    ends = []
    for panel, law in zip(panels, laws, strict=True):
        groups, colour = losses_of(runs, law.router), colour_of(results, law.router)
        sizes, counts = sorted({n for n, _ in groups}), sorted({e for _, e in groups})
        ends.append([])
        for i, size in enumerate(sizes):
            of_size = {e: groups[size, e] for e in counts if (size, e) in groups}
            end = _draw_size(panel, law, size, of_size, counts[-1], size_shade(colour, i, len(sizes)))
            ends[-1].append((*end, size_name(results, size), colour))
        log_ticks(panel, counts)
        span = max(counts[-1] / counts[0], 2)
        xlim = (counts[0] * span**-0.05, counts[-1] * span**0.24)
        panel.set(title=router_name(law.router), xlabel="experts E  (1 = dense)", xlim=xlim)
    drawn = np.concatenate([line.get_ydata() for panel in panels for line in panel.lines])
    loss_axis(panels, drawn[np.isfinite(drawn)], results)
    for panel, labels in zip(panels, ends, strict=True):
        label_ends(panel, labels)
    return figure


def _draw_size(panel, law, size: int, losses: dict[int, list[float]], most: int, shade) -> tuple[float, float]:
    """Draw the runs of one size, and the law or a line through the means, up to E = `most`. Return the end of the line.

    Args:
        losses: {E: losses of the seeds}, sorted by E.
    """
    at, means = list(losses), [float(np.mean(seeds)) for seeds in losses.values()]
    if law.missing is None:
        fine = np.geomspace(1, most, 200)
        line = predict_curve(law.fit.best.curve, np.full(fine.size, float(size)), fine)
        panel.plot(fine, line, color=shade, linewidth=1.6)
    else:
        fine, line = at, means
        panel.plot(at, means, color=shade, linewidth=1.1, linestyle=":")
    for e, mean in zip(at, means, strict=True):
        dots(panel, e, mean, INK if e == 1 else shade, size=5.5)
        if len(seeds := losses[e]) > 1:
            panel.plot([e] * len(seeds), seeds, "_", color="black", markersize=13, markeredgewidth=0.8, zorder=4)
    return fine[-1], line[-1]


def level_figure(results: dict, runs: list[TableRun]):
    """Return level curves of the loss in the (N, E) plane, a panel per router: the second panel of Figure 1."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator

    laws = [law for law in results["laws"] if law.missing is None and len(law.sizes) > 1]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 4.1)
    shown = [points_of(runs, law.router) for law in laws]
    losses = [loss for points in shown for loss in points.values()]
    levels = MaxNLocator(13, steps=[1, 2, 5, 10]).tick_values(min(losses), max(losses))
    for panel, law, points in zip(panels, laws, shown, strict=True):
        sizes, counts = law.sizes, law.experts
        n = np.geomspace(sizes[0] / 1.25, sizes[-1] * 1.25, 120)
        e = np.geomspace(1, counts[-1] * 1.25, 120)
        grid = predict_curve(law.fit.best.curve, n[None, :].repeat(e.size, 0), e[:, None].repeat(n.size, 1))
        lines = panel.contour(n, e, grid, levels=levels, colors=[INK], linewidths=0.9)
        _label_levels(panel, lines, 2.0 ** (0.5 + len(counts) // 2), (sizes[0] * 1.12, sizes[-1] / 1.12))
        darker_if_lower = LinearSegmentedColormap.from_list("loss", [colour_of(results, law.router), "white"])
        look = {"norm": LogNorm(min(losses), max(losses)), "cmap": darker_if_lower, "edgecolors": INK}
        panel.scatter(*zip(*points, strict=True), s=34, c=list(points.values()), linewidths=0.6, zorder=3, **look)
        panel.set_yscale("log", base=2)
        panel.set_yticks(counts, [str(count) for count in counts])
        panel.minorticks_off()
        size_axis(panel, sizes[0] / 1.25, sizes[-1] * 1.25)
        panel.set(title=router_name(law.router), xlabel="dense parameters N", xlim=(n[0], n[-1]), ylim=(0.85, e[-1]))
    panels[0].set_ylabel("experts E  (1 = dense)")
    return figure


def _label_levels(panel, lines, height: float, reach: tuple[float, float]) -> None:
    """Label every second level curve, between the rows of points (powers of 2)."""
    for i, (level, segments) in enumerate(zip(lines.levels, lines.allsegs, strict=True)):
        vertices = [
            vertex
            for segment in segments
            for vertex in segment
            if reach[0] < vertex[0] < reach[1] and abs(np.log2(vertex[1]) % 1 - 0.5) < 0.15
        ]
        if i % 2 == 0 and vertices:
            x, y = min(vertices, key=lambda vertex: abs(np.log(vertex[1] / height)))
            panel.text(
                x,
                y,
                f"{level:g}",
                ha="center",
                va="center",
                fontsize=8.5,
                color=INK,
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )


def coefficients_figure(results: dict, runs: list[TableRun]):
    """Return each coefficient with its interval for each router, and the paper's printed value."""
    from matplotlib.ticker import MaxNLocator

    laws = [law for law in results["laws"] if law.missing is None and law.fit.status != "linear limit"]
    rows = [(law.router, name, *each[:3]) for law in laws for name, each in law.constants.items()]
    frame = pandas.DataFrame(rows, columns=["router", "name", "value", "low", "high"])
    frame = frame.merge(results["printed"][["router", "name", "printed"]], "left", ["router", "name"])
    shown = frame[frame["name"] != "d"].groupby("name", sort=False)
    shown = [(name, rows) for name, rows in shown if ((rows["value"] != 0) & np.isfinite(rows["value"])).any()]
    if not shown:
        return None
    figure, panels = panel_grid(len(shown), 0.6 + 0.42 * len(laws) + 0.75)
    for panel, (name, rows) in zip(panels, shown, strict=True):
        logarithmic = name in ("E_start", "E_max", "N_cutoff")
        low, high = _reach(rows, logarithmic)
        for i, row in enumerate(rows.itertuples()):
            _forest(panel, row, len(laws) - 1 - i, (low, high), colour_of(results, row.router))
        panel.set(title=name.replace("_", " "), xlim=(low, high), ylim=(-0.7, len(laws) - 0.3), yticks=[])
        panel.grid(axis="y", visible=False)
        if logarithmic:
            steps = (1, 2, 5) if high / low < 40 else (1, 3) if high / low < 200 else (1,)
            round_ticks(panel, low, high, steps, 6, count)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(4))
    shared_legend(figure, panels)
    return figure


def _reach(rows: pandas.DataFrame, logarithmic: bool) -> tuple[float, float]:
    """Return the ends of an axis for all values, and for the ends of intervals that are not too far (`FAR`)."""
    values = [value for value in rows["value"] if np.isfinite(value) and (value > 0 or not logarithmic)]
    values += [*rows["printed"].dropna()]
    ends = [*rows["low"], *rows["high"]]
    if logarithmic:
        low, high = min(values) / FAR, max(values) * FAR
        ends = [end for end in ends if low <= end <= high]
        low, high = min(values + ends), max(values + ends)
        factor = max((high / low) ** 0.12, 1.1)
        return low / factor, high * factor
    width = max(map(abs, values)) * FAR or 1.0
    ends = [end for end in ends if abs(end) <= width]
    low, high = min(values + ends), max(values + ends)
    room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def _forest(panel, row, height: float, ends: tuple[float, float], colour: str) -> None:
    """Draw an interval. An arrow marks an end beyond the axis. Infinite values are not drawn."""
    low, high = max(row.low, ends[0]), min(row.high, ends[1])
    panel.plot([low, high], [height] * 2, color=colour, linewidth=2.2, solid_capstyle="butt")
    if row.high > ends[1]:
        panel.plot(ends[1], height, ">", color=colour, markersize=7, clip_on=False)
    if row.low < ends[0]:
        panel.plot(ends[0], height, "<", color=colour, markersize=7, clip_on=False)
    if np.isfinite(row.value):
        dots(panel, row.value, height, colour, label=router_name(row.router), size=7)
    if row.printed == row.printed:
        open_mark = {"markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 1.2, "zorder": 4}
        label = "printed in the paper"
        panel.plot(row.printed, height - 0.27, "D", color="white", markersize=5, label=label, **open_mark)
