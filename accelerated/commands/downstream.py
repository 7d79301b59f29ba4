"""What `routelaws downstream` does: hold the laws of downstream accuracy against each other."""

from pathlib import Path

import tyro

from ..results.blocks import Block, Table, show
from ..results.comparisons.downstream import Study, check_numbers, compare_laws, rate_remarks
from ..results.encoding import dumps, plain
from ..results.numbers import figure
from ..tables.accuracies import read_accuracies, read_guess_rates
from ..tables.released import released_table
from ..tables.units import flops_of
from ..wording import by_reason, plural
from .working import Working

SHOWN = ("direct", "ratio", "two-stage linear", "two-stage logistic", "two-stage ratio", "no change")
"""The laws whose errors are printed for each task; those of all laws are in --json."""

SIGN = (
    "p: how often tosses of a coin would be as one-sided as these wins. The tasks share their runs, and so are not "
    "that many independent trials."
)


def downstream(
    table: tyro.conf.Positional[Path | None] = None,
    *,
    cut: str = "2e20",
    tasks: Path | None = None,
    loss: str | None = None,
    ratio: float | None = None,
    least_gain: float = 0.05,
    json: bool = False,
) -> None:
    """Fit laws of downstream accuracy below a budget, score them above it, and hold them against each other.

    Args:
        table: A table of accuracies, .csv or .jsonl, also packed (.gz): one row for each run with the columns params,
            tokens, loss_TEXT and acc_TASK (and, where known, run, training_set and flops), or one row for each run,
            benchmark and metric with the columns tokens, benchmark, metric_type, score and tpr. If none is given, the
            104 over-training runs of Gadre et al. 2024, which are downloaded once.
        cut: Training FLOPs, such as 2e20; the laws are fitted to the runs with at most these and scored on the others.
        tasks: A table with the columns task and random_accuracy, the share of right answers by guessing.
        loss: The text whose loss the two-stage laws go through; loss_validation, or else the first of the table, if
            not given.
        ratio: Only runs with these tokens per parameter, within a tenth; all if not given.
        least_gain: Laws of log accuracy take rows that are this far above the guess rate.
        json: Print one JSON object and nothing else.
    """
    budget = flops_of(cut, "--cut")
    check_numbers(budget, ratio, least_gain)  # before a table is fetched
    if table is None:
        tasks = tasks or released_table("downstream_tasks.csv")
        table, loss = released_table("overtraining_runs.csv"), loss or "c4_val"
    accuracies = read_accuracies(table)
    rates = None if tasks is None else read_guess_rates(tasks)
    with Working("fitting the laws of each task"):
        study = compare_laws(accuracies, budget, rates, loss, ratio, least_gain)
    remarks = accuracies.remarks + rate_remarks(accuracies, rates)
    if json:
        print(dumps(plain(study) | {"remarks": remarks}))
    else:
        show(study_blocks(study, remarks))


def study_blocks(study: Study, remarks: list[str]) -> list[Block]:
    """Return what `routelaws downstream` prints.

    Args:
        study: of `compare_laws`.
        remarks: of `read_accuracies` and `rate_remarks`.
    """
    runs = f"fitted to {study.fitted_runs} runs of at most {study.cut:g} FLOPs, scored on {study.scored_runs} above; "
    tasks = f"{study.tasks} tasks; two-stage laws through the loss on {study.loss}"
    return [*remarks, runs + tasks, _errors_table(study), _pairs_table(study), *_left_out_lines(study), SIGN]


def _left_out_lines(study: Study) -> list[str]:
    """Return one line for each law that is shown and could not be fitted to some tasks: these, and why."""
    lines = []
    for law in SHOWN:
        if missing := study.left_out.get(law):
            (why, tasks), *others = by_reason(missing).items()
            if others:
                why = f"for example {tasks[0]}: {why}; --json has the reason of each"
            lines.append(f"{law}: {plural(len(missing), 'task')} left out: {', '.join(missing)}; {why}")
    return lines


def _errors_table(study: Study) -> Table:
    """Return the errors of each law on each task."""
    laws = [law for law in SHOWN if study.errors.get(law)]
    tasks = dict.fromkeys(task for law in ("direct", "ratio") for task in study.errors.get(law, {}))
    rows = [[task, *(figure(study.errors[law].get(task), ".3f", "") for law in laws)] for task in tasks]
    return Table(["task", *laws], rows, "mean absolute error of the accuracy above the cut")


def _pairs_table(study: Study) -> Table:
    """Return two laws at a time."""
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
