"""Folders of earlier versions can be read. Their files have fewer fields, in another order."""

import json

import pytest

from routelaws.accelerated.commands.flags import in_flags
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.configuration import MODEL_FIELDS, RUN_FIELDS, from_mapping
from routelaws.accelerated.training.runs.run_folder import claim_folder, read_config
from routelaws.accelerated.training.sweeps.grid import Grid
from routelaws.accelerated.training.sweeps.sweep_folder import check_sweep_folder, read_plan

FIRST = """{
  "router": "sinkhorn", "experts": 4, "k": 1, "routing_frequency": 0.5, "granularity": 1, "flop_increase": 1,
  "d_model": 16, "blocks": 2, "heads": 1, "kqv_size": null, "vocab_size": 1024, "capacity_factor": "inf",
  "drop_order": "choice", "gate": null, "normalisation": null, "sample_second": false, "balance_weight": null,
  "z_weight": 0.0, "bias_rate": 0.0, "policy_weight": 0.01, "baseline_weight": 0.01, "entropy_weight": 0.0,
  "nucleus": 1.0, "reward_to_go": false, "hash": "modulo", "hash_embeddings": null, "grouping": "position",
  "group_size": null, "temperature": 1.0, "objective": "causal", "mask_rate": 0.15, "sequence_length": 128,
  "batch_size": 16, "steps": 8, "learning_rate": null, "router_rate": 0.2, "warmup": 0.05, "weight_decay": 0.1,
  "gradient_clip": 1.0, "seed": 42, "dtype": "float32", "evaluations": 5, "evaluation_tokens": 131072,
  "steps_per_call": 8, "checkpoint_every": null, "corpus": ["a"], "eval": ["c4=b"], "init_from": null
}"""
"""The first form of config.json in version 0.1."""

MEANT = dict(
    router="sinkhorn", experts=4, d_model=16, heads=1, capacity_factor="inf", steps=8, corpus=["a"], eval=["c4=b"]
)
"""The fields behind this file."""


def test_the_configuration_of_an_old_run_is_the_one_that_was_given(tmp_path):
    (tmp_path / "config.json").write_text(FIRST)
    found = read_config(tmp_path)
    assert found == from_mapping(MEANT) and found.model.capacity_factor == float("inf")
    assert (found.model.kqv_size, found.model.gate, found.model.num_routed, found.eval) == (16, "softmax", 1, ("c4=b",))
    claim_folder(tmp_path, from_mapping(MEANT))
    with pytest.raises(InputError, match="holds a run with capacity_factor inf, not 3.0"):
        claim_folder(tmp_path, from_mapping(MEANT | {"capacity_factor": 3.0}))


def test_a_run_writes_what_it_reads(tmp_path):
    claim_folder(tmp_path, from_mapping(MEANT))
    written = json.loads((tmp_path / "config.json").read_text())
    assert {name: written[name] for name in json.loads(FIRST)} == json.loads(FIRST)
    assert set(written) == set(MODEL_FIELDS) | set(RUN_FIELDS)
    changed = from_mapping(written | {"router": "base", "capacity_factor": None})
    assert (changed.model.gate, changed.model.capacity_factor) == ("sigmoid", 1.0)


def test_an_old_sweep_goes_on(tmp_path):
    runs = [json.loads(FIRST), json.loads(FIRST) | {"seed": 7}]
    (tmp_path / "sweep.json").write_text(json.dumps({"name": "two", "runs": runs}, indent=1))
    grid = Grid("two", tuple(from_mapping(MEANT | {"seed": seed}) for seed in (42, 7)))
    assert read_plan(tmp_path) == grid
    check_sweep_folder(tmp_path, grid)
    with pytest.raises(InputError, match="another sweep"):
        check_sweep_folder(tmp_path, Grid("two", grid.runs[:1]))


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("d_model is 7; it has to be even", "--d-model is 7; it has to be even"),
        ("heads 3 does not divide d_model 8; give kqv_size", "--heads 3 does not divide --d-model 8; give --kqv-size"),
        ("k 2 over experts 3 has to be whole", "--k 2 over --experts 3 has to be whole"),
        ("a dense model has no routed blocks, and experts are for others", None),
        ("hash is 'x'; allowed: modulo, position", "--hash is 'x'; allowed: modulo, position"),
        ("the hash gives one expert; 'experts' or --experts 8", None),
    ],
)
def test_a_message_names_the_flags(message, wanted):
    assert in_flags(message, [*MODEL_FIELDS, *RUN_FIELDS]) == (wanted or message)
