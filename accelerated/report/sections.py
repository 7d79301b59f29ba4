"""The sections of a sweep's report after its summary, each as Markdown.

Every number is one of `sweep_findings.py` or of the runs themselves; every judgement is made from the numbers at hand.
"""

import math
import shlex
from pathlib import Path

from ..configuration import GROUPED
from ..errors import InputError
from ..findings.estimates import percent
from ..findings.sweep_data import Sweep, SweepRun
from ..findings.sweep_findings import Findings, RouterLaw, seed_scatter
from ..laws.routed import RoutedCoefficients, cutoff
from ..tables.table import DENSE
from ..training.config import TrainConfig
from ..training.grid import presets, read_grid
from ..training.result_rows import size_label
from .identified import open_questions, significant


def helps_section(findings: Findings, sweep: Sweep) -> str:
    """Return the table that holds the largest E against dense, and how the spread over seeds was measured."""
    if not findings.comparisons:
        return "## Does routing help?\n\nNo size has both a dense and a routed run yet, so this cannot be said."
    lines = table(
        (
            "router",
            "N",
            "dense loss",
            "largest E",
            "loss there",
            "difference",
            "± over documents",
            "in %",
            "seed spread",
            "below dense by more than chance?",
        ),
        [
            (
                c.router,
                f"{c.size:,}",
                f"{c.dense_loss:.4f}",
                c.experts,
                f"{c.routed_loss:.4f}",
                f"{c.difference:+.4f}",
                "not known" if c.error is None else f"{c.error:.4f}",
                f"{c.percent:+.2f}",
                "not measured" if c.spread is None else f"{c.spread:.4f}" + ("*" if c.borrowed else ""),
                f"**{c.verdict}**",
            )
            for c in findings.comparisons
        ],
    )
    text = "## Does routing help?\n\nLosses are validation losses in nats per token, means over the seeds of a point."
    text += f" {_evaluation_words(sweep)}\n\n{lines}\n\n{_spread_words(findings)}\n\n{_error_words(sweep, findings)}"
    if any(c.borrowed for c in findings.comparisons):
        text += "\n\n\\* This router has one seed at every point; the spread is the largest of the other runs."
    return text


def _evaluation_words(sweep: Sweep) -> str:
    """Return how losses were measured: what is predicted, what is seen, and which losses depend on other sequences."""
    masked = [run.config.model.mask_rate for run in sweep.runs if run.config.model.objective == "masked"]
    text = "Evaluation routes greedily, sees no later token and drops nothing."
    if masked:
        shares = " or ".join(f"{share:.3g}" for share in sorted({100 * rate for rate in masked}))
        text = (
            f"What is predicted are hidden tokens, {shares} % of each sequence, from all the others on both sides: a"
            " loss of another task than that of the next token. Evaluation routes greedily and drops nothing."
        )
    by_position = [run for run in sweep.runs if not masked or run.config.model.grouping == "position"]
    in_groups = {run.router for run in by_position if run.config.model.router in GROUPED}
    if in_groups:
        text += (
            f" {' and '.join(sorted(in_groups))}: experts see one position of a group of sequences, in evaluation too."
            " The loss of a sequence then depends on the others of its group"
            + ("." if masked else ", though on no later position of any.")
        )
    return text


def _error_words(sweep: Sweep, findings: Findings) -> str:
    """Return what was evaluated on, and what is known of the error that this brings."""
    known = [run for run in sweep.runs if math.isfinite(run.standard_error)]
    if not known:
        return "**Error over documents:** not known: these runs kept no losses window by window."
    tokens, counts = ({int(run.row[name]) for run in known} for name in ("evaluation_tokens", "evaluation_documents"))
    least, most = (significant(end([run.standard_error for run in known])) for end in (min, max))
    size = f"{least} nats" if least == most else f"{least} to {most} nats"
    text = (
        f"**Error over documents:** losses were measured on {_or(tokens)} tokens, in windows at equal steps through"
        f" the whole validation text, of {_or(counts)} documents (a long file counts as several). With other documents"
        f" of the same kind a loss would be another: its standard error is {size}, given with each run below. What is"
        " hard for one model is hard for the others, so a difference between models is known better than a loss."
    )
    if any(c.error is not None for c in findings.comparisons):
        text += " It is taken window by window on the same windows; ± is its standard error over the documents."
    return text


def _or(numbers: set[int]) -> str:
    ends = sorted({min(numbers), max(numbers)})
    return " to ".join(f"{number:,}" for number in ends)


def _spread_words(findings: Findings) -> str:
    if not findings.spreads:
        return (
            "**Seed spread:** no point was trained with more than one seed, so it is not known how much of a difference"
            " is chance."
        )
    lines = table(
        ("point", "seeds", "losses", "range", "standard deviation"),
        [
            (
                f"{s.router}, N = {s.size:,}" + ("" if s.router == DENSE else f", E = {s.experts}"),
                ", ".join(map(str, s.seeds)),
                ", ".join(f"{loss:.4f}" for loss in s.losses),
                f"{s.range:.4f}",
                f"{s.deviation:.4f}",
            )
            for s in findings.spreads
        ],
    )
    points = "one point" if len(findings.spreads) == 1 else f"{len(findings.spreads)} points"
    return (
        f"**Seed spread:** measured at {points}, from runs that differ in the seed of their weights and of the order of"
        " the text, and in nothing else. A router is held against the largest range among its own points and those of"
        f" dense; other points are taken to scatter alike, which was not checked.\n\n{lines}"
    )


def effective_section(drawn: list[str]) -> str:
    """Return the figure of the effective parameter count with what it means."""
    text = "## What a routed model is worth\n\n"
    if "effective_size" not in drawn:
        return text + "Without a fitted law there is no effective parameter count."
    return text + (
        "The effective parameter count is the size of the dense model that the law gives the same loss. If the law"
        " describes the runs, the points of every N and E fall on the line of the dense models; it is dashed outside"
        " the sizes of the dense models that were trained, where it is an extrapolation.\n\n"
        "![Loss against effective parameter count](figures/effective_size.png)"
    )


def law_section(findings: Findings) -> str:
    """Return the law, its coefficients, slopes and gains with their intervals."""
    text = (
        "## The law\n\n"
        "```\nlog10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d\n"
        "    1/Ê = 1/(E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max\n```\n\n"
        "The effective experts Ê rise with E, from E_start for a dense model towards E_max. The law is fitted to every"
        " run, all seeds, by least squares in log10 L, one router at a time; dense runs count for each."
    )
    text += "".join(f"\n\nNo law for {law.router}: {law.missing}." for law in findings.laws if law.missing)
    laws = [law for law in findings.laws if not law.missing]
    if not findings.laws:
        text += "\n\nThere is no routed run yet, and so nothing to fit."
    if not laws:
        return text
    return "\n\n".join([text, _coefficients(laws), _slopes(laws), _gains(laws)])


def _coefficients(laws: list[RouterLaw]) -> str:
    names = RoutedCoefficients._fields
    rows = [(name, *(_coefficient(law, name) for law in laws)) for name in names]
    rows += [
        ("N_cutoff = 10^(−b/c)", *(_cutoff(law) for law in laws)),
        ("RMSLE (log10)", *(f"{law.fit.rmsle:.5f}" for law in laws)),
        ("runs", *(law.rows for law in laws)),
        ("where the optimum lies", *(_status_words(law.fit.status) for law in laws)),
    ]
    return (
        "### Coefficients\n\n"
        + table(("", *(law.router for law in laws)), rows)
        + "\n\n± is half of a rough 95 % interval, from the curvature at the optimum. b and d are values at N = 1, far"
        " below every model here, and change together with c: read the slopes below and not b."
    )


def _coefficient(law: RouterLaw, name: str) -> str:
    value, reach = getattr(law.fit.coefficients, name), law.reach[name]
    if math.isnan(value):
        return "none"
    if math.isinf(value):
        return "∞ (no limit seen)"
    return f"{value:.4g}" + (f" ± {significant(reach)}" if reach > 0 else " (at its edge)")


def _cutoff(law: RouterLaw) -> str:
    value = cutoff(law.fit.coefficients)
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "none (c is not above 0)"
    outside = "" if law.sizes[0] <= value <= law.sizes[-1] else " (outside the sizes trained)"
    return f"{value:.2g}{outside}"


def _status_words(status: str) -> str:
    return {
        "interior": "inside the domain: all six have a value",
        "E_start at 1": "at E_start = 1, the least allowed",
        "E_max unbounded": "at E_max = ∞: no saturation seen",
        "E_start at 1, E_max unbounded": "at E_start = 1 and E_max = ∞: no saturation seen",
        "linear limit": "in the linear limit: the coefficients have no values",
    }[status]


def _slopes(laws: list[RouterLaw]) -> str:
    rows = [
        (
            law.router,
            f"{n:,}",
            number(law.slope.slope[i]),
            interval(law.slope.low[i], law.slope.high[i]),
            f"**{law.verdict(i)}**",
        )
        for law in laws
        for i, n in enumerate(law.sizes)
    ]
    return (
        "### Slopes\n\nb + c log10 N is the change of log10 L per tenfold *effective* experts at size N: negative where"
        " routing helps. An infinite one has a sign and no size.\n\n"
        + table(("router", "N", "slope b + c log10 N", "95 % interval", "negative, with its interval?"), rows)
        + "\n\nProfile-likelihood intervals over all six coefficients, edges of the domain included; they take the"
        " misses of the law as independent and normal, which a few sizes cannot check."
    )


def _gains(laws: list[RouterLaw]) -> str:
    rows = [
        (
            law.router,
            f"{int(n):,}",
            f"1 → {law.gain.experts:g}",
            number(gain),
            interval(low, high),
            f"{percent(gain):+.2f} %",
            f"{percent(low):+.2f} % to {percent(high):+.2f} %",
        )
        for law in laws
        for n, gain, low, high in zip(law.gain.at, law.gain.gain, law.gain.low, law.gain.high, strict=True)
    ]
    return (
        "### Gains\n\nThe change of the loss from dense to the largest E, by the law. It is close to what was measured,"
        " and so better known than the slope, which divides it by a length that E_start and E_max set.\n\n"
        + table(("router", "N", "E", "change of log10 L", "95 % interval", "of the loss", "95 % interval"), rows)
    )


def open_section(sweep: Sweep, findings: Findings) -> str:
    """Return what the grid cannot identify."""
    text, scatter = "## What this grid cannot identify", seed_scatter(findings.spreads)
    for law in findings.laws:
        said = [f"There is no law to speak of: {law.missing}."] if law.missing else open_questions(law, scatter)
        text += f"\n\n**{law.router}**\n\n" + "\n".join(f"- {sentence}" for sentence in said)
    sizes = [run.size for run in sweep.runs]
    tokens = sorted({int(run.row["tokens"]) for run in sweep.runs})
    texts = len({run.config.corpus for run in sweep.runs})
    budget = f"on {tokens[0]:,} tokens" if len(tokens) == 1 else f"on between {tokens[0]:,} and {tokens[-1]:,} tokens"
    general = [
        f"Every run trained {budget}{' of one text' if texts == 1 else ''}. How the gain changes with more training, or"
        " on other text, is not something a law of N and E can say.",
        f"Nothing here was measured below N = {min(sizes):,} or above N = {max(sizes):,}; what the law says there is"
        " extrapolation.",
    ]
    return text + "\n\n**All of it**\n\n" + "\n".join(f"- {sentence}" for sentence in general)


def training_section(drawn: list[str]) -> str:
    """Return the training curves."""
    if "training" not in drawn:
        return "## Training\n\nThe logs of the runs are not there, so there are no curves."
    return (
        "## Training\n\nPoints are validation losses, thin lines the training loss (running mean). The first steps, far"
        " above the rest, are cut off.\n\n![Loss during training](figures/training.png)"
    )


def load_section(findings: Findings, drawn: list[str]) -> str:
    """Return the load of the experts and what was dropped."""
    if "load" not in drawn:
        return "## Load of the experts\n\nNo finished routed run has its load in the log."
    rows = [
        (
            load.router,
            f"{load.size:,}",
            load.experts,
            f"{load.busiest:.2f}",
            load.idle,
            f"{100 * load.dropped_fraction:.2f} %",
        )
        for load in findings.loads
    ]
    return (
        "## Load of the experts\n\nThe share of the validation tokens that each expert takes, times the number of"
        " experts: 1 is a fair share. Evaluation is greedy: where a token goes depends on no later token, and none is"
        " dropped. In training an expert with a capacity takes no more than that; what is dropped passes by on the"
        " residual connection.\n\n"
        "![Load per expert](figures/load.png)\n\n"
        + table(
            (
                "router",
                "N",
                "E",
                "busiest expert (fair = 1)",
                "experts without a token",
                "dropped in training (last stretch)",
            ),
            rows,
        )
    )


def runs_section(sweep: Sweep) -> str:
    """Return the table of all finished runs."""
    rows = [_run_row(run) for run in sweep.runs]
    head = ("run", "router", "E", "N", "P", "seed", "learning rate", "tokens", "loss", "± over documents", "time")
    text = (
        "## The runs\n\nN counts what one token passes through, embeddings left out; P counts every expert. The"
        f" learning rate is the peak, after warm-up.\n\n{table(head, rows)}"
    )
    finished = {run.hyper_id for run in sweep.runs}
    waiting = [f"{i} ({config.name()})" for i, config in enumerate(sweep.planned) if i not in finished]
    if waiting:
        text += "\n\nNot in: " + ", ".join(waiting) + "."
    left_out = {run["hyper_id"]: run["reason"] for s in sweep.selections for run in s.left_out}
    if left_out:
        text += "\n\nNot used for the law: " + "; ".join(f"run {i}: {why}" for i, why in sorted(left_out.items())) + "."
    return text


def _run_row(run: SweepRun) -> tuple:
    row = run.row
    return (
        run.hyper_id,
        run.router,
        run.experts,
        f"{run.size:,}",
        f"{int(row['total_parameter_count']):,}",
        run.config.seed,
        f"{row['learning_rate']:.3g}",
        f"{int(row['tokens']):,}",
        f"{run.loss:.4f}",
        f"{run.standard_error:.4f}" if math.isfinite(run.standard_error) else "",
        duration(row["wall_seconds"]),
    )


def repeat_section(sweep: Sweep) -> str:
    """Return the command, and what it depends on."""
    grid, where = _grid_argument(sweep)
    corpus = sweep.planned[0].corpus
    flag = f" --corpus {shlex.join(corpus)}" if corpus and len({run.corpus for run in sweep.planned}) == 1 else ""
    devices = sorted({str(run.row["device"]) for run in sweep.runs})
    commits = sorted({str(run.row["commit"]) for run in sweep.runs})
    seeds = sorted({run.config.seed for run in sweep.runs})
    mixed = " (several: the runs are not of one state of the code)" if len(commits) > 1 else ""
    return (
        "## How to repeat it\n\n"
        f"```\nroutelaws sweep {shlex.quote(grid)}{flag} --out NEW_FOLDER\nroutelaws report NEW_FOLDER\n```\n\n"
        f"{where} The second command writes this report again. A sweep that was stopped goes on with the same"
        " command.\n\n"
        + table(
            ("", ""),
            [
                ("seeds", ", ".join(map(str, seeds))),
                ("device", ", ".join(devices)),
                ("commit", ", ".join(commits) + mixed),
            ],
        )
        + "\n\nEvery number above is in [report.json](report.json), the table of all evaluations in"
        " [results.csv](results.csv)."
    )


def _grid_argument(sweep: Sweep) -> tuple[str, str]:
    """Return the grid as the command line takes it, and a sentence on it."""
    corpus = {"corpus": list(sweep.planned[0].corpus)}
    if sweep.name in presets():
        try:
            if list(read_grid(sweep.name, corpus).runs) == sweep.planned:
                return sweep.name, f"`{sweep.name}` is a grid that comes with the package."
        except InputError:
            pass  # a preset of another version
    return f"{sweep.name}.toml", (
        f"`{sweep.name}.toml` stands for the file that the grid `{sweep.name}` was read from; all of its runs,"
        " resolved, are in [sweep.json](sweep.json)."
    )


def table(head: tuple, rows: list[tuple]) -> str:
    """Return a Markdown table; columns of numbers are set right."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    right = [all(row[i][:1] in "+-0123456789" for row in cells) for i in range(len(head))]
    rule = ["---:" if to_the_right else "---" for to_the_right in right]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *cells))


def interval(low: float, high: float) -> str:
    """Return an interval in words."""
    return f"{number(low)} to {number(high)}"


def number(value: float) -> str:
    """Return a slope or a gain."""
    if math.isnan(value):
        return "not found"
    return f"{value:+.4f}" if math.isfinite(value) else ("+∞" if value > 0 else "-∞")


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def sizes_text(sizes: list[int]) -> str:
    """Return sizes as 30K, 120K and 500K."""
    names = [size_label(size) for size in sizes]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def corpus_text(config: TrainConfig) -> str:
    """Return what text a run was trained on."""
    if not config.corpus:
        return "the source code of the Python standard library"
    return ", ".join(f"`{Path(path).name or path}`" for path in config.corpus)
