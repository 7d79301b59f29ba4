"""Write the report of a sweep into its folder: the report of its table, and the findings that need the runs.

1. READ     `folder.read_sweep`   the plan, and the finished runs with their logs
2. FIND     `gather_sweep`        the results of the table
            `find`                comparisons with chance, loads, predictions; the models, the text, the time
3. WRITE    `write_report`        report.md, report.html, report.json and figures/
"""

import math
import time
from pathlib import Path
from typing import NamedTuple

import pandas

from ...errors import InputError
from ...results.runs import Runs
from ...training.sweeps.grid import presets, read_grid
from ...training.window_losses import few_documents
from ..report import draw_all, gather, markdown, write_files
from ..runs import Repeated, TableRun
from ..source import with_main_loss
from . import chance, curves, loads, registered
from .folder import Sweep, SweepRun, read_sweep, same_but_seed


class Seconds(NamedTuple):
    """How long the parts of a report of a sweep took."""

    training: float
    fitting: float
    figures: float


class SweepFacts(NamedTuple):
    """The results of a sweep that are not fits.

    Attributes:
        planned: number of runs
        waiting: {hyper_id: name} of the missing runs
        registered: the predictions and their score; None without predictions
        left_out: {hyper_id: reason} of the runs that no law uses
        comparisons, loads, learning: frames with the fields of `Comparison`, `Load` and `Learning`
        not_learned: see `loads.not_learned_sentence`
        runs: see `runs_of`
        few_documents: a sentence on too few documents, or ""
        sessions: see `training.sweeps.sweep_folder.read_sessions`
        preset: name of the preset, or None
        corpus: the corpus of all runs; [] if they differ
    """

    name: str
    planned: int
    waiting: dict[int, str]
    registered: registered.RegisteredScore | None
    left_out: dict[int, str]
    spreads: list[Repeated]
    comparisons: pandas.DataFrame
    loads: pandas.DataFrame
    learning: pandas.DataFrame
    not_learned: str | None
    runs: pandas.DataFrame
    few_documents: str
    sessions: list[dict]
    preset: str | None
    corpus: list[str]
    seconds: Seconds | None = None

    findings = (chance.FINDING, registered.FINDING, loads.FINDING, curves.FINDING)  # in their order in the report


def gather_sweep(sweep: Sweep) -> tuple[dict, list[TableRun]]:
    runs = with_main_loss(Runs(sweep.frame, sweep.folder))
    return gather(runs, point=lambda run: same_but_seed(sweep.planned[run.hyper_id]), name=sweep.name)


def find(results: dict, sweep: Sweep) -> SweepFacts:
    """Return the findings of a sweep, and how it was trained."""
    finished, numbers = {run.hyper_id for run in sweep.runs}, {}
    for finding in SweepFacts.findings:
        numbers |= finding.find(results, sweep)
    return SweepFacts(
        name=sweep.name,
        planned=len(sweep.planned),
        waiting={i: config.name() for i, config in enumerate(sweep.planned) if i not in finished},
        left_out={run["hyper_id"]: run["reason"] for rows in sweep.selections for run in rows.left_out},
        runs=runs_of(sweep.runs),
        few_documents=few_documents(*(run.documents for run in sweep.runs)),
        sessions=sweep.sessions,
        preset=preset_of(sweep),
        corpus=list(sweep.planned[0].corpus) if len({config.corpus for config in sweep.planned}) == 1 else [],
        **numbers,
    )


def runs_of(runs: list[SweepRun]) -> pandas.DataFrame:
    """Return the finished runs: results, settings, and which tokens affect a loss besides the earlier ones.

    Returns:
        Columns of results tables, and corpus, vocabulary, share (percent of the blocks that are routed), mask_rate
        (percent of hidden and predicted tokens; NaN for next tokens), grouped (whether experts see one position of a
        group of sequences).
    """
    known = ("learning_rate", "dropped_fraction", "wall_seconds", "device", "commit")
    rows = []
    for run in runs:
        model, masked = run.config.model, run.config.model.objective == "masked"
        row = {
            "hyper_id": run.hyper_id,
            "name": run.config.name(),
            "router": run.router,
            "experts": run.experts,
            "N": run.size,
            "P": int(run.row["total_parameter_count"]),
            "seed": run.config.seed,
            "tokens": int(run.row["tokens"]),
            "loss": run.loss,
            "standard_error": run.standard_error,
            **{name: run.row[name] for name in known},
            **{name: float(run.row.get(name, math.nan)) for name in ("evaluation_tokens", "evaluation_documents")},
            "corpus": run.config.corpus,
            "vocabulary": model.vocab_size,
            "k": model.k,
            "share": 100 * model.routing_frequency,
            "mask_rate": 100 * model.mask_rate if masked else math.nan,
            "grouped": model.record.grouped and (not masked or model.grouping == "position"),
        }
        rows.append(row)
    return pandas.DataFrame(rows)


def preset_of(sweep: Sweep) -> str | None:
    """Return the name of the preset that has the runs of a sweep; None if there is none."""
    for preset in presets():
        try:
            grid = read_grid(preset, {"corpus": list(sweep.planned[0].corpus)})
        except InputError:  # the preset does not allow this corpus
            continue
        if grid == (sweep.name, sweep.planned):
            return preset
    return None


def write_report(folder: Path, full: bool = False) -> Path:
    """Write report.md, report.html, report.json and figures/ into the folder of a sweep.

    Args:
        full: True adds every table to the answer, its figures and the cautions.

    Returns:
        The path of report.md.

    Raises:
        InputError: the folder has no sweep, or no run is finished.
    """
    folder, started = Path(folder), time.perf_counter()
    sweep = read_sweep(folder)
    results, runs = gather_sweep(sweep)
    facts = find(results, sweep)
    fitted = time.perf_counter()
    drawn = draw_all(folder / "figures", results, runs, sweep, facts)
    facts = facts._replace(seconds=Seconds(sweep.seconds(), fitted - started, time.perf_counter() - fitted))
    text = markdown(results, drawn, facts, "report.json", full)
    numbers = results | {
        name: getattr(facts, name) for name in ("name", "sessions", "learning", "registered", "runs", "seconds")
    }
    numbers |= {"runs_planned": facts.planned, "runs_finished": len(sweep.runs)}
    numbers |= {"does_routing_help": facts.comparisons, "load": facts.loads}
    return write_files(folder, "report.json", numbers, text)
