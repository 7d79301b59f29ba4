"""The answer of a report: sentences with the numbers of each finding, and a table of the gains by the law."""

from routelaws.reference.diagnostics import SAME

from ..findings.finding import Report, capital, loss_name, names, router_name
from ..findings.gather import FINDINGS
from ..results.blocks import Block, Table, count, counts_span, figure, range_of, span, two_digits
from ..results.encoding import constants
from ..results.floor import cutoff_cell
from ..results.misfit import CLEAR, how_far_off
from ..wording import by_reason, plural


def findings(report: Report) -> list[str | None]:
    """Return the findings of a report, one to three sentences each."""
    facts = report.results["headlines"]
    blocks = []
    if report.sweep and report.table["routers"]:
        blocks.append(_chance(report.sweep))
    if report.sweep and report.sweep["not_learned"]:
        blocks.append(
            f"**Some runs are left out of all comparisons, fits and recommendations.** "
            f"{capital(report.sweep['not_learned'])}. The rule: {NOT_LEARNED}."
        )
    if facts["gains"] and not measured(report):
        blocks.append(_lowers(facts["gains"]))
    if facts["fading"]:
        blocks.append(_fades(report, facts))
    if facts["misfit"]:
        blocks.append(_misfit(report, facts["misfit"]))
    if not report.laws and "misses" in report.results["dense"]:
        blocks.append(_dense(report.results["dense"]))
    if report.laws and not report.fitted:
        blocks.append(
            f"**There is no law.** The reason is under {report.see('The law')}. A scaling law is a formula that "
            "computes the loss from N and E, with a few constants that are fitted to runs."
        )
    blocks += [finding.sentence(report) for finding in FINDINGS if len(report.results[finding.key])]
    if facts["printed"]:
        blocks.append(_printed(report, facts["printed"]))
    if report.fitted:
        blocks.append(_open(report, facts["open"]))
    return blocks


def _chance(sweep: dict) -> str:
    outcomes = [outcome for outcome in sweep["outcomes"] if outcome["sizes"]]
    if not outcomes:
        return "**Is the gain more than chance?** Not known: no size has both a dense run and a routed run with k = 1."
    lower, points = sum(each["lower"] for each in outcomes), sum(each["sizes"] for each in outcomes)
    counts = sorted({e for each in outcomes for e in each["experts"]})
    at = f"E = {counts[0]}" if len(counts) == 1 else "the largest E"
    where = f"in {_share(lower, points, 'comparison')}"
    if sweep["spreads"]:
        spread = figure(max(each["range"] for each in sweep["spreads"]), ".4f")
        head = f"**At {at}, routed models beat dense ones by more than chance {where}.** "
        head += f"Seeds alone change a loss by up to {spread} nats."
    else:
        head = f"**At {at}, routed models beat dense ones {where}.** "
        head += "Chance alone might cause this, because no point was trained with two seeds."
    return f"{head} {'; '.join(map(_outcome, outcomes))}."


def _outcome(outcome: dict) -> str:
    at = f"{router_name(outcome['router'])} is lower at {_share(outcome['lower'], outcome['sizes'], 'size')}"
    if not outcome["lower"]:
        return at
    nats, shares = range_of(outcome["nats"], ".4f"), range_of(outcome["percent"], ".2f", " %")
    return f"{at}, by {nats} nats ({shares})"


def _share(some: int, of: int, noun: str) -> str:
    """Return "all 3 sizes", "2 of 3 sizes" or "none of 3 sizes"."""
    if some == of:
        return f"all {plural(of, noun)}" if of > 1 else f"the one {noun}"
    return f"{some or 'none'} of {plural(of, noun)}"


NOT_LEARNED = (
    "training and evaluation choose the same expert about as often as by chance, or exchanging the experts changes the "
    f"loss by less than {100 * (SAME - 1):.2g} %"
)


def measured(report: Report) -> bool:
    """Whether routed and dense runs of a sweep are compared; the law's count of gains is then not the answer."""
    return bool(report.sweep and report.sweep["comparisons"])


def _lowers(gains: dict) -> str:
    below, points = gains["below"], gains["points"]
    head = "No gain from routing is certain."
    if below == points:
        head = "Routing lowers the loss at every size trained."
    elif below:
        head = f"Routing lowers the loss at {below} of {points} points (router and size)."
    return f"**{head}** The table below shows the gains predicted by the law."


FADING = {
    "less": "Routing helps less as models grow.",
    "more": "Routing helps more as models grow.",
    "open": "The runs do not show whether routing helps less as models grow.",
}


def _fades(report: Report, facts: dict) -> str:
    if facts["fading"] == "more":
        return f"**{FADING['more']}** There is no size N_cutoff above which more experts stop helping."
    laws = [law for law in report.fitted if law["status"] != "linear limit"]
    known = [law for law in laws if law["derived"]["N_cutoff"]["determined"]]
    parts = [
        f"{count(law['derived']['N_cutoff']['value'])} for {router_name(law['router'])} "
        f"({_times(law['N_cutoff_times'])} times the largest model)"
        for law in known
    ]
    unknown = [law["router"] for law in laws if law not in known]
    parts += [f"not determined for {names(unknown)}"] if unknown else []
    sentence = (
        f"**{FADING[facts['fading']]}** Above the size N_cutoff, more experts stop helping. By the law, N_cutoff is "
    )
    sentence += "; ".join(parts) + "."
    if known:
        sentence += " This is an extrapolation"
        knife = by_reason({each["router"]: counts_span(each) for each in facts["jackknife"]})
        allowed = "; the jackknife also includes small errors of the law at each size; by this, N_cutoff is"
        ends = ", ".join(f"{ends} for {names(routers)}" for ends, routers in knife.items())
        sentence += f"{allowed} {ends}." if knife else "."
    return sentence + _cutoffs_with_floor(report)


def _cutoffs_with_floor(report: Report) -> str:
    forms = {law["router"]: law["with_floor"]["forms"][1] for law in report.fitted if law["with_floor"]}
    better = all(law["with_floor"] and law["with_floor"]["better"] for law in report.fitted)
    if not better:
        return ""
    ends = ", ".join(f"{cutoff_cell(form.cutoff)} for {router_name(router)}" for router, form in forms.items())
    return f" A law with a floor predicts left-out sizes better: by it, N_cutoff is {ends}."


def _times(value: float) -> str:
    return figure(value, ",.0f" if value >= 10 else ".2g")


MISFIT = {
    "open": "The runs do not determine the law: none of its constants is determined.",
    "chance": "The law fits within the scatter of repeated runs.",
    "bad": "The law fits badly.",
    "good": "The law fits well, but not exactly.",
    "exact": "The law fits exactly.",
}


def _without_constants(report: Report) -> list[str]:
    """Return the routers whose runs determine none of the law's constants."""
    return [law["router"] for law in report.fitted if not any(each["determined"] for each in constants(law).values())]


def _misfit(report: Report, facts: dict) -> str:
    nothing = _without_constants(report)
    head = MISFIT["open" if len(nothing) == len(report.fitted) else facts["kind"]]
    sentences = [f"**{head}** Its error is at most {two_digits(facts['worst'])} % of the loss (root mean square)"]
    scatter = report.results["seed_scatter"]
    if scatter:
        runs = f"{plural(scatter['runs'], 'run')} at {plural(len(scatter['points']), 'point')}"
        share = "" if facts["by_law"] == "none" else f", so the law causes {facts['by_law']} of the error"
        sentences[0] += f"; seeds alone cause {two_digits(scatter['percent'])} % ({runs}){share}."
        sentences += _unequal_scatter(report, scatter)
    else:
        sentences[0] += "; the part due to chance is not known, because no run was repeated with another seed."
    if 0 < len(nothing) < len(report.fitted):
        sentences.append(f"For {names(nothing)}, the runs determine none of the law's constants.")
    if facts["bent"]:
        whose = "" if len(facts["bent"]) == len(report.fitted) else f" of {names(facts['bent'])}"
        sentences.append(
            f"The residuals{whose} are curved in log N, so the law is also wrong beyond the trained sizes."
        )
    if facts["unseen"] is not None:
        sentences.append(f"For sizes left out of the fit, its error is up to {two_digits(facts['unseen'])} %.")
    return " ".join(sentences)


def _unequal_scatter(report: Report, scatter: dict) -> list[str]:
    """Return a sentence on the least and the greatest scatter of one size, if the sizes differ beyond chance."""
    if scatter["equal_p"] >= CLEAR:
        return []
    ranked = sorted(scatter["sizes"], key=lambda each: each["deviation"])
    ends = (f"{two_digits(each['percent'])} % at N = {report.size(each['N'])}" for each in (ranked[0], ranked[-1]))
    return [f"The scatter of the seeds differs between sizes: {', '.join(ends)}."]


def _dense(dense: dict) -> str:
    alpha, largest = dense["coefficients"]["alpha"], dense["misfit"]["largest_size"]
    beyond = "."
    if largest is not None:
        beyond = (
            "; fitted without the largest size, the law predicts the loss at this size "
            f"{how_far_off(largest['log10'])}."
        )
    return (
        f"**The dense models follow a power law**, L = (N_c/N)^alpha, with alpha {figure(alpha['value'], '.4f')} "
        f"({span(alpha, '.4f')}). Its error is {two_digits(dense['rmsle_percent'])} % of the loss (root mean "
        f"square){beyond}"
    )


def _printed(report: Report, facts: dict) -> str:
    head = f"{facts['inside']} of {facts['of']} printed constants lie within the intervals of the fit."
    if facts["inside"] == facts["of"]:
        head = "All printed constants lie within the intervals of the fit, but these intervals are wide."
    rounding = ", because they are rounded to three decimals" if facts["rounding"] else ""
    return (
        f"**{head}** The printed constants have a larger error than the fit{rounding} (last column of the table under "
        f"{report.see('The law')}). N_cutoff cannot be computed from the printed table: "
        f"see {report.see('What does not reproduce')}."
    )


def _open(report: Report, facts: dict | None) -> str | None:
    """Return sentences on E_max of each router and fits to other texts that the runs do not determine."""
    unknown = [law["router"] for law in report.fitted if not law["coefficients"]["E_max"]["determined"]]
    unknown = [router for router in unknown if router not in _without_constants(report)]
    sentences = []
    if unknown:
        sentences.append(f"E_max, above which more experts do not help, is not determined for {names(unknown)}.")
    if facts and facts["some"]:
        nothing = [f"{loss_name(each['loss'])} with {router_name(each['router'])}" for each in facts["nothing"]]
        sentences.append(
            f"In {facts['some']} of {facts['fits']} fits to other texts, the runs do not determine every constant"
            + (f"; no constant is determined for {', '.join(nothing)}." if nothing else ".")
        )
    return f"**The runs do not determine some constants.** {' '.join(sentences)}" if sentences else None


def gains(report: Report) -> list[Block]:
    laws = report.fitted
    if not laws:
        return []
    rows = [
        [router_name(law["router"]), f"1 → {law['gains'][0]['E']}", *gains_at_ends(report, law["gains"])]
        + [f"{figure(law['rmsle_percent'], '.2f')} %"]
        for law in laws
    ]
    facts = report.results["headlines"]["gains"]
    by_law = (
        f"**By the law,** fitted to these runs, the gain of the largest E is certain at {facts['below']} of "
        f"{plural(facts['points'], 'point')} (router and size). The table has the smallest and the largest size:"
    )
    table = Table(["router", "experts", *end_heads(report), "error of the law"], rows)
    return [by_law, table] if measured(report) else [table]


def end_heads(report: Report) -> list[str]:
    sizes = report.table["sizes"]
    return [f"change of the loss at N = {report.size(size)}" for size in (sizes[0], sizes[-1])[: len(sizes)]]


def gains_at_ends(report: Report, gains: list[dict]) -> list[str]:
    """Return the first and the last gain as cells. A cell names the gain's N if the column has another N."""
    sizes, cells = report.table["sizes"], []
    for gain, size in [(gains[0], sizes[0]), (gains[-1], sizes[-1])][: len(sizes)]:
        at = "" if gain["N"] == size else f" at N = {report.size(gain['N'])}"
        cells.append(f"{figure(gain['percent'][0], '+.1f')} % ({span(gain['percent'][1:], '+.1f')}){at}")
    return cells
