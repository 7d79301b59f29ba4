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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from routelaws.reference.laws import downstream

from ...errors import InputError
from ...laws.catalogue import LAWS
from ...results.blocks import Block, Table, figure
from ...results.fit import Fit
from ...results.rows import Rows
from ...tables.accuracies import Accuracies, loss_name
from ...wording import by_reason, in_short, plural
from ..finding import table as table_of

if TYPE_CHECKING:
    import pandas

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


class Study(NamedTuple):
    """The comparison of the laws on one table.

    Attributes:
        errors: law, task, error (mean absolute error over the scored runs; NaN without a fit), reason (for no fit)
        pairs: see `pairs_of`
    """

    cut: float  # training FLOPs
    loss: str  # the text whose loss the two-stage laws use
    fitted_runs: int
    scored_runs: int
    tasks: int
    errors: "pandas.DataFrame"
    pairs: "pandas.DataFrame"


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
        rates: {task: guess rate}; for other tasks the table's rate.
        loss: the text whose loss the two-stage laws use (see `loss_name`).
        ratio: tokens per parameter; only runs within 10 % of this ratio are used. None for all runs.
        least_gain: laws of log accuracy use only rows whose accuracy exceeds the guess rate by more than this number.

    Raises:
        InputError: a number is out of range, the table has no such loss, a task has no guess rate, no run has the
            ratio, or all runs are on one side of the cut.
    """
    check_numbers(cut, ratio, least_gain)
    loss, rates = loss_name(table, loss), table.guess_rates | (rates or {})
    if unknown := [task for task in table.accuracies if task not in rates]:
        raise InputError(
            f"the guess rates of {in_short(unknown)} are not stated; add --tasks TABLE, with the columns task and "
            "random_accuracy, or columns guess_TASK"
        )
    chosen = np.isfinite(table.losses[loss]) & _of_ratio(table, ratio)
    below, above = chosen & (table.flops <= cut), chosen & (table.flops > cut)
    if not (below.any() and above.any()):
        raise InputError(
            f"--cut {cut:g}: {plural(int(below.sum()), 'run')} at or below these FLOPs and {above.sum()} above; "
            "choose a --cut with runs on both sides"
        )
    misses = _misses(table, loss, below, above, rates, least_gain)
    if (misses["run"] < 0).all():
        raise InputError(f"no task has accuracies on both sides of --cut {cut:g}; choose another --cut")
    errors = misses.groupby(["law", "task"], sort=False).agg(error=("miss", "mean"), reason=("reason", "last"))
    errors = errors.assign(reason=errors["reason"].where(errors["error"].isna())).reset_index()
    return Study(cut, loss, int(below.sum()), int(above.sum()), len(table.accuracies), errors, pairs_of(misses))


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
    """Return the absolute error of each law on each task and run above the cut.

    Each training set of a task has its own fit.

    Returns:
        law, task, run (row of the table; -1 if the runs of a side of the cut lack the accuracy), miss (NaN without a
        fit), reason (for no fit, or None).
    """
    import pandas

    frames = []
    columns = {"parameters": table.parameters, "tokens": table.tokens, "flops": table.flops, "loss": table.losses[loss]}
    for task, accuracy in table.accuracies.items():
        rate, runs = rates[task], pandas.DataFrame(columns | {"accuracy": accuracy})
        for group in dict.fromkeys(table.training_set[below | above].tolist()):
            here = np.isfinite(accuracy) & (table.training_set == group)
            sides = {"at or below": runs[below & here], "above": runs[above & here]}
            empty = " or ".join(side for side, rows in sides.items() if rows.empty)
            for law, predict in _PREDICTORS.items():
                miss, reason = np.nan, f"no run {empty} the cut has this accuracy" if empty else None
                if not empty:
                    try:
                        miss = np.abs(
                            np.clip(predict(*sides.values(), rate, least_gain), 0, 1) - sides["above"].accuracy
                        )
                    except (ValueError, ArithmeticError) as error:
                        reason = str(error)
                frame = {"law": law, "task": task, "miss": miss, "reason": reason}
                frames.append(pandas.DataFrame(frame | {"run": [-1] if empty else sides["above"].index}))
    return pandas.concat(frames, ignore_index=True)


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


def _by_law(below, above, rate: float, least_gain: float, name: str, huber: float | None = None) -> np.ndarray:
    """Fit a law of the catalogue to the runs below and return its predictions above, [n]."""
    law = LAWS[name]
    options = {"guess_rate": rate, "least_gain": least_gain}
    options = {key: value for key, value in options.items() if key in law.options}
    columns = tuple(below[column].to_numpy() for column in (*law.columns, *law.beside))
    fit = Fit(Rows(name, columns, below["accuracy"].to_numpy(), options=options), law, huber=huber)
    return fit.law.predict(fit.best, *(above[column].to_numpy() for column in law.columns))


def _of_same_rows(below, above, rate: float, least_gain: float, name: str) -> np.ndarray:
    used = (below["accuracy"] > rate + least_gain) & (below["accuracy"] < 1)
    return _by_law(below[used], above, rate, least_gain, name)


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
    "no change": lambda below, above, *_: np.full(len(above), below.loc[below["flops"].idxmax(), "accuracy"]),
}
"""Each law as (rows below, rows above, guess rate, least gain) -> predicted accuracies above."""


def pairs_of(misses: "pandas.DataFrame") -> "pandas.DataFrame":
    """Compare the pairs of laws on the tasks where both have a fit.

    Returns:
        first, second, tasks, first_wins (tasks on which the first law has the smaller mean absolute error),
        second_wins, first_error (mean over tasks of the mean absolute error), second_error, first_median, second_median
        (medians over tasks), p (of a two-sided sign test over tasks).
    """
    import pandas

    wide, rows = misses.dropna(subset="miss").pivot(index=["task", "run"], columns="law", values="miss"), []
    for pair in PAIRS:
        means = wide.reindex(columns=pair).dropna().groupby("task").mean()
        first, second = means.to_numpy().T
        wins = [int((~np.isclose(a, b, SAME, 0) & (a < b)).sum()) for a, b in ((first, second), (second, first))]
        rows.append([*pair, len(means), *wins, *means.mean(), *means.median(), sign_test(*wins)])
    names = [f"{law}_{number}" for number in ("wins", "error", "median") for law in ("first", "second")]
    return pandas.DataFrame(rows, columns=["first", "second", "tasks", *names, "p"]).query("tasks > 0")


SHOWN = ("direct", "ratio", "two-stage linear", "two-stage logistic", "two-stage ratio", "no change")
"""The laws whose errors are printed for each task; --json has all laws."""

SIGN = (
    "p: the probability that fair coin tosses are at least as one-sided as these wins. The tasks share their runs, "
    "so they are not independent trials."
)


def study_blocks(study: Study, remarks: list[str]) -> list[Block]:
    runs = f"laws fitted to {study.fitted_runs} runs of at most {study.cut:g} FLOPs and scored on {study.scored_runs} "
    tasks = f"larger runs; {study.tasks} tasks; two-stage laws use the loss on {study.loss}"
    pairs = table_of(study.pairs, PAIR_COLUMNS, keys=2)
    return [*remarks, runs + tasks, _errors_table(study.errors), pairs, *_left_out_lines(study.errors), SIGN]


def _left_out_lines(errors: "pandas.DataFrame") -> list[str]:
    lines = []
    for law in SHOWN:
        missing = errors[errors["law"] == law].dropna(subset="reason").set_index("task")["reason"].to_dict()
        if missing:
            (why, tasks), *others = by_reason(missing).items()
            if others:
                why = f"for example {tasks[0]}: {why}; --json has the reason of each task"
            lines.append(f"{law}: {plural(len(missing), 'task')} left out: {', '.join(missing)}; {why}")
    return lines


def _errors_table(errors: "pandas.DataFrame") -> Table:
    known = errors.dropna(subset="error")
    wide = known.pivot(index="task", columns="law", values="error")
    laws, tasks = [law for law in SHOWN if law in wide], known[known["law"].isin(["direct", "ratio"])]["task"].unique()
    rows = [[task, *(figure(wide.at[task, law], ".3f", "") for law in laws)] for task in tasks]
    return Table(["task", *laws], rows, "mean absolute error of the accuracy above the cut")


PAIR_COLUMNS = {
    "first": lambda row: row.first,
    "second": lambda row: row.second,
    "tasks": lambda row: str(row.tasks),
    "wins, first to second": lambda row: f"{row.first_wins} to {row.second_wins}",
    "mean error": lambda row: f"{row.first_error:.4f} to {row.second_error:.4f}",
    "median error": lambda row: f"{row.first_median:.4f} to {row.second_median:.4f}",
    "p": lambda row: f"{row.p:.2g}",
}
