"""The table of recipes, and the exact rewards for the comparison with RL-R."""

import csv
import shlex
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from routelaws.accelerated.training.configuration import TrainConfig, from_mapping
from routelaws.accelerated.training.sweeps.grid import read_grid
from routelaws.accelerated.transformer import draw_noise, init, loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import exact_policy  # noqa: E402
import recipes  # noqa: E402

GRID = read_grid("recipes").runs


def fields_of(command: str) -> dict:
    words, fields = shlex.split(command)[4:], {}
    kinds = TrainConfig().fields() | {"router_scale": 1.0, "balance_weight": 1.0, "capacity_factor": 1.0, "gate": ""}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        kind = type(kinds[name])
        fields[name] = True if kind is bool else kind(words.pop(0))
    return fields


@pytest.mark.parametrize("run", GRID[::7], ids=lambda run: run.name())
def test_a_command_repeats_its_run(run):
    assert from_mapping(fields_of(recipes.command(run))) == run


def test_every_row_of_the_table_is_of_a_run_of_the_preset():
    commands = {recipes.command(run) for run in GRID}
    with open(recipes.HERE / "recipes.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows and {row["command"] for row in rows} <= commands
    assert all(0 <= float(row["router_agreement"] or 0) <= 1 < float(row["loss_validation"]) for row in rows)


@pytest.mark.slow
def test_the_exact_reward_of_the_drawn_expert_is_the_one_it_gets():
    """With room for every token, the rewards of a training step are those of the drawn experts."""
    small = {"vocab_size": 61, "d_model": 8, "heads": 1, "experts": 4, "sequence_length": 8, "batch_size": 2}
    config = from_mapping(exact_policy.RUN | small | {"capacity_factor": 4.0})
    params = init(jax.random.key(0), config.model)
    tokens = jax.random.randint(jax.random.key(1), (2, 9), 0, 61)
    result = loss(params, tokens, config.model, noise=draw_noise(jax.random.key(2), config.model, 2, 8))
    routing = result.output.routing
    found = exact_policy.rewards(params, tokens, config, routing)
    drawn = np.take_along_axis(np.asarray(found), np.asarray(routing.expert[0]), axis=1)[:, 0]
    assert found.shape == (16, 4) and np.allclose(drawn, np.asarray(result.credit.reward).reshape(-1), atol=1e-4)
