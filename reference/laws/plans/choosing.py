"""Choose a model to train: find each option's best size for a budget, and count how often each option is the best.

An option is a law with all arguments fixed but two: the size N and the training tokens D. A fixed argument is, for
example, the number of experts. An option costs

    training     train(N) · D FLOPs
    inference    serve(N) · D_inf FLOPs, over the life of the model
    memory       bytes · (held(N) + T · cache(N)) for a key-value cache of T tokens

You give the training tokens D, or the FLOPs determine them:

    D = (FLOPs - serve(N) · D_inf) / train(N)

1. `best_choice` tries all sizes N that the budget allows and returns the size with the lowest loss.
2. `resampled_losses` fits the law again to every resample of the table, and predicts the loss of each choice.
3. `win_shares` counts the resamples in which each choice has the lowest loss. This can separate two choices with
   overlapping intervals, because their errors are correlated.

Compare choices of one table only. Losses of different tables are not comparable, since tokenizer and corpus differ.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..numerics._projection import check_range
from .planning import Budget, check_budget

SIZES_TRIED = 1001
"""Sizes in one round of the search, at equal ratios. The next round searches between the neighbours of the best
size."""

ROUNDS = 5
"""Rounds of the search; after five, only rounding separates the neighbours of the best size."""


class Option(NamedTuple):
    """A kind of model, such as one number of experts, at any size.

    A size is N, or another number that increases with N, such as the width d.

    Attributes:
        loss: (N, D) -> L, nats per token; this and the other functions take arrays of sizes
        train: N -> FLOPs of training per token
        serve: N -> FLOPs of inference per token
        held: N -> numbers in memory: all parameters
        cache: N -> numbers in the key-value cache per token
        least: smallest N to try
        most: largest N to try
        counted_by: the name of the size in messages: "N" or "width d"
        priced_in: the unit of `train` and `serve` in messages, and of the budget: FLOPs, or seconds on one machine
    """

    loss: Callable
    train: Callable
    serve: Callable
    held: Callable
    cache: Callable
    least: float
    most: float
    counted_by: str = "N"
    priced_in: str = "FLOPs"


class Choice(NamedTuple):
    """An option at its best size.

    Attributes:
        size: N, or the number that `Option.counted_by` names
        tokens: D, training tokens
        flops: FLOPs of training, plus FLOPs of inference if there are inference tokens
        memory: bytes
        loss: nats per token
    """

    size: float
    tokens: float
    flops: float
    memory: float
    loss: float


def best_choice(option: Option, budget: Budget, tokens: float | Callable | None = None) -> Choice:
    """Return the size and tokens of an option with the lowest loss that a budget allows.

    Args:
        option: the option; its costs must rise with N.
        budget: the limits on cost.
        tokens: D, or a function from size to D; None for all tokens that the FLOPs allow, at least 1.

    Raises:
        ValueError: the budget or `tokens` is out of its range, or the smallest model does not fit.

    Example:
        With L = 1/N + 1/D and 6 N D = 600, the best N and D are equal.

        >>> def one(N):
        ...     return 0 * N + 1.0
        >>> by_size = Option(lambda N, D: 1 / N + 1 / D, lambda N: 6 * N, lambda N: 2 * N, lambda N: N, one, 1.0, 1e3)
        >>> best = best_choice(by_size, Budget(600.0))
        >>> round(best.size, 6), round(best.tokens, 6)
        (10.0, 10.0)
    """
    check_budget(budget)
    if tokens is not None and not callable(tokens):
        check_range("tokens", tokens, least=1.0)
    _check_smallest(option, budget, tokens)
    low, high = option.least, option.most
    for _ in range(ROUNDS):
        sizes = np.geomspace(low, high, SIZES_TRIED)
        data, flops, memory = costs(option, sizes, budget, tokens)
        # If the FLOPs determine D, it costs all of them up to rounding.
        fits = (flops <= budget.flops * (1 + 1e-12)) & (memory <= budget.memory) & (data >= 1)
        losses = np.where(fits, option.loss(sizes, np.maximum(data, 1.0)), np.inf)
        k = int(np.argmin(losses))
        low, high = sizes[max(k - 1, 0)], sizes[min(k + 1, SIZES_TRIED - 1)]
    return Choice(*(float(values[k]) for values in (sizes, data, flops, memory, losses)))


def costs(
    option: Option, sizes: np.ndarray, budget: Budget, tokens: float | Callable | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return training tokens D, FLOPs and bytes of the model of each size, [n] each.

    Args:
        option, budget, tokens: as in `best_choice`.
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
    """Return the losses that a law predicts at some points after a fit to each resample of a table.

    Args:
        law: a record of the catalogue, with `fit`, `predict` and `given`.
        columns: [n] each, in the order of `law.columns`.
        loss: [n], nats per token; or [resamples, n], losses of each resample's own.
        weights: [resamples, n], whole numbers of at least 0: how often each resample has each row.
        points: [m] each, in the order of `law.columns`.

    Returns:
        [resamples, m], nats per token; NaN in a resample whose rows do not determine the law.

    Example:
        The rows follow an (F, B) law with B_min = 0.2. The resample has no row with B = 0.2. Its fit still uses B_min =
        0.2, and predicts the same loss at B = 0.2:

        >>> from routelaws.reference.laws.catalogue import LAWS
        >>> from routelaws.reference.laws.utilisation import UtilisationCoefficients, predict_loss
        >>> law = UtilisationCoefficients(-0.08, -0.04, 0.01, 0.4, 0.14, 18.0, 0.2)
        >>> F, B = (v.ravel() for v in np.meshgrid([0.2, 1.0, 5.0], [0.2, 0.5, 2.0, 8.0, 30.0]))
        >>> points, drawn = (np.array([1.0, 2.0]), np.array([0.2, 4.0])), np.where(B > 0.2, 1, 0)[None, :]
        >>> found = resampled_losses(LAWS["routed-utilisation"], (F, B), predict_loss(F, B, law), drawn, points)
        >>> found.round(6).tolist() == [predict_loss(*points, law).round(6).tolist()]
        True
    """
    predictions = np.full((len(weights), np.size(points[0])), np.nan)
    constants = law.given(*columns)
    losses = np.broadcast_to(loss, np.shape(weights))
    for i, counts in enumerate(np.asarray(weights, dtype=np.int64)):
        try:
            fit = law.fit(*(np.repeat(column, counts) for column in (*columns, losses[i])), **constants)
            predictions[i] = law.predict(fit, *points)
        except ValueError:
            continue
    return predictions


def win_shares(losses: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the share of resamples in which each choice has the lowest loss, and the number of resamples that count.

    Args:
        losses: [resamples, m], as in `resampled_losses`; a resample with a loss that is not finite does not count.

    Returns:
        [m] shares that sum to 1, or NaN if no resample counts; and the number of resamples that count. The choice
        with the lower index wins a tie.

    Example:
        >>> shares, counted = win_shares(np.array([[2.0, 3.0], [2.5, 2.4], [np.nan, 2.0], [2.0, 2.0]]))
        >>> shares.round(3).tolist(), counted
        ([0.667, 0.333], 3)
    """
    losses = np.asarray(losses, dtype=np.float64)
    wins, counted = np.zeros(losses.shape[1]), 0
    for line in losses:
        if np.all(np.isfinite(line)):
            wins[int(np.argmin(line))] += 1
            counted += 1
    if counted == 0:
        return np.full(wins.shape, np.nan), 0
    return wins / counted, counted


def _check_smallest(option: Option, budget: Budget, tokens: float | Callable | None) -> None:
    """Raise InputError unless the smallest model fits the budget. The message names the limit that it breaks."""
    data, flops, memory = (float(value[0]) for value in costs(option, np.array([option.least]), budget, tokens))
    inference = f" and {budget.inference_tokens:.3g} tokens of inference" if budget.inference_tokens else ""
    smallest = f"even the smallest model, {option.counted_by} = {option.least:.3g}, takes"
    if memory > budget.memory:
        raise InputError(f"{smallest} {memory:.3g} bytes of memory; allowed: {budget.memory:.3g}")
    if tokens is not None and flops > budget.flops:
        raise InputError(
            f"{smallest} {flops:.3g} {option.priced_in} for {data:.3g} tokens of training{inference}; allowed: "
            f"{budget.flops:.3g}"
        )
    if data < 1:
        raise InputError(
            f"{smallest} more than {budget.flops:.3g} {option.priced_in} for one token of training{inference}"
        )


# What this file does not do: list the options of a table or a paper, or print them.
