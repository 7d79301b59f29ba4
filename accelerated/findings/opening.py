"""The first page of a report: the runs, the cautions, the answer, and the figure of the losses; words and symbols."""

from ..results.blocks import Block, Heading, Table, duration, range_of
from ..tables.schema import DENSE
from ..wording import corpus_name, once, plural
from .finding import Report, bullets, capital, distinct, loss_name, names, reach, who
from .laws import slopes

PAPER = "[Clark et al. 2022](https://arxiv.org/abs/2202.01169), *Unified Scaling Laws for Routed Language Models*"

WHAT = (
    "A *routed* language model (Mixture-of-Experts) has E feed-forward networks, the *experts*, in some of its blocks; "
    "a *router* sends each token through k of them. The model grows with E, while the cost per token hardly changes. "
    "How "
    "much lower is its loss, and does this gain persist as models grow?"
)


def first_page(report: Report) -> list[Block]:
    title = "the released runs, fitted again" if report.results.table.released else report.results.table.name
    title = f"sweep “{report.sweep.name}”" if report.sweep else title
    return [
        Heading(f"Scaling laws of routed language models: {title}", 1),
        *_unfinished(report),
        f"{WHAT} The laws are those of {PAPER}. Intervals are at 95 %.",
        *loss_figure(report),
        *(_trained(report) if report.sweep else _held(report)),
        *cautions(report),
        Heading("What came out"),
        *bullets(each.sentence(report) for each in report.findings if each.answered(report.results)),
        *slopes.answer(report),
        *([] if report.results.table.routers else [_no_routed_run(report)]),
    ]


def _unfinished(report: Report) -> list[Block]:
    sweep = report.sweep
    if not sweep or not sweep.waiting:
        return []
    return [
        f"> **Not finished: {len(sweep.runs)} of {sweep.planned} runs are complete.** The results below use only "
        f"these runs and may change. “More” at the end names the {len(sweep.waiting)} missing runs."
    ]


def _trained(report: Report) -> list[Block]:
    sweep, runs, sizes = report.sweep, report.sweep.runs, report.results.table.sizes
    models = f"{plural(len(runs), 'language model')} of {plural(len(sizes), 'size')}"
    tokens, vocabularies = reach(runs["tokens"]), (f"{size:,}" for size in distinct(runs["vocabulary"]))
    text = (
        f"{capital('; '.join(map(corpus_name, runs['corpus'].unique())))}, {range_of(tokens)} training tokens per "
        f"run, in a vocabulary of {_either(vocabularies)} pieces. Losses are measured on text "
        "held out from training, in nats per token: lower is better."
    )
    return bullets(
        [
            f"**What was trained.** {models} (N = {report.sizes(sizes)} parameters, embeddings left out), "
            + _routed(runs),
            f"**On what.** {text}",
            f"**How long.** {_how_long(sweep)}",
        ]
    )


def _routed(runs) -> str:
    routed = runs[runs["router"] != DENSE]
    if routed.empty:
        return "all dense."
    routers, experts, shares, ks = (distinct(routed[name]) for name in ("router", "experts", "share", "k"))
    share = f"{shares[0]:.3g} % of the" if len(shares) == 1 else "some"
    through = "one expert" if ks == [1] else f"{_either(ks)} experts"
    return (
        f"{'dense and ' * (len(routed) < len(runs))}routed by {names(routers)} with "
        f"E = {', '.join(map(str, experts))}. In a routed model, {share} blocks have experts, and each "
        f"token passes through {through} of such a block."
    )


def _how_long(sweep) -> str:
    seconds = sweep.seconds
    rest = f"fits took {duration(seconds.fitting)}, figures {duration(seconds.figures)}."
    if not sweep.sessions:
        return f"The training time was not recorded; {rest}"
    jobs = distinct(session.get("jobs", 1) for session in sweep.sessions)
    return (
        f"Training took {duration(seconds.training)} in {plural(len(sweep.sessions), 'session')}, "
        f"{_either(jobs)} run{'s' * (jobs != [1])} at a time; {rest}"
    )


def _held(report: Report) -> list[Block]:
    table, sizes = report.results.table, [report.size(size) for size in report.results.table.sizes]
    ends = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    routed = "all dense"
    if table.routers:
        counts = range_of(sorted({table.experts[0], table.experts[-1]}), "")
        routed = f"routed by {names(table.routers)} with E = {counts}"
    paper = (
        "The paper's authors released these runs, so the report compares the results with the printed ones."
        if table.released
        else "These are not the paper's runs, so the report does not compare the fit with the paper's constants."
    )
    return [
        f"The table `{table.name}` holds {plural(table.runs, 'run')} of {plural(len(sizes), 'size')} (N = {ends} "
        f"parameters per token, embeddings left out), {routed}. Losses are {loss_name(table.loss_column)} losses of "
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
            f"{who(routers, report.results.laws)}{capital(words)}{'' if words[-1] == '?' else '.'}"
            for words, routers in lines.items()
        ),
        "With `routelaws fit` and `routelaws reproduce`, `--rows` chooses runs, and `--huber` also fits a sum of Huber "
        "terms, which gives outliers less weight.",
    ]


def cautions_of(results: dict) -> dict[str, list[str]]:
    """Return possible hidden errors of the laws, each with its routers.

    Without routed runs, these concern the dense power law.
    """
    return once((law.router, law.cautions) for law in results.laws or [results.dense])


def _no_routed_run(report: Report) -> str:
    routed = report.sweep and (report.sweep.runs["router"] != DENSE).any()
    which = "routed run that has learned" if routed else "routed run"
    return f"There is no {which}{' yet' if report.sweep else ''}, so there are no results about routing."


def loss_figure(report: Report) -> list[Block]:
    lines = "dotted lines join them."
    if report.fitted:
        lines = "lines are the fitted law, one for each size N"
        lines += (
            ", labelled on the right."
            if len(report.fitted) == len(report.results.laws)
            else ". Dotted lines join the points of a router without a law."
        )
    dashes = " At a point with several seeds, each seed has a dash." if report.sweep and report.sweep.spreads else ""
    caption = f"Points are trained models, dark grey the dense ones (E = 1); {lines}{dashes}"
    return report.figure("loss", "Loss against the number of experts", caption)


def _either(values) -> str:
    return " or ".join(map(str, values))


SYMBOLS = [
    ["loss, L", "cross-entropy on held-out text", "nats per token"],
    ["N", "parameters that one token uses, without embeddings; a dense model uses all", "parameters"],
    ["RMSLE", "root mean square of log10 predicted loss minus log10 measured loss", "log10"],
    ["log10", "decimal logarithm; 0.01 in log10 L is 2.3 % of the loss", ""],
]
ROUTED_SYMBOLS = [
    ["E", "experts per routed block; 1 is a dense model", "experts"],
    ["k", "experts per token", "experts"],
    ["R", "share of the blocks that are routed", "1"],
    ["P", "all parameters, including every expert", "parameters"],
    ["F", "compute of a forward pass of 2,048 tokens", "TeraFLOPs"],
    ["B", "parameters per unit of compute: P divided by the forward FLOPs of one token", "parameters per FLOP"],
    ["Ê", "effective experts: E_start for a dense model, rising with E towards E_max", "experts"],
]
ROUTERS = {
    "Hash": "HASH: the token id determines the expert; nothing is learned.",
    "RL-R": "RL-R: the router is trained by reinforcement learning; a good prediction of the next token is the reward.",
    "S-Base": "S-BASE: Sinkhorn's method balances the scores; then each token goes to its highest-scoring expert.",
}


def symbols_section(report: Report) -> list[Block]:
    routers = report.results.table.routers
    rows = SYMBOLS[:2] + (ROUTED_SYMBOLS if routers else []) + SYMBOLS[2:]
    lines = bullets(words for router, words in ROUTERS.items() if router in routers)
    return [Heading("Words and symbols"), Table(["symbol", "meaning", "unit"], rows, words=(1,)), *lines]
