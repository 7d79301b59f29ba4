"""The sections of a report on the table: symbols, differences from the paper, used runs, method."""

import shlex

from ..errors import printable
from ..results.blocks import Block, Heading, Table, two_digits
from ..wording import plural
from .compute import other_kinds
from .finding import Report, bullets, listed, missing
from .gather import FINDINGS
from .sweeps.routers import how_done, not_used
from .used_runs import unused

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
    routers = report.table.routers
    rows = SYMBOLS[:2] + (ROUTED_SYMBOLS if routers else []) + SYMBOLS[2:]
    lines = bullets(words for router, words in ROUTERS.items() if router in routers)
    return [Heading("Words and symbols"), Table(["symbol", "meaning", "unit"], rows, words=(1,)), *lines]


def lacking_section(report: Report) -> list[Block]:
    """Return the comparisons for which the table lacks runs."""
    results, table = report.results, report.table
    lacking = {
        "no size has two values of E (for slopes)": results["slopes"]["slope"].notna().any(),
        **{finding.lacking: finding.answered(results) for finding in FINDINGS if finding.lacking},
        "no run has another k, R or width (to test the law that uses F and B)": results["kinds"].empty
        or other_kinds(results),
        "there is only one loss column, so no other text": len(table.loss_columns) > 1,
    }
    absent = [words for words, there in lacking.items() if not there]
    lack = f"**The table lacks runs for some comparisons:** {'; '.join(absent)}."
    sentences = [lack] if absent and table.routers else []
    reasons, unfitted = {law.missing for law in report.laws}, results["utilisation"].dropna(subset="missing")
    return sentences + missing(unfitted[~unfitted["missing"].isin(reasons)].itertuples(), "law that uses F and B")


def method_section(report: Report) -> list[Block]:
    """Return the methods, and the commands that repeat the results."""
    scatter, sizes = report.results["seed_scatter"], report.table.sizes
    blocks: list[Block] = [Heading("How it was computed")]
    if report.fitted:
        blocks.append(
            "**Fits.** For given E_start and E_max, the law is linear in its other constants. So the fit searches only "
            "over E_start and E_max. It searches the whole domain 1 ≤ E_start < E_max ≤ ∞, limits included, and finds "
            f"the global optimum. The objective is the {report.fitted[0].fit.best.criterion}. Intervals of constants "
            "contain every value that is not rejected at 95 %, by profile likelihood; they are wider if the runs of a "
            "size share errors, or if the errors are uneven. Intervals of means are Student's t intervals."
        )
    chance = "is not known: no configuration was trained with more than one seed."
    if scatter:
        chance = (
            "is measured by runs that differ only in the seed: a standard deviation of "
            f"{two_digits(scatter.percent)} % of the loss, from {plural(scatter.runs, 'run')} at "
            f"{plural(len(scatter.points), 'point')}."
        )
    return [
        *blocks,
        f"**Chance** {chance}",
        "**A law that uses N and E cannot predict** how the gain changes with more training or on other text. Nothing "
        f"was measured below N = {sizes[0]:,} or above N = {sizes[-1]:,}: the law extrapolates there.",
        *more_section(report),
    ]


def more_section(report: Report) -> list[Block]:
    """Return where to find further results, the unused runs, and the command that repeats the report."""
    sweep, runs = report.sweep, report.results["runs"]
    lines = not_used(sweep) if sweep else []
    if not report.full:
        left = [f"{len(ids)}, {reason}" for reason, ids in unused(report).items()]
        left += [f"{(runs['suspect'] != '').sum()} with impossible labels"] * bool(runs["suspect"].any())
        lines += [f"**Runs that no law uses:** {'; '.join(left)}."] if left else []
        lines += report.table.remarks
    table = "; every evaluation is in [results.csv](results.csv)" if sweep else ""
    lines.append(f"**Every number** is in [{report.numbers}]({report.numbers}), without rounding{table}.")
    if not report.full:
        shown = ("loss", "isoflop", "training" if sweep else "pairs")
        figures = [f"[{name}](figures/{name}.svg)" for name in report.drawn if name not in shown]
        lines += [f"**More figures:** {listed(figures)}."] if figures else []
        command = "routelaws report --full FOLDER" if sweep else "routelaws reproduce --full"
        lines.append(
            f"**Every table** is in the full report: run `{command}`. The tables cover slopes, equivalent dense sizes, "
            "residuals, forms of law, pairs, ablations, other texts, runs and method."
        )
    if sweep:
        lines.append(f"**To repeat the sweep,** run `{_command(sweep)}`. {how_done(sweep)}")
    return [Heading("More"), *bullets(lines)]


def _command(sweep) -> str:
    grid = sweep.preset or f"{sweep.name}.toml"
    corpus = [f"--corpus {' '.join(map(_quoted, sweep.corpus))}"] if sweep.corpus else []
    return " ".join(["routelaws sweep", _quoted(grid), *corpus, "--out NEW_FOLDER"])


def _quoted(text: str) -> str:
    return printable(shlex.quote(text))
