"""`routelaws report RUN RUN`, on runs with given losses of each window."""

import json
import math

import numpy as np
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.findings.sweeps.chance import difference_error
from routelaws.accelerated.findings.sweeps.run_pairs import at_equal_tokens, beside, run_table, settings_of
from routelaws.accelerated.inspection import run_page
from routelaws.accelerated.inspection.run_page import read_run
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.result_rows import result_row, write_rows
from routelaws.accelerated.training.window_losses import FILE, WindowLosses, as_csv


def make_run(folder, sums, step=1000, document=None, times=3, **fields):
    """Write the folder of a run with windows of 10 tokens and these summed losses, a document each, several times."""
    config, n = from_mapping(fields), 3 * times
    document = np.arange(n) if document is None else np.array(document)
    windows = WindowLosses(np.arange(n), document, np.full(n, 10), np.array(sums * times, np.float64))
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    mean = {"validation": sum(sums) / 30}
    write_rows(folder / "results.csv", [result_row(config, 0, step, mean, windows, 0.0, np.zeros((0, 0)), 1.0)])
    (folder / FILE).write_text(as_csv(windows), encoding="utf-8")
    return folder


@pytest.fixture
def runs(tmp_path):
    return [
        make_run(tmp_path / "dense", (20, 30, 40)),
        make_run(tmp_path / "hash", (17, 28, 36), router="hash", experts=8, capacity_factor=2.0),
        make_run(tmp_path / "half", (21, 29, 41), step=500, seed=3),
    ]


def test_the_difference_is_that_of_the_windows(runs):
    """The sums minus those of the first run are (-3, -2, -4), three times, or -0.3 per token.

    The residuals are (0, 1, -1), three times, so the error is √(9/8 · 6)/90.
    """
    first, second, third = beside(runs).itertuples()
    assert (first.loss, first.difference) == (3.0, 0.0)
    assert second.difference == pytest.approx(-0.3) and second.difference_error == pytest.approx(
        (9 / 8 * 6) ** 0.5 / 90
    )
    assert second.error == pytest.approx((9 / 8 * 3 * ((17 - 27) ** 2 + 1 + 9**2)) ** 0.5 / 90)
    assert third.difference == pytest.approx(1 / 30) and (third.step, third.config.steps) == (500, 1000)


def test_settings_that_differ_are_named_and_no_others(runs):
    found = settings_of(beside(runs)["config"])
    assert found["router"] == ["dense", "hash", "dense"] and found["seed"] == [42, 42, 3]
    assert set(found) == {"router", "experts", "capacity_factor", "seed"}
    assert found["capacity_factor"] == [None, 2.0, None]


def test_a_setting_has_the_value_of_the_run_and_not_its_absence():
    """S-BASE has a capacity factor of 2 by default, HASH none; HASH has no balance loss."""
    routers = {"sinkhorn": {}, "top_k": {"capacity_factor": math.inf, "balance_weight": 0.5}}
    found = settings_of([from_mapping({"experts": 8, "router": name} | more) for name, more in routers.items()])
    assert found == {"router": [*routers], "capacity_factor": [2.0, math.inf], "balance_weight": [None, 0.5]}
    same = [{"router": "hash"}, {"router": "top_k", "capacity_factor": math.inf}]
    assert [*settings_of([from_mapping({"experts": 8} | each) for each in same])] == ["router"]


def test_what_is_printed(runs, capsys, approved):
    assert main(["report", *map(str, runs)]) == 0
    approved("report-of-runs.md", capsys.readouterr().out.replace(f"{runs[0].parent}/", ""))


def test_the_difference_after_the_same_number_of_tokens(runs, tmp_path, capsys):
    """Between 10 and 40 tokens, b falls from 5 to 2 in a line. The last evaluation of a lies beyond those of b."""
    curves = {"a": ([10, 20, 50], [6.0, 4.0, 1.0]), "b": ([10, 40], [5.0, 2.0])}
    frame = at_equal_tokens({name: tuple(map(np.array, curve)) for name, curve in curves.items()})
    found = frame[["run", "tokens", "loss", "difference"]].to_numpy().tolist()
    assert found[:3] == [["a", 10, 6.0, 0.0], ["a", 20, 4.0, 0.0], ["a", 40, 2.0, 0.0]]
    assert found[3:] == [["b", 10, 5.0, -1.0], ["b", 20, 4.0, 0.0], ["b", 40, 2.0, 0.0]]
    lines = [{"kind": "train", "step": step, "loss": 5 - step / 500} for step in range(100, 1001, 100)]
    for folder in runs[:2]:
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out"
    assert main(["report", *map(str, runs[:2]), "--out", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"\n{out / 'comparison.html'}\n")
    shown = json.loads((out / "comparison.json").read_text())
    assert [(row["run"], round(row["difference"], 4)) for row in shown["at_equal_tokens"]] == [
        (str(runs[0]), 0.0), (str(runs[1]), -0.3),
    ]  # fmt: skip
    assert shown["settings"]["experts"] == [1, 8] and shown["runs"][1]["verdict"] == "lower"
    page = (out / "comparison.html").read_text()
    assert page.count("data:image/svg+xml") == 1 and "<td>-0.3000</td>" in page.replace(' class="right"', "")


def test_on_other_windows_no_error_is_known(runs, tmp_path):
    other = make_run(tmp_path / "other", (17, 28, 36), document=(*range(8), 7))
    text = run_table(beside([runs[0], other]))
    assert (
        "-0.3000 | no error: other windows, or too few documents |" in text and "The runs differ in no setting." in text
    )
    assert "not finished" not in text, "both ended at their last step"
    worse = make_run(tmp_path / "worse", (23, 32, 44))
    assert "+0.3000 ± 0.0289 | higher |" in run_table(beside([runs[0], worse]))


@pytest.mark.parametrize(("times", "shown"), [(2, False), (3, True)])
def test_fewer_than_eight_documents_give_no_error(tmp_path, times, shown):
    """Six documents have no ±, and the output says why and what to do; nine have one. The table keeps the number."""
    folders = [
        make_run(tmp_path / name, sums, times=times) for name, sums in (("a", (20, 30, 40)), ("b", (17, 28, 36)))
    ]
    text = run_table(beside(folders))
    assert (" ± " in text.partition("No ±")[0].partition("; ±")[0]) == shown
    said = "only 6 documents: a standard error over fewer than 8 is itself too uncertain. Add text or files"
    assert (said in text) == (not shown) and ("| lower |" in text) == shown
    run, frame = read_run(folders[0])
    assert math.isfinite(frame["standard_error"].iloc[-1]) and math.isfinite(run.standard_error) == shown
    assert ("±" in run_page.about(run), said in " ".join(run_page.notes(run))) == (shown, not shown)
    error = difference_error([run], [read_run(folders[1])[0]])
    assert error == (pytest.approx((9 / 8 * 6) ** 0.5 / 90) if shown else None)


def test_runs_that_cannot_be_held_against_each_other(runs, tmp_path):
    with pytest.raises(InputError, match="dense: is given twice"):
        beside([runs[0], runs[1], runs[0]])
    with pytest.raises(InputError, match="holds no run"):
        beside([runs[0], tmp_path])
    (runs[1] / "results.csv").unlink()
    with pytest.raises(InputError, match="hash: has no evaluation yet"):
        beside(runs)
