"""How well do the laws fit, and where do they miss? Residuals by size, of each router's law and of the dense law."""

from ...results.blocks import Block, Table, figure, log_percent, two_digits
from ...results.misfit import CLEAR, NO_FLOOR, how_far_off
from ...results.rows import BOUNDED
from ...tables.schema import DENSE
from ...wording import plural
from ..finding import Finding, Report, names, router_name

BAD, EXACT = 5.0, 1e-6
"""In percent of the loss: a law fits badly above the first number, and exactly below the second."""

CHANCE = 2.0
"""In a good fit, a residual is at most this multiple of the scatter over seeds."""


def sentence(report: Report) -> str | None:
    if not report.fitted:
        return None
    laws, nothing, scatter = report.fitted, report.without_constants, report.results.scatter
    worst, cause = max(law.percent for law in laws), _cause(report)
    head = "The law fits well, but not exactly."
    if len(nothing) == len(laws):
        head = "The runs do not determine the law: none of its constants is determined."
    elif cause == "none":
        head = "The law fits within the scatter of repeated runs."
    elif worst > BAD:
        head = "The law fits badly."
    elif worst <= EXACT:
        head = "The law fits exactly."
    sentences = [f"**{head}** Its error is at most {two_digits(worst)} % of the loss (root mean square)"]
    if scatter:
        runs = f"{plural(scatter.runs, 'run')} at {plural(len(scatter.points), 'point')}"
        share = "" if cause == "none" else f", so the law causes {cause} of the error"
        sentences[0] += f"; seeds alone cause {two_digits(scatter.percent)} % ({runs}){share}."
        if scatter.equal_p < CLEAR:
            ranked = sorted(scatter.sizes, key=lambda each: each.deviation)
            ends = (f"{two_digits(each.percent)} % at N = {report.size(each.N)}" for each in (ranked[0], ranked[-1]))
            sentences.append(f"The scatter of the seeds differs between sizes: {', '.join(ends)}.")
    else:
        sentences[0] += "; the part due to chance is not known, because no run was repeated with another seed."
    if 0 < len(nothing) < len(laws):
        sentences.append(f"For {names(nothing)}, the runs determine none of the law's constants.")
    bent = [law.router for law in laws if law.fit.misfit.bend and law.fit.misfit.bend.test.p < CLEAR]
    if bent:
        whose = "" if len(bent) == len(laws) else f" of {names(bent)}"
        sentences.append(
            f"The residuals{whose} are curved in log N. If this continues, the law is wrong beyond the trained sizes."
        )
    forms = report.results.forms
    unseen = forms[forms["law"] == BOUNDED]["size_percent"].max()
    if unseen == unseen:
        sentences.append(f"For sizes left out of the fit, its error is up to {two_digits(unseen)} %.")
    return " ".join(sentences)


def _cause(report: Report) -> str | None:
    """Return how much of the residuals the laws cause (most, part, none); None without repeated runs."""
    laws, scatter = report.fitted, report.results.scatter
    if scatter is None:
        return None
    if max(law.percent for law in laws) > CHANCE * scatter.percent:
        return "most"
    tests = [law.fit.misfit.seeds for law in laws]
    return "part" if any(test and test.p < CLEAR for test in tests) else "none"


def section(report: Report) -> list[Block]:
    """Return the residuals of the laws by size, and tests for a bend and for chance."""
    dense, sizes = report.results.dense, report.results.table.sizes
    laws = report.fitted + ([dense] if dense.fit else [])
    if not laws:
        return []
    rows, misfits = [], [law.fit.misfit for law in laws]
    for law in laws:
        misses = {each.size: f"{figure(log_percent(each.miss), '+.2f')} %" for each in law.fit.misfit.sizes}
        rows.append([_law_name(law), *(misses.get(size, "") for size in sizes)])
    blocks: list[Block] = [
        "The next table shows how far the measured loss is above the law, as a mean over the runs of each size. "
        "Where the value is above zero, the law predicts too low a loss.",
        Table(["law", *map(report.size, sizes)], rows),
    ]
    if any(misfit.bend or misfit.largest for misfit in misfits):
        heads = ["law", "are the residuals curved in log N?", "are the residuals larger than the scatter of seeds?"]
        blocks += [
            Table(
                [*heads, "law fitted without the largest size: error at this size"],
                [_test_row(law) for law in laws],
            ),
            "If the residuals are curved in log N, the law is also wrong beyond the smallest and the largest size.",
        ]
    return blocks + ([NO_FLOOR] if any(misfit.rise is None for misfit in misfits) else [])


def _law_name(law) -> str:
    return "dense power law" if law.router == DENSE else router_name(law.router)


def _test_row(law) -> list[str]:
    bend, seeds, largest = law.fit.misfit.bend, law.fit.misfit.seeds, law.fit.misfit.largest
    cells = ["not known", "not known", "not predicted"]
    if bend:
        cells[0] = f"{_answer(bend.test)} (p = {figure(bend.test.p, '.2g')})"
    if seeds:
        size = f"N = {seeds.size:,.0f}, " if seeds.size else ""
        cells[1] = f"{_answer(seeds)} ({size}F = {figure(seeds.statistic, '.3g')}, p = {figure(seeds.p, '.2g')})"
    if largest:
        cells[2] = f"predicted {how_far_off(largest.miss)}"
    return [_law_name(law), *cells]


def _answer(test) -> str:
    return "yes" if test.p < CLEAR else "no evidence"


FINDING = Finding(None, "Where the laws miss", lambda results, source: {}, section, sentence)
