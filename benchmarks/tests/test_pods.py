"""The memory that `plan-mesh` plans, compared with the compiler of TPUs."""

import pytest

from benchmarks import pods
from routelaws.accelerated.mesh_plan import parse_mesh, plan_device

LEAST, MOST = 0.86, 1.5
"""Range of the planned memory, relative to the memory by the compiler."""


@pytest.mark.parametrize("row", pods.read(), ids=lambda row: f"{row['run']} {row['mesh']}".replace(" ", ","))
def test_the_plan_agrees_with_the_compiler_of_tpus(row):
    config = pods.config_of(row)
    plan = plan_device(config.model, parse_mesh(row["mesh"]), config.batch_size, config.sequence_length, config.dtype)
    state = plan.parameters + plan.optimizer
    assert state < int(row["arguments"]) < 1.08 * state, "the state, a batch and the rates"
    ratio = plan.memory(config.rematerialise) / (int(row["arguments"]) + int(row["temporaries"]))
    assert LEAST < ratio < MOST, ratio
