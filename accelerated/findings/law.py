"""What is the law of each router? The bounded (N, E) law, its constants with intervals, and what is not determined."""

import math

import numpy as np

from routelaws.reference.laws.routed import effective_experts

from ..results.blocks import (
    NOT_DETERMINED,
    Block,
    Table,
    constant,
    constant_span,
    count,
    counts_span,
    figure,
    log_percent,
)
from ..results.encoding import constants, fit_dict
from ..results.fit import Fit
from ..results.floor import cutoff_cell, forms_table
from ..results.misfit import FLOOR_MOVES, warnings
from ..results.row_differences import differences, row_doubts, shorter_runs
from ..tables.schema import DENSE
from ..wording import by_reason, once, plural
from .finding import CONSTANTS, LEGEND, Finding, Report, bullets, missing, names, router_name, status, who
from .law_figures import coefficients_figure, level_figure, loss_figure
from .source import columns_of

FORMULA = """```
log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d
    1/Ê = 1/(E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
```"""

FEW = 6
"""With fewer spare runs than this, intervals are wide, because Student's quantile exceeds 2.4."""


def find(results: dict, source) -> dict[str, list[dict]]:
    """Return an entry for each router: its bounded law, fitted to the main rows of the table.

    Returns:
        "laws", a list of dicts. Each has these keys:

            router                its name
            rows, dense_rows      number of rows of the law, and of the dense rows among them
            sizes, experts        the values of N and E in these rows
            left_out              the excluded runs, with reasons
            differences, shorter  see `row_differences`
            cautions              warnings about the rows and, with a law, about its residuals
            missing               the reason why there is no law, or None

        An entry with a law also has the keys of `Fit.to_dict`, "rmsle_percent", and the coefficients of `predict_curve`
        as "curve".
    """
    return {"laws": [_entry(source, rows, fit) for rows, fit in source.fits()]}


def _entry(source, selection, fit: Fit | str) -> dict:
    size, experts, _ = columns_of(selection, source.loss_column)
    entry = {
        "router": selection.router,
        "rows": size.size,
        "dense_rows": int((selection.frame["router_type"] == DENSE).sum()),
        "sizes": [int(n) for n in np.unique(size)],
        "experts": [int(e) for e in np.unique(experts)],
        "left_out": selection.left_out,
        "missing": fit,
    } | doubts(selection, source.loss_column)
    if isinstance(fit, str):
        return entry
    percent = log_percent(fit.rmsle)
    return entry | {"missing": None} | fit_dict(fit) | {"rmsle_percent": percent, "curve": fit.best.curve._asdict()}


def doubts(selection, loss_column: str) -> dict:
    differing = differences(selection.frame) + row_doubts(selection, loss_column)
    shorter = shorter_runs(selection.frame)
    return {"differences": differing, "shorter": shorter, "cautions": warnings(differing, shorter, None, None)}


def sentence(report: Report) -> str | None:
    """Return whether routing helps larger models less or more, and the size where it stops helping."""
    if not report.fitted:
        return (
            f"**There is no law.** The reason is under {report.see(FINDING.title)}. A scaling law is a formula that "
            "computes the loss from N and E, with a few constants that are fitted to runs."
        )
    laws = [law for law in report.fitted if len(law["sizes"]) > 1 and law["status"] != "linear limit"]
    if not laws:
        return None
    signs, head = [law["coefficients"]["c"] for law in laws], "Routing helps less as models grow."
    if all(c["high"] < 0 for c in signs):
        return "**Routing helps more as models grow.** There is no size N_cutoff above which more experts stop helping."
    if not all(c["low"] > 0 for c in signs):
        head = "The runs do not show whether routing helps less as models grow."
    laws = [law for law in report.fitted if law["status"] != "linear limit"]
    known = [law for law in laws if law["derived"]["N_cutoff"]["determined"]]
    parts = [
        f"{count(law['derived']['N_cutoff']['value'])} for {router_name(law['router'])} "
        f"({_times(law['derived']['N_cutoff']['value'] / law['sizes'][-1])} times the largest model)"
        for law in known
    ]
    unknown = [law["router"] for law in laws if law not in known]
    parts += [f"not determined for {names(unknown)}"] if unknown else []
    words = (
        f"**{head}** Above the size N_cutoff, more experts stop helping. By the law, N_cutoff is {'; '.join(parts)}."
    )
    return words + _extrapolated(report) * bool(known) + _cutoffs_with_floor(report)


def _extrapolated(report: Report) -> str:
    intervals = report.results["other_intervals"]
    cutoffs = intervals[intervals["name"] == "N_cutoff"]
    cutoffs = cutoffs[np.isfinite(cutoffs[["jackknife_low", "jackknife_high"]].astype(float)).all(axis=1)]
    ends = {row.router: counts_span((row.jackknife_low, row.jackknife_high)) for row in cutoffs.itertuples()}
    knife = ", ".join(f"{ends} for {names(routers)}" for ends, routers in by_reason(ends).items())
    allowed = "; the jackknife also includes small errors of the law at each size; by this, N_cutoff is"
    return f" This is an extrapolation{f'{allowed} {knife}' if knife else ''}."


def _cutoffs_with_floor(report: Report) -> str:
    forms = {law["router"]: law["with_floor"]["forms"][1] for law in report.fitted if law["with_floor"]}
    better = all(law["with_floor"] and law["with_floor"]["better"] for law in report.fitted)
    if not better:
        return ""
    ends = ", ".join(f"{cutoff_cell(form.cutoff)} for {router_name(router)}" for router, form in forms.items())
    return f" A law with a floor predicts left-out sizes better: by it, N_cutoff is {ends}."


def _times(value: float) -> str:
    return figure(value, ",.0f" if value >= 10 else ".2g")


def section(report: Report) -> list[Block]:
    """Return the law with its constants, and the open questions."""
    blocks: list[Block] = [FORMULA] if report.fitted or report.full else []
    if report.full:
        blocks.append(
            "The law is a power law in N and a power law in the *effective* experts Ê. The slope in log10 Ê, "
            "b + c log10 N, changes with size. Ê is E_start for a dense model, rises with E and never exceeds E_max. "
            "The six constants are fitted for each router, to its own runs and the dense runs (E = 1)."
        )
    blocks += missing(report.laws, "law")
    if report.fitted:
        legend = f"Brackets hold 95 % intervals. {LEGEND} *Miss*: RMS of the residuals."
        legend += " *Outside*: the printed constant is outside the interval." if report.printed else ""
        legend += " b and d are values at N = 1, far below any model here." if report.full else ""
        blocks += [_constants(report), legend, *_open_points(report)]
    return blocks + (_details(report) if report.fitted and report.full else [])


def floor_section(report: Report) -> list[Block]:
    """Return the law without and with a floor; the short report has only routers whose law is better with it."""
    tables = {
        router_name(law["router"]): forms_table(law["with_floor"]["forms"], "")
        for law in report.fitted
        if law["with_floor"] and (report.full or law["with_floor"]["better"])
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
    rows, printed = [], report.results["printed"]
    errors = report.results["printed_laws"].set_index("router")["rmsle"].map(log_percent)
    for law in report.fitted:
        cells = []
        for name, coefficient in constants(law).items():
            ends = constant_span(coefficient, name)
            value = constant(coefficient["value"], name) if coefficient["determined"] else NOT_DETERMINED
            cells.append(ends if ends == NOT_DETERMINED else f"{value} ({ends})")
        rows.append([router_name(law["router"]), *cells, f"{figure(law['rmsle_percent'], '.2f')} %"])
        if law["router"] in errors:
            known = printed[printed["router"] == law["router"]]
            cells = [
                (count(each.printed) if each.name == "N_cutoff" else figure(each.printed, ".3f"))
                + " (outside)" * (not each.inside)
                for each in known.itertuples()
            ]
            rows.append(["paper", *cells, f"{figure(errors[law['router']], '.2f')} %"])
    return Table(["router", *CONSTANTS, "miss"], rows)


def _open_points(report: Report) -> list[Block]:
    points = once((law["router"], list(_left_open(report, law))) for law in report.fitted)
    lines = bullets(f"{who(routers, report.fitted)}{words}" for words, routers in points.items())
    return ["**What the runs do not determine:**", *lines] if lines else []


def _left_open(report: Report, law: dict):
    slopes, limit = report.results["slopes"], law["status"] == "linear limit"
    slopes, spare = slopes[slopes["router"] == law["router"]], law["rows"] - len(law["coefficients"])
    if len(law["sizes"]) == 2:
        yield "With two sizes, every trend in N is a line through two points and cannot be checked."
    if spare < FEW:
        yield (
            f"The law has six constants and {law['rows']} runs, so only {plural(spare, 'run')} can test the "
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


def _open_constants(law: dict):
    """Yield a sentence for each constant of a fit that is at an edge or beyond the runs, or whose sign is open."""
    top, coefficients = law["experts"][-1], law["coefficients"]
    if "E_start at 1" in law["status"]:
        yield "E_start is at its lower limit, 1: for small E, Ê is about E."
    if "E_max unbounded" in law["status"]:
        yield (
            f"E_max is not identified: in the best fit, Ê has no upper limit. Up to E = {top} these runs show no "
            "saturation, so they do not show where more experts stop helping."
        )
    elif coefficients["E_max"]["determined"] and coefficients["E_max"]["value"] > top:
        yield (
            f"E_max lies beyond the largest trained E ({top}), so it is extrapolated from the bend of the curve. By "
            f"this fit, E = {top} reaches {figure(_reached(law), '.0f')} % of the possible gain in log10 L."
        )
    if coefficients["c"]["low"] <= 0 <= coefficients["c"]["high"]:
        yield (
            "The sign of c is not identified: routing may help less or more as models grow, so do not use an N_cutoff "
            "from this fit."
        )
    elif coefficients["c"]["high"] < 0:
        yield "c is below 0: here routing helps more as models grow, and there is no N_cutoff."


def _reached(law: dict) -> float | None:
    """Return the fall of log L at the largest E, in percent of the fall at infinite E."""
    start, top = (law["coefficients"][name]["value"] for name in ("E_start", "E_max"))
    if not start < top < math.inf:
        return None
    return 100 * math.log(effective_experts(law["experts"][-1], start, top) / start) / math.log(top / start)


def _details(report: Report) -> list[Block]:
    rows = [
        [router_name(law["router"]), str(law["rows"]), figure(law["rmsle"], ".5f")]
        + [status(law["status"], [each["determined"] for each in constants(law).values()])]
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


FINDING = Finding(
    key="laws",
    title="The law",
    find=find,
    section=section,
    sentence=sentence,
    figures={"loss": loss_figure, "levels": level_figure, "coefficients": coefficients_figure},
)
FLOOR = Finding("laws", "With a floor", lambda results, source: {}, floor_section)
