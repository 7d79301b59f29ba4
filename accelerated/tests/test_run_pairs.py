"""`routelaws report RUN RUN`, on runs with given losses of each window."""

import numpy as np
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.results.sweeps.run_pairs import beside, run_table
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.runs.result_rows import result_row, write_rows
from routelaws.accelerated.training.window_losses import FILE, WindowLosses, as_csv


def make_run(folder, sums, step=1000, document=(0, 1, 2), **fields):
    """Write the folder of a run with a window of 10 tokens for each document, with these summed losses."""
    config = from_mapping(fields)
    windows = WindowLosses(np.arange(3), np.array(document), np.full(3, 10), np.array(sums, np.float64))
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
    """The sums minus those of the first run are (-3, -2, -4), or -0.3 per token.

    The residuals are (0, 1, -1), so the error is √(3/2 · 2)/30.
    """
    first, second, third = beside(runs).runs
    assert (first.loss, first.difference) == (3.0, 0.0)
    assert second.difference == pytest.approx(-0.3) and second.difference_error == pytest.approx(3**0.5 / 30)
    assert second.error == pytest.approx((3 / 2 * ((17 - 27) ** 2 + 1 + 9**2)) ** 0.5 / 30)
    assert third.difference == pytest.approx(1 / 30) and (third.step, third.config.steps) == (500, 1000)


def test_settings_that_differ_are_named_and_no_others(runs):
    found = beside(runs).settings
    assert found["router"] == ["dense", "hash", "dense"] and found["seed"] == [42, 42, 3]
    assert set(found) == {"router", "experts", "capacity_factor", "seed"}
    assert found["capacity_factor"] == [None, 2.0, None]


def test_what_is_printed(runs, capsys, approved):
    assert main(["report", *map(str, runs)]) == 0
    approved("report-of-runs.md", capsys.readouterr().out.replace(f"{runs[0].parent}/", ""))


def test_on_other_windows_no_error_is_known(runs, tmp_path):
    other = make_run(tmp_path / "other", (17, 28, 36), document=(0, 1, 1))
    text = run_table(beside([runs[0], other]))
    assert "-0.3000 | no error, because the windows differ |" in text and "The runs differ in no setting." in text
    assert "not finished" not in text, "both ended at their last step"
    worse = make_run(tmp_path / "worse", (23, 32, 44))
    assert "+0.3000 ± 0.0577 | higher |" in run_table(beside([runs[0], worse]))


def test_runs_that_cannot_be_held_against_each_other(runs, tmp_path):
    with pytest.raises(InputError, match="dense: is given twice"):
        beside([runs[0], runs[1], runs[0]])
    with pytest.raises(InputError, match="holds no run"):
        beside([runs[0], tmp_path])
    (runs[1] / "results.csv").unlink()
    with pytest.raises(InputError, match="hash: has no evaluation yet"):
        beside(runs)
    assert main(["report"]) == 2
