"""Fields at and beyond their limits: each configuration has its approved name and cells, or its approved message."""

import ast

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.result_rows import routing_options, schedule_words


def said_of(fields: str) -> str:
    try:
        config = from_mapping(ast.literal_eval(fields), "case")
        config.check()
    except InputError as error:
        return str(error)
    schedule = f"{schedule_words(config)}, from {config.peak_learning_rate():.4g} at step {config.stable_steps()}"
    return f"right: {config.name()} [{routing_options(config.model)}] [{schedule}]"


@pytest.mark.filterwarnings("ignore:expert_choice")
def test_each_configuration_is_right_or_has_its_approved_message(approved):
    approved.cases("configurations.txt", said_of)
