"""The style of figures, shared helpers, and writing.

A router has the same colour in every figure (Okabe and Ito's palette, safe for colour-blind readers). Darker shades are
larger sizes. The same numbers give the same bytes.
"""

import contextlib
import io
from pathlib import Path

import numpy as np

from ..files import write_atomically
from ..results.blocks import count
from ..tables.schema import DENSE
from .finding import loss_name
from .runs import TableRun, usual

COLOURS = {DENSE: "#4a4a4a", "Hash": "#d55e00", "S-Base": "#0072b2", "RL-R": "#009e73"}
MORE_COLOURS = ("#cc79a7", "#b8860b", "#56b4e9", "#6a3d9a", "#8c510a")
"""Colours for other routers."""

INK = COLOURS[DENSE]
DASHED = (0, (4, 3))

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10.5, "axes.titlesize": 11.5,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#888888", "axes.labelcolor": "#333333", "xtick.color": "#555555", "ytick.color": "#555555",
    "axes.grid": True, "grid.color": "#e8e8e8", "grid.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False,
    "lines.solid_capstyle": "round", "figure.facecolor": "white", "savefig.facecolor": "white", "savefig.dpi": 160,
    "svg.hashsalt": "routelaws", "svg.fonttype": "path", "text.parse_math": False,
}  # fmt: skip

METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""Metadata of a file, without times or versions."""

WIDTH = 9.2  # inches: at GitHub's width of about 900 px, text has the size of the page's text
PER_ROW = 3


def save_figure(figure, path: Path) -> None:
    for form in METADATA:
        write_atomically(path.with_name(f"{path.name}.{form}"), image(figure, form))
        figure.set_layout_engine("none")  # both have the layout of the first


def image(figure, form: str) -> bytes:
    """Return a figure as png or svg. The same numbers give the same bytes."""
    content = io.BytesIO()
    figure.savefig(content, format=form, metadata=METADATA[form])
    return content.getvalue()


@contextlib.contextmanager
def styled():
    """Use our style inside the `with` block, because the user's style would change the bytes."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def panel_grid(count: int, height: float, most: int = PER_ROW) -> tuple:
    from matplotlib.figure import Figure

    columns = 2 if count == 4 else min(count, most)
    rows = -(-count // columns)
    width = WIDTH if columns > 1 else 0.65 * WIDTH
    figure = Figure(figsize=(width, height * rows if rows == 1 else 0.85 * height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    panels = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    return figure, panels


def losses_of(runs: list[TableRun], router: str) -> dict[tuple[int, int], list[float]]:
    """Return {(N, E): losses} of the main grid, for the runs of a router and the dense runs."""
    groups: dict = {}
    for run in usual(runs):
        if run.router in (router, DENSE):
            groups.setdefault((run.size, run.experts), []).append(run.loss)
    return dict(sorted(groups.items()))


def points_of(runs: list[TableRun], router: str) -> dict[tuple[int, int], float]:
    """Return {(N, E): mean loss} of the main grid, for the runs of a router and the dense runs."""
    return {key: float(np.mean(losses)) for key, losses in losses_of(runs, router).items()}


def colour_of(results: dict, router: str) -> str:
    return colour_among(results.table.routers, router)


def colour_among(routers: list[str], router: str) -> str:
    others = [name for name in routers if name not in COLOURS]
    return COLOURS.get(router) or MORE_COLOURS[others.index(router) % len(MORE_COLOURS)]


def size_name(results: dict, size: int) -> str:
    return results.size_labels[str(size)]


def size_shade(colour: str, i: int, count: int) -> tuple[float, ...]:
    """Return the shade for the i-th of `count` sizes: from a light tint to the full colour."""
    from matplotlib.colors import to_rgb

    strength = 1.0 if count == 1 else 0.45 + 0.55 * i / (count - 1)
    return tuple(1 - strength * (1 - part) for part in to_rgb(colour))


def dots(
    panel, x, y, colour, marker: str = "o", label: str | None = None, size: float = 6.0, line: float = 0.0
) -> None:
    """Draw points with a white rim, and a line through the points if the line has a width."""
    style = {"linestyle": "-", "linewidth": line} if line else {"linestyle": "none"}
    rim = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    panel.plot(x, y, marker=marker, color=colour, markersize=size, label=label, zorder=3, **rim, **style)


def log_ticks(panel, values: list[int]) -> None:
    """Set a logarithmic x axis with ticks only at (some of) these values."""
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    keep = values[:: 1 + len(values) // 9]
    panel.set_xticks(keep, [str(value) for value in keep])
    panel.xaxis.set_minor_locator(NullLocator())


def size_axis(panel, low: float, high: float) -> None:
    """Make the x axis logarithmic, with ticks at round parameter counts between its ends."""
    steps = (1, 2, 5) if high / low < 60 else (1, 3) if high / low < 3000 else (1,)
    round_ticks(panel, low, high, steps, 5, count)


def plain_ticks(panel, low: float, high: float) -> None:
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8) if high / low < 8 else (1, 3) if high / low < 1000 else (1,)
    round_ticks(panel, low, high, steps, 7, "{:g}".format)


def round_ticks(panel, low: float, high: float, steps: tuple, most: int, name) -> None:
    """Make the x axis logarithmic, with at most `most` ticks at `steps` of each decade between its ends."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xscale("log")
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    if len(ticks) < 2:  # the axis is too short for these ticks
        ticks = [tick for tick in MaxNLocator(3).tick_values(low, high) if low <= tick <= high]
    ticks = ticks[:: max(1, -(-len(ticks) // most))]
    panel.minorticks_off()
    panel.set_xticks(ticks, [name(tick) for tick in ticks])


def loss_axis(panels: list, losses: list[float], results: dict) -> None:
    """Give all panels the same logarithmic loss axis, with numbers at the left of each row."""
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
        panel.tick_params(labelleft=panel.get_subplotspec().is_first_col())
    loss_rows(panels, results)


def loss_rows(panels: list, results: dict) -> None:
    label_rows(panels, f"{loss_name(results['table'].loss_column)} loss (nats per token)")


def label_rows(panels: list, words: str) -> None:
    """Name the y axis at the left of each row of panels."""
    for panel in panels:
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel(words)


def with_room(panel, losses: list[float], below: float = 0.06, above: float = 0.06) -> None:
    span = (max(losses) - min(losses)) or 0.3
    panel.set_ylim(min(losses) - below * span, max(losses) + above * span)


def shared_legend(figure, panels: list, columns: int | None = None) -> None:
    handles: dict = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = min(columns or (6 if len(panels) > 1 else 4), len(handles))
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=columns, handlelength=1.4, columnspacing=1.4
    )
