"""What a model between the sizes of a table would cost: FLOPs, parameters, cache and training tokens as functions of N.

A table says these of the models that were trained. Between two sizes they are taken along a straight line of
logarithms, beyond the last one along the last line; at a number of experts that a size was not trained with, along
straight lines in E, which is exact for models that differ in E alone: experts and routers are counted once for each.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_VOCAB_SIZE

from ..row_differences import SAME
from ..rows import (
    FLOPS_PER_PARAMETER,
    TRAINING,
    column_or_nan,
    stated_flops,
    taken_per_step,
    training_steps,
    training_tokens,
)

SIZE, EXPERTS = "dense_parameter_count", "num_experts"


class Costs(NamedTuple):
    """Functions of N, each an array; None where the table does not say.

    Attributes:
        flops: forward FLOPs of one token
        total: P, all parameters without embeddings
        embedding: V d, which P leaves out; V is that of the released table where the table does not say
        cache: numbers in the key-value cache for one token
        tokens: training tokens D that runs of this size had
        counted: whether `flops` is from the table; otherwise it is 2 N
        same_tokens: whether all runs had the same D
    """

    flops: Callable
    total: Callable | None
    embedding: Callable | None
    cache: Callable | None
    tokens: Callable | None
    counted: bool
    same_tokens: bool


def costs_of(frame, experts: float) -> Costs:
    """Return the costs of models with E experts.

    Args:
        frame: the rows of one router and of the dense runs, one for each run.
        experts: E, at least 1.
    """
    size, count = (frame[name].to_numpy(dtype=np.float64) for name in (SIZE, EXPERTS))
    tokens = tokens_of_runs(frame)
    per_token = stated_flops(frame) / (TRAINING * tokens)
    per_token = np.where(np.isnan(per_token), column_or_nan(frame, "flops_per_step") / taken_per_step(frame), per_token)
    cache = (
        2 * column_or_nan(frame, "num_blocks") * column_or_nan(frame, "num_heads") * column_or_nan(frame, "kqv_size")
    )
    vocabulary = np.nan_to_num(column_or_nan(frame, "vocab_size"), nan=float(TABLE_VOCAB_SIZE))
    flops = _between(size, _at_experts(size, count, per_token, experts))
    known = tokens[tokens > 0]
    return Costs(
        flops or (lambda N: FLOPS_PER_PARAMETER * np.asarray(N, dtype=np.float64)),
        _between(size, _at_experts(size, count, column_or_nan(frame, "total_parameter_count"), experts)),
        _between(size, _medians(size, vocabulary * column_or_nan(frame, "d_model"))),
        _between(size, _medians(size, cache)),
        _between(size, _medians(size, tokens)),
        flops is not None,
        bool(known.size and known.max() <= SAME * known.min()),
    )


def tokens_of_runs(frame) -> np.ndarray:
    """Return the training tokens D of each row, [n]; where the table gives none, steps are as in the released one."""
    tokens = training_tokens(frame)
    return np.where(np.isnan(tokens), training_steps(frame) * taken_per_step(frame), tokens)


def says_tokens(frame) -> bool:
    """Return whether no run has the tokens of the released table's steps: they are in the table, or not known."""
    tokens = training_tokens(frame)
    return bool((np.isfinite(tokens) | np.isnan(training_steps(frame))).all())


def _medians(size: np.ndarray, values: np.ndarray) -> dict[float, float]:
    """Return {N: median of the values at this size}, for sizes that have one above 0."""
    found = {float(n): values[(size == n) & (values > 0)] for n in np.unique(size)}
    return {n: float(np.median(own)) for n, own in found.items() if own.size}


def _at_experts(size: np.ndarray, count: np.ndarray, values: np.ndarray, experts: float) -> dict[float, float]:
    """Return {N: value at E experts}, by straight lines in E between those that a size was trained with.

    Beyond the last of them the last line goes on; a size with a single E says nothing of others, nor does a line that
    falls to 0.
    """
    found = {}
    for n in np.unique(size):
        own = _medians(count[size == n], values[size == n])
        at, height = np.array(list(own)), np.array(list(own.values()))
        if experts in own:
            found[float(n)] = own[experts]
        elif at.size > 1:
            k = int(np.clip(np.searchsorted(at, experts), 1, at.size - 1))
            slope = (height[k] - height[k - 1]) / (at[k] - at[k - 1])
            value = float(height[k - 1] + slope * (experts - at[k - 1]))
            if value > 0:
                found[float(n)] = value
    return found


def _between(size: np.ndarray, known: dict[float, float]) -> Callable | None:
    """Return N -> value on lines of logarithms between known sizes, in proportion to N with one; None without."""
    if not known:
        return None
    at, height = np.log(np.array(list(known))), np.log(np.array(list(known.values())))

    def value(N) -> np.ndarray:
        t = np.log(np.asarray(N, dtype=np.float64))
        if at.size == 1:
            return np.exp(height[0] + t - at[0])
        k = np.clip(np.searchsorted(at, t), 1, at.size - 1)
        slope = (height[k] - height[k - 1]) / (at[k] - at[k - 1])
        return np.exp(height[k - 1] + slope * (t - at[k - 1]))

    return value
