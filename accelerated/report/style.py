"""How figures look and how they are written: what the figures of every report share.

One colour per router in every figure (Okabe and Ito's palette, which colour-blind readers can tell apart); within a
router darker means larger. The same numbers give the same bytes.
"""

import io
import os
from pathlib import Path

import numpy as np

from ..files import write_atomically
from ..tables.table import DENSE

COLOURS = {DENSE: "#4a4a4a", "Hash": "#d55e00", "S-Base": "#0072b2", "RL-R": "#009e73"}
MORE_COLOURS = ("#cc79a7", "#b8860b", "#56b4e9")
"""For routers without a colour of their own."""

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10.5, "axes.titlesize": 11.5,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#888888", "axes.labelcolor": "#333333", "xtick.color": "#555555", "ytick.color": "#555555",
    "axes.grid": True, "grid.color": "#e8e8e8", "grid.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False,
    "lines.solid_capstyle": "round", "figure.facecolor": "white", "savefig.facecolor": "white", "savefig.dpi": 160,
    "svg.hashsalt": "routelaws", "svg.fonttype": "path",
}  # fmt: skip

WIDTH = 9.2  # inches: at GitHub's width of about 900 px, text comes out as large as the text around it
PER_ROW = 3


def save_figure(figure, path: Path) -> None:
    """Write PATH.png and PATH.svg, each whole or not at all, without the time or the version of anything."""
    for ending, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        content = io.BytesIO()
        figure.savefig(content, format=ending[1:], metadata=metadata)
        target = path.with_name(path.name + ending)
        if ending == ".svg":
            write_atomically(target, content.getvalue().decode("utf-8"))
            continue
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_bytes(content.getvalue())
        os.replace(temporary, target)


def panel_grid(count: int, height: float, most: int = PER_ROW) -> tuple:
    """Return a figure and its panels, `most` in a row."""
    from matplotlib.figure import Figure

    columns = 2 if count == 4 else min(count, most)
    rows = -(-count // columns)
    width = WIDTH if columns > 1 else 0.65 * WIDTH
    figure = Figure(figsize=(width, height * rows if rows == 1 else 0.85 * height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    panels = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    return figure, panels


def router_colour(router: str) -> str:
    return COLOURS.get(router) or MORE_COLOURS[sum(map(ord, router)) % len(MORE_COLOURS)]


def size_shade(colour: str, i: int, count: int) -> tuple[float, ...]:
    """Return the colour for the i-th of `count` sizes: from a light tint to the colour itself."""
    from matplotlib.colors import to_rgb

    strength = 1.0 if count == 1 else 0.45 + 0.55 * i / (count - 1)
    return tuple(1 - strength * (1 - part) for part in to_rgb(colour))


def log_ticks(panel, values: list[int]) -> None:
    """Put a logarithmic x axis with ticks at these values alone, thinned to what can be read."""
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    keep = values[:: 1 + len(values) // 9]
    panel.set_xticks(keep, [str(value) for value in keep])
    panel.xaxis.set_minor_locator(NullLocator())


def size_ticks(panel, low: float, high: float) -> None:
    """Put ticks at round parameter counts between two ends of a logarithmic x axis."""
    from matplotlib.ticker import NullLocator

    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 2, 5) if high / low < 60 else (1, 3) if high / low < 3000 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    ticks = ticks[:: 1 + len(ticks) // 8]
    panel.set_xticks(ticks, [f"{tick / 1e6:g}M" if tick >= 1e6 else f"{tick / 1e3:g}K" for tick in ticks])
    panel.xaxis.set_minor_locator(NullLocator())


def loss_scale(panels: list, losses: list[float]) -> None:
    """Give all panels one logarithmic loss axis with plain numbers; the law is a straight line of log L."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    low, high = np.log(min(losses)), np.log(max(losses))
    room = 0.06 * (high - low) or 0.02
    low, high = np.exp(low - room), np.exp(high + room)
    ticks = [tick for tick in MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= tick <= high]
    decimals = next((n for n in range(5) if all(abs(round(tick, n) - tick) < 1e-6 for tick in ticks)), 5)
    for panel in panels:
        panel.set_yscale("log")
        panel.set_ylim(low, high)
        panel.set_yticks(ticks, [f"{tick:.{decimals}f}" for tick in ticks])
        panel.yaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("validation loss (nats per token)")


def label_ends(panel, ends: list[tuple[float, float, str]], colour: str) -> None:
    """Write a label to the right of where each line ends, pushed apart where they would touch."""
    low, high = np.log(panel.get_ylim())
    gap, height = 0.055 * (high - low), -np.inf
    for x, y, text in sorted(ends, key=lambda end: end[1]):
        height = max(np.log(y), height + gap)
        panel.annotate(
            text,
            (x, np.exp(height)),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            fontsize=9.5,
            annotation_clip=False,
        )
