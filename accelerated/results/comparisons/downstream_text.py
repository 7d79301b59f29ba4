"""A study of laws of downstream accuracy as blocks: errors by task, pairs of laws, and which law lacks which task."""

from ...wording import by_reason, plural
from ..blocks import Block, Table
from ..numbers import figure
from .downstream import Study

SHOWN = ("direct", "ratio", "two-stage linear", "two-stage logistic", "two-stage ratio", "no change")
"""The laws whose errors are printed for each task; those of all laws are in --json."""

SIGN = (
    "p: how often tosses of a coin would be as one-sided as these wins. The tasks share their runs, and so are not "
    "that many independent trials."
)


def study_blocks(study: Study, remarks: list[str]) -> list[Block]:
    """Return what a study says of the laws, as tables and lines.

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
