"""Have the routers learned, and do they use every expert? Their diagnostics, and the loads at the largest E."""

import math
from typing import NamedTuple

import numpy as np
import pandas

from routelaws.reference.diagnostics import SAME

from ...results.blocks import Block, figure
from ...tables.schema import DENSE
from ...wording import plural
from ..finding import Finding, Report, capital, router_name, table
from ..style import DASHED, INK, colour_of, label_rows, panel_grid, size_shade
from .folder import Sweep, SweepRun

SHARES = "tokens, in units of a fair share"
EVEN = 2.0
"""If a panel of loads ends below this many fair shares, its lines are in the upper half."""


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


def find(results: dict, sweep: Sweep) -> dict:
    """Return frames with the fields of `Load` and `Learning`, and the sentence of `not_learned_sentence`."""
    learned = learning(sweep)
    frame = pandas.DataFrame(loads(sweep), columns=Load._fields)
    return {"loads": frame, "learning": learned, "not_learned": not_learned_sentence(learned)}


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


NOT_LEARNED = (
    "training and evaluation choose the same expert about as often as by chance, or exchanging the experts changes the "
    f"loss by less than {100 * (SAME - 1):.2g} %"
)


def sentence(report: Report) -> str | None:
    if not report.sweep.not_learned:
        return None
    return (
        "**Some runs are left out of all comparisons, fits and recommendations.** "
        f"{capital(report.sweep.not_learned)}. The rule: {NOT_LEARNED}."
    )


def _loads(report: Report) -> list[Block]:
    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "E": lambda row: str(row.experts),
        "busiest expert (fair = 1)": lambda row: figure(row.busiest, ".2f"),
        "experts without a token": lambda row: str(row.idle),
        "tokens dropped in training": lambda row: f"{figure(100 * row.dropped_fraction, '.2f')} %",
    }
    if report.sweep.loads.empty:
        return []
    return [
        "The load of an expert is its share of the validation tokens times the number of experts: 1 is a fair share. "
        "In evaluation, no expert is drawn at random and no token is dropped. In training, an expert drops the "
        "tokens above its capacity.",
        *report.figure(
            "load",
            "Load per expert at the largest size and E",
            "Tokens of each expert in units of a fair share, the busiest first; the dashed line is balance.",
        ),
        table(report.sweep.loads, columns, keys=3),
    ]


def _learning(report: Report) -> list[Block]:
    columns = {
        "run": lambda row: str(row.hyper_id),
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "E": lambda row: str(row.experts),
        "agreement (by chance)": lambda row: (
            f"{figure(row.agreement, '.2f')} ({figure(row.chance, '.2f')})" * (row.agreement == row.agreement)
        ),
        "information, bits": lambda row: figure(row.information, ".2f", ""),
        "entropy": lambda row: figure(row.entropy, ".2f", ""),
        "exchange": lambda row: figure(row.exchange, ".4f"),
        "learned": lambda row: "no" if row.reasons else "yes",
    }
    if report.sweep.learning.empty:
        return []
    return [
        "*Agreement* is the share of tokens with the same expert in training and evaluation. *Information* is the "
        "mutual information of expert and token id. *Entropy* is the entropy of RL-R's policy divided by ln E; at 1, "
        "all experts are equally likely. *Exchange* is the loss with randomly exchanged experts divided by the "
        "original loss. A router has not learned if its agreement is no better than chance, or if its experts are "
        "interchangeable (exchange 1).",
        table(report.sweep.learning, columns, keys=2),
    ]


def load_figure(results: dict, sweep: "Sweep", facts):
    """Return the load of the experts at the largest size, one panel per router, one line per routed block."""
    shown = {load.router: load for load in facts.loads.itertuples()}  # sizes rise, so this keeps the largest
    if not shown:
        return None
    figure, panels = panel_grid(len(shown), 3.4)
    highest = max(load.busiest for load in shown.values())
    for panel, load in zip(panels, shown.values(), strict=True):
        load_panel(panel, load, colour_of(results, load.router), highest)
        panel.set_title(f"{router_name(load.router)}, E = {load.experts}")
    label_rows(panels, SHARES)
    return figure


def load_panel(panel, load: "Load", colour, highest: float) -> None:
    """Draw the loads of the experts of a run. The axis includes a load of `highest`."""
    _draw_load(panel, load, colour)
    count = len(load.shares[0])
    panel.axhline(1, color=INK, linewidth=1.1, linestyle=DASHED)
    panel.text(count + 0.5, 1 + 0.015 * highest, "balanced", ha="right", va="bottom", fontsize=9.5, color=INK)
    panel.set(xlabel="experts, busiest first", xlim=(0.5, count + 0.5), ylim=(0, highest * 1.06))
    panel.xaxis.get_major_locator().set_params(integer=True)
    if len(load.shares) > 1:  # lines are at the top if all experts have about a fair share
        panel.legend(loc="lower left" if highest < EVEN else "upper right")


def _draw_load(panel, load: "Load", colour) -> None:
    blocks = len(load.shares)
    for i, block in enumerate(load.shares):
        edges = np.arange(len(block) + 1) + 0.5
        if blocks == 1:
            panel.stairs(block, edges, color=colour, linewidth=1.8, baseline=None)
            panel.stairs(block, edges, color=colour, fill=True, alpha=0.15)
        else:
            look = {"color": size_shade(colour, i, blocks), "label": f"routed block {i + 1} of {blocks}"}
            panel.stairs(block, edges, linewidth=1.8, baseline=None, **look)


FINDING = Finding(
    None, "The routers", find, lambda report: _loads(report) + _learning(report), sentence, {"load": load_figure}
)
