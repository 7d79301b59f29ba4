"""Compare laws of downstream accuracy: fit them to runs below a budget, and score them on the runs above it.

Each law is fitted to the runs with at most `cut` training FLOPs, for each task and training set. It predicts the
accuracies of the larger runs. The score of a law on a task is the mean absolute error of its predictions. The mean is
over all training sets where the law has a fit. Predictions are clipped to the range 0 to 1. Two laws are compared only
on runs that both predict.

    direct                          -ln Q' = A/C^α, from the rows above the guess rate
    ceiling                         the direct law with a ceiling
    broken                          a broken power law: the accuracy as a function of compute
    two-stage linear, logistic      the loss from compute, and the accuracy from the loss
    ratio                           -ln Q' = A/N^α + B/D^β, from the rows above the guess rate, by Huber's sum
    two-stage ratio                 the loss from parameters and tokens, and the accuracy from the loss (logistic)
    no change                       the accuracy of the largest budget below the cut, as a baseline

A two-stage law takes no logarithm of an accuracy, so it uses every row. For a fair comparison, the laws named "...,
same rows" use only the rows of the direct law.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from routelaws.reference.laws import downstream

from ...errors import InputError
from ...laws.catalogue import LAWS
from ...tables.accuracies import Accuracies, loss_name
from ...tables.guess_rates import guess_rate
from ...wording import by_reason, in_short, plural
from ..blocks import Block, Table, figure
from ..fit import Fit
from ..rows import Rows as LawRows

RATIO_HUBER = 1e-3
"""Delta of the ratio law's fit, in ln(-ln Q'), as in the paper."""

PAIRS = (
    ("direct", "two-stage linear"), ("direct", "two-stage logistic"), ("direct", "two-stage logistic, same rows"),
    ("direct", "broken"), ("direct", "ceiling"), ("direct", "no change"), ("ratio", "direct"),
    ("ratio", "two-stage ratio"), ("ratio", "two-stage ratio, same rows"), ("ratio", "no change"),
)  # fmt: skip
"""The pairs of laws to compare."""

SAME = 1e-4
"""Two errors are a tie if their relative difference is at most this. Our choice. The law with a ceiling of 1 is the
direct law. Two such fits differ only because their searches end at slightly different points."""


class Rows(NamedTuple):
    """The runs of a training set below or above the cut, with their accuracies of a task."""

    parameters: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray


class Pair(NamedTuple):
    """The comparison of two laws on the tasks where both have a fit."""

    first: str
    second: str
    tasks: int
    first_wins: int  # tasks on which the first law has the smaller mean absolute error
    second_wins: int
    first_error: float  # mean over tasks of the mean absolute error
    second_error: float
    first_median: float  # median over tasks of the mean absolute error
    second_median: float
    p: float  # p of a two-sided sign test over tasks


class Study(NamedTuple):
    """The comparison of the laws on one table."""

    cut: float  # training FLOPs
    loss: str  # the text whose loss the two-stage laws use
    fitted_runs: int
    scored_runs: int
    tasks: int
    errors: dict[str, dict[str, float]]  # {law: {task: mean absolute error}}, for tasks with a fit
    left_out: dict[str, dict[str, str]]  # {law: {task: reason for no fit}}
    pairs: list[Pair]


def compare_laws(
    table: Accuracies,
    cut: float,
    rates: dict[str, float] | None = None,
    loss: str | None = None,
    ratio: float | None = None,
    least_gain: float = downstream.LEAST_GAIN,
) -> Study:
    """Fit every law to the runs below a budget, and score it on the runs above.

    Args:
        cut: training FLOPs; the laws are fitted to the runs with at most this many.
        rates: {task: guess rate}; for other tasks the table's rate or, if the table has none, the rate in GUESS_RATES.
        loss: the text whose loss the two-stage laws use (see `loss_name`).
        ratio: tokens per parameter; only runs within 10 % of this ratio are used. None for all runs.
        least_gain: laws of log accuracy use only rows whose accuracy exceeds the guess rate by more than this number.

    Raises:
        InputError: a number is out of range, the table has no such loss, no run has the ratio, or all runs are on one
            side of the cut.
    """
    check_numbers(cut, ratio, least_gain)
    loss = loss_name(table, loss)
    chosen = np.isfinite(table.losses[loss]) & _of_ratio(table, ratio)
    below, above = chosen & (table.flops <= cut), chosen & (table.flops > cut)
    if not (below.any() and above.any()):
        raise InputError(
            f"--cut {cut:g}: {plural(int(below.sum()), 'run')} at or below these FLOPs and {above.sum()} above; "
            "choose a --cut with runs on both sides"
        )
    misses, reasons = _misses(table, loss, below, above, table.guess_rates | (rates or {}), least_gain)
    if not misses:
        raise InputError(f"no task has accuracies on both sides of --cut {cut:g}; choose another --cut")
    errors = {
        law: {task: float(np.nanmean(values)) for task, values in by.items() if np.isfinite(values).any()}
        for law, by in misses.items()
    }
    left_out = {
        law: {task: why for task, why in reasons.get(law, {}).items() if task not in by} for law, by in errors.items()
    }
    pairs = [_pair(first, second, misses) for first, second in PAIRS]
    return Study(
        cut, loss, int(below.sum()), int(above.sum()), len(table.accuracies), errors, left_out,
        [pair for pair in pairs if pair.tasks],
    )  # fmt: skip


def check_numbers(cut: float, ratio: float | None, least_gain: float) -> None:
    """Raise `InputError` if an argument of `compare_laws` is out of range for any table."""
    for flag, value in (("--cut", cut), ("--ratio", ratio)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{flag} {value:g} is out of range; use a finite number above 0")
    if not 0 <= least_gain < 1:
        raise InputError(f"--least-gain {least_gain:g} is out of range; use 0 or more and less than 1")


def _of_ratio(table: Accuracies, ratio: float | None) -> np.ndarray:
    """Return the mask of the runs with these tokens per parameter, within 10 %, [n] bool; all if `ratio` is None."""
    there = table.tokens / table.parameters
    if ratio is None:
        return np.ones(there.size, bool)
    near = np.abs(there / ratio - 1) < 0.1
    if not near.any():
        raise InputError(
            f"--ratio {ratio:g}: no run is within 10 % of it; available: {there.min():.3g} to {there.max():.3g}"
        )
    return near


def _misses(table: Accuracies, loss: str, below, above, rates: dict[str, float], least_gain: float):
    """Return {law: {task: absolute errors of the runs above}} and {law: {task: reason for no fit}}; NaN without a fit.

    Each training set of a task has its own fit.
    """
    errors, reasons = {}, {}
    for task in table.accuracies:
        rate = guess_rate(task, rates) or 0.0
        for group in dict.fromkeys(table.training_set[below | above].tolist()):
            sides = [_rows(table, task, loss, side & (table.training_set == group)) for side in (below, above)]
            empty = [side for side, rows in zip(("at or below", "above"), sides, strict=True) if not len(rows.flops)]
            if empty:
                for law in _PREDICTORS:
                    reasons.setdefault(law, {})[task] = f"no run {' or '.join(empty)} the cut has this accuracy"
                continue
            for law, predict in _PREDICTORS.items():
                try:
                    misses = np.abs(np.clip(predict(*sides, rate, least_gain), 0.0, 1.0) - sides[1].accuracy)
                except (ValueError, ArithmeticError) as error:
                    reasons.setdefault(law, {})[task] = str(error)
                    misses = np.full(len(sides[1].flops), np.nan)
                errors.setdefault(law, {}).setdefault(task, []).append(misses)
    return {law: {task: np.concatenate(parts) for task, parts in by.items()} for law, by in errors.items()}, reasons


def rate_remarks(table: Accuracies, rates: dict[str, float] | None = None) -> list[str]:
    """Return a remark on the tasks with unknown guess rates. The arguments are those of `compare_laws`."""
    known = table.guess_rates | (rates or {})
    unknown = [task for task in table.accuracies if guess_rate(task, known) is None]
    return (
        [f"the guess rate is not known, so 0 is used: {in_short(unknown, 12)} (set it with --tasks)"] if unknown else []
    )


def sign_test(first: int, second: int) -> float:
    """Return the two-sided p of a split of first + second wins, if each win is random with probability 1/2.

    Example:
        Five of five: 2/32.

        >>> sign_test(5, 0)
        0.0625
    """
    total = first + second
    tail = sum(math.comb(total, k) for k in range(min(first, second) + 1))
    return min(1.0, 2 * tail / 2**total)


def _rows(table: Accuracies, task: str, loss: str, mask: np.ndarray) -> Rows:
    mask = mask & np.isfinite(table.accuracies[task])
    columns = (table.parameters, table.tokens, table.flops, table.losses[loss], table.accuracies[task])
    return Rows(*(column[mask] for column in columns))


def _by_law(below: Rows, above: Rows, rate: float, least_gain: float, name: str, huber: float | None = None):
    """Fit a law of the catalogue to the runs below and return its predictions above, [n]."""
    law = LAWS[name]
    options = {"guess_rate": rate, "least_gain": least_gain}
    options = {key: value for key, value in options.items() if key in law.options}
    columns = tuple(getattr(below, column) for column in (*law.columns, *law.beside))
    fit = Fit(LawRows(name, columns, below.accuracy, options=options), law, huber=huber)
    return fit.law.predict(fit.best, *(getattr(above, column) for column in law.columns))


def _of_same_rows(below: Rows, above: Rows, rate: float, least_gain: float, name: str) -> np.ndarray:
    used = (below.accuracy > rate + least_gain) & (below.accuracy < 1)
    return _by_law(Rows(*(column[used] for column in below)), above, rate, least_gain, name)


def _no_change(below: Rows, above: Rows, rate: float, least_gain: float) -> np.ndarray:
    return np.full(len(above.flops), below.accuracy[np.argmax(below.flops)])


_PREDICTORS = {
    "direct": functools.partial(_by_law, name="direct"),
    "ceiling": functools.partial(_by_law, name="ceiling"),
    "broken": functools.partial(_by_law, name="broken"),
    "two-stage linear": functools.partial(_by_law, name="two-stage-linear"),
    "two-stage logistic": functools.partial(_by_law, name="two-stage-logistic"),
    "two-stage logistic, same rows": functools.partial(_of_same_rows, name="two-stage-logistic"),
    "ratio": functools.partial(_by_law, name="ratio", huber=RATIO_HUBER),
    "two-stage ratio": functools.partial(_by_law, name="two-stage-ratio"),
    "two-stage ratio, same rows": functools.partial(_of_same_rows, name="two-stage-ratio"),
    "no change": _no_change,
}
"""Each law as (rows below, rows above, guess rate, least gain) -> predicted accuracies above."""


def _pair(first: str, second: str, misses: dict[str, dict[str, np.ndarray]]) -> Pair:
    means = []
    for task in misses.get(first, {}):
        ours, theirs = misses[first][task], misses.get(second, {}).get(task)
        both = np.isfinite(ours) & np.isfinite(theirs) if theirs is not None else np.zeros(len(ours), bool)
        if both.any():
            means.append((float(ours[both].mean()), float(theirs[both].mean())))
    apart = [(a, b) for a, b in means if not math.isclose(a, b, rel_tol=SAME)]
    wins = sum(a < b for a, b in apart), sum(a > b for a, b in apart)
    if not means:
        return Pair(first, second, 0, *wins, *[math.nan] * 4, 1.0)
    middle = *np.mean(means, axis=0).tolist(), *np.median(means, axis=0).tolist()
    return Pair(first, second, len(means), *wins, *middle, sign_test(*wins))


SHOWN = ("direct", "ratio", "two-stage linear", "two-stage logistic", "two-stage ratio", "no change")
"""The laws whose errors are printed for each task; --json has all laws."""

SIGN = (
    "p: the probability that fair coin tosses are at least as one-sided as these wins. The tasks share their runs, "
    "so they are not independent trials."
)


def study_blocks(study: Study, remarks: list[str]) -> list[Block]:
    runs = f"laws fitted to {study.fitted_runs} runs of at most {study.cut:g} FLOPs and scored on {study.scored_runs} "
    tasks = f"larger runs; {study.tasks} tasks; two-stage laws use the loss on {study.loss}"
    return [*remarks, runs + tasks, _errors_table(study), _pairs_table(study), *_left_out_lines(study), SIGN]


def _left_out_lines(study: Study) -> list[str]:
    lines = []
    for law in SHOWN:
        if missing := study.left_out.get(law):
            (why, tasks), *others = by_reason(missing).items()
            if others:
                why = f"for example {tasks[0]}: {why}; --json has the reason of each task"
            lines.append(f"{law}: {plural(len(missing), 'task')} left out: {', '.join(missing)}; {why}")
    return lines


def _errors_table(study: Study) -> Table:
    laws = [law for law in SHOWN if study.errors.get(law)]
    tasks = dict.fromkeys(task for law in ("direct", "ratio") for task in study.errors.get(law, {}))
    rows = [[task, *(figure(study.errors[law].get(task), ".3f", "") for law in laws)] for task in tasks]
    return Table(["task", *laws], rows, "mean absolute error of the accuracy above the cut")


def _pairs_table(study: Study) -> Table:
    heads = ["first", "second", "tasks", "wins, first to second", "mean error", "median error", "p"]
    rows = [
        [
            pair.first,
            pair.second,
            str(pair.tasks),
            f"{pair.first_wins} to {pair.second_wins}",
            f"{pair.first_error:.4f} to {pair.second_error:.4f}",
            f"{pair.first_median:.4f} to {pair.second_median:.4f}",
            f"{pair.p:.2g}",
        ]
        for pair in study.pairs
    ]
    return Table(heads, rows, keys=2)
