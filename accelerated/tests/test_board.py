"""Logs for TensorBoard: `convert` reads the written values, also after a resumed run."""

import csv
import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.commands.models.train import boards_of
from routelaws.accelerated.tables.trackers.events import event_files
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.sweeps.board import Board, scalars
from routelaws.accelerated.training.watch import silent

from .small_runs import words_of

pytest.importorskip("tensorboard")


def train(out, fields, *flags) -> None:
    assert cli.main(["train", "--out", str(out), *words_of(fields), "--tensorboard", *flags]) == 0


def table_of(path) -> list[dict]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def points(folder) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    return [
        (value.tag, event.step, float(make_ndarray(value.tensor)))
        for file in event_files(folder)
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "scalars"
    ]


@pytest.mark.slow
def test_what_a_run_writes_is_what_convert_reads(small_fields, tmp_path):
    """A run of eight steps loses its last checkpoint, as after a kill, and resumes from step 4."""
    fields = {**small_fields, "steps": 8, "steps_per_call": 2, "evaluations": 2}
    out = tmp_path / "run"
    train(out, fields)
    first = points(out / "tensorboard")
    shutil.rmtree(out / "checkpoints" / "8")
    train(out, fields)
    again = points(out / "tensorboard")
    assert [point[:2] for point in again] == [point[:2] for point in first], "no step appears twice"
    untimed = [p for p in again if p[0] != "train/tokens_per_second"]
    assert untimed == [p for p in first if p[0] != "train/tokens_per_second"]

    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in log if line["kind"] == "train"]
    assert [(step, value) for tag, step, value in again if tag == "train/loss"] == [
        (step, float(np.float32(loss))) for step, loss in losses
    ]
    assert cli.main(["convert", str(out / "tensorboard"), "--out", str(tmp_path / "table.csv")]) == 0
    ours, converted = table_of(out / "results.csv"), table_of(tmp_path / "table.csv")
    assert [row["step"] for row in converted] == [row["step"] for row in ours] == ["4", "8"]
    for mine, theirs in zip(ours, converted, strict=True):
        assert np.float32(mine["loss_validation"]) == np.float32(theirs["loss_validation"])
        for name in ("router_type", "num_experts", "k", "dense_parameter_count", "total_parameter_count", "seed"):
            assert float(mine[name]) == float(theirs[name]) if name != "router_type" else mine[name] == theirs[name]


def test_runs_side_by_side_and_a_log_that_was_cut_back(small_fields, tmp_path):
    """Run 1 is finished. Run 0 is killed within a line, and resumes at step 4."""
    config = from_mapping(small_fields, "test")
    folders = [tmp_path / "a", tmp_path / "b"]
    told, runs = [], {run: (folder, config) for run, folder in enumerate(folders)}
    board = Board(lambda kind, run, **_: told.append((kind, run)), runs)

    def line(step, loss):
        return json.dumps({"kind": "train", "step": step, "loss": loss}) + "\n"

    for folder in folders:
        folder.mkdir()
    (folders[1] / "log.jsonl").write_text(line(2, 1.5))
    board("finished", run=1)
    board("start", run=0)
    (folders[0] / "log.jsonl").write_text(line(4, 3.0) + line(8, 2.75)[:10])
    board("step", run=0, step=4, loss=3.0)
    (folders[0] / "log.jsonl").write_text(line(4, 3.0) + line(8, 2.75))
    for _ in range(2):
        board("evaluation", run=0, step=8, loss=2.75)
    assert points(folders[0]) == [("train/loss", 4, 3.0), ("train/loss", 8, 2.75)]
    board("start", run=0)
    (folders[0] / "log.jsonl").write_text(line(4, 3.0) + line(6, 2.5))
    board("step", run=0, step=6, loss=2.5)
    board("finished", run=0)
    assert points(folders[0]) == [("train/loss", 4, 3.0), ("train/loss", 6, 2.5)]
    assert points(folders[1]) == [("train/loss", 2, 1.5)]
    assert [kind for kind, run in told if run == 0] == [
        "start", "step", "evaluation", "evaluation", "start", "step", "finished",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["--tensorboard"], ["--wandb", "mine"]])
def test_without_the_package_nothing_is_trained(words, tmp_path, capsys, monkeypatch):
    for module in ("tensorboard.summary.writer.event_file_writer", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["train", "--out", str(tmp_path / "run"), *words]) == 2
    line, name = capsys.readouterr().err.strip().splitlines()[-1], words[0][2:]
    assert line == f"routelaws: --{name} needs the package {name}: pip install 'routelaws[{name}]'"
    assert not (tmp_path / "run").exists()


def test_both_boards_of_a_run(small_fields, tmp_path, monkeypatch):
    """A stand-in takes the calls of wandb: the settings, the numbers of each line with their step, and the end."""
    calls = []
    run = SimpleNamespace(log=lambda *a, **b: calls.append((a, b)), finish=lambda: calls.append("finished"))
    stand_in = SimpleNamespace(init=lambda **options: calls.append(options) or run, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    config = from_mapping(small_fields, "test")
    watch = silent
    for project in boards_of(True, "mine"):
        watch = Board(watch, {0: (tmp_path, config)}, project)
    lines = [{"kind": "train", "step": 4, "loss": 3.0}, {"kind": "skipped", "step": 5, "reason": "NaN"}]
    lines += [{"kind": "evaluation", "step": 8, "loss_validation": 2.5}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    watch("evaluation", step=8, loss=2.5)
    watch("finished")
    assert (calls[0]["project"], calls[0]["name"], calls[0]["config"]["d_model"]) == ("mine", config.name(), 8)
    assert calls[1:] == [(({"train/loss": 3.0},), {"step": 4}), (({"loss_validation": 2.5},), {"step": 8}), "finished"]
    assert points(tmp_path) == [("train/loss", 4, 3.0), ("loss_validation", 8, 2.5)]
    assert boards_of(False, None) == []


def test_loads_are_those_of_the_table():
    """Two routed blocks of four experts: half of the tokens is twice a fair share, and one of eight experts idles."""
    line = {"kind": "evaluation", "step": 8, "loss_validation": 2.5, "loss_c4": 3.0}
    line["load"] = [[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]]
    assert scalars(line) == {"loss_validation": 2.5, "loss_c4": 3.0, "load/max": 1.5, "load/idle": 0.125}
    assert scalars({"kind": "skipped", "step": 3, "reason": "NaN"}) == {}
