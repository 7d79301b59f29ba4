"""Laws of accuracy and of leverage from the command line: tables, tasks, and error messages."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.laws import downstream, leverage
from routelaws.accelerated.results.accuracy_rows import leverage_of_runs
from routelaws.accelerated.results.fit import _optimum_words
from routelaws.accelerated.tables.selection import RouterRows
from routelaws.reference.laws import Range
from routelaws.reference.laws.compute import REGISTERED, RUNS

from .small_tables import frame_of, pair

LAW = downstream.DirectCoefficients(3000.0, 0.18)
FLOPS = np.geomspace(1e18, 1e21, 9)


def values(fit: dict) -> dict:
    return {name: each["value"] for name, each in fit["coefficients"].items()}


@pytest.fixture
def table(tmp_path):
    quiz = downstream.predict_accuracy(LAW, FLOPS, guess_rate=0.25)
    lines = ["run,params,tokens,flops,loss_text,acc_quiz,guess_quiz,acc_code pass@1,acc_code pass@10,"]
    lines[0] += "guess_code pass@1,guess_code pass@10"
    for i, (flops, share) in enumerate(zip(FLOPS, quiz, strict=True)):
        first = 0.1 + 0.02 * i
        size = math.sqrt(flops / 120)
        cells = (size, 20 * size, flops, 60 * flops**-0.07, share, 0.25, first, first + 0.2, 0, 0)
        lines.append(f"run{i}," + ",".join(repr(float(cell)) for cell in cells))
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def said(capsys, *arguments) -> dict:
    assert cli.main([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_own_accuracies_are_fitted_and_predicted(table, capsys):
    found = said(capsys, "fit", table, "--law", "direct", "--task", "quiz")
    [fit] = found["fits"]
    assert (found["measured"], fit["task"], fit["rows"]) == ("accuracy", "quiz", 9)
    assert fit["options"] == {"guess_rate": 0.25}
    assert values(fit) == pytest.approx(LAW._asdict(), rel=1e-9) and fit["cautions"] == []
    alpha = fit["coefficients"]["alpha"]
    assert alpha["low"] <= alpha["value"] <= alpha["high"]
    [other] = said(capsys, "fit", table, "--law", "direct", "--task", "quiz", "--guess-rate", "0")["fits"]
    assert abs(other["coefficients"]["alpha"]["value"] / LAW.alpha - 1) > 0.1
    rates = Path(table).with_name("rates.csv")
    rates.write_text("task,random_accuracy\nquiz,0.125\n")
    [other] = said(capsys, "fit", table, "--law", "direct", "--task", "quiz", "--tasks", str(rates))["fits"]
    assert other["options"] == {"guess_rate": 0.125}

    found = said(capsys, "predict", table, "--law", "direct", "--task", "quiz", "--at", "flops=1e22")
    [fit] = found["predictions"]
    assert fit["value"] == pytest.approx(downstream.predict_accuracy(LAW, 1e22, guess_rate=0.25), rel=1e-9)
    assert ["flops = 1e+22 is 10 times the largest flops of the runs (1e+21), an extrapolation"] == fit["cautions"]
    assert found["at"] == {"flops": 1e22} and found["level"] == 0.95
    assert cli.main(["predict", table, "--law", "direct", "--task", "quiz", "--at", "flops=1e22"]) == 0
    assert "law direct, for accuracy" in capsys.readouterr().out


def test_an_accuracy_that_is_no_share_is_warned_of(table, capsys):
    """The linear law of the loss has no limits: far above the runs it gives more than 1."""
    for flops, wanted in ((1e40, 1), (1e20, 0)):
        flags = ["--law", "two-stage-linear", "--task", "quiz", "--at", f"flops={flops:g}"]
        [fit] = said(capsys, "predict", table, *flags)["predictions"]
        sentence = f"the law gives {fit['value']:.4f}, which is not between 0 and 1, so the law does not hold there"
        assert fit["cautions"].count(sentence) == wanted == (fit["value"] > 1)


def test_many_tasks_are_a_table_without_intervals(table, capsys):
    """With more than three tasks, the output has one line for each task."""
    frame = pandas.read_csv(table)
    for tasks in (3, 4):
        assert cli.main(["fit", table, "--law", "direct"]) == 0
        out = capsys.readouterr().out
        assert ("for intervals, use --json, or --task with one task" in out) == (tasks == 4)
        assert bool(re.search(r"quiz +9 +3e\+03 +0\.18 +0\.0000 +0\.0000", out)) == (tasks == 4), out
        frame.assign(acc_more=frame["acc_quiz"], guess_more=0.25).to_csv(table, index=False)


def test_every_interval_of_a_prediction_is_of_the_level_that_is_asked_for(table, capsys):
    """For nine rows and two coefficients, Student's quantiles are 2.3646 at 95 % and 0.7111 at 50 %."""
    reaches = []
    for level in ("0.95", "0.5"):
        flags = ["--law", "direct", "--task", "code pass@1", "--at", "flops=1e22", "--level", level]
        [fit] = said(capsys, "predict", table, *flags)["predictions"]
        reaches.append([np.ptp(np.log(-np.log(pair(fit, name)))) for name in ("law", "run")])
    assert np.divide(*reaches) == pytest.approx([2.3646 / 0.7111] * 2, rel=1e-3)


def test_rows_without_a_number_are_counted(table, capsys):
    """A law of the loss excludes two runs, without loss or accuracy. The direct law excludes one."""
    path = Path(table)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    lines[1][4] = lines[2][5] = ""
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    for law, blank in (("direct", 1), ("two-stage-linear", 2)):
        arguments = ["fit", table, "--law", law, "--task", "quiz"]
        [fit] = said(capsys, *arguments)["fits"]
        assert (fit["rows"], fit["blank"]) == (9 - blank, blank)
        assert cli.main(arguments) == 0
        assert (
            f"quiz: {9 - blank} rows ({blank} more row{'s' * (blank > 1)} not used: a cell is blank)"
            in capsys.readouterr().out
        )
    [fit] = said(capsys, "fit", table, "--law", "repeated", "--task", "code")["fits"]
    assert (fit["rows"], fit["blank"]) == (18, 0)


def pro_like(tmp_path, task: str) -> str:
    """Write runs whose accuracy rises from a guess rate of 0.1. The smaller runs are below 0.25."""
    lines = [f"params,tokens,acc_{task}"]
    for size in np.geomspace(1e9, 3.2e10, 6):
        for ratio in (20, 60, 200):
            share = 0.1 + 0.9 * math.exp(-1.4 * (2e22 / (6 * size * ratio * size)) ** 0.22)
            lines.append(f"{size},{ratio * size},{share}")
    path = tmp_path / "pro.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("task", "flags", "rate", "warned"),
    [
        ("mmlu_pro", ("--guess-rate", "0.1"), 0.1, []),
        (
            "mmlu_pro",
            ("--guess-rate", "0.25"),
            0.25,
            ["6 of 18 accuracies are more than 0.05 below the guess rate 0.25"],
        ),
    ],
)
def test_the_rate_of_guessing_is_stated(tmp_path, capsys, task, flags, rate, warned):
    """The fit recovers the law if the guess rate is 0.1; otherwise a warning explains the doubt."""
    path = pro_like(tmp_path, task)
    for flops, wanted in ((1e25, 0.730), (1e21, 0.160)):
        words = ("predict", path, "--law", "direct", "--task", task, "--at", f"flops={flops}", *flags)
        [fit] = said(capsys, *words)["predictions"]
        assert fit["options"] == {"guess_rate": rate}
        found = [text for text in fit["cautions"] if "guess rate" in text]
        assert [text[: len(start)] for text, start in zip(found, warned, strict=True)] == warned
        assert (abs(fit["value"] - wanted) < 0.002) == (rate == 0.1)


def test_a_table_of_leverages(tmp_path, capsys):
    grid = [v.ravel() for v in np.meshgrid([1 / 128, 1 / 32, 0.1], [2.0, 4.0, 16.0], [1e18, 3e20])]
    path, rows = tmp_path / "lev.csv", zip(*grid, leverage.leverage(*grid), strict=True)
    lines = [",".join(repr(float(cell)) for cell in row) for row in rows]
    path.write_text("activation,tian_granularity,flops,leverage\n" + "\n".join(lines) + "\n")
    [fit] = said(capsys, "fit", str(path), "--law", "leverage")["fits"]
    assert fit["coefficients"]["A_start"]["value"] == pytest.approx(1.63e-2, rel=1e-6)
    path.write_text("activation,tian_granularity,leverage\n0.1,2,3\n")
    assert cli.main(["fit", str(path), "--law", "leverage"]) == 2
    assert "flops" in capsys.readouterr().err


def test_leverages_of_own_runs_over_the_dense_ones(tmp_path, capsys):
    """Dense runs lie on 50 C^-0.08. A is k/E, and G is half of the table's G."""
    lines = ["hyper_id,step,router_type,num_experts,k,dense_parameter_count,granularity,flops,loss_validation"]
    places = [(k / 64, G, C) for k in (1, 4, 16) for G in (2, 4, 16) for C in (1e18, 3e20)]
    for i, C in enumerate((1e18, 1e20, 1e22)):
        lines.append(f"{i},100,Dense,1,1,1000000,1,{C},{50 * C**-0.08!r}")
    for i, (A, G, C) in enumerate(places):
        dense = float(leverage.leverage(A, G, C)) * C
        lines.append(f"{i + 3},100,Top-K,64,{A * 64:g},1000000,{2 * G},{C},{50 * dense**-0.08!r}")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    [fit] = said(capsys, "fit", str(path), "--law", "leverage")["fits"]
    assert ((fit.get("task") or fit["router"]), fit["rows"]) == ("Top-K", len(places))
    found = values(fit)
    assert found.pop("A_max") == "inf"
    wanted = dict(list(leverage.PUBLISHED._asdict().items())[:5])
    assert found == pytest.approx(wanted, rel=1e-5)
    assert "a power law of the 3 dense runs" in fit["cautions"][0]
    [fit] = said(capsys, "fit", str(path), "--law", "leverage", "--rows", "hyper_id < 19")["fits"]
    assert fit["rows"] == len(places) - 2
    blank = [line.rpartition(",")[0] + "," for line in lines]
    path.write_text("\n".join([*lines[:4], blank[4], *lines[5:]]) + "\n")
    [fit] = said(capsys, "fit", str(path), "--law", "leverage")["fits"]
    assert fit["rows"] == len(places) - 1
    reason = "loss_validation is blank or NaN at the run's last evaluation"
    assert fit["left_out"] == [{"hyper_id": 3, "reason": reason}]
    path.write_text("\n".join([lines[0], *blank[1:3], *lines[3:]]) + "\n")
    assert cli.main(["fit", str(path), "--law", "leverage"]) == 2
    assert "or a column leverage; left out: hyper_id 0, 1: loss_validation is blank" in capsys.readouterr().err
    path.write_text("\n".join([lines[0], *lines[3:]]) + "\n")
    assert cli.main(["fit", str(path), "--law", "leverage"]) == 2
    assert (
        "1 dense run; a leverage needs at least 3 dense runs, with 2 or more different budgets"
        in capsys.readouterr().err
    )


def test_losses_outside_those_of_the_dense_runs_are_counted():
    frame = frame_of(np.full(6, 1e8), np.array([1, 1, 1, 8, 8, 8]), [3.0, 2.5, 2.1, 3.5, 2.4, 2.0])
    frame = frame.assign(flops=[1e18, 1e20, 1e22, 1e18, 1e20, 1e22])
    rows = leverage_of_runs(RouterRows("Top-K", frame, []), "loss_validation")
    assert "by a power law of the 3 dense runs" in rows.remarks[0] and "2 of 3 runs have losses out" in rows.remarks[0]


def test_intervals_are_missing_if_each_has_no_end():
    law = SimpleNamespace(columns=("flops",))
    for ends, missing in (((1.0, math.nan), False), ((math.nan, math.nan), True)):
        intervals = [Range("A", None, 1.0, end, end, "") for end in ends]
        sentences = _optimum_words(SimpleNamespace(status="interior", intervals=intervals, law=law))
        assert bool(sentences) == missing


def test_marins_six_runs_and_the_prediction_that_was_scored(tmp_path, capsys):
    """With the floor 1.6, the fit gives the printed 96.71 and 0.0944 within 2 %. The run interval has only 1e21."""
    lines = ["hyper_id,step,router_type,num_experts,dense_parameter_count,flops,loss_validation"]
    lines += [f"{i},100,Top-K,64,{1e8 * 2**i},{C},{loss}" for i, (C, loss) in enumerate(RUNS)]
    path = tmp_path / "marin.csv"
    path.write_text("\n".join(lines) + "\n")
    [fit] = said(capsys, "fit", str(path), "--law", "compute", "--floor", "1.6")["fits"]
    assert [values(fit)[name] for name in ("A", "alpha")] == pytest.approx((96.71, 0.0944), rel=0.02)
    inside = []
    for run in REGISTERED:
        at = f"flops={run.flops}"
        [said_] = said(capsys, "predict", str(path), "--law", "compute", "--floor", "1.6", "--at", at)["predictions"]
        low, high = pair(said_, "run")
        inside.append(low < run.measured < high)
        assert said_["value"] == pytest.approx(run.measured, rel=0.01)
    assert inside == [True, False], inside
