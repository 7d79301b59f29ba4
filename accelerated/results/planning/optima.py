"""The best size, tokens and experts within a budget: how sure they are, and which choices are about as good.

TABLES    `other_tables`   tables with the errors of this one
OPTIMUM   `optimum_of`     the best choice by the law fitted to each, as intervals; and choices that are about as good

The other tables follow the method of the intervals (`Fit.errors`). For uneven errors, and for a fit by Huber's sum,
runs are drawn with replacement. Otherwise a table has the losses of the law plus normal errors: those that the runs of
a size share, and those of each run.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import Range

from ...laws.choosing import SIZES_TRIED, Choice, best_choice, costs, resampled_losses
from ...laws.planning import Budget
from ...laws.resampling import bootstrap_weights
from ...tables.schema import DENSE
from ..blocks import count, counts_span, percent, span
from ..fit import Fit
from .options import Model

EXPERTS_TRIED = 60
"""Numbers of experts between 2 and the largest number of an option, at about equal ratios."""

AT_ONCE = 200
"""Tables that are fitted together, so that their losses at all candidates need little memory."""

WITHIN = 0.002
"""A choice is about as good as the best if its loss is at most this much higher, nats per token."""


class Optimum(NamedTuple):
    """The best choice of a budget, for one router.

    Attributes:
        N, tokens, num_experts, granularity: of the best option, with intervals; NaN without resamples
        resamples: number of resamples behind the intervals
        within: nats
        sizes: the smallest and the largest N within `within` of the lowest loss, for the experts of the best option
        reach: the largest N that the plan tries
        most_experts: the largest E of the options of this router, and 1 of dense models
        experts: the smallest and the largest E within `within`, at their best N; equal if the law has no E
        options: names of the options whose loss is within `within`, the best first
    """

    N: Range
    tokens: Range
    num_experts: Range
    granularity: Range
    resamples: int
    within: float
    sizes: tuple[float, float]
    reach: float
    most_experts: float
    experts: tuple[float, float]
    options: list[str]

    def sentences(self, level: float) -> list[str]:
        """Return the optimum as sentences."""
        best = f"best N {count(self.N.value)}, tokens {count(self.tokens.value)}, E = {self.num_experts.value:g}"
        best += " (the largest of the options)" * (1 < self.most_experts == self.num_experts.value)
        texts = {"N": counts_span(self.N), "tokens": counts_span(self.tokens), "E": span(self.num_experts, "g")}
        texts["G"] = span(self.granularity, "g")
        vary = [
            f"{name} {ends}" for (name, ends), item in zip(texts.items(), self, strict=False) if item.low < item.high
        ]
        if vary:
            best += f"; {percent(level)} intervals from {self.resamples} resamples: {', '.join(vary)}"
        elif self.resamples:
            best += f", the same in {percent(level)} of {self.resamples} resamples"
        if self.resamples and self.N.high > (1 - 1e-6) * self.reach:
            best += f"; {count(self.reach)} is the largest size tried, so the best N may be larger, with fewer tokens"
        low, high = map(count, self.sizes)
        near = f"within {self.within:g} nats of the lowest loss: any N from {low} to {high}"
        near += " (the largest size tried)" * (self.sizes[1] > (1 - 1e-6) * self.reach)
        if self.experts[0] < self.experts[1]:
            near += f"; at the best N of each, any E from {self.experts[0]:g} to {self.experts[1]:g}"
        if len(self.options) > 1:
            near += f"; other options at their best N: {'; '.join(self.options[1:])}"
        return [best, near]


def other_tables(fit: Fit, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return `number` tables with the errors of the rows: losses [number, n], and how often each has each row [number,
    n]."""
    measured, errors = fit.rows.measured, fit.errors
    if errors is None or errors.method == "hc3":
        return np.tile(measured, (number, 1)), bootstrap_weights(random.random((number, measured.size)))
    predicted = np.asarray(fit.law.predict(fit.best, *fit.rows.columns))
    losses = predicted * 10 ** np.array([_new_errors(errors, random) for _ in range(number)])
    return losses, np.ones(losses.shape)


def _new_errors(errors, random: np.random.Generator) -> np.ndarray:
    """Return errors [n] in log10, by the mixture of `robust_intervals.Errors`."""
    freedom = errors.residual.size - np.linalg.matrix_rank(errors.root)
    ratio, variance = 0.0, float(errors.residual @ errors.residual) / freedom
    if errors.method == "size":
        place = random.choice(errors.mixture[2].size, p=errors.mixture[2])
        ratio, variance = (float(values[place]) for values in errors.mixture[:2])
    variance *= freedom / random.chisquare(freedom)  # s² is an estimate, too
    shared = random.standard_normal(int(errors.member.max()) + 1)[errors.member]
    return math.sqrt(variance) * (random.standard_normal(errors.residual.size) + math.sqrt(ratio) * shared)


def optimum_of(
    ranked: Sequence[tuple[Model, Choice]], budget: Budget, within: float, level: float, resamples: int, seed: int
) -> Optimum:
    """Return the optimum of the router with the lowest loss.

    Args:
        ranked: models, each with its best choice; at least one.
        within: nats.
        resamples: number of resamples; without runs there are none.
    """
    ordered = sorted(ranked, key=lambda pair: pair[1].loss)
    first, choice = ordered[0]
    near = [model.name for model, other in ordered if other.loss <= choice.loss + within]
    sizes, _, losses = _candidates(first, choice, budget)
    flat = sizes[losses <= choice.loss + within]
    ends = (float(first.active(flat[0])), float(first.active(flat[-1]))) if flat.size else (math.nan, math.nan)
    found = np.empty((0, 4))
    if first.fit is not None and resamples:
        same = [pair for pair in ordered if pair[0].fit is first.fit]
        found = _best_of(same, budget, *other_tables(first.fit, resamples, np.random.default_rng(seed)))
    values = float(first.active(choice.size)), choice.tokens, first.num_experts, first.granularity or math.nan
    outside, names = (1 - level) / 2, ("N", "tokens", "num_experts", "granularity")
    quantiles = np.quantile(found, [outside, 1 - outside], axis=0) if len(found) else np.full((2, 4), math.nan)
    ranges = [
        Range(name, None, float(v), *map(float, q), "") for name, v, q in zip(names, values, quantiles.T, strict=True)
    ]
    reach = float(first.active(first.option.most))
    kinds = [model.num_experts for model, _ in ordered if model.router in (first.router, DENSE)]
    experts = _flat_experts(first, choice.loss + within, budget, max(kinds))
    return Optimum(*ranges, len(found), within, ends, reach, max(kinds), experts, near)


def _flat_experts(first: Model, limit: float, budget: Budget, most: float) -> tuple[float, float]:
    """Return the smallest and the largest E, up to `most`, whose best loss stays within a limit on the way from E."""
    ends = [first.num_experts, first.num_experts]
    if first.with_experts is None or first.num_experts == 1:
        return tuple(ends)
    tried = np.unique(np.round(np.geomspace(2, most, EXPERTS_TRIED)))
    for side, counts in enumerate((tried[tried < ends[0]][::-1], tried[tried > ends[0]])):
        for E in counts:
            model = first.with_experts(float(E))
            try:
                if best_choice(model.option, budget, model.tokens).loss > limit:
                    break
            except ValueError:  # it does not fit the budget
                break
            ends[side] = float(E)
    return tuple(ends)


def _candidates(model: Model, choice: Choice, budget: Budget) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sizes that the budget allows, the best one included, with their tokens and losses."""
    sizes = np.unique(np.append(np.geomspace(model.option.least, model.option.most, SIZES_TRIED), choice.size))
    sizes, data = affordable(model, sizes, budget)
    return sizes, data, np.asarray(model.option.loss(sizes, data))


def affordable(model: Model, sizes: np.ndarray, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes that a budget allows, out of [n], and the tokens of each."""
    data, flops, memory = costs(model.option, sizes, budget, model.tokens)
    allowed = (flops <= budget.flops * (1 + 1e-12)) & (memory <= budget.memory) & (data >= 1)
    return sizes[allowed], data[allowed]


def refitted_losses(fit: Fit, losses: np.ndarray, weights: np.ndarray, points) -> Iterator[np.ndarray]:
    """Yield the losses at points [n] by the law fitted to each of other tables, [tables, n], `AT_ONCE` tables together.

    A table that does not determine the law, or a loss, has no row. Other arguments: of `other_tables`.
    """
    for first in range(0, len(losses), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        found = resampled_losses(fit.refitted, fit.rows.columns, losses[some], weights[some], points)
        yield found[np.isfinite(found).all(axis=1)]


def _best_of(
    ranked: Sequence[tuple[Model, Choice]], budget: Budget, losses: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return N, D, E and G of the lowest loss by the law fitted to each of other tables, [tables, 4]."""
    fit, points, choices = ranked[0][0].fit, [], []
    for model, choice in ranked:
        sizes, data, _ = _candidates(model, choice, budget)
        points.append(np.broadcast_arrays(*model.point(sizes, data).values()))
        kind = model.active(sizes), data, model.num_experts, model.granularity or math.nan
        choices.append(np.stack(np.broadcast_arrays(*kind), axis=1))
    points, choices = [np.concatenate(column) for column in zip(*points, strict=True)], np.concatenate(choices)
    return np.concatenate([choices[found.argmin(axis=1)] for found in refitted_losses(fit, losses, weights, points)])
