"""The predict command: the law's value, its intervals, and a warning if the data do not surround the point."""

import json
import math

import numpy as np
import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.results.blocks import text
from routelaws.accelerated.results.prediction import inside_hull, predict_published, prediction_blocks
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tables import released
from routelaws.reference.laws.catalogue import LAWS

from .small_tables import pair
from .test_fit import make_table


def point(size=None, experts=None, teraflops=None, utilisation=None) -> dict:
    return {"dense_parameters": size, "num_experts": experts, "teraflops": teraflops, "utilisation": utilisation}


@pytest.mark.parametrize(
    ("at", "words"),
    [((3e8, 32.0), []), ((3e9, 32.0), ["N = 3e+09 is 3 times the largest"]),
     ((3e6, 1.0), ["N = 3e+06 is 0.3 times the smallest"]),
     ((1e8, 1e4), ["E = 10000 is 39.1 times the largest"]), ((3e9, 1e4), ["N = ", "E = "])],
)  # fmt: skip
def test_outside_the_data_is_said(tmp_path, at, words):
    (found,) = read(make_table(tmp_path, noise=1e-3)).fit().predict(**point(*at)).predictions
    assert len(found.cautions) == len(words)
    assert all(
        word in warning and "extrapolation" in warning for word, warning in zip(words, found.cautions, strict=True)
    )


def test_a_hole_at_the_corner_of_the_grid_is_outside(tmp_path):
    """Both numbers are within the range of the data, but the data do not surround the corner."""
    fits = read(make_table(tmp_path, noise=1e-3)).where("dense_parameter_count < 1e9 or num_experts < 4").fit()
    warnings = fits.predict(**point(1e9, 200.0)).predictions[0].cautions
    assert len(warnings) == 1 and warnings[0].startswith("no runs surround this point")
    assert not fits.predict(**point(1e8, 200.0)).predictions[0].cautions


def test_the_hull():
    square = (np.array([1.0, 10, 1, 10]), np.array([1.0, 1, 10, 10]))
    assert inside_hull(square, (3.0, 3.0)) and inside_hull(square, (1.0, 10.0)) and not inside_hull(square, (3.0, 11.0))
    line = (np.array([1.0, 10, 100]), np.array([1.0, 10, 100]))
    assert inside_hull(line, (20.0, 20.0)) and not inside_hull(line, (20.0, 21.0))
    assert inside_hull((np.array([1.0, 5.0]),), (2.0,)) and not inside_hull((np.array([1.0, 5.0]),), (6.0,))
    dense_too = (*square, np.array([0.0, 0.0, 0.9, 0.9]))  # a sparsity of 0 has no logarithm
    assert inside_hull(dense_too, (3.0, 1.0, 0.0)) and not inside_hull(dense_too, (3.0, 10.0, 0.0))


def test_a_dense_model_has_a_sparsity_of_0():
    dense = predict_published(LAWS["sparsity"], "abnar", {"total_parameters": 1e9, "tokens": 2e10, "sparsity": 0.0})
    assert round(dense.value, 4) == 2.5657  # as in reference/tests/test_laws_sparsity.py


def test_the_coefficients_of_looped_models_are_in_billions(capsys):
    """At E = 1, Ê is E_start, and the law in billions is a sum of two powers of N/1e9 and D/1e9."""
    point = ["active_parameters=3e9", "tokens=2e11", "num_experts=1"]
    assert main(["predict", "--law", "joint", "--published", "looped", "--json", "--at", *point]) == 0
    found = json.loads(capsys.readouterr().out)
    log = math.log(1.3174)
    first = 0.8085 * 1.3174**-0.1935 * 3 ** (-0.1951 - 0.0137 * log)
    second = 3.4291 * 1.3174**-0.2056 * 200 ** (-0.7548 + 0.0881 * log)
    assert found["value"] == pytest.approx(first + second + 1.3555, rel=1e-12)
    assert main(["predict", "--law", "joint", "--published", "looped", "--at", *point]) == 0
    assert "we infer billions from its numbers" in " ".join(capsys.readouterr().out.split())


def test_text_of_two_routers_says_a_warning_once(tmp_path):

    path = make_table(tmp_path, noise=1e-3)
    frame = pandas.read_csv(path)
    other = frame[frame["num_experts"] > 1].assign(router_type="Other", hyper_id=lambda f: f["hyper_id"] + 100)
    pandas.concat([frame, other]).to_csv(path, index=False)
    report = read(path).fit().predict(**point(5e9, 64.0))
    printed = text(prediction_blocks(report))
    assert printed.count("warning (Other, Top-K)") == 1
    assert [p["router"] for p in report.to_dict()["predictions"]] == ["Other", "Top-K"]


def test_the_released_runs_are_the_default_without_a_network(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ROUTELAWS_DATA", str(tmp_path))
    monkeypatch.setattr(released, "_download", None)  # a download would raise an error
    assert main(["plan", "--flops", "1e21", "--no-published", "--resamples", "0", "--json"]) == 0
    [ranking] = json.loads(capsys.readouterr().out)["rankings"]
    assert ranking["rows"] == {"Hash": 56, "RL-R": 59, "S-Base": 58}
    assert main(["predict", "--n", "370e6", "--experts", "64", "--json"]) == 0
    found = {p["router"]: p for p in json.loads(capsys.readouterr().out)["predictions"]}
    assert {router: p["rows"] for router, p in found.items()} == {"Hash": 56, "RL-R": 59, "S-Base": 58}
    # The runs at 368M with 64 experts have 2.211 (S-BASE) and 2.270 (HASH).
    assert pair(found["S-Base"], "run")[0] < 2.211 < pair(found["S-Base"], "run")[1]
    assert pair(found["Hash"], "run")[0] < 2.270 < pair(found["Hash"], "run")[1]
    assert not any(p["cautions"] for p in found.values())


def test_rows_that_do_not_determine_the_law_are_said_by_huber_too(tmp_path):
    """Losses are linear in E, so the coefficients diverge together."""
    path, at = make_table(tmp_path, noise=1e-4), point(3e8, 32.0)
    frame = pandas.read_csv(path)
    fall = 0.08 * np.log10(frame["dense_parameter_count"]) + 0.05 * frame["num_experts"] / 256
    straight = 10 ** (1.1 - fall + np.random.default_rng(1).normal(0, 3e-3, len(frame)))
    said = "the runs do not determine the law's coefficients; its predictions within the data are still valid"
    for losses in (frame["loss_validation"], straight):
        frame.assign(loss_validation=losses).to_csv(path, index=False)
        [found] = read(path).fit(huber=1e-3).predict(**at).predictions
        assert (said in found.cautions) == (losses is straight) == (not found.fit.determined)


def test_an_interval_that_is_not_there_is_said_in_words(tmp_path):
    report = read(make_table(tmp_path, noise=1e-3)).fit().predict(**point(3e8, 32.0))
    [found] = report.predictions
    nan, inf = math.nan, math.inf
    found = found._replace(law=found.law._replace(low=nan, high=nan), run=found.run._replace(low=1.5, high=inf))
    printed = text(prediction_blocks(report._replace(predictions=[found])))
    assert "not known" in printed and "1.5000 to ∞" in printed and "nan" not in printed
