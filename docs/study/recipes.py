"""Write the finished runs of a sweep of recipes, with their commands, into recipes.csv. Rows of other runs stay.

Run the sweep and then this file:

    routelaws sweep recipes --out build/recipes
    python docs/study/recipes.py build/recipes
"""

import argparse
import csv
import shlex
from pathlib import Path

from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.runs.result_rows import write_rows
from routelaws.accelerated.training.runs.run_folder import read_results
from routelaws.accelerated.training.sweeps.sweep_folder import finished_runs

HERE = Path(__file__).parent

MEASURED = (
    "loss_validation", "router_agreement", "router_information", "router_entropy", "expert_exchange", "max_load",
    "idle_experts", "dropped_fraction",
)  # fmt: skip
"""Columns with results of the last evaluation of a run."""

SHOWN = ("router", "d_model", "vocab_size", "experts", "steps", "seed")

COLUMNS = (*SHOWN, "changed", *MEASURED, "command")

SHAPE = (*SHOWN, "heads", "sequence_length", "evaluations", "evaluation_tokens", "steps_per_call")
"""Fields that the column "changed" omits, because they have their own columns or are equal in every run."""


def changed(config: TrainConfig) -> dict:
    """Return the fields of a run that differ from the defaults of `routelaws train`."""
    usual = TrainConfig().fields()
    return {name: value for name, value in config.fields().items() if value != usual[name]}


def command(config: TrainConfig) -> str:
    words = ["routelaws", "train", "--out", "OUT"]
    for name, value in changed(config).items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def recipe_rows(folder: Path) -> list[dict]:
    """Return the rows of the finished runs in the folder of a sweep, in order of hyper_id."""
    rows = []
    for _, run_folder, config in finished_runs(folder):
        last, fields = read_results(run_folder)[0][-1], changed(config)
        recipe = {name: value for name, value in fields.items() if name not in SHAPE}
        rows.append(
            {name: config.fields()[name] for name in SHOWN}
            | {"changed": " ".join(f"{name}={value}" for name, value in recipe.items())}
            | {name: last[name] and f"{float(last[name]):.5g}" for name in MEASURED}
            | {"command": command(config)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="folder of a sweep of recipes")
    table = HERE / "recipes.csv"
    with table.open() as file:
        rows = {row["command"]: row for row in csv.DictReader(file)}
    for folder in parser.parse_args().folders:
        rows |= {row["command"]: row for row in recipe_rows(folder)}
    write_rows(table, rows.values(), COLUMNS)


if __name__ == "__main__":
    main()
