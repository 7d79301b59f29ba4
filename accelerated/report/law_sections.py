"""The sections of a report on the (N, E) law: its constants, open questions, intervals."""

from ..findings.finding import Report, bullets, missing, router_name, status, who
from ..results.blocks import NOT_DETERMINED, Block, Heading, Table, constant, constant_span, count, figure, rough_span
from ..results.encoding import constants
from ..results.floor import forms_table
from ..results.misfit import FLOOR_MOVES
from ..results.planning.isoflop import ISOFLOP_CAPTION, ISOFLOP_HEAD, profile_blocks
from ..wording import once, plural

FORMULA = """```
log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d
    1/Ê = 1/(E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
```"""

FEW = 6
"""With fewer spare runs than this, intervals are wide, because Student's quantile exceeds 2.4."""

NAMES = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")


def law_section(report: Report) -> list[Block]:
    """Return the law with its constants, and the open questions."""
    if not report.laws:
        return []
    blocks: list[Block] = [Heading("The law"), *([FORMULA] if report.fitted or report.full else [])]
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
        blocks += [
            _constants(report),
            legend,
            *_open_points(report),
        ]
    return blocks


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
        Heading("With a floor"),
        "This table compares the law with the same law above a floor L0. The gain is the loss of the dense model minus "
        f"the loss of the routed model. {FLOOR_MOVES}",
        Table(["without → with a floor", *tables], rows),
    ]


LEGEND = (
    "*Not determined*: an end of the interval is at a limit or infinite, or the ends differ by a factor of more than 10"
    " (E_start, E_max and N_cutoff: a million)."
)


def _constants(report: Report) -> Table:
    rows = []
    for law in report.fitted:
        cells = []
        for name, coefficient in constants(law).items():
            ends = constant_span(coefficient, name)
            cells.append(ends if ends == NOT_DETERMINED else f"{value_of(coefficient, name)} ({ends})")
        rows.append([router_name(law["router"]), *cells, f"{figure(law['rmsle_percent'], '.2f')} %"])
        if "printed" in law:
            rows.append(["paper", *_printed(law["printed"]), f"{figure(law['printed']['rmsle_percent'], '.2f')} %"])
    return Table(["router", *NAMES, "miss"], rows)


def value_of(own: dict, name: str) -> str:
    """Return a constant as a cell, if the runs determine it."""
    return constant(own["value"], name) if own["determined"] else NOT_DETERMINED


def _printed(printed: dict) -> list[str]:
    cells = {name: figure(value, ".3f") for name, value in printed["coefficients"].items()}
    cells |= {"N_cutoff": count(printed["N_cutoff"])}
    return [text + ("" if printed["inside"][name] else " (outside)") for name, text in cells.items()]


def _open_points(report: Report) -> list[Block]:
    points = once((law["router"], list(_left_open(report, law))) for law in report.fitted)
    lines = bullets(f"{who(routers, report.fitted)}{words}" for words, routers in points.items())
    return ["**What the runs do not determine:**", *lines] if lines else []


def _left_open(report: Report, law: dict):
    slopes, limit = law["derived"]["slopes"], law["status"] == "linear limit"
    if len(law["sizes"]) == 2:
        yield "With two sizes, every trend in N is a line through two points and cannot be checked."
    if law["spare"] < FEW:
        yield (
            f"The law has six constants and {law['rows']} runs, so only {plural(law['spare'], 'run')} can test the "
            "fit. The intervals are wide, and they assume that the law is right."
        )
    doubtful = [each["N"] for each in slopes if each["negative"].startswith("no")]
    if doubtful:
        yield f"At N = {report.sizes(doubtful)} the runs do not show that the slope is negative."
    unbounded = [each["N"] for each in slopes if each["endless"]]
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
            f"this fit, E = {top} reaches {figure(law['reached'], '.0f')} % of the possible gain in log10 L."
        )
    if coefficients["c"]["low"] <= 0 <= coefficients["c"]["high"]:
        yield (
            "The sign of c is not identified: routing may help less or more as models grow, so do not use an N_cutoff "
            "from this fit."
        )
    elif coefficients["c"]["high"] < 0:
        yield "c is below 0: here routing helps more as models grow, and there is no N_cutoff."


def fit_details(report: Report) -> list[Block]:
    if not report.fitted:
        return []
    rows = [
        [router_name(law["router"]), str(law["rows"]), figure(law["rmsle"], ".5f"), status(law)]
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
        *_by_huber(report),
        *_on_other_rows(report),
        *_by_other_means(report),
    ]


def _row_of(fit: dict) -> list[str]:
    cells = [constant(coefficient["value"], name) for name, coefficient in fit["coefficients"].items()]
    return [*cells, count(fit["derived"]["N_cutoff"]["value"]), figure(fit["rmsle"], ".5f")]


def _by_huber(report: Report) -> list[Block]:
    laws = [law for law in report.fitted if "huber" in law]
    if not laws:
        return []
    rows = []
    for law in laws:
        name = router_name(law["router"])
        rows += [[name, "least squares", *_row_of(law)], [name, "Huber's sum", *_row_of(law["huber"])]]
    delta = f"{laws[0]['huber']['delta']:.3g}"
    return [
        f"**The same law, fitted by a sum of Huber terms** (delta = {delta} in log10 L). Outliers have less weight:",
        Table(["router", "by", *NAMES, "RMSLE"], rows, keys=2),
    ]


CHOICES = {
    "own": "as above",
    "one dense seed more": "with one more dense run: 130M, seed 1",
    "all seeds": "every seed",
}


def _on_other_rows(report: Report) -> list[Block]:
    entries = report.results["other_rows"]
    if not entries:
        return []
    rows = [[router_name(e["router"]), CHOICES[e["choice"]], str(e["rows"]), *_row_of(e)] for e in entries]
    return [
        "**The same law on other rows.** With other seeds of the dense runs, the constants stay within their "
        "intervals:",
        Table(["router", "rows", "runs", *NAMES, "RMSLE"], rows, keys=2),
    ]


MEANS = ("profile", "jackknife", "runs", "sizes")


def _by_other_means(report: Report) -> list[Block]:
    entries = report.results["other_intervals"]
    if not entries:
        return []
    rows = []
    for entry in entries:
        for q in entry["quantities"]:
            at = f" at N = {report.size(q['N'])}" if q["N"] == q["N"] else ""
            ends = [rough_span(q[means], q["name"]) for means in MEANS]
            rows.append([router_name(entry["router"]), f"{q['name']}{at}", *ends])
    heads = ["profile likelihood (independent residuals)", "jackknife: one size left out at a time"]
    heads += ["bootstrap of runs", "bootstrap of sizes"]
    return [
        "**The same intervals by other methods.** Profile likelihood assumes independent residuals. If the law is "
        "slightly wrong at some sizes, the residuals of one size are correlated. The jackknife's Student interval "
        "includes the effect of this correlation.",
        Table(["router", "quantity", *heads], rows, keys=2),
        _of_the_draws(entries),
    ]


def _of_the_draws(entries: list[dict]) -> str:
    sentence = f"Each bootstrap has {entries[0]['resamples']:,} resamples (seed {entries[0]['seed']})."
    lost = [
        f"{router_name(e['router'])} {e['undetermined_runs']} resamples of runs and {e['undetermined_sizes']} of sizes"
        for e in entries
        if e["undetermined_runs"] or e["undetermined_sizes"]
    ]
    if lost:
        sentence += f" Resamples that do not determine the law are excluded: {'; '.join(lost)}."
    endless = [f"{e['unbounded_runs']} for {router_name(e['router'])}" for e in entries if e["unbounded_runs"]]
    return f"{sentence} E_max is infinite in some resamples of runs: {'; '.join(endless)}." if endless else sentence


def isoflop_section(report: Report) -> list[Block]:
    """Return the best sizes at each budget, by parabolas and by a law that uses size and tokens."""
    profiles = report.results["isoflop"]
    if not profiles:
        return []
    return [
        Heading(ISOFLOP_HEAD),
        "Runs of several sizes used about the same training FLOPs. The law L = a/N^alpha + b/D^beta + c is fitted "
        "separately to each kind of model.",
        *report.figure("isoflop", "Losses at equal FLOPs", ISOFLOP_CAPTION),
        *profile_blocks(profiles),
    ]
