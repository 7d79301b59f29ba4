"""The first page of a report: the runs, the cautions, the answer, and the figure of the losses."""

from pathlib import Path

from routelaws.reference.diagnostics import SAME

from ..errors import in_line
from ..findings import slopes
from ..findings.finding import Report, bullets, capital, loss_name, names, router_name, who
from ..findings.gather import FINDINGS
from ..results.blocks import Block, Heading, duration, figure, range_of
from ..wording import once, plural

PAPER = "[Clark et al. 2022](https://arxiv.org/abs/2202.01169), *Unified Scaling Laws for Routed Language Models*"

WHAT = (
    "A *routed* language model (Mixture-of-Experts) has E feed-forward networks, the *experts*, in some of its blocks; "
    "a *router* sends each token through k of them. The model grows with E, while the cost per token hardly changes. "
    "How "
    "much lower is its loss, and does this gain persist as models grow?"
)


def first_page(report: Report) -> list[Block]:
    return [
        Heading(f"Scaling laws of routed language models: {_title(report)}", 1),
        *_unfinished(report),
        f"{WHAT} The laws are those of {PAPER}. Intervals are at 95 %.",
        *loss_figure(report),
        *(_trained(report) if report.sweep else _held(report)),
        *cautions(report),
        Heading("What came out"),
        *bullets(answers(report)),
        *slopes.answer(report),
        *([] if report.table["routers"] else [_no_routed_run(report)]),
    ]


def _title(report: Report) -> str:
    if report.sweep:
        return f"sweep “{report.sweep['name']}”"
    return "the released runs, fitted again" if report.table["released"] else report.table["name"]


def _unfinished(report: Report) -> list[Block]:
    sweep = report.sweep
    if not sweep or not sweep["waiting"]:
        return []
    return [
        f"> **Not finished: {sweep['finished']} of {sweep['planned']} runs are complete.** The results below use only "
        f"these runs and may change. “More” at the end names the {len(sweep['waiting'])} missing runs."
    ]


def _trained(report: Report) -> list[Block]:
    sweep, sizes = report.sweep, report.table["sizes"]
    models = f"{plural(sweep['finished'], 'language model')} of {plural(len(sizes), 'size')}"
    text = (
        f"{capital('; '.join(map(corpus, sweep['corpora'])))}, {range_of(sweep['tokens'])} training tokens per run, in "
        f"a vocabulary of {_either(f'{size:,}' for size in sweep['vocabularies'])} pieces. Losses are measured on text "
        "held out from training, in nats per token: lower is better."
    )
    return bullets(
        [
            f"**What was trained.** {models} (N = {report.sizes(sizes)} parameters, embeddings left out), "
            + _routed(report),
            f"**On what.** {text}",
            f"**How long.** {_how_long(sweep)}",
        ]
    )


def _routed(report: Report) -> str:
    sweep = report.sweep
    if not sweep["routers"]:
        return "all dense."
    share = f"{sweep['shares'][0]:.3g} % of the" if len(sweep["shares"]) == 1 else "some"
    through = "one expert" if sweep["ks"] == [1] else f"{_either(sweep['ks'])} experts"
    return (
        f"{'dense and ' * sweep['dense']}routed by {names(sweep['routers'])} with "
        f"E = {', '.join(map(str, sweep['experts']))}. In a routed model, {share} blocks have experts, and each "
        f"token passes through {through} of such a block."
    )


def _how_long(sweep: dict) -> str:
    seconds = sweep["seconds"]
    rest = f"fits took {duration(seconds['fitting'])}, figures {duration(seconds['figures'])}."
    if not sweep["sessions"]:
        return f"The training time was not recorded; {rest}"
    runs = "run" if sweep["jobs"] == [1] else "runs"
    return (
        f"Training took {duration(seconds['training'])} in {plural(sweep['sessions'], 'session')}, "
        f"{_either(sweep['jobs'])} {runs} at a time; {rest}"
    )


def _held(report: Report) -> list[Block]:
    table, sizes = report.table, [report.size(size) for size in report.table["sizes"]]
    ends = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    routed = "all dense"
    if table["routers"]:
        counts = range_of(sorted({table["experts"][0], table["experts"][-1]}), "")
        routed = f"routed by {names(table['routers'])} with E = {counts}"
    paper = (
        "The paper's authors released these runs, so the report compares the results with the printed ones."
        if table["released"]
        else "These are not the paper's runs, so the report does not compare the fit with the paper's constants."
    )
    return [
        f"The table `{table['name']}` holds {plural(table['runs'], 'run')} of {plural(len(sizes), 'size')} (N = {ends} "
        f"parameters per token, embeddings left out), {routed}. Losses are {loss_name(table['loss_column'])} losses of "
        f"each run's last evaluation, in nats per token: lower is better. {paper}"
    ]


def cautions(report: Report) -> list[Block]:
    """Return the section on possible hidden errors of the laws."""
    lines = cautions_of(report.results)
    if not lines:
        return []
    return [
        Heading("What to be careful with"),
        "The laws assume that the runs of a fit are finished and differ only in N and E. These are the exceptions:",
        *bullets(
            f"{who(routers, report.laws)}{capital(words)}{'' if words[-1] == '?' else '.'}"
            for words, routers in lines.items()
        ),
        "With `routelaws fit` and `routelaws reproduce`, `--rows` chooses runs, and `--huber` also fits a sum of Huber "
        "terms, which gives outliers less weight.",
    ]


def cautions_of(results: dict) -> dict[str, list[str]]:
    """Return possible hidden errors of the laws, each with its routers.

    Without routed runs, these concern the dense power law.
    """
    return once((law["router"], law["cautions"]) for law in results["laws"] or [results["dense"]])


def _no_routed_run(report: Report) -> str:
    which = "routed run that has learned" if report.sweep and report.sweep["routers"] else "routed run"
    return f"There is no {which}{' yet' if report.sweep else ''}, so there are no results about routing."


def loss_figure(report: Report) -> list[Block]:
    lines = "dotted lines join them."
    if report.fitted:
        lines = "lines are the fitted law, one for each size N"
        lines += (
            ", labelled on the right."
            if len(report.fitted) == len(report.laws)
            else ". Dotted lines join the points of a router without a law."
        )
    dashes = " At a point with several seeds, each seed has a dash." if report.sweep and report.sweep["spreads"] else ""
    caption = f"Points are trained models, dark grey the dense ones (E = 1); {lines}{dashes}"
    return report.figure("loss", "Loss against the number of experts", caption)


def corpus(paths: tuple[str, ...]) -> str:
    if not paths:
        return "the source code of the Python standard library"
    return ", ".join(f"`{in_line(Path(path).name or path)}`" for path in paths)


def _either(values) -> str:
    return " or ".join(map(str, values))


def answers(report: Report) -> list[str | None]:
    """Return the sentences of the findings, one to three each."""
    blocks = []
    if report.sweep and report.table["routers"]:
        blocks.append(_chance(report.sweep))
    if report.sweep and report.sweep["not_learned"]:
        blocks.append(
            f"**Some runs are left out of all comparisons, fits and recommendations.** "
            f"{capital(report.sweep['not_learned'])}. The rule: {NOT_LEARNED}."
        )
    return blocks + [finding.sentence(report) for finding in FINDINGS if len(report.results[finding.key])]


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
