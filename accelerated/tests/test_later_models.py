"""The models of later papers from the command line: the options of each preset, and the law for its table."""

import numpy as np
import pytest

from routelaws.accelerated.results.runs import read
from routelaws.accelerated.training.runs.result_rows import COLUMNS, run_columns, write_rows
from routelaws.accelerated.training.sweeps.grid import read_grid
from routelaws.accelerated.training.sweeps.sweep import saving

PRESETS = {
    "fine_grained": {"activation": {"relu"}, "positions": {"rotary"}, "output_norm": {True},
                     "granularity": {1, 2, 4, 8}},
    "joint": {"activation": {"swiglu"}, "positions": {"rotary"}, "z_weight": {0.001}, "experts": {2, 4, 8, 16}},
    "mixture": {"activation": {"relu"}, "layout": {"spread", "upper"}, "emit": {"mixing", "experts"},
                "learned_temperature": {False, True}, "granularity": {1, 4}},
}  # fmt: skip
"""Settings of the routed runs of each preset."""


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_what_its_paper_varies(preset):
    """A preset also has dense models of the same kind. Grids for laws vary size and length."""
    runs = read_grid(preset).runs
    routed = [run.model for run in runs if run.model.router != "dense"]
    for option, wanted in PRESETS[preset].items():
        assert {getattr(model, option) for model in routed} == wanted, option
    assert {run.model.activation for run in runs} == PRESETS[preset]["activation"]
    dense = [run for run in runs if run.model.router == "dense"]
    assert {run.model.d_model for run in dense} == {model.d_model for model in routed}
    if preset != "mixture":
        assert {run.schedule for run in runs} == {"wsd"} and len({run.model.d_model for run in runs}) == 3
        assert saving(read_grid(preset)).endswith("33,000 steps instead of 69,000, 52% fewer")
        assert {model.num_routed for model in routed} == {2}, "every block is routed"


FITTED = {"fine_grained": ("fine-grained", 60), "joint": ("joint", 75), "mixture": ("routed-bounded", 8)}
"""The law of each preset, and the number of runs that the law uses."""


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_law_takes_the_table_of_a_preset(preset, tmp_path):
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
