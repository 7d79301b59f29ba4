"""The commands of docs/twelve_runs.md print what the page shows."""

import re
import shlex
import shutil
from pathlib import Path

import pandas
import pytest

import routelaws.accelerated as accelerated

from .small_runs import ran

DOCS = Path(accelerated.__file__).parents[1] / "docs"
PAGE = (DOCS / "twelve_runs.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^    routelaws (.*)\n((?:\n?```\n(?:.*\n)*?```\n)+)", PAGE, re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    shutil.copyfile(DOCS / "twelve_runs/log.csv", tmp_path / "log.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")


def test_each_command_prints_the_lines_of_the_page():
    assert len(STEPS) == 5
    for command, shown in STEPS:
        code, out, err = ran(*shlex.split(command))
        printed = [line.rstrip() for line in (out + err).splitlines()]
        assert code == 0, err
        for line in shown.splitlines():
            assert line in printed or line in ("", "```"), (command, line, out)


def test_the_runs_are_those_of_the_study_and_the_last_table_is_true():
    study = pandas.read_csv(DOCS / "study/results.csv").query("seed == 42 and router_type in ('Dense', 'Hash')")
    losses = study.groupby(["dense_parameter_count", "num_experts"])["loss_validation"]
    log = pandas.read_csv(DOCS / "twelve_runs/log.csv")
    for run in log.itertuples():
        assert run.val_loss in losses.get_group((run.params, run.experts)).round(4).tolist()
    assert ran(*shlex.split(STEPS[0][0]))[0] == 0
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    for experts, predicted, low, high, measured in rows:
        assert float(measured) in losses.get_group((2000640, int(experts))).round(3).tolist()
        _, out, _ = ran("predict", "table.csv", "--n", "2.0M", "--experts", experts)
        numbers = re.search(r"Hash +12 +(\S+) .* (\S+) to (\S+)", out).groups()
        assert [round(float(number), 3) for number in numbers] == [float(each) for each in (predicted, low, high)]
    assert len(rows) == 4
