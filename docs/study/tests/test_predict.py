"""The registered prediction, on a table of the study's grid with a planted law."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from routelaws.accelerated.training.runs.result_rows import result_row, write_rows
from routelaws.accelerated.training.sweeps.grid import read_grid
from routelaws.accelerated.training.window_losses import WindowLosses
from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import predict  # noqa: E402

PLANTED = RoutedCoefficients(-0.08, -0.12, 0.012, 1.0, 1.5, 60.0)
GRID = read_grid("study")
LARGEST = max(run.accounting().dense_parameters for run in GRID.runs)


def table(path, with_largest: bool, noise: float = 0.0005):
    """Write the last row of each run of the grid. Dense runs lie on the law of the routed runs at E = 1."""
    random = np.random.default_rng(0)
    windows = WindowLosses(np.arange(2), np.arange(2), np.full(2, 16), np.full(2, 48.0))
    rows = []
    for i, run in enumerate(GRID.runs):
        size = run.accounting().dense_parameters
        loss = float(predict_loss(size, run.model.experts, PLANTED)) * 10 ** random.normal(0, noise)
        if size < LARGEST or with_largest:
            rows.append(result_row(run, i, run.steps, {"validation": loss}, windows, 0.0, np.zeros((0, 0)), 1.0))
    write_rows(path, rows)
    return path


def test_a_planted_law_is_predicted_before_and_scored_after(tmp_path, capsys):
    small, full = table(tmp_path / "small.csv", False), table(tmp_path / "full.csv", True)
    out = ["--out", str(tmp_path)]
    assert predict.main(["register", str(full), *out]) == 2 and not (tmp_path / "prediction.json").exists()
    assert predict.main(["register", str(small), *out]) == 0
    said = json.loads((tmp_path / "prediction.json").read_text())
    points = {(point["router"], point["E"]) for point in said["points"]}
    assert points == {("Dense", 1)} | {(r, e) for r in ("Hash", "S-Base", "Top-K") for e in (2, 4, 16, 64, 128)}
    routed = [point for point in said["points"] if point["E"] > 1]
    for point in routed:
        truth = float(predict_loss(point["N"], point["E"], PLANTED))
        assert abs(point["laws"]["routed-bounded"]["loss"] / truth - 1) < 0.005
        assert point["laws"]["dense"]["loss"] > 1.01 * truth, "a law of the dense runs knows nothing of E"
    assert predict.main(["register", str(small), *out]) == 2, "a prediction is written once"
    assert predict.main(["score", str(full), *out]) == 0
    laws = json.loads((tmp_path / "score.json").read_text())["laws"]
    assert laws["routed-bounded"]["points"] == 15 and laws["routed-bounded"]["mean_percent"] < 0.5
    assert laws["routed-bounded"]["inside"] >= 12 / 15
    assert laws["dense"]["mean_percent"] > 2 * laws["routed-bounded"]["mean_percent"]
    assert "routed-bounded   15 points" in capsys.readouterr().out


def test_the_error_and_the_share_inside_are_those_of_each_run(tmp_path):
    path = table(tmp_path / "full.csv", True)
    rows = {int(row["hyper_id"]): float(row["loss_validation"]) for row in predict.read_table(path).to_dict("records")}
    first, second = 0, 1
    laws = {"dense": {"loss": rows[first] / 1.02, "run_interval": [0, rows[first]]}, "bilinear": {"reason": "none"}}
    laws |= {law: {"reason": "none"} for law in ("routed-bounded", "separable")}
    point = {"router": "Dense", "N": 1.0, "E": 1.0, "runs": [first, second], "laws": laws}
    scored = predict.score(path, {"written": "", "points": [point, point | {"runs": [10**6]}]})
    mean = (rows[first] + rows[second]) / 2
    assert scored["laws"]["dense"]["mean_percent"] == pytest.approx(100 * abs(mean / rows[first] * 1.02 - 1))
    assert scored["points"][0]["laws"]["dense"]["inside"] == [True, rows[second] <= rows[first]]
    assert len(scored["points"]) == 1 and scored["laws"]["bilinear"]["points"] == 0
