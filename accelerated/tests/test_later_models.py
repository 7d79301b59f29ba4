"""The models of later papers from the command line: the options of each preset, and what is trained and written."""

import csv

import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.training.config import TrainConfig, from_mapping
from routelaws.accelerated.training.grid import read_grid
from routelaws.accelerated.training.weights import load_own_params

PRESETS = {
    "fine_grained": {"activation": {"relu"}, "positions": {"rotary"}, "output_norm": {True},
                     "granularity": {1, 2, 4, 8}},
    "joint": {"activation": {"swiglu"}, "positions": {"rotary"}, "z_weight": {0.001}, "experts": {2, 4, 8, 16}},
    "mixture": {"activation": {"relu"}, "layout": {"spread", "upper"}, "emit": {"mixing", "experts"},
                "learned_temperature": {False, True}, "granularity": {1, 4}},
}  # fmt: skip
"""What the routed runs of a preset have, by hand."""

WORDS = {
    "fine_grained": ("relu rotary", "spread normed"),
    "joint": ("swiglu rotary", "spread"),
    "mixture": ("relu relative", "upper mixing learned"),
}
"""What the table says of the last run."""


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_what_its_paper_varies(preset):
    """And dense models of the same kind beside the routed ones; law grids vary size and length too."""
    runs = read_grid(preset).runs
    routed = [run.model for run in runs if run.model.router != "dense"]
    for option, wanted in PRESETS[preset].items():
        assert {getattr(model, option) for model in routed} == wanted, option
    assert {run.model.activation for run in runs} == PRESETS[preset]["activation"]
    dense = [run for run in runs if run.model.router == "dense"]
    assert {run.model.d_model for run in dense} == {model.d_model for model in routed}
    if preset != "mixture":
        assert len({run.steps for run in runs}) == len({run.model.d_model for run in runs}) == 3
        assert {model.num_routed for model in routed} == {2}, "every block is routed"


def flags(config) -> list[str]:
    """Return the flags that say what is not a default."""
    listed, usual = [], TrainConfig().fields()
    for name, value in config.fields().items():
        if value != usual[name]:
            flag = f"--{name.replace('_', '-')}"
            listed += [flag] if value is True else [flag, *(value if isinstance(value, tuple) else [str(value)])]
    return listed


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_the_smallest_runs_of_a_preset_train(preset, small_fields, tmp_path, capsys):
    """Its last run, with every option of it given as a flag, at a width of 8 and for a few steps."""
    run = read_grid(preset).runs[-1]
    few = {"kqv_size": None, "blocks": run.model.blocks, "batch_size": 16, "steps": 8, "evaluations": 1}
    config = from_mapping(run.fields() | small_fields | few)
    assert cli.main(["train", "--out", str(tmp_path / "run"), *flags(config)]) == 0, capsys.readouterr().err
    with open(tmp_path / "run" / "results.csv", newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert np.isfinite(float(row["loss_validation"])) and float(row["loss_validation"]) < np.log(300)
    assert int(row["total_parameter_count"]) == config.accounting().total_parameters
    assert (row["model_options"], row["routing_options"]) == WORDS[preset]
    params = load_own_params(tmp_path / "run")
    counted = sum(
        leaf.size for name, node in params.items() if name not in ("embedding", "final_norm") for leaf in leaves(node)
    )
    assert counted == config.accounting().total_parameters
    if config.model.learned_temperature:
        assert np.all(np.asarray(params["routed_ffn"]["log_temperature"]) != 0), "both temperatures were learned"


def leaves(tree) -> list:
    """Return the arrays of nested dicts."""
    return [leaf for node in tree.values() for leaf in leaves(node)] if isinstance(tree, dict) else [tree]
