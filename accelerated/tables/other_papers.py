"""Released runs of other papers as results tables, with the column names of this project.

    steplaw-moe, steplaw-dense   every run of Step Law's grids of rate and batch (Li et al. 2025)
    overtraining                 the 104 dense runs of Gadre et al. 2024, with their losses on C4
    chinchilla                   240 points of Hoffmann et al. 2022: without the 5 largest losses, as in its refit

`dense_parameter_count` is the number of active parameters, as each source counts them: Step Law excludes the embedding,
the other two include it.
"""

from .released import released_table

STEP_LAW = ("steplaw-moe", "steplaw-dense")

_COLUMNS = {
    "N": "total_parameter_count", "Na": "dense_parameter_count", "D": "tokens", "lr": "learning_rate",
    "bs": "batch_size", "nume": "num_experts", "topk": "k", "seq_len": "sequence_length",
    "smooth loss": "loss_validation", "params": "dense_parameter_count", "loss_c4_val": "loss_validation",
}  # fmt: skip


def runs_of_paper(name: str):
    """Return the runs of a paper by the name in the list above, one row per run, as a pandas DataFrame.

    Raises:
        InputError: `released_table` raises this error.
    """
    import pandas as pd

    file = {"overtraining": "overtraining_runs", "chinchilla": "chinchilla_points"}.get(name, name.replace("-", "_"))
    table = pd.read_csv(released_table(f"{file}.csv"))
    if name == "chinchilla":
        table = table.assign(D=table["training_flops"] / (6 * table["params"]))
        table = table.nsmallest(len(table) - 5, "loss").sort_index().rename(columns={"loss": "smooth loss"})
    if name == "steplaw-dense":
        table = table.assign(Na=table["N"], seq_len=2048)
    table = table.rename(columns=_COLUMNS)
    if name != "steplaw-moe":
        table = table.assign(total_parameter_count=table["dense_parameter_count"], num_experts=1, k=1)
    counts = ["dense_parameter_count", "total_parameter_count", "tokens", "num_experts", "k"]
    return table.astype(dict.fromkeys(counts, float)).reset_index(drop=True)
