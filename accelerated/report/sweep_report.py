"""The report of a sweep: report.md for people, figures/*.png, and report.json with every number.

    1. READ    `sweep_data.read_sweep`    the folder
    2. FIND    `sweep_findings.find`      spreads, comparisons, laws, loads
    3. DRAW    `figures.draw_all`         figures/NAME.png and .svg
    4. SAY     `summary` here, `sections.py` for the rest

The report is written for somebody who has not read the paper. It says what is true of the runs that are in, whichever
way they came out, and how much of the sweep is missing.
"""

import json
import time
from pathlib import Path

from ..files import write_atomically
from ..findings.estimates import percent
from ..findings.sweep_data import Sweep, read_sweep
from ..findings.sweep_findings import Findings, RouterLaw, as_json, find, finite
from ..tables.table import DENSE
from . import sections
from .figures import draw_all


def write_report(folder: Path) -> Path:
    """Write report.md, report.json and figures/ into the folder of a sweep.

    Args:
        folder: of `training.sweep.run_sweep`, finished or not.

    Returns:
        The path of report.md.

    Raises:
        InputError: the folder holds no sweep, or no run of it is finished.
    """
    folder = Path(folder)
    started = time.perf_counter()
    sweep = read_sweep(folder)
    findings = find(sweep)
    fitted = time.perf_counter()
    drawn = draw_all(folder / "figures", sweep, findings)
    seconds = {
        "training": sweep.seconds(),
        "fitting": fitted - started,
        "figures": time.perf_counter() - fitted,
    }
    write_atomically(folder / "report.json", json.dumps(_numbers(sweep, findings, seconds), indent=1, allow_nan=False))
    write_atomically(folder / "report.md", markdown(sweep, findings, seconds, drawn))
    return folder / "report.md"


def markdown(sweep: Sweep, findings: Findings, seconds: dict[str, float], drawn: list[str]) -> str:
    """Return the report as Markdown."""
    parts = [f"# Routed language models: sweep “{sweep.name}”"]
    missing = len(sweep.planned) - len(sweep.runs)
    if missing:
        parts.append(
            f"> **Not finished: {len(sweep.runs)} of {len(sweep.planned)} runs are in.** What follows holds for those"
            f" alone and may change; the {missing} that are missing are named under [The runs](#the-runs)."
        )
    parts.append("\n".join(f"- **{head}** {text}" for head, text in summary(sweep, findings, seconds)))
    if "loss" in drawn:
        parts.append(
            "![Loss against the number of experts](figures/loss.png)\n\n"
            f"*{_caption(findings)} E = 1 is the dense model; dashes mark single seeds where there are several.*"
        )
    parts += [
        sections.helps_section(findings, sweep),
        sections.effective_section(drawn),
        sections.law_section(findings),
        sections.open_section(sweep, findings),
        sections.training_section(drawn),
        sections.load_section(findings, drawn),
        sections.runs_section(sweep),
        sections.repeat_section(sweep),
    ]
    return "\n\n".join(parts) + "\n"


def summary(sweep: Sweep, findings: Findings, seconds: dict[str, float]) -> list[tuple[str, str]]:
    """Return the five points of the summary as (head, text)."""
    return [
        ("What was trained.", _what(sweep)),
        ("On what.", _on_what(sweep)),
        ("How long.", _how_long(sweep, seconds)),
        (
            "What came out.",
            " ".join(_outcome(findings, s.router) for s in sweep.selections) or "No routed run is in yet.",
        ),
        ("The law.", _law(findings)),
    ]


def _what(sweep: Sweep) -> str:
    runs = sweep.runs
    sizes = sorted({run.size for run in runs})
    routers = [s.router for s in sweep.selections]
    plural = "s" if len(runs) > 1 else ""
    text = f"{len(runs)} small language model{plural} of {_count(len(sizes), 'size')} (N = {sections.sizes_text(sizes)}"
    text += " parameters, embeddings left out)"
    if not routers:
        return text + ", all dense."
    counts = sorted({run.experts for run in runs if run.router != DENSE})
    frequencies = {run.config.model.routing_frequency for run in runs if run.router != DENSE}
    share = f"{100 * min(frequencies):.3g} % of the" if len(frequencies) == 1 else "some"
    dense = "dense and " if sweep.dense() else ""
    return text + (
        f", {dense}routed by {_listed(routers)} with E = {', '.join(map(str, counts))}. In a routed model {share}"
        " blocks hold E feed-forward networks, the experts, and each token passes through"
        f" {_experts_per_token(sweep)} of them: the model grows, the cost per token hardly does."
    )


def _experts_per_token(sweep: Sweep) -> str:
    ks = sorted({run.config.model.k for run in sweep.runs if run.router != DENSE})
    return "one" if ks == [1] else " or ".join(map(str, ks))


def _on_what(sweep: Sweep) -> str:
    texts = list(dict.fromkeys(sections.corpus_text(run.config) for run in sweep.runs))
    tokens = sorted({int(run.row["tokens"]) for run in sweep.runs})
    pieces = sorted({run.config.model.vocab_size for run in sweep.runs})
    per_run = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    return (
        f"{_capital('; '.join(texts))}, {per_run} training tokens per run, in a vocabulary of"
        f" {' or '.join(f'{p:,}' for p in pieces)} pieces. Losses are measured on text held out from training, in"
        " nats per token: lower is better."
    )


def _how_long(sweep: Sweep, seconds: dict[str, float]) -> str:
    if sweep.sessions:
        jobs = sorted({session.get("jobs", 1) for session in sweep.sessions})
        text = f"Training took {sections.duration(seconds['training'])} in {_count(len(sweep.sessions), 'session')}, "
        text += f"{' or '.join(map(str, jobs))} {'run' if jobs == [1] else 'runs'} at a time"
    else:
        text = "How long training took was not noted"
    return text + (
        f"; reading the runs and fitting the law took {sections.duration(seconds['fitting'])}, the figures"
        f" {sections.duration(seconds['figures'])}."
    )


def _outcome(findings: Findings, router: str) -> str:
    """Return at how many sizes a router came out below dense, by how much, and against what spread."""
    entries = [c for c in findings.comparisons if c.router == router]
    if not entries:
        return f"{router} has no size with a dense run to compare with."
    good = [c for c in entries if c.verdict == "yes"]
    counts = sorted({c.experts for c in entries})
    with_experts = f"{router} with {' or '.join(map(str, counts))} experts"
    spread = entries[0].spread
    if spread is None:
        lower = sum(c.difference < 0 for c in entries)
        return f"{with_experts} is below dense at {lower} of {_count(len(entries), 'size')} ({_range(entries)});" + (
            " how much of that is chance is not known, since no point was trained with two seeds."
        )
    text = f"{with_experts} is below dense by more than the spread over seeds ({spread:.4f} nats"
    text += f"{', that of other runs' if entries[0].borrowed else ''}) at "
    if len(good) == len(entries):
        return text + f"{'all ' if len(good) > 1 else ''}{_count(len(good), 'size')}: {_range(good)}."
    text += f"{len(good)} of {_count(len(entries), 'size')}{': ' + _range(good) if good else ''}."
    rest = [c for c in entries if c.verdict != "yes"]
    return (
        text
        + " Not so at "
        + "; ".join(
            f"N = {sections.sizes_text([c.size])} ({c.difference:+.4f} nats, {c.verdict.removeprefix('no, ')})"
            for c in rest
        )
        + "."
    )


def _range(entries: list) -> str:
    """Return the differences of some comparisons, the largest gain first: as gains if all are."""
    ordered = sorted(entries, key=lambda c: c.difference)
    if ordered[-1].difference < 0:
        nats, percents = [f"{-c.difference:.4f}" for c in ordered], [f"{-c.percent:.2f} %" for c in ordered]
        form = "{} nats lower ({})"
    else:
        nats, percents = [f"{c.difference:+.4f}" for c in ordered], [f"{c.percent:+.2f} %" for c in ordered]
        form = "a difference of {} nats ({})"
    ends = [values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}" for values in (nats, percents)]
    return form.format(*ends)


def _law(findings: Findings) -> str:
    meaning = "A scaling law is a formula that gives the loss from N and E, with a few constants fitted to runs. "
    parts = [_law_of(law) for law in findings.laws if not law.missing]
    for reason in dict.fromkeys(law.missing for law in findings.laws if law.missing):
        routers = [law.router for law in findings.laws if law.missing == reason]
        parts.append(f"There is none for {_listed(routers)}: {reason}.")
    return meaning + (" ".join(parts) or "There is none: no routed run is in.")


def _law_of(law: RouterLaw) -> str:
    negative = sum(law.verdict(i).startswith("yes") for i in range(len(law.sizes)))
    sizes = f"all {len(law.sizes)}" if negative == len(law.sizes) else f"{negative} of {len(law.sizes)}"
    if law.fit.status == "linear limit":
        sizes += " sizes, though in its linear limit, where the slope has a sign and no size"
    else:
        sizes += " sizes"
    return (
        f"For {law.router} it misses the losses by {percent(law.fit.rmsle):.2g} % (root mean square), and the slope"
        f" b + c log10 N is negative with the whole of its 95 % interval at {sizes}."
    )


def _caption(findings: Findings) -> str:
    fitted = [law.router for law in findings.laws if not law.missing]
    if len(fitted) == len(findings.laws):
        return "Points are trained models, lines the fitted law."
    only = f" (dotted for {', '.join(law.router for law in findings.laws if law.missing)}: no law)" if fitted else ""
    return f"Points are trained models; {'lines the fitted law' if fitted else 'dotted lines join them'}{only}."


def _numbers(sweep: Sweep, findings: Findings, seconds: dict[str, float]) -> dict:
    """Return report.json: null where a number is infinite or was not found."""
    return {
        "name": sweep.name,
        "runs_planned": len(sweep.planned),
        "runs_finished": len(sweep.runs),
        "seconds": seconds,
        "sessions": sweep.sessions,
        **as_json(findings),
        "runs": [
            {
                "hyper_id": run.hyper_id,
                "name": run.config.name(),
                "router": run.router,
                "experts": run.experts,
                "N": run.size,
                "P": int(run.row["total_parameter_count"]),
                "seed": run.config.seed,
                "learning_rate": run.row["learning_rate"],
                "tokens": int(run.row["tokens"]),
                "loss": run.loss,
                "standard_error": finite(run.standard_error),
                "dropped_fraction": run.row["dropped_fraction"],
                "wall_seconds": run.row["wall_seconds"],
                "device": run.row["device"],
                "commit": run.row["commit"],
            }
            for run in sweep.runs
        ],
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _listed(names: list[str]) -> str:
    """Return names as A, B and C."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
