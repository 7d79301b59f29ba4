"""Does routing help, by more than chance? Dense runs and the largest E of each router, at every size.

Chance is the scatter over seeds, and the error over the documents of the validation text.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas

from ...results.blocks import Block, Table, figure, range_of, significant
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ...training.window_losses import loss_difference, shown_error
from ...wording import plural
from ..finding import Finding, Report, distinct, names, reach, router_name, table
from ..runs import Repeated
from .folder import Sweep, SweepRun

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


def find(results: dict, sweep: Sweep) -> dict:
    """Return the comparisons as a frame with the fields of `Comparison`, and the points with several seeds."""
    scatter = results.scatter
    spreads = [] if scatter is None else scatter.points
    rows = [entry for selection in sweep.selections for entry in compare(sweep, selection, spreads)]
    return {"spreads": spreads, "comparisons": pandas.DataFrame(rows, columns=Comparison._fields)}


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


def sentence(report: Report) -> str | None:
    sweep, rows = report.sweep, report.sweep.comparisons
    if not report.results.table.routers:
        return None
    if rows.empty:
        return "**Is the gain more than chance?** Not known: no size has both a dense run and a routed run with k = 1."
    rows = rows.assign(better=(rows["verdict"] == "yes").where(rows["spread"].notna(), rows["difference"] < 0))
    counts, where = distinct(rows["experts"]), f"in {_share(rows['better'].sum(), len(rows), 'comparison')}"
    at = f"E = {counts[0]}" if len(counts) == 1 else "the largest E"
    if sweep.spreads:
        spread = figure(max(each.range for each in sweep.spreads), ".4f")
        head = f"**At {at}, routed models beat dense ones by more than chance {where}.** "
        head += f"Seeds alone change a loss by up to {spread} nats."
    else:
        head = f"**At {at}, routed models beat dense ones {where}.** "
        head += "Chance alone might cause this, because no point was trained with two seeds."
    return f"{head} {'; '.join(_outcome(*each) for each in rows.groupby('router', sort=False))}."


def _outcome(router: str, rows) -> str:
    """Return where a router is better than dense, with its largest and smallest gain."""
    lower = rows[rows["better"]]
    at = f"{router_name(router)} is lower at {_share(len(lower), len(rows), 'size')}"
    if lower.empty:
        return at
    nats, shares = reach(-lower["difference"])[::-1], reach(-lower["percent"])[::-1]
    return f"{at}, by {range_of(nats, '.4f')} nats ({range_of(shares, '.2f', ' %')})"


def _share(some: int, of: int, noun: str) -> str:
    """Return "all 3 sizes", "2 of 3 sizes" or "none of 3 sizes"."""
    if some == of:
        return f"all {plural(of, noun)}" if of > 1 else f"the one {noun}"
    return f"{some or 'none'} of {plural(of, noun)}"


def section(report: Report) -> list[Block]:
    """Compare the largest E of each router with dense and with chance."""
    sweep = report.sweep
    if not report.compared:
        return []
    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "dense loss": lambda row: figure(row.dense_loss, ".4f"),
        "E": lambda row: str(row.experts),
        "loss": lambda row: figure(row.routed_loss, ".4f"),
        "difference": lambda row: figure(row.difference, "+.4f"),
        "±": lambda row: figure(row.error, ".4f", "not known"),
        "in %": lambda row: figure(row.percent, "+.2f"),
        "seed spread": lambda row: figure(row.spread, ".4f", "not measured") + "*" * row.borrowed,
        "lower by more than chance?": lambda row: f"**{row.verdict}**",
    }
    spread = "No point was trained with two seeds, so the seed spread is not known."
    if sweep.spreads:
        spread = f"The seed spread is the range of losses at {plural(len(sweep.spreads), 'point')} with several seeds."
    error = "± is the standard error of the difference over documents, computed on the same windows."
    if sweep.runs["standard_error"].isna().all():
        error = "The error over documents is not known, because these runs did not save the loss of each window."
    error = sweep.few_documents or error
    star = " \\* This router has one seed at every point, so the largest spread of the other runs is shown."
    return [
        table(sweep.comparisons, columns, keys=2),
        f"{spread} {error}{star * bool(sweep.comparisons['borrowed'].any())}",
        *([*_measured_on(sweep), evaluation_words(sweep.runs), *_spreads(report)] if report.full else []),
    ]


def _measured_on(sweep) -> list[Block]:
    runs = sweep.runs.dropna(subset="standard_error")
    if runs.empty:
        return []
    errors = " to ".join(map(significant, reach(runs["standard_error"])))
    tokens, documents = (range_of(reach(runs[f"evaluation_{name}"])) for name in ("tokens", "documents"))
    return [
        f"Losses were measured on {tokens} tokens of {documents} documents; the standard error of one loss is "
        f"{errors} nats."
    ]


def evaluation_words(runs) -> str:
    """Return sentences on the objective, and on tokens of other sequences that affect a loss."""
    sentence = "In evaluation, routers draw no expert at random, use no later token and drop no token."
    masked, grouped = distinct(runs["mask_rate"].dropna()), distinct(runs[runs["grouped"]]["router"])
    if masked:
        sentence = (
            f"These models predict hidden tokens, {' or '.join(f'{rate:.3g}' for rate in masked)} % of each sequence, "
            "from the tokens on both sides, so their losses are not comparable with next-token losses. In evaluation, "
            "routers draw no expert at random and drop no token."
        )
    if grouped:
        later = "" if masked else ", but not on any later position"
        sentence += (
            f" With {names(grouped)}, a router groups the tokens at the same position of several sequences, "
            f"also in evaluation. So the loss of a sequence depends on the other sequences of its group{later}."
        )
    return sentence


def _spreads(report: Report) -> list[Block]:
    rows = []
    for each in report.sweep.spreads:
        at = "" if each.router == "Dense" else f", E = {each.E}"
        losses = ", ".join(figure(loss, ".4f") for loss in each.losses)
        rows.append(
            [f"{router_name(each.router)}, N = {report.size(each.N)}{at}", ", ".join(map(str, each.seeds))]
            + [losses, figure(each.range, ".4f"), figure(each.deviation, ".4f")]
        )
    return [Table(["point", "seeds", "losses", "range", "standard deviation"], rows)] if rows else []


FINDING = Finding(None, "Does routing help?", find, section, sentence, short=True)
