"""How does the loss fall with E at each size? Slopes and gains, measured and by the law.

A slope is the change of log10 L per tenfold experts. A gain is the change of log10 L from the dense model to the
largest E of the rows.
"""

import contextlib

import numpy as np
import pandas

from routelaws.reference.laws import range_of

from ...laws.fitting import predict_curve
from ...laws.uncertainty import Quantity, profile_intervals, student_quantile
from ...results.blocks import Block, Table, figure, log_percent, span, verdict
from ...wording import plural
from ..finding import Finding, Report, router_name, table
from ..runs import LEVEL, TableRun
from ..style import colour_of, dots, panel_grid, shared_legend, size_axis

SLOPES = ["router", "N", "rows", "slope", "low", "high", "law", "effective", "effective_low", "effective_high"]
GAINS = ["loss", "router", "N", "E", "value", "low", "high", "verdict", "percent", "percent_low", "percent_high"]


def find(results: dict, source) -> dict[str, pandas.DataFrame]:
    """Return the slopes of the main loss, and the gains of every loss.

    Returns:
        "slopes": router, N, rows, slope of a straight line through log10 L over log10 E with its interval (NaN if all
        E are equal), law (the same for the losses of the law at these E), effective (the law's slope b + c log10 N)
        with its interval, and sign (whether this slope and its whole interval are negative; "" without a law).
        "gains": loss (a column), router, N, E, value, low, high, verdict, and the same three in percent of the loss.
    """
    gains = []
    for column in source.loss_columns:
        with contextlib.suppress(ValueError):  # the finding on other texts has the reason
            gains += [gain for rows, fit in source.fits(column) for gain in _gains(rows, fit)]
    slopes = [slope for rows, fit in source.fits() for slope in _slopes(source.loss_column, rows, fit)]
    return {
        "slopes": pandas.DataFrame(slopes, columns=[*SLOPES, "sign"]),
        "gains": pandas.DataFrame(gains, columns=GAINS),
    }


def _slopes(column: str, rows, fit):
    size, experts, loss = rows.columns(column)
    by_law = {} if isinstance(fit, str) else {item.at: item for item in fit.slopes}
    for n in np.unique(size):
        here = size == n
        x, item = np.log10(experts[here]), by_law.get(n)
        slope = {"router": rows.router, "N": int(n), "sign": ""} | line(x, np.log10(loss[here]))
        if item is not None:
            fitted = np.log10(predict_curve(fit.best.curve, size[here], experts[here]))
            ends = {"effective": item.value, "effective_low": item.low, "effective_high": item.high}
            slope |= ends | {"law": line(x, fitted)["slope"], "sign": sign(item)}
        yield slope


def line(x: np.ndarray, y: np.ndarray) -> dict:
    """Return the least-squares slope of y over x with its Student interval, and the number of rows.

    Returns:
        {"slope", "low", "high", "rows"}; the slope is NaN if all x are equal, and the ends with fewer than three rows.
    """
    spread = x - x.mean()
    square, rows = spread @ spread, x.size
    slope = spread @ y / square if np.unique(x).size > 1 else np.nan
    residual = y - y.mean() - slope * spread
    variance = residual @ residual / (rows - 2) / square if rows > 2 else np.nan
    reach = student_quantile(LEVEL, max(rows - 2, 1)) * np.sqrt(variance)
    return {"slope": slope, "low": slope - reach, "high": slope + reach, "rows": rows}


def sign(slope) -> str:
    """Return whether a slope and its whole interval are negative."""
    if slope.high < 0:
        return "yes" if np.isfinite(slope.value) else "negative, but no finite value"
    return "no, it is positive" if slope.low > 0 else "no, the interval includes 0"


def _gains(rows, fit):
    if isinstance(fit, str):
        return
    (size, experts), top = fit.rows.columns, fit.rows.columns[1].max()
    quantities = [Quantity("gain", N=float(n), E=float(top)) for n in np.unique(size)]
    for item in map(range_of, profile_intervals(size, experts, fit.rows.measured, quantities, LEVEL)):
        ends = item.value, item.low, item.high
        yield fit.rows.loss, rows.router, int(item.at), int(top), *ends, verdict(item) or None, *map(log_percent, ends)


def sentence(report: Report) -> str | None:
    gains = report.gains
    if gains.empty or report.compared:
        return None
    below, points = (gains["high"] < 0).sum(), len(gains)
    head = "No gain from routing is certain."
    if below == points:
        head = "Routing lowers the loss at every size trained."
    elif below:
        head = f"Routing lowers the loss at {below} of {points} points (router and size)."
    return f"**{head}** The table below shows the gains predicted by the law."


def answer(report: Report) -> list[Block]:
    """Return the gains at the smallest and the largest size, for the first page."""
    gains = report.gains
    if gains.empty:
        return []
    rows = [
        [router_name(law.router), f"1 → {rows['E'].iloc[0]}", *at_ends(report, rows), f"{figure(law.percent, '.2f')} %"]
        for law in report.fitted
        for rows in [gains[gains["router"] == law.router]]
    ]
    by_law = (
        f"**By the law,** fitted to these runs, the gain of the largest E is certain at {(gains['high'] < 0).sum()} of "
        f"{plural(len(gains), 'point')} (router and size). The table has the smallest and the largest size:"
    )
    return [by_law] * report.compared + [Table(["router", "experts", *end_heads(report), "error of the law"], rows)]


def end_heads(report: Report) -> list[str]:
    sizes = report.results.table.sizes
    return [f"change of the loss at N = {report.size(size)}" for size in (sizes[0], sizes[-1])[: len(sizes)]]


def at_ends(report: Report, gains: pandas.DataFrame) -> list[str]:
    """Return the first and the last gain as cells. A cell names the gain's N if the column has another N."""
    sizes, cells = report.results.table.sizes, []
    for gain, size in list(zip(gains.iloc[[0, -1]].itertuples(), (sizes[0], sizes[-1]), strict=True))[: len(sizes)]:
        at = "" if gain.N == size else f" at N = {report.size(gain.N)}"
        cells.append(f"{figure(gain.percent, '+.1f')} % ({span((gain.percent_low, gain.percent_high), '+.1f')}){at}")
    return cells


def measured_slopes(results: dict) -> pandas.DataFrame:
    return results.slopes.dropna(subset="slope")


def section(report: Report) -> list[Block]:
    slopes = measured_slopes(report.results)
    if slopes.empty:
        return []
    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.N),
        "measured slope in E": lambda row: figure(row.slope, ".4f"),
        "95 % interval": lambda row: span(row, ".4f"),
    }
    of_law = {
        "law, same runs": lambda row: figure(row.law, ".4f"),
        "law's slope in Ê": lambda row: figure(row.effective, ".4f"),
        "95 % interval of the law's slope": lambda row: span((row.effective_low, row.effective_high), ".4f"),
        "interval negative?": lambda row: row.sign,
    }
    by_law = (
        " *Law, same runs*: the slope of a straight line through the losses that the law gives for these runs. *Law's "
        "slope in Ê*: b + c log10 N. This slope is steeper, because it counts *effective* experts Ê, and Ê varies less "
        "than E."
    )
    ends = slopes[slopes.duplicated("router", keep=False)].groupby("router")["slope"].agg(["first", "last"])
    fading = len(ends) and (ends["last"] < 0).all() and (ends["first"] < ends["last"]).all()
    fade = " All are negative and approach zero as N grows."
    panels = [".", " and by the law (lines). Right: the law's b + c log10 N with its profile interval."]
    return [
        "A slope is the change of log10 L per tenfold experts: -0.03 means that ten times the experts lower the loss "
        "by 7 %. *Measured slope*: the slope of a straight line in log10 E through the runs of one size, dense "
        f"included.{by_law * bool(report.fitted)}",
        table(slopes, columns | (of_law if report.fitted else {}), keys=2),
        *report.figure(
            "slopes",
            "Slopes against model size",
            f"{'Left: slopes measured' if report.fitted else 'Measured'} at each size (circles, with the interval of a "
            f"straight line){panels[bool(report.fitted)]}{fade * bool(fading)}",
        ),
        *_gain_table(report),
    ]


def _gain_table(report: Report) -> list[Block]:
    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.N),
        "experts": lambda row: f"1 → {row.E}",
        "change of log10 L": lambda row: figure(row.value, ".4f"),
        "change of the loss": lambda row: f"{figure(row.percent, '+.1f')} %",
        "95 % interval": lambda row: f"{span((row.percent_low, row.percent_high), '+.1f')} %",
        "precision": lambda row: row.verdict or "",
    }
    words = "The gain from a dense model to the largest E depends less on the form of the law than a slope does:"
    return [words, table(report.gains, columns, keys=2)] if len(report.gains) else []


def draw(results: dict, runs: list[TableRun]):
    """Return slopes against N: the measured slope per tenfold E, and the law's slope per tenfold effective experts."""
    slopes = results.slopes[results.slopes["router"].isin(measured_slopes(results)["router"])]
    if slopes.empty:
        return None
    routers, low, high = slopes.groupby("router"), slopes["N"].min() / 1.3, slopes["N"].max() * 1.3
    by_law = np.isfinite(slopes["effective"].astype(float)).any()
    figure, panels = panel_grid(2 if by_law else 1, 3.9)
    spread = np.linspace(-1, 1, len(routers)) * 0.018 if len(routers) > 1 else [0.0]
    for shift, (router, rows) in zip(spread, routers, strict=True):
        colour, measured = colour_of(results, router), rows.dropna(subset="slope")
        at = measured["N"] * 10**shift
        _whiskers(panels[0], at, measured["slope"], measured["low"], measured["high"], colour)
        panels[0].plot(at, measured["law"], color=colour, linewidth=1.3, zorder=2)
        dots(panels[0], at, measured["slope"], colour, label=router_name(router))
        found = rows[np.isfinite(rows["effective"].astype(float))]
        if len(found):
            at = found["N"] * 10**shift
            _whiskers(panels[1], at, found["effective"], found["effective_low"], found["effective_high"], colour)
            dots(panels[1], at, found["effective"], colour, line=1.3)
    for panel in panels:
        panel.axhline(0, color="#bbbbbb", linewidth=1.0)
        size_axis(panel, low, high)
        panel.set(xlabel="dense parameters N", xlim=(low, high))
    panels[0].set(title="Measured, per tenfold E", ylabel="change of log10 L")
    panels[-1].set(**{"title": "Law, per tenfold effective experts Ê"} if by_law else {})
    shared_legend(figure, panels)
    return figure


def _whiskers(panel, at, values, lows, highs, colour) -> None:
    low, high = (ends.where(np.isfinite(ends.astype(float)), values) for ends in (lows, highs))
    panel.vlines(at, low, high, colors=colour, linewidth=1.5, alpha=0.8)


FINDING = Finding(
    key="slopes",
    title="Slopes and gains",
    find=find,
    sentence=sentence,
    section=section,
    figures={"slopes": draw},
)
