"""isoFLOP profiles of a table: the best size at each budget by a parabola and by the law, and why they differ.

Among the law's columns, the runs of a profile differ only in size and tokens. Their FLOPs agree only within a factor,
so the law moves each loss to the budget: it adds L(N, C/(κ N)) - L(N, D). C is the geometric mean of the FLOPs. κ is
the median of the FLOPs per parameter and token.
"""

import contextlib
import math
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import (
    Minimum,
    MinimumDifference,
    isoflop_budgets,
    law_minimum,
    minimum_difference,
    parabola,
)

from ...laws.catalogue import LAWS
from ...tables.agreement import or_one
from ...tables.schema import DENSE
from ...tables.selection import RouterRows
from ..blocks import Block, Notes, Table, count, exponent, figure
from ..fit import Fit
from ..row_differences import SIZES
from ..rows import rows_of_runs, training_flops

CLOSE = 1.1
"""Sizes within this factor agree. Our choice."""

OF_A_KIND = "hoffmann"
"""The law for models that differ only in size and tokens."""

LETTERS = {"num_experts": "E", "granularity": "G"}

ISOFLOP_HEAD = "isoFLOP profiles: the best size at a budget"

ISOFLOP_CAPTION = (
    "Points are runs of about the same FLOPs; the law corrects their losses to exactly these FLOPs. Solid "
    "line and diamond: the law and its minimum. Dashed line and cross: a parabola through the runs and its minimum."
)

EXPONENT_BUDGETS = 3
"""With fewer budgets, there is no line on the growth of the best size."""


class Profile(NamedTuple):
    """The isoFLOP profile of one budget of a table.

    Attributes:
        name: router, and values that all runs share, such as E
        flops: C
        sizes, losses: [n], sizes of the runs, and their losses, corrected to exactly these FLOPs
        moved: the largest correction of a loss, nats
        difference: difference of the two minima, in ln N
        curve: [2, m], sizes between the sizes of the runs, and the law's losses
    """

    name: str
    flops: float
    sizes: np.ndarray
    losses: np.ndarray
    moved: float
    parabola: Minimum
    law: Minimum
    difference: MinimumDifference
    why: str
    curve: np.ndarray


def isoflop_profiles(fit: Fit) -> list[Profile]:
    """Return the profiles of the runs of a fit; [] if the law lacks size or tokens, or if there are no budgets."""
    size = next((i for i, name in enumerate(fit.law.columns) if name in SIZES), None)
    if size is None or "tokens" not in fit.law.columns or fit.rows.runs is None:
        return []
    axes, columns = (size, fit.law.columns.index("tokens")), fit.rows.columns[: len(fit.law.columns)]
    flops = training_flops(fit.rows.runs.frame)
    others = [values for i, values in enumerate(columns) if i not in axes]
    kinds, kind = np.unique(np.stack([0 * flops, *others], axis=1), axis=0, return_inverse=True)
    found = []
    for i in range(len(kinds)):
        own = np.flatnonzero(kind.ravel() == i)
        found += [_profile(fit, axes, own[runs], flops) for runs in isoflop_budgets(flops[own], columns[size][own])]
    return found


def kinds_profiles(selections: list[RouterRows], loss_column: str) -> list[Profile]:
    """Return the profiles of a table by the law of Hoffmann et al., fitted to each kind of model separately."""
    found = []
    for selection in selections:
        frame = selection.frame
        columns = {"E": frame["num_experts"], "k": or_one(frame, "k"), "G": or_one(frame, "granularity")}
        values, kind = np.unique(np.stack(list(columns.values()), axis=1), axis=0, return_inverse=True)
        for i, value in enumerate(values):
            usual = [] if selection.router == DENSE else [f"{n} {v:g}" for n, v in zip(columns, value, strict=True)]
            name = ", ".join([selection.router, *(words for words in usual if words not in ("k 1", "G 1"))])
            with contextlib.suppress(ValueError):  # the table has no tokens, or too few runs for the law
                rows = rows_of_runs(RouterRows(name, frame[kind.ravel() == i], []), LAWS[OF_A_KIND], loss_column)
                if isoflop_budgets(training_flops(rows.runs.frame), rows.columns[0]):
                    found += isoflop_profiles(Fit(rows, OF_A_KIND))
    return found


def _profile(fit: Fit, axes: tuple[int, int], runs: np.ndarray, flops: np.ndarray) -> Profile:
    """Return the profile of some runs. `axes` has the indices of size and tokens among the columns."""
    columns = [values[runs] for values in fit.rows.columns[: len(fit.law.columns)]]
    sizes, tokens = (columns[i] for i in axes)
    budget, per_token = math.exp(np.log(flops[runs]).mean()), np.median(flops[runs] / (sizes * tokens))

    def by_law(sizes):
        at = [np.full(len(sizes), values[0]) for values in columns]
        at[axes[0]], at[axes[1]] = sizes, budget / (per_token * sizes)
        return np.asarray(fit.law.predict(fit.best, *at), np.float64)

    moves = by_law(sizes) - np.asarray(fit.law.predict(fit.best, *columns), np.float64)
    losses, line = fit.rows.measured[runs] + moves, np.geomspace(sizes.min(), sizes.max(), 50)
    minima = parabola(sizes, losses), law_minimum(by_law, sizes)
    apart = minimum_difference(*minima, sizes, by_law)
    known = (_name(fit, axes, columns), budget, sizes, losses, float(np.abs(moves).max()))
    return Profile(*known, *minima, apart, _why(sizes, *minima, apart), np.stack([line, by_law(line)]))


def _why(sizes: np.ndarray, measured: Minimum, law: Minimum, apart: MinimumDifference) -> str:
    if math.isnan(measured.size):
        return "no minimum: the parabola opens downwards"
    if math.isnan(law.size):
        return "the law has no minimum"
    if abs(sum(apart)) <= math.log(CLOSE):
        return "they agree"
    if not _inside(sizes, measured):
        return "the parabola's minimum is outside the runs"
    if abs(sum(apart)) <= 2 * measured.error:
        return "within twice the error of the parabola"
    if abs(apart.shape) >= abs(apart.runs):
        return "the law's profile is not a parabola"
    return "the runs miss the law"


def _inside(sizes: np.ndarray, minimum: Minimum) -> bool:
    return sizes.min() <= minimum.size <= sizes.max()


def _name(fit: Fit, axes: tuple[int, int], columns: list[np.ndarray]) -> str:
    others = [(name, columns[i][0]) for i, name in enumerate(fit.law.columns) if i not in axes]
    if ("num_experts", 1) in others:
        return DENSE
    return ", ".join([fit.name, *(f"{LETTERS.get(name, name)} {value:g}" for name, value in others)])


def profile_blocks(found: list[Profile]) -> list[Block]:
    if not found:
        return []
    heads = ["models", "FLOPs", "runs", "N by parabola", "N by law", "ratio", "by shape", "by runs", "why"]
    rows = [
        [each.name, exponent(each.flops), str(len(each.sizes)), _size(each.parabola), _size(each.law)]
        + [_times(sum(each.difference)), *map(_times, each.difference), each.why]
        for each in found
    ]
    notes = [
        "N by parabola: the minimum of a parabola in ln N through the runs of about equal FLOPs, ± one standard error; "
        "N by law: the minimum of the law at these FLOPs",
        "ratio: N by parabola divided by N by law. It is the product of the next two columns. by shape: this ratio "
        "for a parabola through losses that the law computes. by runs: the other factor; it comes from the "
        "differences between the runs' losses and the law",
        f"the law corrects losses to exactly these FLOPs, by at most {max(each.moved for each in found):.2g} nats",
        *_growth(found),
    ]
    return [Table(heads, rows, keys=2, words=(len(heads) - 1,)), Notes(notes)]


def _size(minimum: Minimum) -> str:
    if math.isnan(minimum.size):
        return "none"
    return count(minimum.size) + ("" if math.isnan(minimum.error) else f" ± {figure(100 * minimum.error, '.2g')} %")


def _times(log: float) -> str:
    return "" if math.isnan(log) else f"{math.exp(log):.3g}"


def _growth(found: list[Profile]) -> list[str]:
    lines = []
    for name in dict.fromkeys(each.name for each in found):
        own = [each for each in found if each.name == name and _inside(each.sizes, each.parabola)]
        own = [each for each in own if not math.isnan(each.law.size)]
        if len(own) < EXPONENT_BUDGETS:
            continue
        flops, minima = np.log([each.flops for each in own]), [(each.parabola.size, each.law.size) for each in own]
        by_parabola, by_law = np.polyfit(flops, np.log(minima), 1)[0]
        lines.append(f"{name}: N grows as FLOPs^{by_parabola:.3g} by the parabolas, as FLOPs^{by_law:.3g} by the law")
    return lines
