"""`fit` and `predict` with the laws of the sum of terms: columns read from a results table, numbers with a meaning."""

import csv
import io
import json
import math

import numpy as np
import pandas as pd
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.hoffmann import HoffmannCoefficients, predict_hoffmann
from routelaws.accelerated.results.rows import COLUMNS, law_columns
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tables.table import RouterRows, select_rows

LAW = HoffmannCoefficients(400.0, 0.34, 2000.0, 0.37, 1.8)
NOISE = 2e-3


def pair(found: dict, name: str) -> list:
    """Return both ends of an interval of a prediction."""
    return [found["intervals"][name]["low"], found["intervals"][name]["high"]]


def dense_runs() -> list[dict]:
    """Return a row for each of 25 dense runs, five sizes with five numbers of tokens each; a routed one besides."""
    random, rows = np.random.default_rng(4), []
    for size in (3e7, 1e8, 3e8, 1e9, 3e9):
        for tokens in (1e9, 4e9, 1.6e10, 6.4e10, 2.56e11):
            loss = float(predict_hoffmann(size, tokens, LAW)) * math.exp(random.normal(0, NOISE))
            rows.append(
                {
                    "hyper_id": len(rows), "step": int(tokens / 2**19), "router_type": "Dense", "num_experts": 1,
                    "dense_parameter_count": int(size), "tokens": int(tokens), "k": 1, "seed": 1,
                    "loss_validation": loss,
                }
            )  # fmt: skip
    return [*rows, rows[0] | {"hyper_id": 99, "router_type": "Hash", "num_experts": 8}]


@pytest.fixture
def table(tmp_path):
    text = io.StringIO()
    rows = dense_runs()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    path = tmp_path / "runs.csv"
    path.write_text(text.getvalue())
    return path


def columns_of(law: str, **columns) -> list[list[float]]:
    frame = pd.DataFrame(columns | {"loss_validation": [3.0] * len(columns["step"])})
    found, _ = law_columns(RouterRows("Hash", frame, []), LAWS[law], "loss_validation")
    return [column.tolist() for column in found]


def test_tokens_are_those_of_the_table_or_steps_of_its_batches():
    size = {"step": [10, 20], "dense_parameter_count": [1e8, 1e8]}
    own = {"batch_size": [4, 8], "sequence_length": [100, 100]}
    assert columns_of("hoffmann", **size, **own) == [[1e8, 1e8], [4000, 16000]]
    assert columns_of("hoffmann", **size, **own, tokens=[777, np.nan])[1] == [777, 16000]
    with pytest.raises(ValueError, match="column tokens is not in the table; the law hoffmann needs it"):
        columns_of("hoffmann", **size)
    with pytest.raises(ValueError, match="column tokens is blank in 1 of 2 rows"):
        columns_of("hoffmann", **size, tokens=[777, np.nan])


def test_active_parameters_count_both_embeddings():
    base = {"step": [1, 1], "dense_parameter_count": [1e8, 2e8], "num_experts": [1, 8], "tokens": [1e9, 1e9]}
    assert columns_of("joint", **base, d_model=[512, 512])[0] == [1e8 + 2 * 32_000 * 512, 2e8 + 2 * 32_000 * 512]
    assert columns_of("joint", **base, d_model=[512, 512], vocab_size=[1000, 1000])[0][1] == 2e8 + 2 * 1000 * 512
    with pytest.raises(ValueError, match="column d_model is not in the table"):
        columns_of("joint", **base)


def test_each_column_of_a_law_follows_from_its_row():
    """A dense run, whose k and G go without saying; two of 8 experts for each token; four of 64, a quarter as wide."""
    frame = pd.DataFrame(
        {
            "step": [10, 20, 30], "dense_parameter_count": [1e8, 1e8, 3e8], "num_experts": [1, 8, 64],
            "k": [np.nan, 2, 4], "granularity": [np.nan, 1, 4], "total_parameter_count": [1e8, 5e8, 4e9],
            "d_model": [512, 512, 1024], "vocab_size": 1000, "batch_size": 4, "sequence_length": 100,
            "flops_per_step": [8e10, 9e10, 2e11], "loss_validation": 3.0,
        }
    )  # fmt: skip
    wanted = {
        "dense_parameters": [1e8, 1e8, 3e8],
        "num_experts": [1, 8, 64],
        "tokens": [4e3, 8e3, 12e3],
        "total_parameters": [1e8, 5e8, 4e9],
        "active_parameters": [1e8 + 1.024e6, 1e8 + 1.024e6, 3e8 + 2.048e6],
        "granularity": [1, 1, 4],
        "sparsity": [0, 0.75, 0.9375],
        "flops": [3 * 8e10 * 10, 3 * 9e10 * 20, 3 * 2e11 * 30],
        "teraflops": [8e10 / 400 * 2048e-12, 9e10 / 400 * 2048e-12, 2e11 / 400 * 2048e-12],
        "utilisation": [1e8 * 400 / 8e10, 5e8 * 400 / 9e10, 4e9 * 400 / 2e11],
    }
    law = LAWS["sparsity"]._replace(columns=tuple(wanted))
    found, _ = law_columns(RouterRows("Hash", frame, []), law, "loss_validation")
    for (name, values), column in zip(wanted.items(), found, strict=True):
        assert column.tolist() == pytest.approx(values, rel=1e-12), name
    assert set(wanted) == {*COLUMNS, "num_experts"}, "a column is missing here"


def test_a_law_of_one_number_of_experts_takes_the_commonest_of_them():
    """Dense runs and those of other E follow other coefficients; a condition that names num_experts goes first."""
    rows = {"router_type": ["Dense", *["Top-K"] * 5, "Hash"], "num_experts": [1, 8, 8, 8, 4, 4, 2]}
    frame = pd.DataFrame(rows | {"hyper_id": range(7), "step": 1, "loss_validation": 3.0, "granularity": 1})
    axes = LAWS["fine-grained"].axes
    fine, other = sorted(select_rows(frame, axes=axes), key=lambda selection: -len(selection.frame))
    assert (fine.router, fine.frame["num_experts"].tolist()) == ("Top-K", [8, 8, 8])
    assert (other.router, other.frame["num_experts"].tolist()) == ("Hash", [2])
    assert [each["reason"] for each in fine.left_out] == [
        "dense, and the law holds for one number of experts", *["num_experts is not the most common of Top-K, 8"] * 2
    ]  # fmt: skip
    named = select_rows(frame, "num_experts in (1, 4)", axes=axes)
    assert [each.frame["num_experts"].tolist() for each in named] == [[1, 4, 4]]


@pytest.mark.slow
def test_fit_finds_the_law_and_predict_its_loss(table, capsys):
    """The record and the JSON of every law: coefficients near those that made the table, with intervals around them."""
    main(["fit", str(table), "--law", "hoffmann", "--json"])
    said = json.loads(capsys.readouterr().out)
    [fit] = said["fits"]
    assert (said["law"], fit["router"], fit["rows"], fit["status"]) == ("hoffmann", "Dense", 25, "interior")
    assert fit["criterion"] == "mean squared difference of log10 losses"
    for name in ("alpha", "beta", "c"):
        ends = fit["coefficients"][name]
        assert ends["low"] < ends["value"] < ends["high"]
        assert ends["low"] < getattr(LAW, name) < ends["high"]
    assert 0.5 < fit["rmsle"] * math.log(10) / NOISE < 1.5 and fit["held_out"]["row"] > fit["rmsle"]
    assert not any("tokens" in warning for warning in fit["cautions"])  # the law knows of them
    assert fit == read(table).fit("hoffmann").to_dict()["fits"][0]
    main(["predict", str(table), "--law", "hoffmann", "--n", "6e8", "--at", "tokens=3e10", "--json"])
    [found] = json.loads(capsys.readouterr().out)["predictions"]
    wanted = float(predict_hoffmann(6e8, 3e10, LAW))
    (low, high), (least, most) = pair(found, "law"), pair(found, "run")
    assert least < low < found["value"] < high < most and low < wanted < high
    assert not any("extrapolation" in warning for warning in found["cautions"])


@pytest.mark.slow
def test_huber_is_in_log10_units(table, capsys):
    main(["fit", str(table), "--law", "hoffmann", "--huber", "4.3e-4", "--json"])
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["criterion"] == "sum of Huber terms of log10 losses, delta = 0.00043"
    assert fit["least_squares"]["coefficients"].keys() == fit["coefficients"].keys() == set(LAW._fields)


@pytest.mark.slow
def test_a_law_with_a_floor_is_not_said_to_have_none(table, capsys):
    from routelaws.accelerated.results.cautions import NO_FLOOR

    main(["predict", str(table), "--law", "hoffmann", "--n", "6e8", "--at", "tokens=3e10"])
    with_floor = " ".join(capsys.readouterr().out.split())
    main(["predict", str(table), "--law", "kaplan", "--n", "6e8", "--at", "tokens=3e10"])
    without = " ".join(capsys.readouterr().out.split())
    assert " ".join(NO_FLOOR.split()) in without and " ".join(NO_FLOOR.split()) not in with_floor
