"""The sections of a report on the law in N and E: its constants, what the runs leave open, how well both are known."""

from ..results.blocks import Block, Heading, Table, constant, constant_span, count, figure, rough_span
from ..results.encoding import constants
from ..results.planning.isoflop import ISOFLOP_CAPTION, ISOFLOP_HEAD, profile_blocks
from ..wording import once, plural
from .outline import Report, bullets, missing, router_name, status, who

FORMULA = """```
log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d
    1/Ê = 1/(E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
```"""

FEW = 6
"""Runs beyond the number of constants below which an interval is wide for want of runs: Student's quantile is 2.4."""

NAMES = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")


def law_section(report: Report) -> list[Block]:
    """Return the law with its constants, and what the runs leave open."""
    if not report.laws:
        return []
    found: list[Block] = [Heading("The law"), *([FORMULA] if report.fitted or report.full else [])]
    if report.full:
        found.append(
            "In words: a power law in N, and one in the *effective* experts Ê, whose slope b + c log10 N changes with "
            "size. Ê is E_start for a dense model, rises with E and never passes E_max. The six constants are fitted "
            "for each router to its own runs and the dense ones, which count as E = 1."
        )
    found += missing(report.laws, "law")
    if report.fitted:
        legend = (
            "In brackets: 95 % intervals. *Open*: the runs do not determine it. *Miss*: root mean square of the misses."
        )
        legend += " *Outside*: a printed constant that is not in the interval." if report.printed else ""
        legend += " b and d are values at N = 1, far below any model here." if report.full else ""
        found += [
            _constants(report),
            legend,
            *_open_points(report),
        ]
    return found


def _constants(report: Report) -> Table:
    rows = []
    for law in report.fitted:
        cells = [f"{value_of(own, name)} ({constant_span(own, name)})" for name, own in constants(law).items()]
        rows.append([router_name(law["router"]), *cells, f"{figure(law['rmsle_percent'], '.2f')} %"])
        if "printed" in law:
            rows.append(["paper", *_printed(law["printed"]), f"{figure(law['printed']['rmsle_percent'], '.2f')} %"])
    return Table(["router", *NAMES, "miss"], rows)


def value_of(own: dict, name: str) -> str:
    """Return a constant as a cell; "open" where the runs do not determine it."""
    return constant(own["value"], name) if own["determined"] else "open"


def _printed(printed: dict) -> list[str]:
    """Return the printed constants of a router as cells."""
    cells = {name: figure(value, ".3f") for name, value in printed["coefficients"].items()}
    cells |= {"N_cutoff": count(printed["N_cutoff"])}
    return [text + ("" if printed["inside"][name] else " (outside)") for name, text in cells.items()]


def _open_points(report: Report) -> list[Block]:
    """Return what the fits leave open, each sentence once with the routers that it holds for."""
    points = once((law["router"], list(_left_open(report, law))) for law in report.fitted)
    lines = bullets(f"{who(routers, report.fitted)}{words}" for words, routers in points.items())
    return ["**What the runs leave open:**", *lines] if lines else []


def _left_open(report: Report, law: dict):
    """Yield a sentence for each thing that the numbers of one fit leave open."""
    slopes, limit = law["derived"]["slopes"], law["status"] == "linear limit"
    if len(law["sizes"]) == 2:
        yield "Two sizes make every trend in N a line through two points, which nothing checks."
    if law["spare"] < FEW:
        yield (
            f"Six constants leave {plural(law['spare'], 'run')} of {law['rows']} to judge the fit by, so the intervals "
            "are wide and rely on the law being right."
        )
    doubtful = [each["N"] for each in slopes if each["negative"].startswith("no")]
    if doubtful:
        yield f"At N = {report.sizes(doubtful)} the runs do not show that the slope is negative."
    unbounded = [each["N"] for each in slopes if each["endless"]]
    if unbounded and not limit:
        yield (
            f"At N = {report.sizes(unbounded)} an end of the slope's interval is infinite: the runs cannot tell the "
            "law from a straight line in E, in which a slope per decade of effective experts has no meaning. The gain "
            "has one."
        )
    if limit:
        yield (
            "The best fit is the linear limit of the law: log10 L falls in proportion to E − 1, so that none of a, b, "
            "c, d, E_start and E_max has a value. Predictions and gains exist; of the slopes only the sign."
        )
    else:
        yield from _open_constants(law)


def _open_constants(law: dict):
    """Yield a sentence for each constant of a fit that is at an edge, beyond the runs, or without a sign."""
    top, own = law["experts"][-1], law["coefficients"]
    if "E_start at 1" in law["status"]:
        yield "E_start is at 1, the least that the law allows: as far as is seen, the first experts count in full."
    if "E_max unbounded" in law["status"]:
        yield (
            f"E_max is not identified: the fit is best without any limit. Up to E = {top} these runs show no "
            "saturation, and they say nothing about where more experts stop helping."
        )
    elif own["E_max"]["value"] > top and law["reached"] is not None:
        yield (
            f"E_max lies beyond the largest E trained ({top}): it is read off a bend and was not seen. By this fit "
            f"E = {top} brings {figure(law['reached'], '.0f')} % of what any number of experts could, in log10 L."
        )
    if own["c"]["low"] <= 0 <= own["c"]["high"]:
        yield (
            "The sign of c is not identified: routing may help less, or more, as models grow, and no N_cutoff should "
            "be read from this fit."
        )
    elif own["c"]["high"] < 0:
        yield "c is below 0: here routing helps more as models grow, and there is no N_cutoff."


def fit_details(report: Report) -> list[Block]:
    """Return how well the constants are known, and the same law fitted in other ways and to other rows."""
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
            "Along a line the law's loss is the same (nats per token); points are the trained models, darker for a "
            "lower loss. Going up a line buys the same loss with more experts and a smaller dense size.",
        ),
        *report.figure(
            "coefficients",
            "The constants with their 95 % intervals",
            f"Circles are the fits{', diamonds what the paper prints' if report.printed else ''}. An arrow means that "
            "the interval goes on. The intervals are wide because the constants can make up for each other; the loss "
            "that they give together is known far better.",
        ),
        Table(["router", "runs", "RMSLE", "where the optimum lies"], rows),
        *_by_huber(report),
        *_on_other_rows(report),
        *_by_other_means(report),
    ]


def _row_of(fit: dict) -> list[str]:
    """Return the constants of one fit as cells."""
    cells = [constant(own["value"], name) for name, own in fit["coefficients"].items()]
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
        f"**The same law by a sum of Huber terms** (delta = {delta} in log10 L), on which a few far runs weigh less:",
        Table(["router", "by", *NAMES, "RMSLE"], rows, keys=2),
    ]


CHOICES = {"own": "as above", "one dense seed more": "and the dense 130M run of seed 1", "all seeds": "every seed"}


def _on_other_rows(report: Report) -> list[Block]:
    entries = report.results["other_rows"]
    if not entries:
        return []
    rows = [[router_name(e["router"]), CHOICES[e["choice"]], str(e["rows"]), *_row_of(e)] for e in entries]
    return [
        "**The same law on other rows.** Other seeds of the dense runs move the constants within their intervals:",
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
    heads = ["profile likelihood, misses independent", "jackknife: one size left out at a time"]
    heads += ["bootstrap of runs", "bootstrap of sizes"]
    return [
        "**The same intervals by other means.** Profile likelihood takes the misses of the law as independent. If the "
        "law is a little wrong at some sizes, runs of one size err together; the jackknife's Student interval allows "
        "for that.",
        Table(["router", "quantity", *heads], rows, keys=2),
        _of_the_draws(entries),
    ]


def _of_the_draws(entries: list[dict]) -> str:
    """Return how many bootstraps there are, and how many say nothing."""
    said = f"Bootstraps draw {entries[0]['resamples']:,} times, from seed {entries[0]['seed']}."
    lost = [
        f"{router_name(e['router'])} {e['undetermined_runs']} of runs and {e['undetermined_sizes']} of sizes"
        for e in entries
        if e["undetermined_runs"] or e["undetermined_sizes"]
    ]
    if lost:
        said += f" Draws that do not determine the law are not counted: {'; '.join(lost)}."
    endless = [f"{router_name(e['router'])} {e['unbounded_runs']}" for e in entries if e["unbounded_runs"]]
    return f"{said} E_max has no limit in some bootstraps of runs: {'; '.join(endless)}." if endless else said


def isoflop_section(report: Report) -> list[Block]:
    """Return the best sizes at each budget, by parabolas and by a law in size and tokens."""
    profiles = report.results["isoflop"]
    if not profiles:
        return []
    return [
        Heading(ISOFLOP_HEAD),
        "Runs of several sizes spent about the same training FLOPs. The law is L = a/N^alpha + b/D^beta + c, fitted to "
        "each kind of model by itself.",
        *report.figure("isoflop", "Losses at equal FLOPs", ISOFLOP_CAPTION),
        *profile_blocks(profiles),
    ]
