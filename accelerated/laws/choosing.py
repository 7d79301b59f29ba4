"""Which model to train: every option at its best size for a budget, and how often each option is the best of all.

Step by step, with sources and examples: `routelaws.reference.laws.choosing`.

What differs here: the largest size that the budget allows is found first, and then the best one below it, a few sizes
at a time; all resamples of the bounded law are fitted in one compiled call.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ._columns import check_range
from .fitting import fit_routed, fit_weighted, predict_curves
from .planning import Budget, check_budget

SIZES_TRIED = 1001
"""Sizes in one round of the search, in equal ratios; the next round looks between the neighbours of the best.

Differs from the reference: not used; the fast search tries 65 sizes at a time.
"""

ROUNDS = 5
"""Rounds of the search: after five, the neighbours of the best are apart by rounding.

Differs from the reference: not used; the fast search has 8 rounds.
"""

_SCANNED = 65
"""Sizes that are tried at once; the next time, as many between the neighbours of the best."""

_NARROWED = 8
"""How often: a range of 1e13 sizes comes down to 2 neighbours that are 1e-12 apart."""


class Option(NamedTuple):
    """All of a model but its size and its tokens. Every function takes an array of sizes.

    A size is N, or another number that N rises with, such as the width d.

    Attributes:
        loss: (N, D) -> L, nats per token
        train: N -> FLOPs of training on one token
        serve: N -> FLOPs of one token of inference
        held: N -> numbers in memory, which is all parameters
        cache: N -> numbers in the key-value cache for one token of it
        least: smallest N that is looked at
        most: largest N that is looked at
        counted_by: what a size is, for messages: "N", or "width d"
    """

    loss: Callable
    train: Callable
    serve: Callable
    held: Callable
    cache: Callable
    least: float
    most: float
    counted_by: str = "N"


class Choice(NamedTuple):
    """An option at its best size.

    Attributes:
        size: as `Option.counted_by` says
        tokens: D, of training
        flops: of training, and of inference where there are inference tokens
        memory: bytes
        loss: nats per token
    """

    size: float
    tokens: float
    flops: float
    memory: float
    loss: float


def best_choice(option: Option, budget: Budget, tokens: float | Callable | None = None) -> Choice:
    """Return the size, and the tokens that go with it, of the least loss.

    Args:
        option: costs that rise with N.
        budget: what may be spent.
        tokens: D, or a function of the size that gives it; None for all that the FLOPs pay for, 1 at least.

    Raises:
        ValueError: the budget or `tokens` is out of its range, or not even the smallest model fits.

    Differs from the reference: the largest size that fits is found first, and then the best one below it, 65 sizes at a
    time.
    """
    check_budget(budget)
    if tokens is not None and not callable(tokens):
        check_range("tokens", tokens, least=1.0)
    _check_smallest(option, budget, tokens)
    low, high = math.log(option.least), _widest(option, budget, tokens)
    for _ in range(_NARROWED):
        t = np.linspace(low, high, _SCANNED)
        size = np.exp(t)
        data, flops, memory = costs(option, size, budget, tokens)
        loss = option.loss(size, np.maximum(data, 1.0))
        k = int(np.argmin(loss))
        low, high = t[max(k - 1, 0)], t[min(k + 1, _SCANNED - 1)]
    return Choice(*(float(values[k]) for values in (size, data, flops, memory, loss)))


def costs(
    option: Option, sizes: np.ndarray, budget: Budget, tokens: float | Callable | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return D, the FLOPs and the bytes of models of each size, [n] each.

    Args:
        option, budget, tokens: as `best_choice`.
        sizes: [n], N.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    train, spent = option.train(sizes), option.serve(sizes) * budget.inference_tokens
    if callable(tokens):
        data = tokens(sizes)
    else:
        data = (budget.flops - spent) / train if tokens is None else np.full(sizes.shape, tokens)
    memory = budget.bytes_per_number * (option.held(sizes) + budget.cached_tokens * option.cache(sizes))
    return data, train * data + spent, memory


def resampled_losses(
    law, columns: Sequence[np.ndarray], loss: np.ndarray, weights: np.ndarray, points: Sequence[np.ndarray]
) -> np.ndarray:
    """Return what a law, fitted to each resample of a table, says at some points.

    Args:
        law: a record of the catalogue, with `fit`, `predict` and `given`.
        columns: [n] each, in the order of `law.columns`.
        loss: [n], nats per token.
        weights: [draws, n], whole numbers of at least 0: how often each resample has each row.
        points: [m] each, in the order of `law.columns`.

    Returns:
        [draws, m], nats per token; NaN in a resample whose rows do not determine the law.

    Differs from the reference: all resamples of the bounded law are fitted in one compiled call.
    """
    if law.fit is fit_routed:
        return predict_curves(fit_weighted(*columns, loss, weights, careful=True), *points)
    found = np.full((len(weights), np.size(points[0])), np.nan)
    given = law.given(*columns)
    for i, counts in enumerate(np.asarray(weights, dtype=np.int64)):
        try:
            fit = law.fit(*(np.repeat(column, counts) for column in columns), np.repeat(loss, counts), **given)
            found[i] = law.predict(fit, *points)
        except ValueError:
            continue
    return found


def win_shares(losses: np.ndarray) -> tuple[np.ndarray, int]:
    """Return in which share of the resamples each choice has the least loss, and how many resamples were counted.

    Args:
        losses: [draws, m], as `resampled_losses`; a draw with a loss that is not finite is not counted.

    Returns:
        [m] shares that sum to 1, or NaN where no draw counts; and the number of draws that count. Of equal losses the
        choice with the lower index wins.
    """
    losses = np.asarray(losses, dtype=np.float64)
    known = losses[np.all(np.isfinite(losses), axis=1)]
    if not len(known):
        return np.full(losses.shape[1], np.nan), 0
    wins = np.bincount(np.argmin(known, axis=1), minlength=losses.shape[1])
    return wins / len(known), len(known)


def _widest(option: Option, budget: Budget, tokens: float | Callable | None) -> float:
    """Return the logarithm of the largest size that fits; the smallest one fits, and costs rise with the size."""
    low, high = math.log(option.least), math.log(option.most)
    for _ in range(_NARROWED):
        t = np.linspace(low, high, _SCANNED)
        data, flops, memory = costs(option, np.exp(t), budget, tokens)
        fits = (data >= 1) & (flops <= budget.flops * (1 + 1e-12)) & (memory <= budget.memory)
        if fits.all():
            return high
        k = int(np.argmin(fits))  # the first that does not fit
        low, high = t[max(k - 1, 0)], t[k]
    return low


def _check_smallest(option: Option, budget: Budget, tokens: float | Callable | None) -> None:
    """Raise ValueError unless the smallest model fits the budget."""
    data, flops, memory = (float(value[0]) for value in costs(option, np.array([option.least]), budget, tokens))
    beside = f" beside {budget.inference_tokens:.3g} tokens of inference" if budget.inference_tokens else ""
    smallest = f"even the smallest model, {option.counted_by} = {option.least:.3g}, takes"
    if memory > budget.memory:
        raise ValueError(f"{smallest} {memory:.3g} bytes of memory; allowed: {budget.memory:.3g}")
    if tokens is not None and flops > budget.flops:
        raise ValueError(f"{smallest} {flops:.3g} FLOPs for {data:.3g} tokens{beside}; allowed: {budget.flops:.3g}")
    if data < 1:
        raise ValueError(f"{smallest} more than {budget.flops:.3g} FLOPs for one token of training{beside}")
