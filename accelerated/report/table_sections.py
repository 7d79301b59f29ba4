"""The sections of a report on the table: symbols, differences from the paper, used runs, method."""

import shlex

from ..errors import printable
from ..findings.compute import other_kinds
from ..findings.finding import Report, bullets, listed, loss_name, missing, router_name
from ..findings.gather import FINDINGS
from ..results.blocks import Block, Heading, Table, figure, range_of, two_digits
from ..wording import plural
from .sweep_sections import how_done, not_used

MANY_GAPS, MANY_TWICE = 12, 6
"""The report names up to this many gaps of the grid and this many repeated runs, and only counts more."""

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
    routers = report.table["routers"]
    rows = SYMBOLS[:2] + (ROUTED_SYMBOLS if routers else []) + SYMBOLS[2:]
    lines = bullets(words for router, words in ROUTERS.items() if router in routers)
    return [Heading("Words and symbols"), Table(["symbol", "meaning", "unit"], rows, words=(1,)), *lines]


CHOICES = {
    "clark": "the rows of the paper (routing frequency 0.5, k = 1, seed 42)",
    "every seed": "the runs of all seeds with k = 1 and the most common routing frequency and granularity",
}


def rows_section(report: Report) -> list[Block]:
    """Return the runs of each analysis, and the missing runs."""
    table, rows = report.table, report.results["rows"]
    steps = range_of(sorted(set(table["last_steps"])))
    blocks: list[Block] = [Heading("Which runs were used"), f"The last evaluation of each run is used (step {steps})."]
    if rows["routers"]:
        chosen = CHOICES.get(table["row_choice"], f"`{table['row_choice']}`")
        counts = listed(f"{router_name(router)} {n}" for router, n in rows["routers"].items())
        part = f" that `{table['row_choice']}` chooses" if table["condition"] else ""
        blocks.append(
            f"The laws that use N and E are fitted to {chosen}; each router's law also uses the dense runs. Number of "
            f"runs: {counts}. The law that uses F and B, and the ablations, use every run{part} except the suspect "
            "runs. The pairs use the runs with k = 1 and the most common routing frequency."
        )
    elif table["condition"]:
        blocks.append(f"The law uses the rows `{table['row_choice']}`.")
    if rows["not_in_laws"] and table["routers"]:
        left = [[e["reason"], str(e["runs"]), ", ".join(map(str, e["hyper_ids"]))] for e in rows["not_in_laws"]]
        blocks += [
            "No law that uses N and E is fitted to these runs; the table gives the first reason that applies:",
            Table(["reason", "runs", "hyper_id"], left),
        ]
    return [*blocks, *_suspects(report), *table["remarks"], *_odd_runs(report), *_lacking(report)]


def _suspects(report: Report) -> list[Block]:
    rows = report.results["rows"]
    if not rows["suspect"]:
        return []
    cells = [
        [str(e["hyper_id"]), router_name(e["router"]), report.size(e["N"]), str(e["E"]), figure(e["R"], "g")]
        + [figure(e["loss"], ".4f"), e["reason"]]
        for e in rows["suspect"]
    ]
    blocks: list[Block] = ["These suspect runs are not used anywhere, because their labels are impossible:"]
    blocks.append(Table(["hyper_id", "router", "N", "E", "R", "loss", "why"], cells))
    if rows["kept"]:
        kept = listed(rows["kept"])
        blocks.append(
            f"These runs are used: {kept}. They have the same configuration as a suspect run, but agree with their "
            "neighbours."
        )
    return blocks


def _odd_runs(report: Report) -> list[Block]:
    rows, sentences = report.results["rows"], []
    suspect = {each["hyper_id"] for each in rows["suspect"]}
    twice = [_alike(report, group) for group in rows["twice"] if not suspect & set(group["hyper_ids"])]
    if twice:
        sentences.append(f"Some runs have the same router, N, E, k, R and seed: {'; '.join(twice)}. All are used.")
    left_out = report.sweep and report.sweep["not_learned"]  # such runs are no gaps
    gaps = [] if left_out else rows["cells_missing"]
    if len(gaps) > MANY_GAPS:
        sentences.append(f"The grid has {plural(len(gaps), 'gap')}.")
    elif gaps:
        sentences.append(f"The grid lacks {listed(_gap(report, each) for each in gaps)}.")
    if report.table["released"]:
        sentences.append(
            "The dense 130M model was trained with seeds 1, 2 and 3, but not with seed 42. So the paper's choice of "
            "rows, seed 42, has no dense model of this size."
        )
    blank = [f"{run['hyper_id']} ({listed(map(loss_name, run['losses']))})" for run in rows["blank"]]
    return sentences + ([f"These runs have a blank loss at the last evaluation: {'; '.join(blank)}."] if blank else [])


def _alike(report: Report, group: dict) -> str:
    ids, losses = group["hyper_ids"], [figure(loss, ".4f") for loss in sorted(group["losses"])]
    many = len(ids) > MANY_TWICE
    who = plural(len(ids), "run") if many else f"runs {listed(ids)}"
    shown = f"{losses[0]} to {losses[-1]}" if many else listed(losses)
    return f"{who} ({router_name(group['router'])}, N = {report.size(group['N'])}, E = {group['E']}): losses {shown}"


def _gap(report: Report, cell: dict) -> str:
    at = "" if cell["router"] == "Dense" else f" with E = {cell['E']}"
    return f"{router_name(cell['router'])} {report.size(cell['N'])}{at}"


def _lacking(report: Report) -> list[Block]:
    results, table = report.results, report.table
    lacking = {
        "no size has two values of E (for slopes)": results["slopes"]["slope"].notna().any(),
        **{finding.lacking: len(results[finding.key]) for finding in FINDINGS if finding.lacking},
        "no run has another k, R or width (to test the law that uses F and B)": results["kinds"].empty
        or other_kinds(results),
        "there is only one loss column, so no other text": len(table["loss_columns"]) > 1,
    }
    absent = [words for words, there in lacking.items() if not there]
    lack = f"**The table lacks runs for some comparisons:** {'; '.join(absent)}."
    sentences = [lack] if absent and table["routers"] else []
    reasons, unfitted = {law["missing"] for law in report.laws}, results["utilisation"].dropna(subset="missing")
    return sentences + missing(unfitted[~unfitted["missing"].isin(reasons)].to_dict("records"), "law that uses F and B")


def method_section(report: Report) -> list[Block]:
    """Return the methods, and the commands that repeat the results."""
    scatter, sizes = report.results["seed_scatter"], report.table["sizes"]
    blocks: list[Block] = [Heading("How it was computed")]
    if report.fitted:
        blocks.append(
            "**Fits.** For given E_start and E_max, the law is linear in its other constants. So the fit searches only "
            "over E_start and E_max. It searches the whole domain 1 ≤ E_start < E_max ≤ ∞, limits included, and finds "
            f"the global optimum. The objective is the {report.fitted[0]['criterion']}. Intervals of constants contain "
            "every value that is not rejected at 95 %, by profile likelihood; they are wider if the runs of a size "
            "share errors, or if the errors are uneven. Intervals of means are Student's t intervals."
        )
    chance = "is not known: no configuration was trained with more than one seed."
    if scatter:
        chance = (
            "is measured by runs that differ only in the seed: a standard deviation of "
            f"{two_digits(scatter['percent'])} % of the loss, from {plural(scatter['runs'], 'run')} at "
            f"{plural(len(scatter['points']), 'point')}."
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
    sweep, rows = report.sweep, report.results["rows"]
    lines = not_used(sweep) if sweep else []
    if not report.full:
        unused = [f"{each['runs']}, {each['reason']}" for each in rows["not_in_laws"]]
        unused += [f"{len(rows['suspect'])} with impossible labels"] if rows["suspect"] else []
        lines += [f"**Runs that no law uses:** {'; '.join(unused)}."] if unused else []
        lines += report.table["remarks"]
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


def _command(sweep: dict) -> str:
    grid = sweep["preset"] or f"{sweep['name']}.toml"
    corpus = [f"--corpus {' '.join(map(_quoted, sweep['corpus']))}"] if sweep["corpus"] else []
    return " ".join(["routelaws sweep", _quoted(grid), *corpus, "--out NEW_FOLDER"])


def _quoted(text: str) -> str:
    return printable(shlex.quote(text))
