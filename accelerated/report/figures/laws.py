"""Figures of the (N, E) laws, like Figure 1 of the paper: loss against E, level curves, effective size."""

import numpy as np

from ...findings.finding import router_name
from ...findings.style import (
    DASHED,
    INK,
    colour_of,
    curve_of,
    dots,
    label_ends,
    log_ticks,
    loss_axis,
    losses_of,
    panel_grid,
    points_of,
    size_axis,
    size_name,
    size_shade,
)
from ...laws.fitting import LossCurve, predict_curve
from ...results.comparisons.runs import REACH, Run
from ...results.plotting import plot_profiles


def isoflop_figure(results: dict, runs: list[Run]):
    """Return the losses at equal FLOPs; None for a table without budgets."""
    return plot_profiles(results["isoflop"]) if results["isoflop"] else None


def loss_figure(results: dict, runs: list[Run]):
    """Return loss against E at each size with the fitted law, one panel per router: the first panel of Figure 1."""
    laws = [law for law in results["laws"] if losses_of(runs, law["router"])]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 3.9)
    ends = []
    for panel, law in zip(panels, laws, strict=True):
        groups, colour = losses_of(runs, law["router"]), colour_of(results, law["router"])
        sizes, counts = sorted({n for n, _ in groups}), sorted({e for _, e in groups})
        ends.append([])
        for i, size in enumerate(sizes):
            of_size = {e: groups[size, e] for e in counts if (size, e) in groups}
            end = _draw_size(panel, law, size, of_size, counts[-1], size_shade(colour, i, len(sizes)))
            ends[-1].append((*end, size_name(results, size), colour))
        log_ticks(panel, counts)
        span = max(counts[-1] / counts[0], 2)
        xlim = (counts[0] * span**-0.05, counts[-1] * span**0.24)
        panel.set(title=router_name(law["router"]), xlabel="experts E  (1 = dense)", xlim=xlim)
    drawn = np.concatenate([line.get_ydata() for panel in panels for line in panel.lines])
    loss_axis(panels, drawn[np.isfinite(drawn)], results)
    for panel, labels in zip(panels, ends, strict=True):
        label_ends(panel, labels)
    return figure


def _draw_size(panel, law: dict, size: int, losses: dict[int, list[float]], most: int, shade) -> tuple[float, float]:
    """Draw the runs of one size, and the law or a line through the means, up to E = `most`. Return the end of the line.

    Args:
        losses: {E: losses of the seeds}, sorted by E.
    """
    at, means = list(losses), [float(np.mean(seeds)) for seeds in losses.values()]
    if law["missing"] is None:
        fine = np.geomspace(1, most, 200)
        line = predict_curve(curve_of(law), np.full(fine.size, float(size)), fine)
        panel.plot(fine, line, color=shade, linewidth=1.6)
    else:
        fine, line = at, means
        panel.plot(at, means, color=shade, linewidth=1.1, linestyle=":")
    for e, mean in zip(at, means, strict=True):
        dots(panel, e, mean, INK if e == 1 else shade, size=5.5)
        _seeds(panel, e, losses[e])
    return fine[-1], line[-1]


def _seeds(panel, experts: int, losses: list[float]) -> None:
    if len(losses) > 1:
        panel.plot([experts] * len(losses), losses, "_", color="black", markersize=13, markeredgewidth=0.8, zorder=4)


def level_figure(results: dict, runs: list[Run]):
    """Return level curves of the loss in the (N, E) plane, a panel per router: the second panel of Figure 1."""
    laws = [law for law in results["laws"] if law["missing"] is None and len(law["sizes"]) > 1]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 4.1)
    shown = [points_of(runs, law["router"]) for law in laws]
    losses = [loss for points in shown for loss in points.values()]
    levels = _levels(min(losses), max(losses))
    for panel, law, points in zip(panels, laws, shown, strict=True):
        sizes, counts = law["sizes"], law["experts"]
        n = np.geomspace(sizes[0] / 1.25, sizes[-1] * 1.25, 120)
        e = np.geomspace(1, counts[-1] * 1.25, 120)
        grid = predict_curve(curve_of(law), n[None, :].repeat(e.size, 0), e[:, None].repeat(n.size, 1))
        lines = panel.contour(n, e, grid, levels=levels, colors=[INK], linewidths=0.9)
        _label_levels(panel, lines, 2.0 ** (0.5 + len(counts) // 2), (sizes[0] * 1.12, sizes[-1] / 1.12))
        _scatter(panel, points, colour_of(results, law["router"]), (min(losses), max(losses)))
        panel.set_xscale("log")
        panel.set_yscale("log", base=2)
        panel.set_yticks(counts, [str(count) for count in counts])
        panel.minorticks_off()
        size_axis(panel, sizes[0] / 1.25, sizes[-1] * 1.25)
        panel.set(title=router_name(law["router"]), xlabel="dense parameters N", xlim=(n[0], n[-1]), ylim=(0.85, e[-1]))
    panels[0].set_ylabel("experts E  (1 = dense)")
    return figure


def _scatter(panel, points: dict, colour, ends: tuple[float, float]) -> None:
    """Draw the runs {(N, E): loss} as dots, darker for a lower loss."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    scale = LinearSegmentedColormap.from_list("loss", [colour, "white"])
    look = {"norm": LogNorm(*ends), "cmap": scale, "s": 34, "edgecolors": INK, "linewidths": 0.6, "zorder": 3}
    panel.scatter([x for x, _ in points], [y for _, y in points], c=list(points.values()), **look)


def effective_figure(results: dict, runs: list[Run]):
    """Return loss against effective parameter count, a panel per router: the third panel of Figure 1."""
    laws = [law for law in results["laws"] if law["missing"] is None and _worth_showing(law, runs)]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 4.0)
    everything, reach = [], []
    for panel, law in zip(panels, laws, strict=True):
        points = points_of(runs, law["router"])
        everything += points.values()
        reach += _draw_worth(panel, results, law, points)
    low, high = min(reach) / 1.35, max(reach) * 1.35
    for panel, law in zip(panels, laws, strict=True):
        _draw_dense_curve(panel, law, low, high)
        panel.set_xscale("log")
        size_axis(panel, low, high)
        panel.set(title=router_name(law["router"]), xlabel="effective parameter count", xlim=(low, high))
        panel.legend(loc="lower left", handletextpad=0.1, borderaxespad=0.1, labelspacing=0.25, fontsize=9)
    loss_axis(panels, everything, results)
    return figure


def _worth_showing(law: dict, runs: list[Run]) -> bool:
    """Return whether dense models of equal loss are within `REACH` of the trained models."""
    if not law["curve"]["size"] < 0:
        return False
    at = list(points_of(runs, law["router"]))
    worth = _effective(curve_of(law), np.array([n for n, _ in at], float), np.array([e for _, e in at], float))
    return bool(law["sizes"][0] / REACH < worth.min() and worth.max() < law["sizes"][-1] * REACH)


def _draw_worth(panel, results: dict, law: dict, points: dict) -> list[float]:
    """Draw the losses {(N, E): mean loss} of a router against effective parameters. Return the effective parameters."""
    sizes, colour, reach = sorted({n for n, _ in points}), colour_of(results, law["router"]), []
    for i, size in enumerate(sizes):
        at = sorted(e for n, e in points if n == size)
        worth = _effective(curve_of(law), np.full(len(at), float(size)), np.array(at, float))
        reach += list(worth)
        for e, x in zip(at, worth, strict=True):
            if e == 1:
                dots(panel, x, points[size, e], INK, "s", "dense" if i == 0 else None, 5.5)
            else:
                first = e == min(at[at[0] == 1 :])
                label = f"N = {size_name(results, size)}" if first else None
                dots(panel, x, points[size, e], size_shade(colour, i, len(sizes)), "o", label, 5.5)
    return reach


def _draw_dense_curve(panel, law: dict, low: float, high: float) -> None:
    at = np.geomspace(low, high, 50)
    inside = (at >= law["sizes"][0]) & (at <= law["sizes"][-1])
    line = predict_curve(curve_of(law), at, np.ones(at.size))
    panel.plot(at, line, color=INK, linewidth=1.0, linestyle=DASHED, zorder=2)
    panel.plot(at[inside], line[inside], color=INK, linewidth=1.4, zorder=2)


def _effective(curve: LossCurve, size: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """Return [n], the dense sizes that have the same loss by the law as models of these sizes and experts, [n] each."""
    with np.errstate(over="ignore", under="ignore"):
        return 10 ** ((np.log10(predict_curve(curve, size, experts)) - curve.intercept) / curve.size)


def _levels(low: float, high: float) -> np.ndarray:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(13, steps=[1, 2, 5, 10]).tick_values(low, high)


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
