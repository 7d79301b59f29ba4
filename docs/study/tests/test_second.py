"""The registered prediction of the second study, on a table of its grid with a planted joint law."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from routelaws.accelerated.training.sweeps.sweep import Part, runs_of_part, saving
from routelaws.reference.laws import JointCoefficients, predict_joint

SECOND = Path(__file__).resolve().parents[2] / "study2"
sys.path.insert(0, str(SECOND))

import forecast  # noqa: E402
import tables  # noqa: E402

WEIGHT = 0.06
"""Nats of loss for each nat of copy gain."""

PLANTED = JointCoefficients(170.0, -0.45, -0.1, 0.0, 1.7e5, -0.8, 0.03, 0.0, 1.5, 300.0, 1.2)


def copy_gain(i: int) -> float:
    """Return the copy gain of a run; run 0 does not copy."""
    return 0.1 if i == 0 else np.random.default_rng(1000 + i).uniform(2.3, 2.9)


def losses(run, i: int) -> float:
    """Return the loss of a run by the planted law and its copy gain, with noise."""
    model, size = run.model, run.accounting().dense_parameters
    active, tokens = size + 2 * model.vocab_size * model.d_model, run.steps * run.batch_size * run.sequence_length
    noise = np.random.default_rng(i).normal(0, 0.001)
    return float(predict_joint(active, tokens, model.experts, PLANTED)) * 10**noise + WEIGHT * (2.6 - copy_gain(i))


def test_each_task_trains_one_size_with_all_its_budgets():
    """The file promises this to the Makefile, which leaves out the task of the largest size."""
    widths = [{forecast.GRID.runs[i].model.d_model for i in runs_of_part(forecast.GRID, Part(k, 6))} for k in range(6)]
    assert all(len(each) == 1 for each in widths)
    assert saving(forecast.GRID, Part(0, 6)).startswith("22 of 33 runs train only their decay")
    assert [min(each) for each in widths] == sorted(run.model.d_model for run in forecast.GRID.runs[:6])


def test_the_page_has_the_tables_of_its_runs():
    assert tables.main(["--check"]) == 0


@pytest.mark.slow  # profile intervals of 12 points for each router
def test_a_planted_joint_law_is_registered_once_and_scored(tmp_path, capsys, write_study):
    grid = str(SECOND / "study2.toml")
    small, full = (write_study(tmp_path / f"{flag}.csv", losses, flag, grid) for flag in (False, True))
    out = ["--out", str(tmp_path)]
    gains = "".join(f"{i},{copy_gain(i)}\n" for i in range(len(forecast.GRID.runs)))
    (tmp_path / "copying.csv").write_text(f"hyper_id,copy_gain\n{gains}")
    assert forecast.main(["register", str(full), *out]) == 2 and not (tmp_path / "prediction.json").exists()
    assert "came too early" in capsys.readouterr().err
    assert forecast.main(["register", str(small), *out]) == 0
    assert forecast.main(["register", str(small), *out]) == 2, "a prediction is written once"
    assert forecast.main(["score", str(full), *out]) == 0
    assert json.loads((tmp_path / "prediction.json").read_text())["left_out"] == [0]
    scored = json.loads((tmp_path / "score.json").read_text())
    points = [point for point in scored["points"] if point["law"] == "joint"]
    assert {(point["router"], point["E"]) for point in points} == {
        (router, E) for router in ("Hash", "S-Base", "Top-K") for E in (1, 4, 16, 64)
    }
    assert scored["laws"]["joint"]["mean_percent"] < 1 and scored["laws"]["joint"]["inside"] >= 0.9
    first = points[0]
    assert first["percent"] == pytest.approx([100 * (loss / first["loss"] - 1) for loss in first["measured"]])
    assert len(first["measured"]) == 2, "dense models have two seeds"
    assert [entry["weight"] for entry in scored["copying"]] == pytest.approx([WEIGHT] * 3, abs=0.021)
    errors = np.abs([point["percent"] for entry in scored["copying"] for point in entry["points"]]).mean(axis=0)
    assert errors[1] < 0.7 * errors[0], "with the copy gain, only the noise is left"
    (tmp_path / "README.md").write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("gains", "prediction")))
    full.rename(tmp_path / "results.csv")
    assert tables.main([str(tmp_path), "--check"]) == 1 and tables.main([str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    for point in points:
        low, high = point["run"]
        measured = ", ".join(f"{loss:.3f}" for loss in point["measured"])
        row = [point["router"], point["E"], f"{point['D'] / 1e6:.1f}M", f"{point['loss']:.3f}"]
        assert " | ".join(map(str, [*row, f"{low:.3f} to {high:.3f}", measured])) in page
