"""The figures of a sweep's report, as PNG and SVG.

Drawn with matplotlib's object interface and with settings that hold only while a figure is drawn, so that whoever
imports this keeps their own backend and style. One colour per router in every figure (Okabe and Ito's palette, which
colour-blind readers can tell apart); within a router darker means larger. The same sweep gives the same bytes.
"""

from pathlib import Path

import numpy as np

from ..files import make_folder
from ..findings.sweep_data import Sweep, SweepRun
from ..findings.sweep_findings import Findings, Load, RouterLaw, effective_size
from ..laws.fitting import predict_curve
from ..tables.table import DENSE
from ..training.result_rows import size_label
from .style import (
    COLOURS,
    STYLE,
    label_ends,
    log_ticks,
    loss_scale,
    panel_grid,
    router_colour,
    save_figure,
    size_shade,
    size_ticks,
)


def draw_all(folder: Path, sweep: Sweep, findings: Findings) -> list[str]:
    """Draw every figure that the sweep has data for.

    Args:
        folder: where to put NAME.png and NAME.svg; made if missing. A figure of an earlier report that this sweep has
            no data for is removed.
        sweep, findings: what to draw.

    Returns:
        The names that were drawn, of loss, effective_size, training and load.
    """
    import matplotlib

    make_folder(folder)
    drawn = []
    for name, draw in (
        ("loss", loss_figure),
        ("effective_size", effective_size_figure),
        ("training", training_figure),
        ("load", load_figure),
    ):
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # a reader's own style would change the bytes
            matplotlib.rcParams.update(STYLE)
            figure = draw(sweep, findings)
            if figure is not None:
                save_figure(figure, folder / name)
                drawn.append(name)
        if figure is None:
            for ending in (".png", ".svg"):
                (folder / (name + ending)).unlink(missing_ok=True)
    return drawn


def loss_figure(sweep: Sweep, findings: Findings):
    """Return the figure of loss against E, one panel per router, one line per N; None without routed runs."""
    if not sweep.selections:
        return None
    figure, panels = panel_grid(len(sweep.selections), 4.6, most=2)
    labels = []  # written once the axes have their range
    for panel, selection, law in zip(panels, sweep.selections, findings.laws, strict=True):
        runs = sweep.of(selection)
        sizes = sorted({run.size for run in runs})
        ends = []
        for i, size in enumerate(sizes):
            colour = size_shade(router_colour(law.router), i, len(sizes))
            end = _loss_line(panel, [run for run in runs if run.size == size], law, colour)
            ends.append((*end, f"N = {size_label(size)}"))
        labels.append((panel, ends, router_colour(law.router)))
        counts = sorted({run.experts for run in runs})
        log_ticks(panel, counts)
        panel.set(title=law.router, xlabel="experts E  (1 = dense)", xlim=_with_room(counts))
    loss_scale(panels, [run.loss for selection in sweep.selections for run in sweep.of(selection)])
    for panel, ends, colour in labels:
        label_ends(panel, ends, colour)
    return figure


def _with_room(counts: list[int]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis with room for the labels on the right."""
    span = max(counts[-1] / counts[0], 2)
    return counts[0] / span**0.05, counts[-1] * span**0.32


def _loss_line(panel, runs: list[SweepRun], law: RouterLaw, colour) -> tuple[float, float]:
    """Draw the runs of one router and size and the law through them; return where the line ends."""
    counts = sorted({run.experts for run in runs})
    means = [np.mean([run.loss for run in runs if run.experts == count]) for count in counts]
    if law.fit is not None:
        at = np.geomspace(1, max(law.expert_counts), 200)
        line = predict_curve(law.fit.curve, np.full(at.size, float(runs[0].size)), at)
        panel.plot(at, line, color=colour, linewidth=1.8)
    else:
        at, line = counts, means
        panel.plot(at, line, color=colour, linewidth=1.2, linestyle=":")
    for count, mean in zip(counts, means, strict=True):
        losses = [run.loss for run in runs if run.experts == count]
        dense = count == 1
        panel.plot(
            count,
            mean,
            "o",
            color=COLOURS[DENSE] if dense else colour,
            markersize=6.5,
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=3,
        )
        if len(losses) > 1:  # dashes wider than the point, so that they show where seeds hardly differ
            panel.plot([count] * len(losses), losses, "_", color="black", markersize=15, markeredgewidth=0.9, zorder=4)
    return float(at[-1]), float(line[-1])


def effective_size_figure(sweep: Sweep, findings: Findings):
    """Return the figure of loss against effective parameter count; None if no router has a law."""
    laws = [
        (law, sweep.of(s))
        for law, s in zip(findings.laws, sweep.selections, strict=True)
        if law.fit is not None and law.fit.curve.size != 0
    ]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 4.4, most=2)
    reach = []  # by panel: the smallest and the largest effective size
    for panel, (law, runs) in zip(panels, laws, strict=True):
        sizes, everything = sorted({run.size for run in runs}), []
        for i, size in enumerate(sizes):
            for dense in (False, True):
                chosen = [run for run in runs if run.size == size and (run.router == DENSE) == dense]
                at = effective_size(law.fit, [float(size)] * len(chosen), [run.experts for run in chosen])
                everything += list(at)
                colour = COLOURS[DENSE] if dense else size_shade(router_colour(law.router), i, len(sizes))
                label = f"N = {size_label(size)}" if not dense else "dense" if i == len(sizes) - 1 else None
                panel.plot(
                    at,
                    [run.loss for run in chosen],
                    "s" if dense else "o",
                    color=colour,
                    markersize=6.5,
                    markeredgecolor="white",
                    markeredgewidth=0.8,
                    zorder=3,
                    label=label,
                )
        reach.append((min(everything), max(everything)))
        panel.set(title=law.router, xlabel="effective parameter count  (parameters)")
        panel.legend(loc="lower left", handletextpad=0.2, borderaxespad=0.2)
    low, high = min(low for low, _ in reach) / 1.4, max(high for _, high in reach) * 1.4
    for panel, (law, _), (smallest, largest) in zip(panels, laws, reach, strict=True):
        inside, dashed = (law.sizes[0], law.sizes[-1]), (0, (4, 3))
        below, above = (min(smallest, inside[0]), inside[0]), (inside[1], max(largest, inside[1]))
        for at, style in ((inside, "-"), (below, dashed), (above, dashed)):
            line = predict_curve(law.fit.curve, np.array(at, dtype=float), np.ones(2))
            panel.plot(at, line, color=COLOURS[DENSE], linewidth=1.3, linestyle=style, zorder=2)
        panel.set_xscale("log")
        panel.set_xlim(low, high)
        size_ticks(panel, low, high)
    loss_scale(panels, [run.loss for _, runs in laws for run in runs])
    return figure


def training_figure(sweep: Sweep, findings: Findings):
    """Return the training curves by size: dense, and each router at its largest E; None without logs."""
    chosen = _shown_runs(sweep)
    if not any(run.log for _, runs in chosen for run in runs):
        return None
    figure, panels = panel_grid(len(chosen), 3.6)
    names = {}
    for router in {run.router for _, runs in chosen for run in runs}:
        counts = {run.experts for _, runs in chosen for run in runs if run.router == router}
        names[router] = f"{router}, " + (f"E = {counts.pop()}" if len(counts) == 1 else "largest E")
    names[DENSE] = "dense"
    for panel, (size, runs) in zip(panels, chosen, strict=True):
        tops = []
        for run in runs:
            colour = router_colour(run.router)
            at, loss = _curve(run, "train", "loss")
            panel.plot(at, _smoothed(loss), color=size_shade(colour, 0, 3), linewidth=1.0)
            at_evaluation, validation = _curve(run, "evaluation", "loss_validation")
            panel.plot(
                at_evaluation,
                validation,
                "o-",
                color=colour,
                markersize=4,
                linewidth=1.6,
                zorder=3,
                label=names[run.router],
            )
            tops += list(_smoothed(loss)[at >= 0.04 * at[-1]]) + list(validation) if at.size else list(validation)
        if tops:
            room = 0.04 * (max(tops) - min(tops))
            panel.set_ylim(min(tops) - room, max(tops) + room)
        panel.set(title=f"N = {size_label(size)}", xlabel="training tokens (millions)", xlim=(0, None))
    lines = {line.get_label(): line for panel in panels for line in panel.lines if not line.get_label().startswith("_")}
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=len(lines), handlelength=1.6)
    for panel in panels:
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel("loss (nats per token)")
    return figure


def load_figure(sweep: Sweep, findings: Findings):
    """Return the load of the experts at the largest size, one panel per router, one line per routed block."""
    shown: dict[str, Load] = {load.router: load for load in findings.loads}  # sizes rise, so the largest is kept
    if not shown:
        return None
    figure, panels = panel_grid(len(shown), 3.6, most=2)
    highest = max(load.busiest for load in shown.values())
    for panel, load in zip(panels, shown.values(), strict=True):
        for i, block in enumerate(load.shares):
            colour = router_colour(load.router)
            colour = size_shade(colour, i, len(load.shares)) if len(load.shares) > 1 else colour
            edges = np.arange(len(block) + 1) + 0.5
            label = f"routed block {i + 1} of {len(load.shares)}" if len(load.shares) > 1 else None
            panel.stairs(block, edges, color=colour, linewidth=1.8, label=label, baseline=None)
            if len(load.shares) == 1:
                panel.stairs(block, edges, color=colour, fill=True, alpha=0.15)
        panel.axhline(1, color=COLOURS[DENSE], linewidth=1.1, linestyle=(0, (4, 3)))
        count = len(load.shares[0])
        panel.text(
            count + 0.5, 1 + 0.015 * highest, "balanced", ha="right", va="bottom", fontsize=9.5, color=COLOURS[DENSE]
        )
        panel.set(
            title=f"{load.router}, N = {size_label(load.size)}, E = {load.experts}",
            xlabel="experts, busiest first",
            xlim=(0.5, count + 0.5),
            ylim=(0, highest * 1.06),
        )
        panel.xaxis.get_major_locator().set_params(integer=True)
        if len(load.shares) > 1:
            panel.legend(loc="upper right")
    panels[0].set_ylabel("tokens, in units of a fair share")
    return figure


def _shown_runs(sweep: Sweep) -> list[tuple[int, list[SweepRun]]]:
    """Return, by size, the dense run and the run of each router with the largest E; of several seeds the first."""
    chosen = []
    for size in sorted({run.size for run in sweep.runs}):
        here = [run for run in sweep.dense() if run.size == size][:1]
        for selection in sweep.selections:
            routed = [run for run in sweep.of(selection) if run.size == size and run.router != DENSE]
            if routed:
                here.append(max(routed, key=lambda run: (run.experts, -run.hyper_id)))
        chosen.append((size, here))
    return chosen


def _curve(run: SweepRun, kind: str, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Return millions of tokens and values of one kind of log line."""
    per_step = run.config.batch_size * run.config.sequence_length / 1e6
    lines = [line for line in run.log if line.get("kind") == kind and field in line]
    return np.array([line["step"] * per_step for line in lines]), np.array([line[field] for line in lines])


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Return running means over a fortieth of the values, shorter at the ends."""
    half = len(values) // 80
    totals = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(len(values)) - half, 0)
    last = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return (totals[last] - totals[first]) / (last - first)
