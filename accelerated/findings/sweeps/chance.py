"""Results of a sweep that need its folders: whether routing gains more than chance, and whether loads are even.

    1. COMPARE  `compare`    dense and the largest E, at every size of every router, with the error due to chance
    2. LOAD     `loads`      the loads of the experts at the largest E
    3. RUNS     `runs_of`    the models, the text, the time

`findings.gather` gives all other results. The report has the text.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas

from ...errors import InputError
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ...training.sweeps.grid import presets, read_grid
from ...training.window_losses import few_documents, loss_difference, shown_error
from ...wording import plural
from ..runs import Repeated, Scatter
from .folder import Sweep, SweepRun
from .registered import RegisteredScore, score

CHANCE = 1.96
"""Half a 95 % interval, in standard errors over documents."""


class Comparison(NamedTuple):
    """The comparison of a router's largest E with dense at one size. Losses are means over the seeds."""

    router: str
    size: int
    experts: int
    dense_loss: float
    routed_loss: float
    difference: float  # routed minus dense, nats per token: negative if routing helps
    percent: float  # the same in percent of the dense loss
    spread: float | None  # range of losses over seeds; None if not measured
    borrowed: bool  # whether the spread is from other routers, because this router has only one seed per point
    error: float | None  # standard error of the difference over documents; None if the windows differ
    verdict: str  # "yes", "no, within the spread", "no, routing hurts", "lower, spread not measured", ...


class Load(NamedTuple):
    router: str
    size: int
    experts: int
    seed: int
    shares: list[list[float]]  # [blocks, E G] share times E G, in falling order; all are 1 at balance
    busiest: float  # the largest of these
    idle: int  # experts without a validation token, over all routed blocks
    dropped_fraction: float  # dropped share of the training assignments since the second last evaluation

    @property
    def dropped(self) -> float:
        """The dropped share in percent."""
        return 100 * self.dropped_fraction


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
        not_learned: see `not_learned_sentence`
        runs: see `runs_of`
        few_documents: a sentence on too few documents, or ""
        sessions: see `training.sweeps.sweep_folder.read_sessions`
        preset: name of the preset, or None
        corpus: the corpus of all runs; [] if they differ
    """

    name: str
    planned: int
    waiting: dict[int, str]
    registered: RegisteredScore | None
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


def find(sweep: Sweep, scatter: Scatter | None) -> SweepFacts:
    """Return comparisons, loads and diagnostics of a sweep, and how it was trained."""
    spreads = [] if scatter is None else scatter.points
    comparisons = [entry for selection in sweep.selections for entry in compare(sweep, selection, spreads)]
    finished, learned = {run.hyper_id for run in sweep.runs}, learning(sweep)
    return SweepFacts(
        name=sweep.name,
        planned=len(sweep.planned),
        waiting={i: config.name() for i, config in enumerate(sweep.planned) if i not in finished},
        registered=score(sweep),
        left_out={run["hyper_id"]: run["reason"] for rows in sweep.selections for run in rows.left_out},
        spreads=spreads,
        comparisons=pandas.DataFrame(comparisons, columns=Comparison._fields),
        loads=pandas.DataFrame(loads(sweep), columns=Load._fields),
        learning=learned,
        not_learned=not_learned_sentence(learned),
        runs=runs_of(sweep.runs),
        few_documents=few_documents(*(run.documents for run in sweep.runs)),
        sessions=sweep.sessions,
        preset=preset_of(sweep),
        corpus=list(sweep.planned[0].corpus) if len({config.corpus for config in sweep.planned}) == 1 else [],
    )


def runs_of(runs: list[SweepRun]) -> pandas.DataFrame:
    """Return the finished runs: results, settings, and which tokens affect a loss besides the earlier ones.

    Returns:
        Columns of results tables, and corpus, vocabulary, share (percent of the blocks that are routed), mask_rate
        (percent of hidden and predicted tokens; NaN for next tokens), grouped (whether experts see one position of a
        group of sequences).
    """
    return pandas.DataFrame([_run(run, run.config.model) for run in runs])


def _run(run: SweepRun, model) -> dict:
    known = ("learning_rate", "dropped_fraction", "wall_seconds", "device", "commit")
    masked = model.objective == "masked"
    return {
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


def spread_for(router: str, spreads: list[Repeated]) -> tuple[float | None, bool]:
    """Return the seed spread for a router, and whether it is borrowed from other routers.

    The spread is the largest range over seeds among the points of the router and of dense, because both have an error.
    If the router has no such point, the spread is the largest range of the sweep.
    """
    router_spreads = [spread for spread in spreads if spread.router == router]
    candidates = router_spreads + [s for s in spreads if s.router == DENSE] if router_spreads else spreads
    return (max(s.range for s in candidates) if candidates else None), bool(candidates) and not router_spreads


def compare(sweep: Sweep, selection: RouterRows, spreads: list[Repeated]) -> list[Comparison]:
    """Compare the largest E of a router with dense, at each size that has both."""
    runs, comparisons = sweep.of(selection), []
    spread, borrowed = spread_for(selection.router, spreads)
    for size in sorted({run.size for run in runs}):
        dense = [run for run in runs if run.size == size and run.router == DENSE]
        routed = [run for run in runs if run.size == size and run.router != DENSE]
        if not dense or not routed:
            continue
        experts = max(run.experts for run in routed)
        largest = [run for run in routed if run.experts == experts]
        dense_loss, routed_loss = (float(np.mean([run.loss for run in group])) for group in (dense, largest))
        gap, error = routed_loss - dense_loss, difference_error(largest, dense)
        losses = (dense_loss, routed_loss, gap, 100 * gap / dense_loss)
        chance = (spread, borrowed, error, verdict(gap, spread, error))
        comparisons.append(Comparison(selection.router, size, experts, *losses, *chance))
    return comparisons


def difference_error(first: list[SweepRun], second: list[SweepRun]) -> float | None:
    """Return the standard error over documents of the difference of two groups' mean losses.

    Losses are compared window by window. Return None if a run has no windows, the windows differ, or there are too few
    documents (see `shown_error`).
    """
    if any(run.windows is None for run in (*first, *second)):
        return None
    apart = loss_difference([run.windows for run in first], [run.windows for run in second])
    error = math.nan if apart is None else shown_error(apart)
    return None if math.isnan(error) else error


def verdict(difference: float, spread: float | None, error: float | None) -> str:
    """Return a verdict on a loss: whether it is below the dense loss by more than chance.

    The difference must exceed both the range over seeds and CHANCE standard errors over documents.
    """
    if spread is None:
        return ("lower" if difference < 0 else "not lower") + ", spread not measured"
    if abs(difference) <= spread:
        return "no, within the spread"
    if error is not None and abs(difference) <= CHANCE * error:
        return "no, other documents could reverse it"
    return "yes" if difference < 0 else "no, routing hurts"


def loads(sweep: Sweep) -> list[Load]:
    """Return the loads of the run with the largest E, at each size of each router. Only the first seed counts."""
    entries = []
    for selection in sweep.selections:
        runs = [run for run in sweep.of(selection) if run.router != DENSE and run.load]
        for size in sorted({run.size for run in runs}):
            run = max((run for run in runs if run.size == size), key=lambda run: (run.experts, -run.hyper_id))
            entries.append(load_of(run))
    return entries


def load_of(run: SweepRun) -> Load:
    shares = [sorted((len(block) * share for share in block), reverse=True) for block in run.load]
    busiest, idle = max(map(max, shares)), sum(share == 0 for block in shares for share in block)
    dropped = float(run.row["dropped_fraction"])
    return Load(run.router, run.size, run.experts, run.config.seed, shares, busiest, idle, dropped)


class Learning(NamedTuple):
    """The diagnostics of the routers of a run; NaN if not measured."""

    hyper_id: int
    router: str
    size: int
    experts: int
    seed: int
    chance: float  # agreement of two routings at random
    agreement: float  # share of common choices of training and evaluation
    information: float  # mutual information of expert and token id, in bits
    entropy: float  # entropy of the policy divided by ln(E G)
    exchange: float  # loss with randomly exchanged experts, divided by the loss
    reasons: list[str]  # reasons why the router has not learned; empty if it has learned


COLUMNS = ("router_agreement", "router_information", "router_entropy", "expert_exchange")


def learning(sweep: Sweep) -> pandas.DataFrame:
    """Return the diagnostics of the finished routed runs that have them, by hyper_id."""
    rows = []
    for run in sweep.runs:
        if (model := run.config.model).num_routed:
            named = run.hyper_id, run.router, run.size, run.experts, run.config.seed
            cells = (float(run.row.get(name, math.nan)) for name in COLUMNS)
            rows.append((*named, model.choices / model.choosable, *cells, run.not_learned))
    return pandas.DataFrame(rows, columns=Learning._fields).dropna(subset="exchange")


def not_learned_sentence(learned: pandas.DataFrame) -> str | None:
    """Return a sentence that names the runs whose routers have not learned; None if all have learned."""
    bad = learned[learned["reasons"].str.len() > 0]
    words = [
        f"{router} with E = {experts} (run{'s' * (len(runs) > 1)} {', '.join(map(str, runs))})"
        for (router, experts), runs in bad.groupby(["router", "experts"])["hyper_id"]
    ]
    number = f"the routers of {len(bad)} of {plural(len(learned), 'routed run')} have not learned"
    return f"{number}: {'; '.join(words)}" if words else None
