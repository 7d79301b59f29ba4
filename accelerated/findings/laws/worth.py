"""What is a routed model worth? The size of the dense model with the same loss, by the law and by the measured loss."""

import math

import numpy as np
import pandas

from routelaws.reference.laws import range_of
from routelaws.reference.laws.dense import DenseLine

from ...laws.fitting import LossCurve, predict_curve
from ...laws.uncertainty import Quantity, profile_intervals
from ...results.blocks import NOT_DETERMINED, Block, count, counts_span, figure, ten_to, undetermined, verdict
from ..finding import Finding, Report, names, router_name, table
from ..runs import LEVEL, REACH, TableRun
from ..style import (
    DASHED,
    INK,
    colour_of,
    dots,
    loss_axis,
    panel_grid,
    points_of,
    size_axis,
    size_name,
    size_shade,
)
from .law import RouterLaw

SHOWN_EXPERTS = (8, 64, 128, 512)
"""The table has these values of E, and the largest E of the runs."""

COLUMNS = ["router", "N", "E", "loss", "value", "low", "high", "verdict", "times", "measured", "measured_times"]


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Return the equivalent dense size of some models.

    Returns:
        "worth": router, N, E, loss (measured), value, low, high, verdict (by the law), times (value / N), measured (the
        size by the power law of the dense runs, or NaN), measured_times.
    """
    dense, rows = results.dense, []
    line = dense.fit.best.line if dense.found else DenseLine(math.nan, math.nan)
    for selection, fit in source.fits():
        if isinstance(fit, str):
            continue
        (size, experts), loss = fit.rows.columns, fit.rows.measured
        shown = np.isin(experts, (*SHOWN_EXPERTS, experts.max()))
        cells = sorted(set(zip(size[shown].tolist(), experts[shown].tolist(), strict=True)))
        quantities = [Quantity("effective_parameters", N=n, E=e) for n, e in cells]
        intervals = map(range_of, profile_intervals(size, experts, loss, quantities, LEVEL))
        for (n, e), item in zip(cells, intervals, strict=True):
            mean = float(loss[(size == n) & (experts == e)].mean())
            measured = equal_dense_size(mean, line)
            ends = item.value, item.low, item.high, verdict(item) or None
            rows.append([selection.router, int(n), int(e), mean, *ends, item.value / n, measured, measured / n])
    return {"worth": pandas.DataFrame(rows, columns=COLUMNS)}


def equal_dense_size(loss: float, line: DenseLine) -> float:
    """Return the size of the dense model with this loss, by the dense power law.

    Args:
        loss: nats per token, above 0.
        line: log10 L = intercept + slope · log10 N, with a slope below 0. The form (N_c/N)^alpha is not used, because
            N_c can exceed the largest float.
    """
    return ten_to((math.log10(loss) - line.intercept) / line.slope)


def section(report: Report) -> list[Block]:
    frame = report.results["worth"]
    rising = [law.router for law in report.fitted if law.fit.misfit.rise is not None]
    known = frame[~frame["router"].isin(rising)]
    blocks: list[Block] = [
        "The *effective parameter count* of a routed model is the size of the dense model with the same loss. The "
        "table has two estimates: one from the loss by the law, and one from the measured loss. The second uses the "
        "power law of the dense runs.",
    ]
    if rising:
        blocks.append(
            f"By the law of {names(rising)}, larger dense models are no better, so no dense size corresponds to a loss."
        )
    if known.empty:
        return blocks
    if sizes := report.results.dense.sizes:
        top = report.size(sizes[-1])
        blocks.append(f"Above {top}, the largest dense model, both sizes are extrapolated.")
    caption = (
        "The x-axis is the size of the dense model with the same loss by the law. If the law holds, dense (squares) "
        "and routed models (circles) of every N and E lie on one line. The line is dashed where no dense model was "
        "trained."
    )
    blocks += report.figure("effective_size", "Loss against effective parameter count", caption)

    def by_law(row, text: str) -> str:
        return NOT_DETERMINED if undetermined(row.low, row.high) else text

    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.N),
        "E": lambda row: str(row.E),
        "measured loss": lambda row: figure(row.loss, ".4f"),
        "equivalent dense size by the law": lambda row: by_law(row, count(row.value)),
        "95 % interval": lambda row: by_law(row, counts_span(row)),
        "times N, by the law": lambda row: by_law(row, figure(row.times, ".1f")),
        "equivalent dense size by the measured loss": lambda row: count(row.measured),
        "times N": lambda row: figure(row.measured_times, ".1f"),
    }
    return [*blocks, table(known, columns, keys=3)]


def draw(results: dict, runs: list[TableRun]):
    """Return loss against effective parameter count, a panel per router: the third panel of Figure 1."""
    laws = [law for law in results.laws if law.missing is None and _worth_showing(law, runs)]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 4.0)
    everything, reach = [], []
    for panel, law in zip(panels, laws, strict=True):
        points = points_of(runs, law.router)
        everything += points.values()
        reach += _draw_worth(panel, results, law, points)
    low, high = min(reach) / 1.35, max(reach) * 1.35
    for panel, law in zip(panels, laws, strict=True):
        at = np.geomspace(low, high, 50)
        inside = (at >= law.sizes[0]) & (at <= law.sizes[-1])
        line = predict_curve(law.fit.best.curve, at, np.ones(at.size))
        panel.plot(at, line, color=INK, linewidth=1.0, linestyle=DASHED, zorder=2)
        panel.plot(at[inside], line[inside], color=INK, linewidth=1.4, zorder=2)
        size_axis(panel, low, high)
        panel.set(title=router_name(law.router), xlabel="effective parameter count", xlim=(low, high))
        panel.legend(loc="lower left", handletextpad=0.1, borderaxespad=0.1, labelspacing=0.25, fontsize=9)
    loss_axis(panels, everything, results)
    return figure


def _worth_showing(law: RouterLaw, runs: list[TableRun]) -> bool:
    """Return whether dense models of equal loss are within `REACH` of the trained models."""
    curve = law.fit.best.curve
    if not curve.size < 0:
        return False
    worth = _effective(curve, *np.array(list(points_of(runs, law.router)), float).T)
    return bool(law.sizes[0] / REACH < worth.min() and worth.max() < law.sizes[-1] * REACH)


def _draw_worth(panel, results: dict, law: RouterLaw, points: dict) -> list[float]:
    """Draw the losses {(N, E): mean loss} of a router against effective parameters. Return the effective parameters."""
    sizes, colour, reach = sorted({n for n, _ in points}), colour_of(results, law.router), []
    for i, size in enumerate(sizes):
        at = sorted(e for n, e in points if n == size)
        worth = _effective(law.fit.best.curve, np.full(len(at), float(size)), np.array(at, float))
        reach += list(worth)
        for e, x in zip(at, worth, strict=True):
            if e == 1:
                dots(panel, x, points[size, e], INK, "s", "dense" if i == 0 else None, 5.5)
            else:
                first = e == min(at[at[0] == 1 :])
                label = f"N = {size_name(results, size)}" if first else None
                dots(panel, x, points[size, e], size_shade(colour, i, len(sizes)), "o", label, 5.5)
    return reach


def _effective(curve: LossCurve, size: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """Return [n], the dense sizes that have the same loss by the law as models of these sizes and experts, [n] each."""
    with np.errstate(over="ignore", under="ignore"):
        return 10 ** ((np.log10(predict_curve(curve, size, experts)) - curve.intercept) / curve.size)


FINDING = Finding("worth", "What a routed model is worth", find, section, figures={"effective_size": draw})
