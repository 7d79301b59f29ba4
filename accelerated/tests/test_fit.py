"""The fit command: exact JSON, readable text, and one clear line for a table that cannot be fitted."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.laws.fitting import fit_routed, fit_weighted
from routelaws.accelerated.laws.routed import RoutedCoefficients, predict_loss
from routelaws.accelerated.report.fit_command import as_dict, fit_report, fit_table, print_fit
from routelaws.conformance.released import released_file

LAW = RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)


def make_table(folder, law=LAW, noise=0.0, experts=(1, 2, 4, 16, 64, 256), loss=None) -> Path:
    """Write a table of one router whose losses follow a law; returns its path."""
    size, count = (v.ravel().astype(float) for v in np.meshgrid([1e7, 1e8, 1e9], experts))
    losses = predict_loss(size, count, law) if loss is None else loss(size, count)
    frame = pandas.DataFrame({
        "hyper_id": range(size.size), "step": 1000, "router_type": np.where(count == 1, "Dense", "Top-K"),
        "num_experts": count, "dense_parameter_count": size,
        "loss_validation": losses * 10 ** np.random.default_rng(0).normal(0, noise, size.size),
    })  # fmt: skip
    frame.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


def shown(report) -> str:
    """Return what `print_fit` prints."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80)
    print_fit(report, console)
    return console.file.getvalue()


def test_the_law_of_a_table_is_found(tmp_path):
    result = fit_table(make_table(tmp_path))
    assert list(result) == ["law", "loss_column", "fits"]
    (fit,) = result["fits"]
    assert list(fit) == ["router", "rows", "left_out", "coefficients", "rmsle", "status", "derived"]
    assert (fit["router"], fit["rows"], fit["left_out"], fit["status"]) == ("Top-K", 18, [], "interior")
    assert list(fit["coefficients"].values()) == pytest.approx(list(LAW), rel=1e-5)
    assert fit["derived"]["N_cutoff"] == pytest.approx(10 ** (0.11 / 0.009), rel=1e-4)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_what_is_infinite_or_not_found_is_null(tmp_path):
    unbounded = fit_table(make_table(tmp_path, LAW._replace(E_max=math.inf, c=-0.001)))["fits"][0]
    assert unbounded["status"] == "E_max unbounded" and unbounded["coefficients"]["E_max"] is None
    assert unbounded["coefficients"]["E_start"] == pytest.approx(2.0, rel=1e-5)
    assert unbounded["derived"]["N_cutoff"] is None
    # Falls faster and faster with E: no saturating law is better than a straight line.
    report = fit_report(make_table(tmp_path, loss=lambda size, count: size**-0.08 * np.exp(5 - (count / 500) ** 1.5)))
    linear = as_dict(report)["fits"][0]
    assert linear["status"] == "linear limit" and set(linear["coefficients"].values()) == {None}
    json.dumps(as_dict(report), allow_nan=False)
    assert "not found" in shown(report) and "-∞ to" in shown(report)


def test_text_for_a_reader(tmp_path):
    path = make_table(tmp_path, noise=1e-3)
    frame = pandas.read_csv(path)
    frame.loc[7, "loss_validation"] = np.nan
    frame.to_csv(path, index=False)
    text = shown(fit_report(path))
    assert "left out: hyper_id 7: loss_validation is blank" in text
    for word in ("Top-K", "E_start", "RMSLE", "interior", "95 % interval", "10,000,000", "1,000,000,000"):
        assert word in text, word
    assert text.count(" to -0.") == 3  # an interval at each size


def test_another_loss_and_rows(tmp_path):
    path = make_table(tmp_path)
    frame = pandas.read_csv(path).assign(loss_c4=lambda f: f["loss_validation"] ** 2)
    frame.to_csv(path, index=False)
    (fit,) = fit_table(path, "routed-bounded", "loss_c4", "num_experts < 200")["fits"]
    assert fit["rows"] == 15 and fit["coefficients"]["a"] == pytest.approx(2 * LAW.a, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [({}, {"law": "chinchilla"}, "law 'chinchilla' is not known; allowed: routed-bounded"),
     ({}, {"rows": "num_experts < 3"}, "router Top-K: 6 rows; .*at least 7"),
     ({"experts": (1, 2, 4)}, {}, "router Top-K: 3 different num_experts"),
     ({}, {"rows": "dense_parameter_count < 2e7 or hyper_id < 2"}, "router Top-K: .* two or more sizes"),
     ({}, {"loss_column": "loss_c4"}, "loss column loss_c4 is not in the table"),
     ({}, {"rows": "clark"}, "rows clark: column routing_frequency is missing")],
)  # fmt: skip
def test_what_cannot_be_fitted(tmp_path, make, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        fit_table(make_table(tmp_path, **make), **arguments)
    assert "\n" not in str(caught.value)


def test_a_weight_counts_a_row(tmp_path):
    frame = pandas.read_csv(make_table(tmp_path, noise=3e-3))
    columns = [frame[name].to_numpy(float) for name in ("dense_parameter_count", "num_experts", "loss_validation")]
    weights = np.ones((3, len(frame)))
    weights[1, 4] = 0
    weights[2, [0, 9]] = 3
    shapes, objectives = fit_weighted(*columns, weights)
    for line, shape, objective in zip(weights.astype(int), shapes, objectives, strict=True):
        one = fit_routed(*(np.repeat(column, line) for column in columns))
        assert objective == pytest.approx(one.objective, rel=1e-10)
        b, c, E_start, E_max = (getattr(one.coefficients, name) for name in ("b", "c", "E_start", "E_max"))
        assert list(shape) == pytest.approx([E_start, E_max, b, c], rel=1e-4)
    with pytest.raises(ValueError, match="weights has shape"):
        fit_weighted(*columns, weights[:, 1:])
    with pytest.raises(ValueError, match="at least 0"):
        fit_weighted(*columns, -weights)


@pytest.mark.released
def test_the_released_table():
    path = released_file("curves.csv.gz")
    fits = {fit["router"]: fit for fit in fit_table(path, rows="clark")["fits"]}
    wanted = {"S-Base": (58, 1.041688462e-05), "RL-R": (59, 1.042800091e-05), "Hash": (56, 8.890275660e-06)}
    assert {router: fit["rows"] for router, fit in fits.items()} == {name: rows for name, (rows, _) in wanted.items()}
    for router, (_, objective) in wanted.items():
        assert fits[router]["rmsle"] ** 2 == pytest.approx(objective, rel=1e-8)
        assert fits[router]["left_out"] == [] and fits[router]["status"] == "interior"
    pile = {fit["router"]: fit for fit in fit_table(path, loss_column="loss_pile", rows="clark")["fits"]}
    assert [run["hyper_id"] for run in pile["Hash"]["left_out"]] == [128, 140, 165] and pile["Hash"]["rows"] == 53
    every = {fit["router"]: fit for fit in fit_table(path)["fits"]}
    assert every["S-Base"]["rows"] == 61  # three more seeds of one dense run
    assert {run["hyper_id"] for run in every["RL-R"]["left_out"]} == {114, 115, 116, 117, 118}
