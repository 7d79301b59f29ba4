"""Figures on the quality of the (N, E) laws: slopes and coefficients with intervals."""

import numpy as np

from ...findings.finding import router_name
from ...findings.style import (
    INK,
    colour_of,
    dots,
    panel_grid,
    round_ticks,
    shared_legend,
    size_axis,
)
from ...results.blocks import count
from ...results.comparisons.runs import Run
from ...results.encoding import constants

FAR = 1e3
"""The axis includes the end of an interval if it is within this factor of the values."""


def slopes_figure(results: dict, runs: list[Run]):
    """Return slopes against N: the measured slope per tenfold E, and the law's slope per tenfold effective experts."""
    laws = [law for law in results["laws"] if law["measured_slopes"]]
    if not laws:
        return None
    fitted = [law for law in laws if law["missing"] is None and law["status"] != "linear limit"]
    figure, panels = panel_grid(2 if fitted else 1, 3.9)
    spread = np.linspace(-1, 1, len(laws)) * 0.018 if len(laws) > 1 else [0.0]
    for shift, law in zip(spread, laws, strict=True):
        colour = colour_of(results, law["router"])
        _draw_measured_slopes(panels[0], law, shift, colour)
        if law in fitted:
            at = np.array([entry["N"] for entry in law["derived"]["slopes"]]) * 10**shift
            _whiskers(panels[1], at, law["derived"]["slopes"], "value", colour)
            dots(panels[1], at, [entry["value"] for entry in law["derived"]["slopes"]], colour, line=1.3)
    sizes = sorted({n for law in laws for n in law["sizes"]})
    for panel in panels:
        panel.axhline(0, color="#bbbbbb", linewidth=1.0)
        panel.set_xscale("log")
        size_axis(panel, sizes[0] / 1.3, sizes[-1] * 1.3)
        panel.set(xlabel="dense parameters N", xlim=(sizes[0] / 1.3, sizes[-1] * 1.3))
    panels[0].set(title="Measured, per tenfold E", ylabel="change of log10 L")
    if fitted:
        panels[1].set(title="Law, per tenfold effective experts Ê")
    shared_legend(figure, panels)
    return figure


def _draw_measured_slopes(panel, law: dict, shift: float, colour) -> None:
    entries = law["measured_slopes"]
    at = np.array([entry["N"] for entry in entries]) * 10**shift
    _whiskers(panel, at, entries, "slope", colour)
    if all(entry["law"] is not None for entry in entries):
        panel.plot(at, [entry["law"] for entry in entries], color=colour, linewidth=1.3, zorder=2)
    dots(panel, at, [entry["slope"] for entry in entries], colour, label=router_name(law["router"]))


def coefficients_figure(results: dict, runs: list[Run]):
    """Return each coefficient with its interval for each router, and the paper's printed value."""
    laws = [law for law in results["laws"] if law["missing"] is None and law["status"] != "linear limit"]
    if not laws:
        return None
    names = [
        name
        for name in ("a", "b", "c", "E_start", "E_max", "N_cutoff")
        if any(0 < abs(constants(law)[name]["value"]) < np.inf for law in laws)
    ]
    if not names:
        return None
    figure, panels = panel_grid(len(names), 0.6 + 0.42 * len(laws) + 0.75)
    for panel, name in zip(panels, names, strict=True):
        if name in ("E_start", "E_max", "N_cutoff"):
            panel.set_xscale("log")
        low, high = _reach(laws, name, panel.get_xscale() == "log")
        for i, law in enumerate(laws):
            _forest(panel, law, name, len(laws) - 1 - i, (low, high), colour_of(results, law["router"]))
        panel.set(title=name.replace("_", " "), xlim=(low, high), ylim=(-0.7, len(laws) - 0.3), yticks=[])
        panel.grid(axis="y", visible=False)
        _few_ticks(panel, low, high)
    shared_legend(figure, panels)
    return figure


def _few_ticks(panel, low: float, high: float) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.get_xscale() == "log":
        steps = (1, 2, 5) if high / low < 40 else (1, 3) if high / low < 200 else (1,)
        round_ticks(panel, low, high, steps, 6, count)
    else:
        panel.xaxis.set_major_locator(MaxNLocator(4))


def _reach(laws: list[dict], name: str, logarithmic: bool) -> tuple[float, float]:
    """Return the ends of an axis for all values, and for the ends of intervals that are not too far (`FAR`)."""
    values = [constants(law)[name]["value"] for law in laws]
    values = [value for value in values if np.isfinite(value) and (value > 0 or not logarithmic)]
    values += [_printed(law, name) for law in laws if "printed" in law]
    ends = [constants(law)[name][end] for law in laws for end in ("low", "high")]
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


def _forest(panel, law: dict, name: str, height: float, ends: tuple[float, float], colour: str) -> None:
    """Draw an interval. An arrow marks an end beyond the axis. Infinite values are not drawn."""
    interval = constants(law)[name]
    low, high = max(interval["low"], ends[0]), min(interval["high"], ends[1])
    panel.plot([low, high], [height] * 2, color=colour, linewidth=2.2, solid_capstyle="butt")
    if interval["high"] > ends[1]:
        panel.plot(ends[1], height, ">", color=colour, markersize=7, clip_on=False)
    if interval["low"] < ends[0]:
        panel.plot(ends[0], height, "<", color=colour, markersize=7, clip_on=False)
    if np.isfinite(interval["value"]):
        dots(panel, interval["value"], height, colour, label=router_name(law["router"]), size=7)
    if "printed" in law:
        open_mark = {"markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 1.2, "zorder": 4}
        label = "printed in the paper"
        panel.plot(_printed(law, name), height - 0.27, "D", color="white", markersize=5, label=label, **open_mark)


def _printed(law: dict, name: str) -> float:
    return law["printed"]["N_cutoff"] if name == "N_cutoff" else law["printed"]["coefficients"][name]


def _whiskers(panel, at: np.ndarray, entries: list[dict], key: str, colour) -> None:
    for x, entry in zip(at, entries, strict=True):
        low, high = (
            entry[key] if entry[end] is None or not np.isfinite(entry[end]) else entry[end] for end in ("low", "high")
        )
        panel.plot([x, x], [low, high], color=colour, linewidth=1.5, alpha=0.8, solid_capstyle="butt")
