"""The designs of `train --config`: settings, counts, and training."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from routelaws import accelerated
from routelaws.accelerated import cli
from routelaws.accelerated.training.configuration import designs, from_mapping, read_config_file
from routelaws.accelerated.training.runs.result_rows import read_rows
from routelaws.accelerated.training.runs.weights import load_run
from routelaws.reference.transformer import parameter_shapes

BY_HAND = {
    "deepseek-v3": (256, 8, dict(gate="sigmoid", normalisation="sum", gate_scale=2.5, shared_experts=1, bias_rate=0.001,
                                 expert_groups=8, groups_per_token=4, balance_scope="sequence", balance_weight=1e-4)),
    "deepseek-v4": (252, 6, dict(router="hash_gated:1,top_k:3", gate="sqrtsoftplus", normalisation="sum",
                                 gate_scale=1.5, shared_experts=1, bias_rate=0.001)),
    "qwen3": (128, 8, dict(gate="softmax", normalisation="sum", shared_experts=0, balance_weight=8 * 0.001)),
    "mixtral": (8, 2, dict(gate="softmax", normalisation="sum", shared_experts=0, balance_weight=2 * 0.001)),
    "nemotron-3": (512, 22, dict(gate="sigmoid", normalisation="sum", gate_scale=5.0, shared_experts=2, latent_width=16,
                                 bias_rate=0.001)),
    "longcat-flash": (512, 12, dict(gate="softmax", normalisation="none", gate_scale=6.0, zero_experts=256,
                                    zero_kind="identity", real_experts=8, bias_rate=0.01)),
    "olmoe": (64, 8, dict(gate="softmax", normalisation="none", balance_weight=8 * 0.01, z_weight=0.001)),
    "gpt-oss": (32, 4, dict(gate="softmax", normalisation="softmax", router_bias=True, balance_weight=4 * 0.001)),
}  # fmt: skip
"""Experts of a block, experts of a token, and other settings of the design."""


def sizes(tree) -> int:
    """Return the number of entries of a tree of arrays or of (shape, deviation)."""
    if isinstance(tree, dict):
        return sum(sizes(node) for node in tree.values())
    return math.prod(tree[0]) if isinstance(tree, tuple) else tree.size


def counted(tree: dict) -> int:
    """Return P of a parameter tree, without the embedding, the last norm and the bias from loads."""
    routed = {name: node for name, node in tree["routed_ffn"].items() if name != "bias"}
    return sizes({name: tree[name] for name in ("blocks", "dense_ffn") if name in tree} | {"routed_ffn": routed})


@pytest.mark.parametrize("name", BY_HAND)
def test_a_design_has_the_settings_of_its_model_and_is_counted_exactly(name):
    assert {*designs()} == {*BY_HAND}
    config = from_mapping(read_config_file(name))
    config.check()
    experts, choices, options = BY_HAND[name]
    model = config.model
    assert (model.expert_count, model.choices, model.capacity_factor) == (experts, choices, math.inf)
    assert {option: getattr(model, option) for option in options} == options
    assert model.num_routed == {"deepseek-v3": 3, "nemotron-3": 2, "longcat-flash": 2}.get(name, 4)
    assert config.accounting().total_parameters == counted(parameter_shapes(model))


def test_help_and_the_page_of_training_name_every_design(capsys):
    assert cli.main(["train", "--help"]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    page = (Path(accelerated.__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    assert words >= {*designs()} == {*re.findall(r"^\| `([\w-]+)` \| \d+ of", page, re.MULTILINE)}


@pytest.mark.parametrize(
    "name", [n if n == "deepseek-v3" else pytest.param(n, marks=pytest.mark.slow) for n in BY_HAND]
)
def test_a_design_trains(name, text_file, tmp_path, capsys):
    """After a few steps of two blocks of width 8, the loss is below ln V, and the biases have changed."""
    blocks = ("--blocks", "2") + (("--routing-frequency", "0.5") if name == "deepseek-v3" else ())
    blocks += ("--router", "hash_gated,top_k") if name == "deepseek-v4" else ()
    narrow = (
        "--d-model",
        "8",
        "--heads",
        "1",
        "--vocab-size",
        "300",
        "--sequence-length",
        "16",
        "--steps",
        "8",
        *blocks,
    )
    little = ("--evaluations", "1", "--evaluation-tokens", "512", "--steps-per-call", "8", "--corpus", str(text_file))
    assert cli.main(["train", "--config", name, "--out", str(tmp_path / "run"), *narrow, *little]) == 0, (
        capsys.readouterr()
    )
    row = read_rows(tmp_path / "run" / "results.csv")[-1]
    assert float(row["loss_validation"]) < np.log(300) and float(row["dropped_fraction"]) == 0
    params = load_run(tmp_path / "run").params
    assert int(row["total_parameter_count"]) == counted(params)
    for option in ("bias", "router_bias"):
        assert option not in params["routed_ffn"] or np.ptp(params["routed_ffn"][option][-1]) > 0, option


def test_a_file_with_the_name_of_a_design_goes_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixtral").write_text("steps = 3")
    assert read_config_file("mixtral") == {"steps": 3}
