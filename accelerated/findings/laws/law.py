"""What is the law of each router? The bounded (N, E) law, its constants with intervals, and what is not determined."""

import math
from typing import Any

import numpy as np
import pandas

from routelaws.reference.laws.routed import effective_experts

from ...laws.fitting import predict_curve
from ...results.blocks import (
    NOT_DETERMINED,
    Block,
    Table,
    constant,
    constant_span,
    count,
    figure,
    log_percent,
)
from ...results.encoding import constants, fit_dict
from ...results.fit import Fit
from ...results.floor import cutoff_cell, forms_table
from ...results.misfit import FLOOR_MOVES, warnings
from ...results.plotting import label_ends
from ...results.row_differences import differences, row_doubts, shorter_runs
from ...tables.schema import DENSE
from ...wording import once, plural
from ..finding import CONSTANTS, LEGEND, Finding, Report, bullets, missing, names, router_name, status, who
from ..runs import TableRun
from ..style import (
    INK,
    colour_of,
    dots,
    log_ticks,
    loss_axis,
    losses_of,
    panel_grid,
    points_of,
    round_ticks,
    shared_legend,
    size_axis,
    size_name,
    size_shade,
)
from .printed import rmsle_of
from .refits import extrapolated

FORMULA = """```
log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d
    1/Ê = 1/(E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
```"""

FEW = 6
"""With fewer spare runs than this, intervals are wide, because Student's quantile exceeds 2.4."""

FAR = 1e3
"""The axis includes the end of an interval if it is within this factor of the values."""


class RouterLaw:
    """A law that is fitted to the rows of one router.

    Attributes:
        router: its name
        rows, dense_rows: number of rows of the law, and of the dense rows among them
        sizes, experts: the values of N and E in these rows
        left_out: the excluded runs, with reasons
        missing: the reason why there is no law, or None
        differences, shorter: see `row_differences`
        cautions: warnings about the rows and, with a law, about its residuals
        fit: the law, or None
        constants: its coefficients and N_cutoff, by name
    """

    def __init__(self, selection, loss_column: str, fit: Fit | str):
        frame = selection.frame
        self.router, self.rows = selection.router, len(frame)
        self.dense_rows = int((frame["router_type"] == DENSE).sum())
        columns = ("dense_parameter_count", "num_experts")
        self.sizes, self.experts = (sorted({int(value) for value in frame[name]}) for name in columns)
        self.left_out = selection.left_out
        self.fit, self.missing = (None, fit) if isinstance(fit, str) else (fit, None)
        self.differences, self.shorter = differences(frame) + row_doubts(selection, loss_column), shorter_runs(frame)
        self.cautions = self.fit.cautions if self.fit else warnings(self.differences, self.shorter, None, None)
        self.constants = self.fit and constants(fit)

    @property
    def percent(self) -> float:
        """The RMSLE in percent of the loss."""
        return log_percent(self.fit.rmsle)

    def _asdict(self) -> dict[str, Any]:
        """Return the fields and, with a law, those of `Fit.to_dict`, "rmsle_percent" and the law as "curve"."""
        entry = {name: value for name, value in vars(self).items() if name not in ("fit", "constants")}
        fitted = self.fit and fit_dict(self.fit) | {"rmsle_percent": self.percent, "curve": self.fit.best.curve}
        return entry | (fitted or {})


def find(results: dict, source) -> dict[str, list[RouterLaw]]:
    """Return the `RouterLaw` of each router, a bounded law that is fitted to the main rows of the table, as "laws"."""
    return {"laws": [RouterLaw(rows, source.loss_column, fit) for rows, fit in source.fits()]}


def sentence(report: Report) -> str | None:
    """Return whether routing helps larger models less or more, and the size where it stops helping."""
    if not report.fitted:
        return (
            f"**There is no law.** The reason is under {report.see(FINDING.title)}. A scaling law is a formula that "
            "computes the loss from N and E, with a few constants that are fitted to runs."
        )
    laws = [law for law in report.fitted if len(law.sizes) > 1 and law.fit.status != "linear limit"]
    if not laws:
        return None
    signs, head = [law.constants["c"] for law in laws], "Routing helps less as models grow."
    if all(c.high < 0 for c in signs):
        return "**Routing helps more as models grow.** There is no size N_cutoff above which more experts stop helping."
    if not all(c.low > 0 for c in signs):
        head = "The runs do not show whether routing helps less as models grow."
    cutoffs = {law: law.constants["N_cutoff"] for law in report.fitted if law.fit.status != "linear limit"}
    known = {law: cutoff.value for law, cutoff in cutoffs.items() if cutoff.determined}
    times = {law: cutoff / law.sizes[-1] for law, cutoff in known.items()}
    parts = [
        f"{count(cutoff)} for {router_name(law.router)} "
        f"({figure(times[law], ',.0f' if times[law] >= 10 else '.2g')} times the largest model)"
        for law, cutoff in known.items()
    ]
    unknown = [law.router for law in cutoffs if law not in known]
    parts += [f"not determined for {names(unknown)}"] if unknown else []
    words = (
        f"**{head}** Above the size N_cutoff, more experts stop helping. By the law, N_cutoff is {'; '.join(parts)}."
    )
    return words + extrapolated(report) * bool(known) + _cutoffs_with_floor(report)


def _cutoffs_with_floor(report: Report) -> str:
    if not all(law.fit.forms and law.fit.floor_helps for law in report.fitted):
        return ""
    ends = ", ".join(f"{cutoff_cell(law.fit.forms[1].cutoff)} for {router_name(law.router)}" for law in report.fitted)
    return f" A law with a floor predicts left-out sizes better: by it, N_cutoff is {ends}."


def section(report: Report) -> list[Block]:
    """Return the law with its constants, and the open questions."""
    blocks: list[Block] = [FORMULA] if report.fitted or report.full else []
    if report.full:
        blocks.append(
            "The law is a power law in N and a power law in the *effective* experts Ê. The slope in log10 Ê, "
            "b + c log10 N, changes with size. Ê is E_start for a dense model, rises with E and never exceeds E_max. "
            "The six constants are fitted for each router, to its own runs and the dense runs (E = 1)."
        )
    blocks += missing(report.results.laws, "law")
    if report.fitted:
        legend = f"Brackets hold 95 % intervals. {LEGEND} *Miss*: RMS of the residuals."
        legend += " *Outside*: the printed constant is outside the interval." if report.printed else ""
        legend += " b and d are values at N = 1, far below any model here." if report.full else ""
        points = once((law.router, list(_left_open(report, law))) for law in report.fitted)
        lines = bullets(f"{who(routers, report.fitted)}{words}" for words, routers in points.items())
        blocks += [_constants(report), legend, *["**What the runs do not determine:**"] * bool(lines), *lines]
    return blocks + (_details(report) if report.fitted and report.full else [])


def floor_section(report: Report) -> list[Block]:
    """Return the law without and with a floor; the short report has only routers whose law is better with it."""
    tables = {
        router_name(law.router): forms_table(law.fit.forms, "")
        for law in report.fitted
        if law.fit.forms and (report.full or law.fit.floor_helps)
    }
    if not tables:
        return []
    heads = dict.fromkeys(row[0] for table in tables.values() for row in table.rows)
    cells = {name: {head: " → ".join(rest) for head, *rest in table.rows} for name, table in tables.items()}
    rows = [[head, *(cells[name].get(head, "") for name in tables)] for head in heads]
    return [
        "This table compares the law with the same law above a floor L0. The gain is the loss of the dense model minus "
        f"the loss of the routed model. {FLOOR_MOVES}",
        Table(["without → with a floor", *tables], rows),
    ]


def _constants(report: Report) -> Table:
    rows, printed = [], report.results.printed
    errors = rmsle_of(report.results).map(log_percent)
    for law in report.fitted:
        cells = []
        for name, coefficient in law.constants.items():
            ends = constant_span(coefficient, name)
            value = constant(coefficient.value, name) if coefficient.determined else NOT_DETERMINED
            cells.append(ends if ends == NOT_DETERMINED else f"{value} ({ends})")
        rows.append([router_name(law.router), *cells, f"{figure(law.percent, '.2f')} %"])
        if law.router in errors:
            known = printed[printed["router"] == law.router]
            cells = [
                (count(each.printed) if each.name == "N_cutoff" else figure(each.printed, ".3f"))
                + " (outside)" * (not each.inside)
                for each in known.itertuples()
            ]
            rows.append(["paper", *cells, f"{figure(errors[law.router], '.2f')} %"])
    return Table(["router", *CONSTANTS, "miss"], rows)


def _left_open(report: Report, law: RouterLaw):
    slopes, limit = report.results.slopes, law.fit.status == "linear limit"
    slopes, spare = slopes[slopes["router"] == law.router], law.rows - len(CONSTANTS[:-1])
    if len(law.sizes) == 2:
        yield "With two sizes, every trend in N is a line through two points and cannot be checked."
    if spare < FEW:
        yield (
            f"The law has six constants and {law.rows} runs, so only {plural(spare, 'run')} can test the "
            "fit. The intervals are wide, and they assume that the law is right."
        )
    if doubtful := slopes[slopes["sign"].str.startswith("no")]["N"].tolist():
        yield f"At N = {report.sizes(doubtful)} the runs do not show that the slope is negative."
    ends = slopes[["effective_low", "effective_high"]].astype(float)
    unbounded = slopes[~np.isfinite(ends).all(axis=1)]["N"].tolist()
    if unbounded and not limit:
        yield (
            f"At N = {report.sizes(unbounded)} one end of the slope's interval is infinite, because the runs cannot "
            "distinguish the law from a straight line in E. For such a line, a slope per tenfold Ê is undefined. The "
            "gain has a finite interval."
        )
    if limit:
        yield (
            "The best fit is the linear limit of the law: log10 L falls in proportion to E − 1. In this limit a, b, "
            "c, d, E_start and E_max have no values. Predictions and gains have values; a slope has only a sign."
        )
    else:
        yield from _open_constants(law)


def _open_constants(law: RouterLaw):
    """Yield a sentence for each constant of a fit that is at an edge or beyond the runs, or whose sign is open."""
    top, start, end, c = law.experts[-1], *(law.constants[name] for name in ("E_start", "E_max", "c"))
    if "E_start at 1" in law.fit.status:
        yield "E_start is at its lower limit, 1: for small E, Ê is about E."
    if "E_max unbounded" in law.fit.status:
        yield (
            f"E_max is not identified: in the best fit, Ê has no upper limit. Up to E = {top} these runs show no "
            "saturation, so they do not show where more experts stop helping."
        )
    elif end.determined and end.value > top:
        reached = None  # the fall of log L at the largest E, in percent of the fall at infinite E
        if start.value < end.value < math.inf:
            rise = effective_experts(top, start.value, end.value) / start.value
            reached = 100 * math.log(rise) / math.log(end.value / start.value)
        yield (
            f"E_max lies beyond the largest trained E ({top}), so it is extrapolated from the bend of the curve. By "
            f"this fit, E = {top} reaches {figure(reached, '.0f')} % of the possible gain in log10 L."
        )
    if c.low <= 0 <= c.high:
        yield (
            "The sign of c is not identified: routing may help less or more as models grow, so do not use an N_cutoff "
            "from this fit."
        )
    elif c.high < 0:
        yield "c is below 0: here routing helps more as models grow, and there is no N_cutoff."


def _details(report: Report) -> list[Block]:
    rows = [
        [router_name(law.router), str(law.rows), figure(law.fit.rmsle, ".5f")]
        + [status(law.fit.status, [each.determined for each in law.constants.values()])]
        for law in report.fitted
    ]
    return [
        *report.figure(
            "levels",
            "Models of equal loss",
            "Each line connects models of equal loss by the law (nats per token). Points are trained models; a darker "
            "point has a lower loss. Further up a line, a model has more experts and a smaller N.",
        ),
        *report.figure(
            "coefficients",
            "The constants with their 95 % intervals",
            f"Circles are fitted values{', diamonds are printed ones' if report.printed else ''}. An arrow means that "
            "the interval goes beyond the axis. The intervals are wide because the constants compensate for each "
            "other; the predicted loss is known much better.",
        ),
        Table(["router", "runs", "RMSLE", "where the optimum lies"], rows),
    ]


def loss_figure(results: dict, runs: list[TableRun]):
    """Return loss against E at each size with the fitted law, one panel per router: the first panel of Figure 1."""
    laws = [law for law in results.laws if losses_of(runs, law.router)]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 3.9)
    ends = []
    for panel, law in zip(panels, laws, strict=True):
        groups, colour = losses_of(runs, law.router), colour_of(results, law.router)
        sizes, counts = sorted({n for n, _ in groups}), sorted({e for _, e in groups})
        ends.append([])
        for i, size in enumerate(sizes):
            of_size = {e: groups[size, e] for e in counts if (size, e) in groups}
            end = _draw_size(panel, law, size, of_size, counts[-1], size_shade(colour, i, len(sizes)))
            ends[-1].append((*end, size_name(results, size), colour))
        log_ticks(panel, counts)
        span = max(counts[-1] / counts[0], 2)
        xlim = (counts[0] * span**-0.05, counts[-1] * span**0.24)
        panel.set(title=router_name(law.router), xlabel="experts E  (1 = dense)", xlim=xlim)
    drawn = np.concatenate([line.get_ydata() for panel in panels for line in panel.lines])
    loss_axis(panels, drawn[np.isfinite(drawn)], results)
    for panel, labels in zip(panels, ends, strict=True):
        label_ends(panel, labels)
    return figure


def _draw_size(panel, law, size: int, losses: dict[int, list[float]], most: int, shade) -> tuple[float, float]:
    """Draw the runs of one size, and the law or a line through the means, up to E = `most`. Return the end of the line.

    Args:
        losses: {E: losses of the seeds}, sorted by E.
    """
    at, means = list(losses), [float(np.mean(seeds)) for seeds in losses.values()]
    if law.missing is None:
        fine = np.geomspace(1, most, 200)
        line = predict_curve(law.fit.best.curve, np.full(fine.size, float(size)), fine)
        panel.plot(fine, line, color=shade, linewidth=1.6)
    else:
        fine, line = at, means
        panel.plot(at, means, color=shade, linewidth=1.1, linestyle=":")
    for e, mean in zip(at, means, strict=True):
        dots(panel, e, mean, INK if e == 1 else shade, size=5.5)
        if len(seeds := losses[e]) > 1:
            panel.plot([e] * len(seeds), seeds, "_", color="black", markersize=13, markeredgewidth=0.8, zorder=4)
    return fine[-1], line[-1]


def level_figure(results: dict, runs: list[TableRun]):
    """Return level curves of the loss in the (N, E) plane, a panel per router: the second panel of Figure 1."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator

    laws = [law for law in results.laws if law.missing is None and len(law.sizes) > 1]
    if not laws:
        return None
    figure, panels = panel_grid(len(laws), 4.1)
    shown = [points_of(runs, law.router) for law in laws]
    losses = [loss for points in shown for loss in points.values()]
    levels = MaxNLocator(13, steps=[1, 2, 5, 10]).tick_values(min(losses), max(losses))
    for panel, law, points in zip(panels, laws, shown, strict=True):
        sizes, counts = law.sizes, law.experts
        n = np.geomspace(sizes[0] / 1.25, sizes[-1] * 1.25, 120)
        e = np.geomspace(1, counts[-1] * 1.25, 120)
        grid = predict_curve(law.fit.best.curve, n[None, :].repeat(e.size, 0), e[:, None].repeat(n.size, 1))
        lines = panel.contour(n, e, grid, levels=levels, colors=[INK], linewidths=0.9)
        _label_levels(panel, lines, 2.0 ** (0.5 + len(counts) // 2), (sizes[0] * 1.12, sizes[-1] / 1.12))
        darker_if_lower = LinearSegmentedColormap.from_list("loss", [colour_of(results, law.router), "white"])
        look = {"norm": LogNorm(min(losses), max(losses)), "cmap": darker_if_lower, "edgecolors": INK}
        panel.scatter(*zip(*points, strict=True), s=34, c=list(points.values()), linewidths=0.6, zorder=3, **look)
        panel.set_yscale("log", base=2)
        panel.set_yticks(counts, [str(count) for count in counts])
        panel.minorticks_off()
        size_axis(panel, sizes[0] / 1.25, sizes[-1] * 1.25)
        panel.set(title=router_name(law.router), xlabel="dense parameters N", xlim=(n[0], n[-1]), ylim=(0.85, e[-1]))
    panels[0].set_ylabel("experts E  (1 = dense)")
    return figure


def _label_levels(panel, lines, height: float, reach: tuple[float, float]) -> None:
    """Label every second level curve, between the rows of points (powers of 2)."""
    for i, (level, segments) in enumerate(zip(lines.levels, lines.allsegs, strict=True)):
        vertices = [
            vertex
            for segment in segments
            for vertex in segment
            if reach[0] < vertex[0] < reach[1] and abs(np.log2(vertex[1]) % 1 - 0.5) < 0.15
        ]
        if i % 2 == 0 and vertices:
            x, y = min(vertices, key=lambda vertex: abs(np.log(vertex[1] / height)))
            panel.text(
                x,
                y,
                f"{level:g}",
                ha="center",
                va="center",
                fontsize=8.5,
                color=INK,
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )


def coefficients_figure(results: dict, runs: list[TableRun]):
    """Return each coefficient with its interval for each router, and the paper's printed value."""
    from matplotlib.ticker import MaxNLocator

    laws = [law for law in results.laws if law.missing is None and law.fit.status != "linear limit"]
    rows = [(law.router, name, *each[:3]) for law in laws for name, each in law.constants.items()]
    frame = pandas.DataFrame(rows, columns=["router", "name", "value", "low", "high"])
    frame = frame.merge(results.printed[["router", "name", "printed"]], "left", ["router", "name"])
    shown = frame[frame["name"] != "d"].groupby("name", sort=False)
    shown = [(name, rows) for name, rows in shown if ((rows["value"] != 0) & np.isfinite(rows["value"])).any()]
    if not shown:
        return None
    figure, panels = panel_grid(len(shown), 0.6 + 0.42 * len(laws) + 0.75)
    for panel, (name, rows) in zip(panels, shown, strict=True):
        logarithmic = name in ("E_start", "E_max", "N_cutoff")
        low, high = _reach(rows, logarithmic)
        for i, row in enumerate(rows.itertuples()):
            _forest(panel, row, len(laws) - 1 - i, (low, high), colour_of(results, row.router))
        panel.set(title=name.replace("_", " "), xlim=(low, high), ylim=(-0.7, len(laws) - 0.3), yticks=[])
        panel.grid(axis="y", visible=False)
        if logarithmic:
            steps = (1, 2, 5) if high / low < 40 else (1, 3) if high / low < 200 else (1,)
            round_ticks(panel, low, high, steps, 6, count)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(4))
    shared_legend(figure, panels)
    return figure


def _reach(rows: pandas.DataFrame, logarithmic: bool) -> tuple[float, float]:
    """Return the ends of an axis for all values, and for the ends of intervals that are not too far (`FAR`)."""
    values = [value for value in rows["value"] if np.isfinite(value) and (value > 0 or not logarithmic)]
    values += [*rows["printed"].dropna()]
    ends = [*rows["low"], *rows["high"]]
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


def _forest(panel, row, height: float, ends: tuple[float, float], colour: str) -> None:
    """Draw an interval. An arrow marks an end beyond the axis. Infinite values are not drawn."""
    low, high = max(row.low, ends[0]), min(row.high, ends[1])
    panel.plot([low, high], [height] * 2, color=colour, linewidth=2.2, solid_capstyle="butt")
    if row.high > ends[1]:
        panel.plot(ends[1], height, ">", color=colour, markersize=7, clip_on=False)
    if row.low < ends[0]:
        panel.plot(ends[0], height, "<", color=colour, markersize=7, clip_on=False)
    if np.isfinite(row.value):
        dots(panel, row.value, height, colour, label=router_name(row.router), size=7)
    if row.printed == row.printed:
        open_mark = {"markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 1.2, "zorder": 4}
        label = "printed in the paper"
        panel.plot(row.printed, height - 0.27, "D", color="white", markersize=5, label=label, **open_mark)


FINDING = Finding(
    key="laws",
    title="The law",
    find=find,
    section=section,
    sentence=sentence,
    figures={"loss": loss_figure, "levels": level_figure, "coefficients": coefficients_figure},
    short=True,
)
FLOOR = Finding("laws", "With a floor", lambda results, source: {}, floor_section, short=True)
