"""Rankings of a plan: the options of one data set, the least loss first, and their frontier at other budgets.

    1. OPTION     `Candidate`: what can be asked for its best size, its loss there and what its line says.
    2. RANKING    `ranked`: each option at its best size. What fits no budget, or makes no sense there, is left out.
    3. FRONTIER   `frontier`: the least loss of each ranking's routers at other numbers of FLOPs.

Losses of different data are not comparable (tokenizer, corpus): every ranking stands alone. `plan.py` makes them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..laws.choosing import Choice, Option, best_choice
from ..laws.planning import Budget
from ..results.fit import Fit
from ..results.prediction import Beyond

TOO_FAR = (1e-2, 1e5)
"""How far below the smallest run, and above the largest, a law is asked at all, as shares of these. The fine-grained
paper itself goes to 12,000 times its largest run. Our choice."""

KNOWS_NOTHING = math.log(50_257)
"""Nats per token of a guess that is the same for every token of GPT-2's tokenizer; no law is believed above it."""

DECADES = (-2.0, 1.0)
"""Over which powers of ten of the FLOPs of a budget a frontier goes."""


class Line(NamedTuple):
    """One option of a ranking, at its best size."""

    router: str  # router_type
    law: str
    num_experts: float
    granularity: float | None  # None where the law has none
    k: int
    dense_parameters: float  # N: active parameters, in the count of the law
    total_parameters: float | None  # P; None where it is not known
    choice: Choice
    law_interval: tuple[float, float] | None
    run_interval: tuple[float, float] | None
    by_size: tuple[float, float] | None
    wins: float | None  # share of resamples
    beyond: list[Beyond]
    surrounded: bool | None  # whether runs are on all sides; None where there are no runs
    at_reach: bool  # whether the budget would pay for more than the largest size that is looked at


class Candidate(NamedTuple):
    """An option before its best size is known, with what its line says at that size."""

    name: str
    router: str
    option: Option
    tokens: float | Callable | None
    beyond: Callable  # choice -> [Beyond]
    line: Callable  # (choice, share) -> Line


class Ranking(NamedTuple):
    """The options of one data set, the least loss first."""

    law: str
    source: str  # of printed coefficients; "" of a table
    attested: str
    rows: dict[str, int]  # runs by router; empty for printed coefficients
    lines: list[Line]
    left_out: dict[str, str]  # option: why
    resamples: int  # that were counted
    drawn: int
    fits: list[Fit]
    counts: list[str]  # of "flops", "embedding", "tokens": those that the table says
    candidates: list[Candidate]


def ranked(
    candidates: list[Candidate], budget: Budget, shares: Callable | None = None
) -> tuple[list[Line], dict[str, str], int]:
    """Return the lines, the least loss first, what was left out and why, and how many resamples were counted.

    Args:
        candidates: the options.
        budget: what may be spent.
        shares: [(candidate, choice)] -> (the share of resamples that each wins, how many were counted); None without.
    """
    found, left_out, counted = [], {}, 0
    for candidate in candidates:
        try:
            choice = best_choice(candidate.option, budget, candidate.tokens)
            _check_sense(choice, candidate.beyond(choice))
            found.append((candidate, choice))
        except ValueError as error:
            left_out[candidate.name] = str(error)
    wins = np.full(len(found), np.nan)
    if shares is not None and len(found) > 1:
        wins, counted = shares(found)
    lines = [candidate.line(choice, share) for (candidate, choice), share in zip(found, wins, strict=True)]
    return sorted(lines, key=lambda line: line.choice.loss), left_out, counted


def _check_sense(choice: Choice, outside: list[Beyond]) -> None:
    """Raise ValueError where an option is so far from all runs that its loss means nothing."""
    for each in outside:
        if not TOO_FAR[0] <= each.value / each.end <= TOO_FAR[1]:
            end = "smallest" if each.value < each.end else "largest"
            raise ValueError(f"{each.column} {each.value:.3g} is too far from the {end} of the runs, {each.end:.3g}")
    if choice.loss > KNOWS_NOTHING:
        raise ValueError(f"the law says {choice.loss:.3g} nats, more than a guess that knows nothing")


def frontier(ranking: Ranking, budget: Budget, points: int = 13) -> dict[str, list[tuple[float, float, bool]]]:
    """Return the least loss of each router at other numbers of FLOPs, all else of the budget as it is.

    Args:
        ranking: of `published_rankings` or `table_ranking`.
        budget: as there.
        points: how many numbers of FLOPs, in equal ratios over `DECADES`.

    Returns:
        {router: [(FLOPs, loss, whether the option lies beyond the runs)]}, without the FLOPs that nothing fits.
    """
    found: dict[str, list] = {}
    for flops in budget.flops * np.logspace(*DECADES, points):
        best: dict[str, tuple] = {}
        for candidate in ranking.candidates:
            try:
                choice = best_choice(candidate.option, budget._replace(flops=float(flops)), candidate.tokens)
                _check_sense(choice, candidate.beyond(choice))
            except ValueError:
                continue
            if candidate.router not in best or choice.loss < best[candidate.router][0].loss:
                best[candidate.router] = choice, candidate
        for router, (choice, candidate) in best.items():
            found.setdefault(router, []).append((float(flops), choice.loss, bool(candidate.beyond(choice))))
    return found
