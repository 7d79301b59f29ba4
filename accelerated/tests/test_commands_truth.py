"""Outputs of `fit` and `predict` for tables from known laws: values, units and intervals.

The formulas of `plain_laws.py` give the rows and the expected intervals. The tables have few rows, so that a variance
with wrong degrees of freedom shows.
"""

import json
import math
import re

import numpy as np
import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.commands.laws import plan, predict
from routelaws.accelerated.laws.catalogue import LAWS
from routelaws.accelerated.laws.held_out import leave_one_group_out
from routelaws.accelerated.results.blocks import text
from routelaws.accelerated.results.prediction import prediction_blocks
from routelaws.accelerated.results.rows import law_columns
from routelaws.accelerated.results.runs import fits_blocks, read
from routelaws.accelerated.tables.selection import select_rows
from routelaws.conformance.plain.laws import Bounded, Compute, Student, derivatives, quiet_interval
from routelaws.reference.tests.test_laws_coverage import CELLS, COMPUTE, PLACE, USES

from .small_tables import LAW, frame_of, write

GRID = [(size, e) for size in (1e7, 1e8, 1e9) for e in (1.0, 4.0, 16.0, 64.0, 256.0)]


def make_frame(cells, log_loss) -> pandas.DataFrame:
    return frame_of(*np.array(cells).T, 10 ** np.asarray(log_loss))


def make_compute_frame(log_loss, tokens: tuple[int, int] | None, uses=USES) -> pandas.DataFrame:
    """Return a table of `uses`. F is for 2,048 tokens. A step has `tokens` (batch, length), or the released 2^19."""
    flops, used = np.array(uses).T
    per_step = math.prod(tokens) if tokens else 256 * 2048
    frame = make_frame([(5e10, 1.0 if b == 40 else 4096.0) for _, b in uses], log_loss)
    frame["flops_per_step"] = flops * 1e12 / 2048 * per_step
    frame["total_parameter_count"] = flops * 1e12 / 2048 * used
    return frame.assign(batch_size=tokens[0], sequence_length=tokens[1]) if tokens else frame


def noisy(law, cells, noise: float, seed: int) -> np.ndarray:
    return np.array([law.log_loss(*cell) for cell in cells]) + np.random.default_rng(seed).normal(0, noise, len(cells))


def bounded_losses(cells):
    return lambda t: [Bounded(*t).log_loss(*cell) for cell in cells]


def compute_losses(t):
    return [Compute(*t, COMPUTE.B_min).log_loss(*cell) for cell in USES]


def shown(found) -> list[list[str]]:
    blocks = prediction_blocks(found) if hasattr(found, "at") else fits_blocks(found)
    return [re.split(r"  +", line.strip()) for line in text(blocks, 160).splitlines()]


def near(found, wanted, share=3e-3) -> bool:
    """Return whether value, low and high are as expected, within a share of half the interval."""
    return bool(np.all(np.abs(np.subtract(found, wanted)) <= share * (wanted[2] - wanted[1]) / 2))


def ends(item: dict) -> list[float]:
    return [item["value"], item["low"], item["high"]]


# The bounded laws.


def test_fit_says_the_law_in_its_own_units(tmp_path):
    log_loss = noisy(LAW, CELLS, 1e-6, 3)
    [fit] = read(write(make_frame(CELLS, log_loss), tmp_path)).fit(intervals="profile").to_dict()["fits"]
    truth, law = np.array(LAW), bounded_losses(CELLS)
    for i, name in enumerate(Bounded._fields):
        wanted = quiet_interval(law, lambda t, i=i: t[i], truth, log_loss, 0.95)
        assert near(ends(fit["coefficients"][name]), wanted, 1e-2), name
    for size, slope in zip((2e7, 3e8), fit["derived"]["slopes"], strict=True):
        wanted = quiet_interval(law, lambda t, n=size: Bounded(*t).slope(n), truth, log_loss, 0.95)
        assert slope["N"] == size and near(ends(slope), wanted)
    wanted = quiet_interval(law, lambda t: math.log10(Bounded(*t).cutoff()), truth, log_loss, 0.95)
    assert near(np.log10(ends(fit["derived"]["N_cutoff"])), wanted, 1e-2)
    squares = Student(derivatives(law, truth), log_loss - law(truth), 0.95).squares
    assert fit["rmsle"] == pytest.approx(math.sqrt(squares / len(CELLS)), rel=1e-3)


@pytest.mark.parametrize("tokens", [None, (16, 128)])
def test_the_law_in_compute_is_in_teraflops_of_2048_tokens_and_parameters_per_flop(tmp_path, tokens):
    log_loss, truth = noisy(COMPUTE, USES, 1e-6, 5), np.array(COMPUTE[:6])
    path = write(make_compute_frame(log_loss, tokens), tmp_path)
    [fit] = read(path).fit("routed-utilisation", intervals="profile").to_dict()["fits"]
    assert (fit["status"], fit["determined"], fit["rows"]) == ("interior", True, 10)
    assert [each["value"] for each in fit["coefficients"].values()] == pytest.approx(list(COMPUTE), rel=1e-2)
    assert [*fit["coefficients"], *fit["derived"]] == [*Compute._fields, "F_cutoff"]
    for i, name in enumerate(Compute._fields[:6]):
        wanted = quiet_interval(compute_losses, lambda t, i=i: t[i], truth, log_loss, 0.95)
        assert near(ends(fit["coefficients"][name]), wanted, 1e-2), name
    wanted = quiet_interval(compute_losses, lambda t: -t[1] / t[2], truth, log_loss, 0.95)
    assert near(np.log10(ends(fit["derived"]["F_cutoff"])), wanted, 1e-2)
    rows = {row[0]: row for row in shown(read(path).fit("routed-utilisation", intervals="profile")) if len(row) > 2}
    low, high = map(float, rows["B_max"][2].split(" to "))
    assert low < float(rows["B_max"][1]) < high and high - low < 400

    at = {"dense_parameters": None, "num_experts": None, "teraflops": 200.0, "utilisation": 900.0}
    report = read(path).fit("routed-utilisation", level=0.8, intervals="profile").predict(**at)
    [found] = report.to_dict()["predictions"]
    for key, more in (("law", 0.0), ("run", 1.0)):
        wanted = quiet_interval(
            compute_losses, lambda t: Compute(*t, 40.0).log_loss(200.0, 900.0), truth, log_loss, 0.8, more
        )
        assert near(np.log10(ends(found["intervals"][key])), wanted), key
    assert any(row == ["law routed-utilisation, loss_validation, at F = 200, B = 900"] for row in shown(report))


THRICE = [(flops, used) for flops in (30.0, 150.0, 700.0) for used in (40.0, 100.0, 400.0, 1600.0, 6000.0)]
RELEASED = {"routed-utilisation": (15, ("--teraflops", "200", "--utilisation", "900")),
            "bilinear": (13, ("--n", "1e8", "--experts", "16"))}  # fmt: skip
"""The number of the fifteen rows below that a law uses, and the point of its prediction."""


@pytest.mark.parametrize("law", RELEASED)
def test_without_a_table_a_law_of_compute_takes_every_row_and_others_the_rows_clark(law, tmp_path, monkeypatch, capsys):
    rows, where = RELEASED[law]
    if law == "bilinear":
        frame = make_frame(GRID, noisy(LAW, GRID, 1e-4, 5))
    else:
        frame = make_compute_frame(noisy(COMPUTE, THRICE, 1e-4, 5), None, THRICE)
        frame["dense_parameter_count"] = np.repeat([1e10, 5e10, 2.4e11], 5)
    frame = frame.assign(routing_frequency=0.5, k=1, seed=42)
    frame.loc[[1, 2], "k"] = 4
    path = write(frame, tmp_path)
    for command in (plan, predict):
        monkeypatch.setattr(command, "released_runs", lambda rows: path)
    assert main(["predict", "--law", law, *where, "--json"]) == 0
    assert [found["rows"] for found in json.loads(capsys.readouterr().out)["predictions"]] == [rows]
    flags = ("--flops", "1e21", "--no-published", "--resamples", "0", "--json")
    assert main(["plan", "--law", law, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["rankings"][0]["rows"]["Top-K"] == rows
    if law == "bilinear":
        for chosen, kept in (([], rows), (["--rows", "k <= 4"], len(frame))):
            assert main(["plan", "--next", "c", "--law", law, "--json", *chosen]) == 0
            assert json.loads(capsys.readouterr().out)["rows"] == kept


def test_predict_says_the_loss_its_intervals_and_the_dense_size_that_it_is_worth(tmp_path, capsys):
    log_loss, truth, law = noisy(LAW, CELLS, 1e-6, 3), np.array(LAW), bounded_losses(CELLS)
    path = write(make_frame(CELLS, log_loss), tmp_path)
    assert main(["predict", str(path), "--n", "1e9", "--experts", "100", "--level", "0.8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    [found] = said["predictions"]
    assert said["level"] == 0.8 and found["rows"] == 10
    for key, more in (("law", 0.0), ("run", 1.0)):
        wanted = quiet_interval(law, lambda t: Bounded(*t).log_loss(*PLACE), truth, log_loss, 0.8, more)
        assert near(np.log10(ends(found["intervals"][key])), wanted), key
    worth = quiet_interval(law, lambda t: math.log10(Bounded(*t).worth(*PLACE)), truth, log_loss, 0.8)
    assert near(np.log10(ends(found["intervals"]["dense_equivalent"])), worth)
    assert found["cautions"] == ["N = 1e+09 is 3.33 times the largest N of the runs (3e+08), an extrapolation"]
    assert main(["predict", str(path), "--n", "1e9", "--experts", "100", "--level", "0.8"]) == 0
    printed = capsys.readouterr().out
    assert f"same loss as a dense model of N = {LAW.worth(*PLACE):.3g} (" in printed and "80 %, the law" in printed
    assert f"{LAW.loss(*PLACE):.4f}" in printed


# The linear laws: Student's interval, exactly.


def linear_design(name: str, size, experts) -> np.ndarray:
    """Return the design matrix [n, p]. Per-size lines have a slope and a level of each size."""
    x, e, one = np.log10(size), np.log10(experts), np.ones(np.size(size))
    if name == "per-size":
        return np.stack([column for n in (1e7, 1e9) for column in ((size == n) * e, (size == n) * one)], axis=1)
    return np.stack({"dense": [-x, one], "separable": [x, e, one], "bilinear": [x, e, x * e, one]}[name], axis=1)


TWO = [(size, e) for size in (1e7, 1e9) for e in (1.0, 4.0, 32.0, 256.0)]
LINEAR = {
    "dense": ([(n, 1.0) for n in (1e7, 3e7, 1e8, 1e9)], [0.08, 0.08 * 13], (2e8, 1.0)),
    "per-size": (TWO, [-0.05, 0.5, -0.03, 0.3], (1e7, 50.0)),
    "separable": ([(1e7, 1.0), (1e7, 8.0), (1e8, 2.0), (1e8, 64.0), (1e9, 4.0), (1e9, 512.0)], [-0.08, -0.03, 1.1],
                  (2e8, 50.0)),
    "bilinear": (TWO, [-0.08, -0.1, 0.008, 1.1], (2e8, 50.0)),
}  # fmt: skip


def wanted_ranges(name: str, found: Student) -> dict:
    """Return the expected value, low and high end of each result of a linear law, by name and size."""
    unit = np.eye(found.solution.size)
    if name == "per-size":
        keys = [("b", 1e7), ("d", 1e7), ("b", 1e9), ("d", 1e9)]
        return {key: found.interval(line) for key, line in zip(keys, unit, strict=True)}
    names = {"dense": ["alpha"], "separable": ["a", "b", "d"], "bilinear": ["a", "b", "c", "d"]}[name]
    return {(each, None): found.interval(line) for each, line in zip(names, unit, strict=False)}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_laws_have_students_intervals(tmp_path, name):
    cells, truth, at = LINEAR[name]
    design = linear_design(name, *np.array(cells).T)
    log_loss = design @ truth + np.random.default_rng(2).normal(0, 1e-3, len(cells))
    path = write(make_frame(cells, log_loss), tmp_path)
    found = read(path).fit(name, intervals="profile").to_dict()["fits"][0]["coefficients"]
    lines = {
        (name, line["N"]): line for name in ("b", "d") if isinstance(found.get(name), list) for line in found[name]
    }
    for (each, size), wanted in wanted_ranges(name, Student(design, log_loss, 0.95)).items():
        item = found[each] if size is None else lines[each, size]
        assert near(ends(item), wanted, 1e-6), each
    point = {"dense_parameters": at[0], "num_experts": None if name == "dense" else at[1]}
    [said] = read(path).fit(name, level=0.8, intervals="profile").predict(**point).to_dict()["predictions"]
    weights, student = linear_design(name, *np.array([at]).T)[0], Student(design, log_loss, 0.8)
    for key, more in (("law", 0.0), ("run", 1.0)):
        assert near(np.log10(ends(said["intervals"][key])), student.interval(weights, more), 1e-6), key


# Rows of a table.


def test_a_law_of_every_run_keeps_what_others_drop():
    frame = make_frame([(1e7, e) for e in (1.0, 2.0, 4.0, 8.0, 16.0)], np.linspace(0.5, 0.4, 5))
    frame = frame.assign(k=1, routing_frequency=0.5, granularity=1.0, flop_increase=1.0)
    frame.loc[1, ["k", "routing_frequency", "granularity"]] = 4, 0.25, 2.0
    frame.loc[0, "flop_increase"] = 2.0
    kept = {axes: set(select_rows(frame, axes=axes)[0].frame["hyper_id"]) for axes in ("experts", "every")}
    assert kept["every"] == set(frame["hyper_id"][1:]) and kept["experts"] == set(frame["hyper_id"][2:])


def test_released_and_own_runs_in_one_table_have_the_tokens_of_their_own_rows():
    """A released row has no batch size and 2^19 tokens per step. Our rows give their tokens."""
    logs = [COMPUTE.log_loss(flops, used) for flops, used in USES]
    released, own = make_compute_frame(logs, None), make_compute_frame(logs, (16, 64))
    both = pandas.concat([released[:6], own[6:]], ignore_index=True)
    assert both["batch_size"].isna().sum() == 6
    (selection,) = select_rows(both, axes="compute")
    (flops, used), _ = law_columns(selection, LAWS["routed-utilisation"], "loss_validation")
    assert list(zip(flops, used, strict=True)) == [pytest.approx(pair, rel=1e-12) for pair in USES]


def test_a_size_left_out_of_the_law_in_compute_is_one_size_in_N(tmp_path):
    """Runs of the same N with different F, by k or routing, are left out together."""
    logs = [COMPUTE.log_loss(flops, used) for flops, used in USES]
    frame = make_compute_frame(np.array(logs) + np.random.default_rng(3).normal(0, 1e-3, len(USES)), None)
    frame["dense_parameter_count"] = np.tile([2e10, 4e10, 6e10, 8e10, 1e11], 2)  # each with both F, and the same B
    (selection,) = select_rows(frame, axes="compute")
    columns, loss = law_columns(selection, LAWS["routed-utilisation"], "loss_validation")
    groups = selection.frame["dense_parameter_count"].to_numpy()
    by_size, by_flops = (
        leave_one_group_out(LAWS["routed-utilisation"], columns, loss, group).rmsle for group in (groups, columns[0])
    )
    [fit] = read(write(frame, tmp_path)).fit("routed-utilisation").to_dict()["fits"]
    assert fit["held_out"]["size"] == pytest.approx(by_size, rel=1e-9) and by_size != pytest.approx(by_flops)
