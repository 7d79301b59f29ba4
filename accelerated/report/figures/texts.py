"""Figures of laws for other texts."""

import numpy as np

from ...findings.finding import loss_name, router_name
from ...findings.style import (
    colour_of,
    panel_grid,
    shared_legend,
    size_axis,
)
from ...results.comparisons.runs import Run


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
