"""The models of later papers from the command line: the options of each preset, and what is trained and written."""

import csv
import json
import warnings

import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.training.configuration import TrainConfig, from_mapping
from routelaws.accelerated.training.grid import read_grid
from routelaws.accelerated.training.result_rows import COLUMNS, run_columns, write_rows
from routelaws.accelerated.training.weights import load_run

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
    params = load_run(tmp_path / "run").params
    counted = sum(
        leaf.size for name, node in params.items() if name not in ("embedding", "final_norm") for leaf in leaves(node)
    )
    assert counted == config.accounting().total_parameters
    if config.model.learned_temperature:
        assert np.all(np.asarray(params["routed_ffn"]["log_temperature"]) != 0), "both temperatures were learned"


FITTED = {"fine_grained": ("fine-grained", 36), "joint": ("joint", 45), "mixture": ("routed-bounded", 8)}
"""The law of a preset, and how many runs of the preset it takes."""


def fewer(text) -> str:
    """Return a grid: of `fine_grained` the longest runs, and of the smallest size every length, 50 times shorter."""
    runs = read_grid("fine_grained").runs
    longest, width = max(run.steps for run in runs), min(run.model.d_model for run in runs)
    most = max(run.model.experts for run in runs)
    lines = ['name = "fewer"']
    for run in runs:
        small = run.model.d_model == width and run.model.granularity == 1 and run.model.experts in (1, most)
        if run.steps == longest or small:
            fields = run.fields() | {
                "corpus": [str(text)], "vocab_size": 300, "sequence_length": 16, "evaluations": 1,
                "evaluation_tokens": 512, "steps_per_call": 4, "steps": run.steps // 50,
            }  # fmt: skip
            known = {name: value for name, value in fields.items() if value not in (None, ())}
            lines += ["[[runs]]", *(f"{name} = {json.dumps(value)}" for name, value in known.items())]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_law_takes_the_table_of_a_preset(preset, tmp_path):
    """The whole preset, with losses that are made; it is `fit` that has to find its columns and enough of each."""
    law, rows = FITTED[preset]
    table = []
    for number, run in enumerate(read_grid(preset).runs):
        row = dict.fromkeys(COLUMNS, "") | run_columns(run)
        tokens = run.steps * run.batch_size * run.sequence_length
        size, total = float(row["dense_parameter_count"]), float(row["total_parameter_count"])
        loss = 2 + (size / 1e4) ** -0.3 * run.model.experts**-0.05 + (tokens / 1e5) ** -0.4
        loss += 0.1 * run.model.granularity**-0.6 * (total / 1e4) ** -0.3
        loss *= np.exp(np.random.default_rng(number).normal(0, 2e-3))
        table.append(row | {"hyper_id": number, "step": run.steps, "tokens": tokens, "loss_validation": loss})
    write_rows(tmp_path / "table.csv", table)
    [fit] = read(tmp_path / "table.csv").fit(law).to_dict()["fits"]
    assert fit["rows"] == rows and fit["rmsle"] < 5e-3 and "search" not in fit["status"]


@pytest.mark.slow
def test_a_preset_trains_a_table_that_its_law_takes(text_file, tmp_path, capsys):
    """From the command line, with fewer and shorter runs: `sweep`, and `fit` of what it wrote."""
    (tmp_path / "fewer.toml").write_text(fewer(text_file))
    assert cli.main(["sweep", str(tmp_path / "fewer.toml"), "--out", str(tmp_path / "out")]) == 0, capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a few steps determine nothing, which is no reason for noise
        assert cli.main(["fit", str(tmp_path / "out"), "--law", "fine-grained"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "law fine-grained" in said and "14 rows" in said


def leaves(tree) -> list:
    """Return the arrays of nested dicts."""
    return [leaf for node in tree.values() for leaf in leaves(node)] if isinstance(tree, dict) else [tree]
