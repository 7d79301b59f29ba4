"""What the figures of this report share: points of the main grid, axes of sizes and losses, one legend for all."""

import numpy as np

from ...findings.rows import Run, usual
from ...findings.words import loss_name
from ...laws.fitting import LossCurve
from ...tables.table import DENSE
from ..style import COLOURS, MORE_COLOURS, loss_scale, panel_grid

INK = COLOURS[DENSE]
DASHED = (0, (4, 3))


def points_of(runs: list[Run], router: str) -> dict:
    """Return {(N, E): mean loss} of a router and the dense runs, of the main grid."""
    groups: dict = {}
    for run in usual(runs):
        if run.router in (router, DENSE):
            groups.setdefault((run.size, run.experts), []).append(run.loss)
    return {key: float(np.mean(losses)) for key, losses in sorted(groups.items())}


def colour_of(results: dict, router: str) -> str:
    """Return the colour of a router; those without one of their own get different ones, as far as there are."""
    others = [name for name in results["table"]["routers"] if name not in COLOURS]
    return COLOURS.get(router) or MORE_COLOURS[others.index(router) % len(MORE_COLOURS)]


def curve_of(law: dict) -> LossCurve:
    return LossCurve(**law["curve"])


def size_name(results: dict, size: int) -> str:
    return results["size_labels"][str(size)]


def loss_label(results: dict) -> str:
    return f"{loss_name(results['table']['loss_column'])} loss (nats per token)"


def side_by_side(count: int, height: float) -> tuple:
    """Return up to three panels in a row, more below."""
    return panel_grid(count, height, most=3)


def dot(panel, x: float, y: float, colour, marker: str = "o", label: str | None = None) -> None:
    panel.plot(
        x,
        y,
        marker,
        color=colour,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.7,
        zorder=3,
        label=label,
        linestyle="none",
    )


def loss_axis(panels: list, losses: list[float], results: dict) -> None:
    """Give the panels one loss axis; its numbers stand at the first of each row."""
    loss_scale(panels, losses)
    for panel in panels:
        first = panel.get_subplotspec().is_first_col()
        panel.tick_params(labelleft=first)
        panel.set_ylabel(loss_label(results) if first else "")


def size_axis(panel, low: float, high: float) -> None:
    """Put ticks at round parameter counts."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 2, 5) if high / low < 15 else (1, 3) if high / low < 1500 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    panel.minorticks_off()
    panel.set_xticks(ticks, [count_label(tick) for tick in ticks])


def count_label(value: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def plain_ticks(panel, low: float, high: float) -> None:
    """Put round plain numbers on a logarithmic x axis."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8) if high / low < 8 else (1, 3) if high / low < 1000 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    ticks = ticks[:: 1 + len(ticks) // 7]
    panel.minorticks_off()
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def shared_legend(figure, panels: list, columns: int | None = None) -> None:
    """Put one legend above all panels, each name once."""
    handles: dict = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = min(columns or len(handles), len(handles))
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=columns, handlelength=1.4, columnspacing=1.4
    )
