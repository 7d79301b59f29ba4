"""Figures for a notebook: a fit with its rows, and the frontiers of a plan."""

import math

import numpy as np

from .blocks import count, exponent

LABELS = {
    "dense_parameters": "N, dense parameters", "num_experts": "E, experts", "tokens": "D, training tokens",
    "flops": "training FLOPs", "teraflops": "F, TeraFLOPs",
}  # fmt: skip

UNITS = {"loss": "loss (nats per token)", "accuracy": "accuracy", "leverage": "efficiency leverage"}


def plot_fits(fits):
    """Draw each fit of a `Fits` in its own panel. Return the matplotlib figure."""
    from matplotlib import pyplot

    columns = min(len(fits), 3)
    rows = math.ceil(len(fits) / columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(4.5 * columns, 3.6 * rows), squeeze=False, sharey=True)
    for panel, fit in zip(panels.flat, fits, strict=False):
        plot_fit(fit, panel)
    for panel in panels[:, 1:].flat:
        panel.set_ylabel("")
    for panel in panels.flat[len(fits) :]:
        panel.set_axis_off()
    figure.tight_layout()
    return figure


def plot_fit(fit, panel=None):
    """Draw the rows of a `Fit` as dots and its law as lines. Return the matplotlib axes.

    The x axis of a law of one column is this column. For an (N, E) law, the x axis is E, with a line for each N. For
    any other law, the figure shows measured values against fitted values, and the diagonal. Dashed lines show the same
    law with a floor.
    """
    from matplotlib import pyplot

    panel = pyplot.subplots()[1] if panel is None else panel
    columns = fit.law.columns
    if len(columns) == 1:
        _draw_curve(panel, fit, 0, [])
    elif columns == ("dense_parameters", "num_experts"):
        label_ends(panel, [_draw_curve(panel, fit, 1, [size]) for size in np.unique(fit.rows.columns[0])])
    else:
        _draw_diagonal(panel, fit)
    panel.set_title(fit.name)
    return panel


def _draw_curve(panel, fit, column: int, fixed: list[float]) -> tuple[float, float, str, str]:
    """Draw the rows whose first columns have the values `fixed`. Draw the law over the next column.

    Returns:
        The end of the law's line, as `label_ends` takes it.
    """
    columns = fit.rows.columns
    here = (
        np.all([columns[i] == value for i, value in enumerate(fixed)], axis=0)
        if fixed
        else np.ones(columns[0].size, bool)
    )
    x, y = columns[column][here], fit.rows.measured[here]
    line = np.geomspace(x.min(), x.max(), 64) if x.min() < x.max() else x[:1]
    at = [*(np.full(line.size, value) for value in fixed), line]
    colour = panel.plot(x, y, "o", markersize=4)[0].get_color()
    heights = np.asarray(fit.law.predict(fit.best, *at))
    panel.plot(line, heights, "-", color=colour)
    if fit.floored is not None:
        panel.plot(line, np.asarray(fit.floored.law.predict(fit.floored.best, *at)), "--", color=colour)
    name = fit.law.columns[column]
    panel.set(xscale="log", xlabel=LABELS.get(name, name), ylabel=UNITS[fit.law.measured])
    ticks = np.unique(fit.rows.columns[column])
    if ticks.size <= 8:
        panel.set_xticks(ticks)
        panel.set_xticks([], minor=True)
    panel.xaxis.set_major_formatter(lambda value, position: count(value))  # our style draws no formulas
    return line[-1], heights[-1], count(fixed[0]) if fixed else "", colour


def label_ends(panel, ends: list[tuple[float, float, str, str]]) -> None:
    """Write labels (x, y, text, colour) to the right of the ends of lines, without overlap.

    A line that leaves the panel has its label at the edge of the panel.
    """
    logarithmic = panel.get_yscale() == "log"
    scale, back = (np.log, np.exp) if logarithmic else (float, float)
    low, high = map(scale, panel.get_ylim())
    gap, height = 0.055 * (high - low), -np.inf
    for x, y, text, colour in sorted(ends, key=lambda end: end[1]):
        height = max(min(max(scale(y), low), high), height + gap)
        panel.annotate(
            text,
            (x, back(height)),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            fontsize=9.5,
            annotation_clip=False,
        )


def _draw_diagonal(panel, fit) -> None:
    columns = fit.rows.columns[: len(fit.law.columns)]
    law = np.asarray(fit.law.predict(fit.best, *columns))
    panel.plot(law, fit.rows.measured, "o", markersize=4)
    ends = [min(law.min(), fit.rows.measured.min()), max(law.max(), fit.rows.measured.max())]
    panel.plot(ends, ends, "-", color="#888888")
    panel.set(xlabel="by the law", ylabel=f"measured {UNITS[fit.law.measured]}")


def plot_frontiers(frontiers: list[tuple[str, dict]], budget: float, colours: dict[str, str], unit: str = "FLOPs"):
    """Draw the lowest loss of routers against FLOPs, or against another unit. Return the matplotlib figure.

    Args:
        frontiers: for each panel its title and, by router, [(FLOPs, loss, whether the model lies beyond the runs)].
        budget: FLOPs, drawn as a vertical line.
        colours: {router: colour}; other routers have matplotlib's colours.
    """
    from matplotlib import pyplot

    columns = min(len(frontiers), 2)
    rows, width = math.ceil(len(frontiers) / columns), 4.6 * columns if columns > 1 else 6.0
    figure, panels = pyplot.subplots(rows, columns, figsize=(width, 3.2 * rows), squeeze=False, layout="constrained")
    for panel, (title, routers) in zip(panels.flat, frontiers, strict=False):
        for router, points in routers.items():
            _draw_frontier(panel, router, points, colours.get(router))
        panel.axvline(budget, color="#888888", linewidth=1, zorder=1)
        panel.set(xscale="log", xlabel=unit, ylabel="lowest loss (nats per token)")
        panel.xaxis.set_major_formatter(lambda flops, _: exponent(flops))  # pages of a report do not render mathematics
        panel.set_title(title)
        panel.legend(fontsize=9)
    for panel in panels.flat[len(frontiers) :]:
        panel.set_axis_off()
    return figure


def plot_profiles(profiles: list):
    """Draw isoFLOP profiles, a panel for each kind of model. Return the matplotlib figure.

    Args:
        profiles: result of `planning.isoflop`. Runs are dots. The law is a line with a diamond at its minimum. The
            parabola is a dashed line with a cross.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(each.name for each in profiles))
    figure = Figure(figsize=(8.0, 4.2 * len(names)), layout="constrained")
    for panel, name in zip(figure.subplots(len(names), 1, squeeze=False).flat, names, strict=True):
        own = [each for each in profiles if each.name == name]
        for i, each in enumerate(own):
            _draw_profile(panel, each, 0.9 * i / max(1, len(own) - 1))
        panel.set(xscale="log", xlabel="N", ylabel="loss (nats per token)", title=name)
        for which in ("major", "minor"):  # a decade has few major ticks
            decades = math.log10(max(each.sizes.max() for each in own) / min(each.sizes.min() for each in own))
            shown = which == "major" or decades < 1.5
            getattr(panel.xaxis, f"set_{which}_formatter")(lambda n, _, shown=shown: count(n) if shown else "")
        panel.legend(title="FLOPs", fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _draw_profile(panel, profile, shade: float) -> None:
    from matplotlib import colormaps

    colour, (sizes, by_law) = colormaps["viridis"](shade), profile.curve
    rim = {"color": colour, "markeredgecolor": "black", "markeredgewidth": 0.8, "linestyle": "none"}
    panel.plot(profile.sizes, profile.losses, "o", color=colour, markersize=3.5, label=exponent(profile.flops))
    panel.plot(sizes, by_law, "-", color=colour, linewidth=1)
    bend = profile.parabola.curvature * np.log(sizes / profile.parabola.size) ** 2  # NaN without a minimum
    panel.plot(sizes, profile.parabola.loss + bend, "--", color=colour, linewidth=1)
    for minimum, mark in ((profile.law, "D"), (profile.parabola, "X")):
        if sizes[0] <= minimum.size <= sizes[-1]:
            panel.plot(minimum.size, minimum.loss, mark, markersize=6, zorder=3, **rim)


def _draw_frontier(panel, router: str, points: list[tuple[float, float, bool]], colour: str | None) -> None:
    """Draw a router's line, or a dot for a single point. A segment is dashed if it ends beyond the runs."""
    [line] = panel.plot(*points[0][:2], "o" if len(points) == 1 else "-", color=colour, label=router)
    for (x, y, out), (next_x, next_y, next_out) in zip(points, points[1:], strict=False):
        panel.plot([x, next_x], [y, next_y], "--" if out or next_out else "-", color=line.get_color())
