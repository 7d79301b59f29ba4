"""Files and fields of runs: each is right, or has its approved message.

A case of files is a name and the content, with ↵ for the end of a line. A case of fields is a dictionary, with values
at and beyond their limits. `test_wrong_commands.py` has commands.
"""

import ast

import pytest

from routelaws.accelerated.conversion.families import model_in
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.inspection.foreign_traces import read_recorded
from routelaws.accelerated.tables.accuracies import read_accuracies, read_guess_rates
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.result_rows import read_rows, routing_options, schedule_words
from routelaws.accelerated.training.sweeps.grid import read_grid
from routelaws.accelerated.training.tasks import read_task
from routelaws.reference.accounting import count

RUNS = {"hyper_id": "Name", "num_experts": "E", "loss_validation": "val/loss", "step": "_step"}
SET = {"router_type": "Top-K", "k": "1", "num_blocks": "8", "num_heads": "8"}
READERS = {
    "table": read_table, "accuracies": read_accuracies, "rates": read_guess_rates,
    "results": read_rows, "grid": lambda path: read_grid(str(path)), "task": read_task,
    "config": model_in, "routing": lambda path: read_recorded(path, None),
    "runs": lambda path: convert_runs(path, path.with_name("converted.csv"), RUNS, SET),
}  # fmt: skip


def test_each_wrong_file_has_its_approved_message(tmp_path, approved):
    def message(case: str) -> str:
        name, _, content = case.partition(" ")
        (tmp_path / name).write_text(content.replace("↵", "\n"), encoding="utf-8")
        with pytest.raises(InputError) as error:
            READERS[name.partition(".")[0]](tmp_path / name)
        return str(error.value).replace(f"{tmp_path}/", "")

    cases = approved.cases("wrong-files.txt", message)
    assert {case.partition(".")[0] for case in cases} == {*READERS}


def test_each_wrong_count_has_its_approved_message(approved):
    def message(arguments: str) -> str:
        with pytest.raises(ValueError) as error:
            count(**ast.literal_eval(arguments))
        return str(error.value)

    approved.cases("wrong-counts.txt", message)


def outcome(fields: str) -> str:
    try:
        config = from_mapping(ast.literal_eval(fields), "case")
        config.check()
    except InputError as error:
        return str(error)
    schedule = f"{schedule_words(config)}, from {config.peak_learning_rate():.4g} at step {config.stable_steps()}"
    return f"right: {config.name()} [{routing_options(config.model)}] [{schedule}]"


@pytest.mark.filterwarnings("ignore:expert_choice")
def test_each_configuration_is_right_or_has_its_approved_message(approved):
    approved.cases("configurations.txt", outcome)
