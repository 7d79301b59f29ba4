"""The exported train step: for every router, for absent devices, and equal to the step here."""

import importlib
import sys

import jax
import numpy as np
import pytest

from routelaws.accelerated.cpu import portable
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.routed_block import hash_table
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.export import (
    PLATFORMS,
    export_train_step,
    load_train_step,
    lower_train_step,
    table_shape,
)
from routelaws.accelerated.training.step import compiled_steps, initial_state, run_inputs
from routelaws.conformance.bounds import check
from routelaws.reference.configuration import ModelConfig
from routelaws.reference.routers.records import EXAMPLES

ROUTERS = EXAMPLES | {
    "wide": {"flop_increase": 2},
    "bigram": {"router": "hash", "experts": 4, "hash": "bigram"},
    "GShard": {"router": "top_k", "experts": 4, "k": 2, "sample_second": True},
}


def each(quick: str):
    return [pytest.param(name, marks=() if name == quick else pytest.mark.slow) for name in ROUTERS]


def config_of(small_fields, name):
    return from_mapping({**small_fields, **ROUTERS[name], "steps_per_call": 2}, "test")


@pytest.mark.parametrize("name", each(quick="base"))
def test_every_router_lowers_for_every_platform_and_never_asks_the_host(small_fields, name):
    exported = lower_train_step(config_of(small_fields, name), PLATFORMS)
    assert exported.platforms == PLATFORMS
    program = exported.mlir_module()
    assert "callback" not in program and "infeed" not in program and len(program) > 10_000


@pytest.mark.parametrize("hash", ["modulo", "random", "bigram", "position"])
@pytest.mark.parametrize(("k", "granularity"), [(1, 1), (2, 1), (2, 2)])
def test_the_table_of_a_program_has_the_shape_of_that_of_a_run(hash, k, granularity):
    """The table has k G columns, like the model's table."""
    if hash == "bigram" and k > 1:
        return  # a pair of tokens has only one expert
    model = ModelConfig(vocab_size=50, d_model=8, blocks=2, heads=1, router="hash", experts=4, k=k,
                        granularity=granularity, hash=hash)  # fmt: skip
    shape = (2, 50) if hash == "bigram" else (50, k * granularity)
    if hash == "position":
        assert table_shape(model) is None
    else:
        uniforms = np.zeros(shape) if hash in ("random", "bigram") else None
        assert table_shape(model) == hash_table(model, uniforms=uniforms).shape == shape


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "bigram", "base", "quantile", "GShard"])
def test_a_program_from_a_file_takes_the_steps_of_the_live_one(small_fields, name):
    config = config_of(small_fields, name)
    table = np.random.default_rng(0).integers(0, 4, (2, 300)).astype(np.int32) if name == "bigram" else None
    batches = np.random.default_rng(1).integers(0, 300, (2, 4, 17)).astype(np.int32)
    inputs, before = run_inputs(config, table), jax.tree.map(np.asarray, initial_state(config))
    with portable():
        steps = compiled_steps(config, base_method="auction")
        live, wanted = steps(initial_state(config), batches, 3, np.int32(0), inputs)
    for platforms in (("cpu",), ("tpu", "cpu")):
        loaded = load_train_step(export_train_step(config, platforms))
        after, metrics = loaded(initial_state(config), batches, 3, inputs)
        check("export.loss", np.abs(metrics.loss - wanted.loss).max())
        if platforms == ("cpu",):  # a single program; with several platforms, XLA may fuse sums differently
            jax.tree.map(np.testing.assert_array_equal, (live, wanted), (after, metrics))
    moved = jax.tree.map(lambda a, b: np.any(a != b), before.params, after.params)
    assert all(jax.tree.leaves(moved)), moved


def test_a_program_passes_over_as_many_bad_batches_as_it_is_told(small_fields):
    """The final norm makes the model nearly certain of token 0, so the loss of a text of sevens explodes."""
    config = from_mapping({**small_fields, "blocks": 1, "steps_per_call": 3, "loss_limit": 1.5}, "test")
    steps = load_train_step(export_train_step(config, ("cpu",)))
    batches = np.stack([np.full((4, 17), 7), np.full((4, 17), 7), np.zeros((4, 17))]).astype(np.int32)

    def moved(**left) -> bool:
        state = initial_state(config)
        to_0 = state.params["embedding"][0]
        state.params["final_norm"]["offset"] = 30 * to_0 / (to_0 @ to_0)
        before = jax.tree.map(np.asarray, state.params)
        after, metrics = steps(state, batches, 0, run_inputs(config, None), **left)
        assert metrics.bad.tolist() == [True, True, False]
        return any(jax.tree.leaves(jax.tree.map(lambda a, b: np.any(a != b), before, after.params)))

    assert moved(left=2) and not moved(left=1) and not moved()


def test_what_cannot_be_loaded_is_one_line(monkeypatch):
    with pytest.raises(InputError, match="cannot read this as an exported train step"):
        load_train_step(b"not a program")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.setattr(jax.export, "deserialize", lambda content: importlib.import_module("flatbuffers"))
    with pytest.raises(ModuleNotFoundError, match="flatbuffers"):  # the command line names the extra
        load_train_step(b"a program")
