"""How did the losses fall during training? The curves of a sweep, of one run, and of runs to compare."""

import numpy as np
import pandas

from ...results.blocks import Block
from ...tables.schema import DENSE
from ..finding import Finding, Report, router_name
from ..style import colour_among, colour_of, label_rows, panel_grid, shared_legend, size_name, size_shade, with_room
from .folder import Sweep, SweepRun
from .loads import SHARES, Load, load_panel

NO_LOGS = "There are no curves, because the logs of the runs are missing."
TOKENS, NATS = "training tokens (millions)", "loss (nats per token)"


def training_figure(results: dict, sweep: Sweep, facts):
    """Return the training curves by size: dense, and each router at its largest E; None without logs."""
    chosen = _shown_runs(sweep)
    if not any(run.log for _, runs in chosen for run in runs):
        return None
    figure, panels = panel_grid(len(chosen), 3.3)
    names = _names([run for _, runs in chosen for run in runs])
    for panel, (size, runs) in zip(panels, chosen, strict=True):
        tops = [t for run in runs for t in _draw_run(panel, run, colour_of(results, run.router), names[run.router])]
        if tops:
            with_room(panel, tops, 0.04, 0.04)
        panel.set(title=f"N = {size_name(results, size)}", xlabel=TOKENS, xlim=(0, None))
    label_rows(panels, NATS)
    shared_legend(figure, panels, columns=5)
    return figure


def run_figure(run: SweepRun, load: Load | None):
    """Return the losses of one run and, if it is routed, the load of its experts."""
    figure, panels = panel_grid(1 + (load is not None), 3.4)
    colour = colour_among([run.router], run.router)
    with_room(panels[0], _draw_run(panels[0], run, colour, "validation", "training, running mean"), 0.04, 0.04)
    panels[0].set(title="Loss", xlabel=TOKENS, xlim=(0, None), ylabel=NATS)
    panels[0].legend(loc="upper right")
    if load is not None:
        load_panel(panels[1], load, colour, load.busiest)
        panels[1].set(title="Load of the experts", ylabel=SHARES)
    return figure


def curves_figure(runs: dict[str, SweepRun], apart: pandas.DataFrame | None = None):
    """Return the losses of runs by name and, from `at_equal_tokens`, their differences from the first run."""
    figure, panels = panel_grid(1 + (apart is not None), 3.8)
    colours = {name: colour_among(list(runs), name) for name in runs}
    tops = [loss for name, run in runs.items() for loss in _draw_run(panels[0], run, colours[name], name)]
    with_room(panels[0], tops, 0.04, 0.04)
    panels[0].set(xlabel=TOKENS, xlim=(0, None), ylabel=NATS)
    if apart is not None:
        for name, rows in apart.groupby("run"):
            panels[1].plot(rows["tokens"] / 1e6, rows["difference"], "o-", color=colours[name], markersize=4)
        panels[1].set(title=f"Minus {next(iter(runs))}", xlabel=TOKENS, xlim=(0, None), ylabel="difference of the loss")
        panels[0].set(title="Loss")
    shared_legend(figure, panels[:1], columns=2)
    return figure


def _draw_run(panel, run: SweepRun, colour, label: str, of_training: str = "") -> list[float]:
    """Draw the smoothed training loss and the evaluations of a run. Return the losses that the axis must include."""
    at, loss = _curve(run, "train", "loss")
    smooth = pandas.Series(loss).rolling(2 * (len(loss) // 80) + 1, center=True, min_periods=1).mean().to_numpy()
    panel.plot(at, smooth, color=size_shade(colour, 0, 3), linewidth=1.0, label=of_training or None)
    at_evaluation, validation = _curve(run, "evaluation", "loss_validation")
    look = {"color": colour, "markersize": 4, "linewidth": 1.6, "zorder": 3}
    panel.plot(at_evaluation, validation, "o-", label=label, **look)
    return [*validation, *(smooth[at >= 0.04 * at[-1]] if at.size else [])]


def _names(runs: list[SweepRun]) -> dict[str, str]:
    counts: dict[str, set] = {}
    for run in runs:
        counts.setdefault(run.router, set()).add(run.experts)
    return {
        router: "dense"
        if router == DENSE
        else f"{router_name(router)}, " + (f"E = {min(experts)}" if len(experts) == 1 else "largest E")
        for router, experts in counts.items()
    }


def _shown_runs(sweep: Sweep) -> list[tuple[int, list[SweepRun]]]:
    """Return, by size, the dense run and each router's run with the largest E. Only the first seed counts."""
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
    per_step = run.config.batch_size * run.config.sequence_length / 1e6
    lines = [line for line in run.log if line.get("kind") == kind and field in line]
    return np.array([line["step"] * per_step for line in lines]), np.array([line[field] for line in lines])


def curves(report: Report) -> list[Block]:
    caption = (
        "Dense models, and the largest E of each router. Points are validation losses, thin lines the training loss"
    )
    caption += " (running mean). The first steps, with much higher losses, are not shown." if report.full else "."
    return report.figure("training", "Loss during training", caption)


FINDING = Finding(
    None, "Training", lambda results, sweep: {}, lambda report: curves(report) or [NO_LOGS],
    figures={"training": training_figure}, last=curves,
)  # fmt: skip
