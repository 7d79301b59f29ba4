"""The registered prediction, on a table of the study's grid with a planted law."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from routelaws.reference.laws.routed import RoutedCoefficients, predict_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import predict  # noqa: E402

PLANTED = RoutedCoefficients(-0.08, -0.12, 0.012, 1.0, 1.5, 60.0)


def losses(run, i: int) -> float:
    """Return the loss of a run by the planted law, with noise. Dense runs lie on the law at E = 1."""
    noise = np.random.default_rng(i).normal(0, 0.0005)
    return float(predict_loss(run.accounting().dense_parameters, run.model.experts, PLANTED)) * 10**noise


def test_a_planted_law_is_predicted_before_and_scored_after(tmp_path, capsys, write_study):
    small, full = write_study(tmp_path / "small.csv", losses, False), write_study(tmp_path / "full.csv", losses)
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
        assert abs(point["laws"]["bilinear from 164K"]["loss"] / point["laws"]["bilinear"]["loss"] - 1) > 1e-5
    assert predict.main(["register", str(small), *out]) == 2, "a prediction is written once"
    assert predict.main(["score", str(full), *out]) == 0
    laws = json.loads((tmp_path / "score.json").read_text())["laws"]
    assert laws["routed-bounded"]["points"] == 15 and laws["routed-bounded"]["mean_percent"] < 0.5
    assert laws["routed-bounded"]["inside"] >= 12 / 15
    assert laws["dense"]["mean_percent"] > 2 * laws["routed-bounded"]["mean_percent"]
    assert "routed-bounded             15 points" in capsys.readouterr().out


def test_the_error_and_the_share_inside_are_those_of_each_run(tmp_path, write_study):
    path = write_study(tmp_path / "full.csv", losses)
    rows = {int(row["hyper_id"]): float(row["loss_validation"]) for row in predict.read_table(path).to_dict("records")}
    first, second = 0, 1
    laws = {"dense": {"loss": rows[first] / 1.02, "run_interval": [0, rows[first]]}, "bilinear": {"reason": "none"}}
    laws = {name: {"reason": "none"} for name in predict.FITS} | laws
    point = {"router": "Dense", "N": 1.0, "E": 1.0, "runs": [first, second], "laws": laws}
    scored = predict.score(path, {"written": "", "points": [point, point | {"runs": [10**6]}]})
    mean = (rows[first] + rows[second]) / 2
    assert scored["laws"]["dense"]["mean_percent"] == pytest.approx(100 * abs(mean / rows[first] * 1.02 - 1))
    assert scored["points"][0]["laws"]["dense"]["inside"] == [True, rows[second] <= rows[first]]
    assert len(scored["points"]) == 1 and scored["laws"]["bilinear"]["points"] == 0
