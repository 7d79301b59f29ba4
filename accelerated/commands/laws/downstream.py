"""The command `routelaws downstream`: compare laws of downstream accuracy."""

from pathlib import Path

from ...findings.laws.downstream import check_numbers, compare_laws, study_blocks
from ...results.blocks import show
from ...results.encoding import dumps, plain
from ...tables.accuracies import read_accuracies, read_guess_rates
from ...tables.released import released_table
from ...tables.units import flops_of
from ..terminal import Working


def downstream(
    table: Path | None = None,
    /,
    *,
    cut: str = "2e20",
    tasks: Path | None = None,
    loss: str | None = None,
    ratio: float | None = None,
    least_gain: float = 0.05,
    json: bool = False,
) -> None:
    """Compare laws of downstream accuracy: fit them below a budget and score them above it.

    Args:
        table: A table of accuracies, .csv or .jsonl, optionally gzipped (.gz). Either one row per run, with the columns
            params, tokens, loss_TEXT and acc_TASK (optional: run, training_set, flops). Or one row per run, benchmark
            and metric, with the columns tokens, benchmark, metric_type, score and tpr. If not given: the 104
            over-training runs of Gadre et al. 2024, downloaded once.
        cut: Training FLOPs, such as 2e20. The laws are fitted to runs with at most these FLOPs and scored on the other
            runs.
        tasks: A table with the columns task and random_accuracy, the accuracy of random guessing. Needed unless the
            table has a column guess_TASK for each task.
        loss: The text whose loss the two-stage laws use. If not given: loss_validation, or else the first loss of the
            table.
        ratio: Use only runs with this number of tokens per parameter, within 10 %. If not given: all runs.
        least_gain: Laws of log accuracy use only rows whose accuracy exceeds random guessing by more than this number
            (0.05: five percentage points).
        json: Print only one JSON object.
    """
    budget = flops_of(cut, "--cut")
    check_numbers(budget, ratio, least_gain)  # check this before fetching a table
    if table is None:
        tasks = tasks or released_table("downstream_tasks.csv")
        table, loss = released_table("overtraining_runs.csv"), loss or "c4_val"
    accuracies = read_accuracies(table)
    rates = None if tasks is None else read_guess_rates(tasks)
    with Working("fitting the laws of each task"):
        study = compare_laws(accuracies, budget, rates, loss, ratio, least_gain)
    if json:
        print(dumps(plain(study) | {"remarks": accuracies.remarks}))
    else:
        show(study_blocks(study, accuracies.remarks))
