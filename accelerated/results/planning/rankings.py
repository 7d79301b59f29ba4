"""Rank the models of one data set, each at its best size, by loss; and compute their frontier.

    1. MODELS     `options.py`: the models of a table or a paper
    2. RANKING    `ranked`: each model at its best size, without models that do not fit the budget, lie far beyond the
                  runs (`TOO_FAR`) or are worse than guessing (`KNOWS_NOTHING`)
    3. SHARES     `_shares`: how often each model has the lowest loss, over resamples of the runs. All routers have the
                  same resamples, because they share their dense runs
    4. FRONTIER   `frontier`: the lowest loss of each router at other numbers of FLOPs

Losses with different tokenizers or corpora are not comparable, so every data set has its own ranking.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import Range

from ...errors import InputError
from ...laws.catalogue import Law
from ...laws.choosing import Choice, best_choice, resampled_losses, win_shares
from ...laws.planning import Budget
from ...laws.resampling import bootstrap_weights
from ..fit import LEVEL, Fit
from ..floor import choice_words
from ..prediction import Beyond, inside_hull, intervals_at
from .hours import BreakEven, Clock, break_even, timed
from .isoflop import Profile, isoflop_profiles
from .optima import WITHIN, Optimum, optimum_of
from .options import Model, models_of_runs, printed_laws

RESAMPLES = 500
SLOW_RESAMPLES = 200
"""Default number of resamples for slow fits: of a law with training tokens or a floor, or by Huber's sum."""

MOST_RESAMPLES = 100_000

SEED = 0

TOO_FAR = (1e-2, 1e5)
"""A model is excluded if one of its values is below the first factor times the smallest run, or above the second factor
times the largest run. Our choice. The fine-grained paper extrapolates to 12,000 times its largest run."""

KNOWS_NOTHING = math.log(50_257)
"""Nats per token of a uniform guess over GPT-2's tokens; a model with a larger loss is excluded."""

DECADES = (-2.0, 1.0)
"""A frontier goes from 10^first to 10^second times the budget's FLOPs."""


class Line(NamedTuple):
    """One model of a ranking, at its best size.

    Attributes:
        dense_parameters: N of the law
        total_parameters: P; None if unknown
        law_interval: interval of the law's value; None without runs
        run_interval: interval of one more run; None without runs
        wins: share of the resamples in which the model has the lowest loss; None without resamples
        beyond: values of the model beyond the runs
        surrounded: whether runs surround the model; None without runs
        at_reach: whether the best size is the largest allowed size, so the budget may allow more
        other: the loss by the other form of the law, with or without a floor; None if it is not fitted
    """

    model: Model
    choice: Choice
    dense_parameters: float
    total_parameters: float | None
    law_interval: Range | None
    run_interval: Range | None
    wins: float | None
    beyond: list[Beyond]
    surrounded: bool | None
    at_reach: bool
    other: float | None


class Ranking(NamedTuple):
    """The models of one data set, the lowest loss first."""

    law: str
    source: str  # source of printed coefficients; "" for a table
    attested: str
    rows: dict[str, int]  # runs by router; empty for printed coefficients
    lines: list[Line]
    left_out: dict[str, str]  # {model or router: reason}
    resamples: int  # number of counted resamples
    drawn: int
    fits: list[Fit]
    models: list[Model]
    optimum: Optimum | None = None  # None without lines
    clock: Clock | None = None  # the costs are seconds by this clock
    break_evens: tuple[BreakEven, ...] = ()

    @property
    def form_words(self) -> str:
        """Text on the form of the law that predicts left-out sizes better; "" without a comparison."""
        return choice_words(self.fits) if self.fits else ""

    @property
    def profiles(self) -> list[Profile]:
        """The isoFLOP profiles of the runs."""
        return [profile for fit in self.fits for profile in isoflop_profiles(fit)]


def published_rankings(budget: Budget, tokens: float | None = None, within: float = WITHIN) -> list[Ranking]:
    """Return the rankings by printed coefficients, one for each data set.

    Args:
        tokens: D; None for all tokens that the FLOPs allow.
        within: as in `optimum_of`.
    """
    rankings = []
    for law, source, attested, models in printed_laws(budget, tokens):
        ranked_models, left_out = ranked(models, budget)
        lines = _least_first([_line(model, choice) for model, choice in ranked_models])
        optimum = optimum_of(ranked_models, budget, within, LEVEL, 0, SEED) if ranked_models else None
        rankings.append(Ranking(law, source, attested, {}, lines, left_out, 0, 0, [], models, optimum))
    return rankings


def table_ranking(
    law: Law,
    fits: list[Fit],
    not_fitted: dict[str, str],
    budget: Budget,
    tokens: float | None = None,
    level: float = LEVEL,
    resamples: int | None = None,
    within: float = WITHIN,
    clock: Clock | None = None,
) -> Ranking:
    """Rank the models of a table: each router with each of its numbers of experts, and the dense model.

    Args:
        law: a law of the loss, in columns that follow from N, E and D.
        fits: a fit for each router.
        not_fitted: {router: reason}.
        tokens: D; None for the runs' tokens or, for a law that uses training tokens, all tokens that the FLOPs allow.
        resamples: number of resamples; None for `RESAMPLES` or `SLOW_RESAMPLES`.
        within: as in `optimum_of`.
        clock: makes the FLOPs of the budget seconds of training; None for FLOPs.

    Raises:
        ValueError: the table lacks a column that the budget needs; a router has no time; or the requested tokens
            differ from the runs' tokens, but the law ignores tokens.
    """
    if resamples is None:
        slow = "tokens" in law.columns or law.has_floor or any(fit.huber is not None for fit in fits)
        resamples = SLOW_RESAMPLES if slow else RESAMPLES
    models = [model for fit in fits for model in models_of_runs(fit, budget, tokens)]
    models = models if clock is None else [timed(model, clock) for model in models]
    ranked_models, left_out = ranked(models, budget)
    drawn = resamples if len(ranked_models) > 1 else 0
    shares, counted = _shares(ranked_models, drawn)
    rows = zip(ranked_models, _intervals(ranked_models, level), shares, strict=True)
    lines = _least_first([_line(*pair, *more) for pair, *more in rows])
    rows = {fit.name: fit.best.rows for fit in fits}
    optimum = optimum_of(ranked_models, budget, within, level, resamples, SEED) if ranked_models else None
    found = []
    if clock is not None:
        of_fits = [[model for model in models if model.fit is fit] for fit in fits]
        found = [break_even(some, budget, level, resamples, SEED) for some in of_fits]
    return Ranking(
        law.name, "", "", rows, lines, not_fitted | left_out, counted, drawn, fits, models, optimum, clock,
        tuple(each for each in found if each is not None),
    )  # fmt: skip


def _least_first(lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line.choice.loss)


def check_resamples(resamples: int | None) -> None:
    if resamples is not None and not 0 <= resamples <= MOST_RESAMPLES:
        raise InputError(f"--resamples {resamples} is out of range; use a whole number from 0 to {MOST_RESAMPLES}")


def ranked(models: list[Model], budget: Budget) -> tuple[list[tuple[Model, Choice]], dict[str, str]]:
    """Return each model with its best choice, and the reasons for excluded models by name."""
    chosen, left_out = [], {}
    for model in models:
        try:
            chosen.append((model, _sensible_choice(model, budget)))
        except ValueError as error:
            left_out[model.name] = str(error)
    return chosen, left_out


def _sensible_choice(model: Model, budget: Budget) -> Choice:
    choice = best_choice(model.option, budget, model.tokens)
    if math.isnan(choice.loss):  # such as the law per-size
        raise ValueError(f"the law {model.law} gives no loss between the sizes of the runs; choose another --law")
    for each in model.beyond(choice):
        if not TOO_FAR[0] <= each.value / each.end <= TOO_FAR[1]:
            end = "smallest" if each.value < each.end else "largest"
            raise ValueError(f"{each.column} {each.value:.3g} is too far from the runs, whose {end} is {each.end:.3g}")
    if choice.loss > KNOWS_NOTHING:
        raise ValueError(f"the law gives {choice.loss:.3g} nats, worse than a uniform guess")
    return choice


def _line(model: Model, choice: Choice, intervals: Sequence = (None, None), share: float = math.nan) -> Line:
    """Return the line of a model at its best size, without intervals if the runs are not available."""
    active = float(model.active(choice.size))
    total, outside = None if model.total is None else float(model.total(choice.size)), model.beyond(choice)
    if model.fit is None:
        return Line(model, choice, active, total, None, None, None, outside, None, False, None)
    at = model.at(choice)
    wins, at_reach = None if math.isnan(share) else float(share), choice.size > (1 - 1e-6) * model.option.most
    surrounded, form = inside_hull(model.fit.rows.columns, at), model.fit.other
    other = None if form is None else float(form.law.predict(form.best, *(np.array([value]) for value in at))[0])
    return Line(model, choice, active, total, *intervals, wins, outside, surrounded, at_reach, other)


def _by_fit(found: list[tuple[Model, Choice]]) -> Iterator[tuple[Fit, list[int], list[tuple]]]:
    """Yield each fit, the numbers of its models, and their points."""
    for router, fit in {model.fit.name: model.fit for model, _ in found}.items():
        here = [i for i, (model, _) in enumerate(found) if model.fit.name == router]
        yield fit, here, [found[i][0].at(found[i][1]) for i in here]


def _intervals(found: list[tuple[Model, Choice]], level: float) -> list[Sequence[Range | None]]:
    """Return both intervals of each model, by one search for each fit."""
    intervals = [(None, None)] * len(found)
    for fit, here, points in _by_fit(found):
        if fit.huber is None:
            for i, (_, *both) in zip(here, intervals_at(fit, points, level), strict=True):
                intervals[i] = [item._replace(value=found[i][1].loss) for item in both]
    return intervals


def _shares(found: list[tuple[Model, Choice]], resamples: int) -> tuple[np.ndarray, int]:
    """Return the share of resamples in which each model has the lowest loss, and the number of counted resamples.

    Runs are drawn with replacement from the runs of all fits.
    """
    if not resamples:
        return np.full(len(found), np.nan), 0
    names = sorted({run for fit, *_ in _by_fit(found) for run in fit.rows.runs.frame["hyper_id"]})
    drawn = bootstrap_weights(np.random.default_rng(SEED).random((resamples, len(names))))
    losses = np.full((resamples, len(found)), np.nan)
    for fit, here, points in _by_fit(found):
        of_fit = drawn[:, np.searchsorted(names, fit.rows.runs.frame["hyper_id"].to_numpy())]
        columns = [np.array(column) for column in zip(*points, strict=True)]
        losses[:, here] = resampled_losses(fit.refitted, fit.rows.columns, fit.rows.measured, of_fit, columns)
    return win_shares(losses)


def frontier(ranking: Ranking, budget: Budget, points: int = 13) -> dict[str, list[tuple[float, float, bool]]]:
    """Return the lowest loss of each router at other numbers of FLOPs, with the budget's other limits.

    Args:
        ranking: result of `published_rankings` or `table_ranking`.
        points: number of different FLOPs, at equal ratios over `DECADES`.

    Returns:
        {router: [(FLOPs, loss, whether the model lies beyond the runs)]}. FLOPs at which no model fits are absent.
    """
    lines: dict[str, list] = {}
    for flops in budget.flops * np.logspace(*DECADES, points):
        best: dict[str, tuple[Model, Choice]] = {}
        for model, choice in ranked(ranking.models, budget._replace(flops=float(flops)))[0]:
            if model.router not in best or choice.loss < best[model.router][1].loss:
                best[model.router] = model, choice
        for router, (model, choice) in best.items():
            lines.setdefault(router, []).append((float(flops), choice.loss, bool(model.beyond(choice))))
    return lines
