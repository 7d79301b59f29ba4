"""Figures that compare runs: compute, other texts."""

import numpy as np

from ...findings.finding import loss_name, router_name
from ...findings.style import (
    INK,
    colour_of,
    loss_axis,
    panel_grid,
    plain_ticks,
    shared_legend,
    size_axis,
)
from ...results.comparisons.runs import Run


def utilisation_figure(results: dict, runs: list[Run]):
    """Return the loss of every run against its equivalent FLOPs by the (F, B) law, one panel per router."""
    entries = [entry for entry in results["utilisation"] if entry["missing"] is None and entry["points"]]
    if not entries or not results["headlines"]["other_kinds"]:
        return None
    figure, panels = panel_grid(len(entries), 4.2)
    everything, reach, marks = [], [], _marks([point["kind"] for entry in entries for point in entry["points"]])
    for panel, entry in zip(panels, entries, strict=True):
        _draw_kinds(panel, entry["points"], marks, colour_of(results, entry["router"]))
        everything += [point["loss"] for point in entry["points"]]
        reach += [point["effective"] for point in entry["points"]]
        panel.set_xscale("log")
        panel.set(title=router_name(entry["router"]), xlabel="effective TeraFLOPs of 2,048 tokens")
    for panel in panels:
        panel.set_xlim(min(reach) / 1.35, max(reach) * 1.35)
        plain_ticks(panel, min(reach) / 1.35, max(reach) * 1.35)
    for kind, (marker, filled) in marks.items():  # only for the legend, because the main grid has a colour per panel
        panels[0].plot([], [], marker, markersize=6, label=kind, **_look(kind, filled, "#b0b0b0"))
    loss_axis(panels, everything, results)
    shared_legend(figure, panels, columns=5)
    return figure


def _draw_kinds(panel, points: list[dict], marks: dict, colour) -> None:
    for kind, (marker, filled) in marks.items():
        here = [point for point in points if point["kind"] == kind]
        at, losses = [point["effective"] for point in here], [point["loss"] for point in here]
        look = _look(kind, filled, colour) | {"zorder": 3 if filled else 4}
        panel.plot(at, losses, marker, markersize=5.5 if filled else 6.5, label=None, **look)
    line = sorted((point["effective"], point["predicted"]) for point in points)
    panel.plot([x for x, _ in line], [y for _, y in line], color=INK, linewidth=1.1, zorder=2)


def _look(kind: str, filled: bool, colour) -> dict:
    """Return the style of a mark. Dense is hollow with a black edge."""
    return {
        "linestyle": "none",
        "markerfacecolor": INK if kind.startswith("dense") else colour if filled else "white",
        "markeredgecolor": "white" if filled else INK,
        "markeredgewidth": 0.7 if filled else 1.1,
    }


def transfer_figure(results: dict, runs: list[Run]):
    """Return, per loss column, the gain from dense to the largest E against N, with profile intervals."""
    columns = list(dict.fromkeys(e["loss"] for e in results["transfer"] if e["missing"] is None))
    if len(columns) < 2:
        return None
    figure, panels = panel_grid(len(columns), 3.3)
    sizes = sorted({gain["N"] for e in results["transfer"] if e["missing"] is None for gain in e["gains"]})
    for panel, column in zip(panels, columns, strict=True):
        entries = [e for e in results["transfer"] if e["loss"] == column and e["missing"] is None]
        spread = np.linspace(-1, 1, len(entries)) * 0.03 if len(entries) > 1 else [0.0]
        for shift, entry in zip(spread, entries, strict=True):
            at = np.array([gain["N"] for gain in entry["gains"]]) * 10**shift
            value, low, high = np.array([gain["percent"] for gain in entry["gains"]]).T
            colour = colour_of(results, entry["router"])
            panel.vlines(at, low, high, color=colour, linewidth=1.6)
            panel.plot(at, value, "o-", color=colour, markersize=4.5, linewidth=1.1, label=router_name(entry["router"]))
        panel.axhline(0, color="#bbbbbb", linewidth=1.0)
        panel.set_xscale("log")
        low, high = (sizes[0] / 1.3, sizes[-1] * 1.3) if len(sizes) > 1 else (sizes[0] / 3, sizes[0] * 3)
        size_axis(panel, low, high)
        panel.set(title=loss_name(column), xlim=(low, high), xlabel="dense parameters N")
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel("change of the loss, %")
    shared_legend(figure, panels)
    return figure


def _marks(kinds: list[str]) -> dict[str, tuple[str, bool]]:
    """Return marker and filling for each kind of run: filled for the main grid, open for others."""
    shapes, open_shapes = {"dense": ("s", True), "main grid": ("o", True)}, iter("D^v<>ph*XP" * 4)
    order = sorted(set(kinds), key=lambda kind: (kind not in shapes, kind.startswith("dense"), kind))
    return {kind: shapes.get(kind) or (next(open_shapes), False) for kind in order}
