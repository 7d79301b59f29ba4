"""Plans in hours: timed runs, break-evens and their refusals, on planted step times."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from scipy.optimize import brentq

from routelaws.accelerated.cli import main
from routelaws.accelerated.laws.planning import Budget
from routelaws.accelerated.results.planning.hours import HOUR, read_clock
from routelaws.accelerated.results.planning.options import costs_of
from routelaws.accelerated.results.planning.step_time import StepTime
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.training import probe
from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.runs.result_rows import COLUMNS, write_rows
from routelaws.reference.configuration import ModelConfig

from .test_plan import BATCH, LENGTH, TOKENS, log_loss, table

STEP = StepTime(0.2, 2e-14, 3e-11, {"Dense": 1e-9, "Hash": 8e-9, "S-Base": 0.0})
COMPILED = 7.0


def step_seconds(run) -> float:
    """Return the planted seconds of a step of a row of the table."""
    width, pieces = run["num_heads"] * run["kqv_size"], BATCH * LENGTH
    held = run["total_parameter_count"] + run["vocab_size"] * run["d_model"]
    return STEP.seconds(run["router_type"], 3 * run["flops_per_step"], held, run["num_blocks"] * width * pieces)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Runs of a planted law, with two rows each: the wall time of the first includes a compilation."""
    last, path = table(noise=1e-9), tmp_path_factory.mktemp("hours") / "table.csv"
    last = last.assign(wall_seconds=[COMPILED + run["step"] * step_seconds(run) for _, run in last.iterrows()])
    first = last.assign(step=100, wall_seconds=[COMPILED + 100 * step_seconds(run) for _, run in last.iterrows()])
    pandas.concat([first.assign(loss_validation=5.0), last]).to_csv(path, index=False)
    return path


def test_a_clock_reads_the_steps_between_the_rows_of_a_run(path):
    clock = read_clock([path])
    for name, planted in STEP.activation.items():
        assert clock.step.activation[name] == pytest.approx(planted, rel=1e-6, abs=1e-15)
    assert clock.step[:3] == pytest.approx(STEP[:3], rel=1e-6)
    assert np.abs(clock.errors).max() < 1e-6 and clock.tokens == BATCH * LENGTH


def test_a_clock_takes_the_flops_that_a_table_states(path, tmp_path):
    """Without FLOPs of a step, the stated training FLOPs count, as for a fit."""
    frame = pandas.read_csv(path)
    stated = frame.assign(training_flops=3 * frame["flops_per_step"] * frame["step"]).drop(columns="flops_per_step")
    stated.to_csv(tmp_path / "stated.csv", index=False)
    assert read_clock([tmp_path / "stated.csv"]).step[:3] == pytest.approx(STEP[:3], rel=1e-6)


def test_a_break_even_is_where_both_largest_models_have_one_loss(path):
    """Without tokens in the law, the best model is the largest that the hours pay for."""
    runs = read(path)

    def largest(router: str, experts: int, seconds: float) -> float:
        rows = runs.last[runs.last["router_type"].isin(["Dense", router])]
        costs = costs_of(rows, experts)

        def excess(log_size: float) -> float:
            N = math.exp(log_size)
            held = costs.total(N) + costs.embedding(N)
            numbers = costs.cache(N) / 2 * BATCH * LENGTH
            step = STEP.seconds(router if experts > 1 else "Dense", 3 * costs.flops(N) * BATCH * LENGTH, held, numbers)
            return step * TOKENS / (BATCH * LENGTH) - seconds

        return math.exp(brentq(excess, math.log(1e5), math.log(1e12)))

    def gain(log_hours: float) -> float:
        seconds = HOUR * math.exp(log_hours)
        dense = log_loss("Dense", largest("Hash", 1, seconds), 1)
        return dense - min(log_loss("Hash", largest("Hash", e, seconds), e) for e in (2, 8, 32))

    planned = runs.plan(Budget(HOUR), law="separable", resamples=20, clock=read_clock([path]))
    [ranking] = planned.rankings
    found = {each.router: each for each in ranking.break_evens}
    assert "S-Base beats Dense at any time from 7 min" in repr(planned)
    expected = math.exp(brentq(gain, math.log(found["Hash"].tried[0]), math.log(found["Hash"].tried[1])))
    assert found["Hash"].hours == pytest.approx(expected, rel=0.03)  # sizes and hours are tried in steps
    assert found["Hash"].low <= found["Hash"].hours <= found["Hash"].high
    assert found["Hash"].size == pytest.approx(largest("Hash", 1, HOUR * expected), rel=0.2)
    line = ranking.lines[0]
    assert line.choice.flops <= HOUR * (1 + 1e-9) and planned.to_dict()["budget"]["flops"] is None
    assert planned.to_dict()["rankings"][0]["options"][0]["hours"] == line.choice.flops / HOUR


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--hours", "1e-6", "--throughput", "{path}"], "takes .* seconds for 3.28e"),
        (["--hours", "1", "--throughput", "{other}"], "no timed step has the router S-Base; known: Dense, Hash"),
        (["--hours", "1", "--throughput", "{mixed}"], "use runs of one batch_size and sequence_length"),
    ],
)
def test_hours_without_their_times_are_one_clear_line(path, tmp_path, capsys, flags, said):
    times = read(path).frame
    times[times["router_type"] != "S-Base"].to_csv(tmp_path / "other.csv", index=False)
    times.assign(batch_size=np.where(times["hyper_id"] == 0, 8, BATCH)).to_csv(tmp_path / "mixed.csv", index=False)
    names = {"path": path, "other": tmp_path / "other.csv", "mixed": tmp_path / "mixed.csv"}
    flags = [flag.format(**names) for flag in flags]
    assert main(["plan", str(path), "--law", "separable", "--resamples", "0", *flags]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_probe_varies_each_cost_by_itself_and_times_steps_without_compilation(tmp_path, monkeypatch):
    run = TrainConfig(ModelConfig(router="top_k", experts=16, vocab_size=64), batch_size=2, sequence_length=16)
    runs = probe.probed_runs(run, (32, 64), (2, 4))
    shapes = [(each.model.router, each.model.experts, each.model.d_model, each.model.blocks) for each in runs]
    assert shapes[:2] == [("dense", 1, 32, 2), ("dense", 1, 32, 4)] and shapes[7] == ("top_k", 4, 64, 4)
    masked = TrainConfig(ModelConfig(router="top_k", experts=16, k=8, objective="masked"))
    runs_of_masked = [each.model for each in probe.probed_runs(masked, (32, 64), (2, 4))]
    assert {each.objective for each in runs_of_masked} == {"masked"}, "attention sees both sides in dense models, too"
    assert [each.experts for each in runs_of_masked[4:]] == [8, 16, 16, 8], "at least k"
    clock = iter(np.cumsum([0.0, 0.5] * 100))
    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(probe, "initial_state", lambda config: None)
    metrics = SimpleNamespace(loss=np.array([2.0]))
    monkeypatch.setattr(probe, "make_train_steps", lambda config: lambda state, windows, at: (state, metrics))
    monkeypatch.setattr(probe.jax, "block_until_ready", lambda result: result)
    rows = list(probe.timed_rows(runs[:1]))
    assert rows[0]["wall_seconds"] / rows[0]["step"] == pytest.approx(0.5 / run.steps_per_call)
    write_rows(tmp_path / "times.csv", rows, ("loss_training", *COLUMNS))
    assert read(tmp_path / "times.csv").frame["d_model"].tolist() == [32]


def test_a_probe_refuses_widths_without_heads_and_a_file_that_exists(tmp_path, capsys):
    out = tmp_path / "times.csv"
    assert main(["probe", "--out", str(out), "--widths", "32", "48"]) == 2
    assert "--widths 32 48 is wrong; use two different multiples of 32" in capsys.readouterr().err
    out.write_text("mine")
    assert main(["probe", "--out", str(out)]) == 2 and out.read_text() == "mine"


@pytest.mark.slow  # compiles eight models
def test_a_probe_of_this_machine_serves_a_plan(path, tmp_path, capsys):
    sizes = ["--batch-size", "2", "--sequence-length", "16", "--vocab-size", "64", "--router", "hash"]
    assert (
        main(["probe", "--out", str(tmp_path / "times.csv"), "--widths", "32", "64", "--depths", "2", "4", *sizes]) == 0
    )
    assert len(read(tmp_path / "times.csv")) == 8 and "tokens a step" in capsys.readouterr().out
    rows = ["--rows", "router_type != 'S-Base'", "--resamples", "0", "--law", "separable"]
    assert main(["plan", str(path), "--hours", "1000", "--throughput", str(tmp_path / "times.csv"), *rows]) == 0
