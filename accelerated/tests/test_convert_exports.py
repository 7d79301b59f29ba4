"""Conversion of exports of Weights & Biases and TensorBoard, and of several tables."""

import csv
import json
import math
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import routelaws.accelerated as accelerated
from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.selection import select_rows
from routelaws.accelerated.tables.table import read_table, read_tables
from routelaws.accelerated.tables.trackers.convert import convert_runs

RUNS = {"dense-256": (1, 256), "moe8-256": (8, 256), "dense-512": (1, 512)}
SET = {"router_type": "Top-K", "k": "1"}
LOSS = {"loss_validation": "val/loss"}
PAGE = (Path(accelerated.__file__).parents[1] / "docs/columns.md").read_text(encoding="utf-8")
EXAMPLES = PAGE[PAGE.index("## Units of columns") :]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [(run, experts, width, 8, 8) for run, (experts, width) in RUNS.items()]
    write("sizes.csv", [("run", "num_experts", "d_model", "num_blocks", "num_heads"), *rows])
    return tmp_path


def write(path, rows) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def panel(path, metric="val/loss", losses=None, axis="Step") -> str:
    """Write a panel of Weights & Biases: {run: {step: cell}}."""
    losses = losses or {run: {1000: 3.5 + i, 2000: 3.25 + i} for i, run in enumerate(RUNS)}
    steps = sorted({step for cells in losses.values() for step in cells})
    header = [axis, *(f"{run} - {metric}{end}" for run in losses for end in ("", "__MIN", "__MAX"))]
    rows = [[step, *(losses[run].get(step, "") for run in losses for _ in range(3))] for step in steps]
    return write(path, [header, *rows])


def converted(runs, columns=LOSS, out="table.csv", config="sizes.csv", **more):
    done = convert_runs(runs, out, columns, SET, config=config, **more)
    frame = read_table(out)
    Path(out).unlink()
    return frame, done.remarks


def refused(runs, columns=LOSS, config="sizes.csv", **more) -> str:
    before = set(Path().iterdir())
    with pytest.raises(InputError) as caught:
        convert_runs(runs, "table.csv", columns, SET, config=config, **more)
    assert set(Path().iterdir()) == before
    return str(caught.value)


# What the page shows


def test_every_example_of_the_page_does_what_it_says(here, capsys):
    for name, text in re.findall(r"`([\w-]+\.\w+)`:\n\n```\w+\n(.*?)```", EXAMPLES, re.DOTALL):
        Path(name).write_text(text, encoding="utf-8")
    pytest.importorskip("tensorboard")
    for run in ("dense-256", "moe8-256"):
        losses = [(step, "val/loss", 3.5 - step / 1e4) for step in (1000, 2000)]
        write_events(Path("logs", run), losses, {"num_experts": RUNS[run][0], "d_model": 256, "num_blocks": 8} | HEADS)
    examples = re.findall(r"^    routelaws (convert .*)\n\nprints `(.*?)`", EXAMPLES, re.MULTILINE)
    predictions = re.findall(r"^    routelaws (predict .*)\n\ngives (.*?)\. ", EXAMPLES, re.MULTILINE)
    assert (len(examples), len(predictions)) == (8, 1) and EXAMPLES.count("    routelaws ") == 9
    for line, printed in examples:
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out.startswith(f"{printed}; ")
    for line, losses in predictions:
        assert main([*line.split(), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["predictions"]
        assert " and ".join(f"{each['router']} {each['value']:.3f}" for each in said) == losses


# Weights & Biases


def test_panels_of_the_same_runs_are_put_together(here):
    fine = {run: {step: 9.0 for step in range(500, 2001, 500)} for run in RUNS}
    paths = [panel("train.csv", "train/loss", fine), panel("val.csv")]
    frame, remarks = converted(paths, LOSS | {"loss_train": "train/loss"})
    assert len(frame) == 12 and frame["loss_validation"].notna().sum() == 6 and set(frame["loss_train"]) == {9.0}
    frame, remarks = converted(paths)
    assert len(frame) == 6 and "left out: 6 of 12 rows, which have no loss" in remarks
    assert "source" not in frame


def test_a_run_that_diverged_keeps_its_last_row(here):
    """An earlier evaluation would represent a model with less training."""
    losses = {run: {1000: 3.5, 2000: 3.25} for run in RUNS} | {"moe8-256": {1000: 3.4, 2000: "NaN"}}
    write("sizes.csv", [("run", "num_experts", "d_model", "num_blocks", "num_heads"), *[(r, e, 256, 8, 8) for r, e in
          (("dense-256", 1), ("moe8-256", 8), ("dense-512", 8))]])  # fmt: skip
    frame, _ = converted(panel("panel.csv", losses=losses))
    assert len(frame) == 6 and math.isnan(frame["loss_validation"][3])
    (entry,) = select_rows(frame)
    reason = "loss_validation is blank or NaN at the run's last evaluation"
    assert entry.left_out == [{"hyper_id": 1, "reason": reason, "run": "moe8-256"}]


def test_a_panel_of_means_is_said(here):
    rows = [["Step", "small - val/loss", "small - val/loss__MIN", "small - val/loss__MAX"], [10, 3.0, 2.5, 3.5]]
    write("sizes.csv", [("Name", "num_experts", "d_model", "num_blocks", "num_heads"), ("small", 1, 256, 8, 8)])
    _, remarks = converted(write("panel.csv", rows))
    assert remarks[0].startswith(
        "panel.csv: __MIN and __MAX differ from the value of small: the value is a mean over runs"
    )


def test_names_of_runs_with_a_dash_between_spaces(here):
    write("sizes.csv", [("run", "num_experts", "d_model", "num_blocks", "num_heads"), ("a - b", 1, 256, 8, 8)])
    frame, _ = converted(panel("panel.csv", losses={"a - b": {5: 3.0}}))
    assert frame["loss_validation"].tolist() == [3.0]


def test_the_history_of_runs_by_the_api(here):
    rows = [
        {"run": run, "_step": step, "_timestamp": 1.7e9, "_runtime": 1, **losses}
        for run, cut in (("dense-256", 0.0), ("moe8-256", 0.25))
        for step, losses in (
            (1, {"val/loss": 3.5 - cut}), (1, {"lr": 0.1}),  # a log may have several lines for a step
            (2, {"lr": 0.1}), (3, {"val/loss": math.nan}), (4, {}),
        )
    ]  # fmt: skip
    Path("all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame, remarks = converted("all.jsonl")
    assert frame["step"].tolist() == [1, 3] * 2 and frame["loss_validation"].isna().tolist() == [False, True] * 2
    assert "left out: 4 of 8 rows, which have no loss" in remarks
    for run in ("dense-256", "moe8-256"):
        own = [{name: row[name] for name in row if name != "run"} for row in rows if row["run"] == run]
        Path(f"{run}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    pandas.testing.assert_frame_equal(converted(["dense-256.jsonl", "moe8-256.jsonl"])[0], frame)


# TensorBoard's CSV


def scalars(path, rows=((1000, 3.5), (2000, 3.25))) -> str:
    return write(path, [("Wall time", "Step", "Value"), *((1.7e9, step, value) for step, value in rows)])


def test_metrics_from_tensorboard(here):
    paths = [scalars("run-dense-256-tag-val.csv"), scalars("run-moe8-256-tag-val.csv", [(2000, 3.0)])]
    paths += [scalars("run-moe8-256-tag-lr.csv", [(1, 0.1)])]
    frame, remarks = converted(paths, {"loss_validation": "val"})
    assert frame["loss_validation"].tolist() == [3.5, 3.25, 3.0] and frame["num_experts"].tolist() == [1, 1, 8]
    exports = "run-dense-256-tag-val.csv, run-moe8-256-tag-val.csv, run-moe8-256-tag-lr.csv"
    assert f"sizes.csv: these runs are not in {exports}: " in "\n".join(remarks)
    frame, remarks = converted([scalars("dense-512.csv"), scalars("moe8-256.csv")], {"loss_validation": "Value"})
    assert frame["num_experts"].tolist() == [1, 1, 8, 8]
    [named] = [remark for remark in remarks if "a run with the name of the file" in remark]  # once for all files
    assert "if files are metrics of one run, name them run-RUN-tag-METRIC.csv" in named


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(list(RUNS)), st.dictionaries(st.integers(0, 10**7), st.floats(0.5, 12),
       min_size=1, max_size=5), min_size=1))  # fmt: skip
def test_a_panel_and_metrics_of_the_same_log_give_one_table(tmp_path_factory, losses):
    folder = tmp_path_factory.mktemp("log")
    paths = [scalars(folder / f"run-{run}-tag-val.csv", sorted(rows.items())) for run, rows in losses.items()]
    constants, tables = {"router_type": "Hash", "num_experts": "4", "dense_parameter_count": "1e6"}, []
    for runs in (panel(folder / "panel.csv", "val", losses), paths):
        convert_runs(runs, folder / "table.csv", {"loss_validation": "val"}, constants)
        tables.append((folder / "table.csv").read_text())
        (folder / "table.csv").unlink()
    assert tables[0] == tables[1]


# Event files


HEADS = {"num_heads": 8}


def write_events(folder: Path, scalars, hparams=None, tensors=False, wall_time=1e9) -> Path:
    """Write an event file with TensorBoard's own writer: [(step, tag, value)]."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import plugin_data_pb2
    from tensorboard.plugins.scalar.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    before = set(folder.glob("*"))
    writer, value_of = EventFileWriter(str(folder)), summary_pb2.Summary.Value
    if hparams:
        data = plugin_data_pb2.HParamsPluginData(version=0)
        for name, value in hparams.items():
            kind = {str: "string_value", bool: "bool_value"}.get(type(value), "number_value")
            setattr(data.session_start_info.hparams[name], kind, value)
        plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
        metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
        values = [value_of(tag="_hparams_/session_start_info", metadata=metadata)]
        writer.add_event(event_pb2.Event(summary=summary_pb2.Summary(value=values)))
    for step, tag, number in scalars:
        if tensors:
            value = value_of(tag=tag, tensor=make_tensor_proto(np.float32(number)))
            value.metadata.CopyFrom(create_summary_metadata("", ""))
        else:
            value = value_of(tag=tag, simple_value=number)
        writer.add_event(event_pb2.Event(wall_time=wall_time, step=step, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    (file,) = {path for path in folder.iterdir() if path.is_file()} - before
    return file


@pytest.mark.parametrize("tensors", [False, True], ids=["PyTorch", "TensorFlow 2"])
def test_event_files(here, tensors):
    pytest.importorskip("tensorboard")
    for i, run in enumerate(RUNS):
        later = [(1000, "val/loss", 3.2 + i), (2000, "val/loss", 3.3 + i)]
        write_events(Path("logs/all", run), later, None, tensors, wall_time=2e9)
        file = write_events(Path("logs/all", run), [(1000, "val/loss", 3.1 + i), (1500, "lr", 0.1)], None, tensors)
    frame, remarks = converted("logs/all")
    assert frame["step"].tolist() == [1000, 2000] * 3  # the last value of a step counts
    assert frame["loss_validation"].tolist() == [3.2, 3.3, 5.2, 5.3, 4.2, 4.3]  # as short as float32 allows
    assert frame["num_experts"].tolist() == [1, 1, 1, 1, 8, 8]
    assert "left out: 3 of 9 rows, which have no loss" in remarks
    assert converted("logs/all/moe8-256")[0]["num_experts"].tolist() == [8, 8]  # one run, named by its folder
    assert converted(file)[0]["loss_validation"].tolist() == [5.1]  # one file, named by its folder
    write_events(Path("logs/all/moe8-256/more"), [(1000, "lr", 0.1)])  # a run without a loss may be unknown
    assert len(converted("logs/all")[0]) == 6


def test_hyperparameters_of_event_files_are_columns(here):
    pytest.importorskip("tensorboard")
    shape = {"num_blocks": 8, "d_model": 256} | HEADS
    write_events(Path("logs/small"), [(5, "val/loss", 3.5)], shape | {"num_experts": 1, "text": "c4"})
    write_events(Path("logs/wide"), [(5, "val/loss", 3.25)])
    write_events(Path("logs/wide/1767323045.12"), [(0, "hparam/x", 1.0)], shape | {"num_experts": 8, "text": "pile"})
    frame, _ = converted("logs", config=None, keep=("text",))
    assert frame["num_experts"].tolist() == [1, 8] and frame["text"].tolist() == ["c4", "pile"]
    assert frame["dense_parameter_count"].nunique() == 1


def test_a_hyperparameter_that_is_0_or_false_is_not_blank(here):
    pytest.importorskip("tensorboard")
    given = {"num_blocks": 8, "d_model": 256, "num_experts": 1, "seed": 0, "dropout": 0.0, "tied": False} | HEADS
    write_events(Path("logs/small"), [(5, "val/loss", 3.5)], given)
    frame, _ = converted("logs", config=None, keep=("dropout", "tied"))
    assert [frame[name].tolist() for name in ("seed", "dropout", "tied")] == [[0], [0.0], ["False"]]


def test_an_event_file_that_ends_too_early_is_read_as_far_as_it_goes(here):
    pytest.importorskip("tensorboard")
    file = write_events(Path("logs/dense-256"), [(step, "val/loss", 3.5) for step in (1, 2, 3)])
    file.write_bytes(file.read_bytes()[:-5])
    assert converted("logs")[0]["step"].tolist() == [1, 2]


def test_event_files_that_cannot_be_taken(here, monkeypatch):
    pytest.importorskip("tensorboard")
    Path("logs").mkdir()
    assert refused("logs") == "logs: is a folder without results.csv, so it holds no finished run or sweep"
    write_events(Path("logs/a"), [])
    assert refused("logs") == "logs: no scalar in 1 event file; needed: at least one"
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    assert refused("logs") == ("logs: event files need the package tensorboard: pip install 'routelaws[tensorboard]'")


# What is wrong is named


def test_what_is_wrong_in_a_log_is_named_where_it_stands(here):
    losses = {"dense-256": {1000: 3.5, 2000: "oops"}, "moe8-256": {1000: 3.5}}
    message = refused(panel("panel.csv", losses=losses))
    assert message.splitlines()[0] == "panel.csv: 3 problems; nothing was read"
    assert message.splitlines()[1] == "  row 2, column dense-256 - val/loss: 'oops'; needed: a number"
    losses["dense-256"][2000] = -1.0
    assert refused(panel("panel.csv", losses=losses)) == (
        "panel.csv with sizes.csv: run dense-256, step 2000, column loss_validation: '-1.0'; needed: a loss above 1e-12"
    )
    assert refused(scalars("run-a-tag-val.csv", [("x", 3.5)])) == (
        "run-a-tag-val.csv: row 1, column Step: 'x'; needed: a number"
    )
    assert "row 1, column Step: ''; needed: a number that is finite" in refused(scalars("s.csv", [("", 3.5)]))


def test_pieces_that_contradict_each_other(here):
    one, other = panel("one.csv", losses={"a": {5: 3.5}}), panel("other.csv", losses={"a": {5: 3.25}})
    assert refused([one, other]) == (
        "other.csv: val/loss of run a at step 5 is 3.25, but 3.5 in one.csv; needed: one value"
    )
    elsewhere = panel("elsewhere.csv", losses={"b": {5: 3.0}})
    assert "is 3.25, but 3.5 in one.csv;" in refused([elsewhere, one, other])
    assert "is 3.25, but 3.5 in one.csv;" in refused([one, panel("same.csv", losses={"a": {5: 3.5}}), other])
    assert refused([one, panel("tokens.csv", losses={"a": {5: 3.5}}, axis="tokens")]) == (
        "tokens.csv: its rows are by tokens, but the rows of one.csv are by step; export all files with the same x-axis"
    )
    assert refused([one, one]) == "one.csv: is given twice; give it once"


def test_what_a_log_lacks_is_asked_for(here):
    path = panel("panel.csv")
    assert refused(path, {}, None) == (
        "panel.csv: no column is known as a loss; name one with --columns loss_validation=NAME; available: val/loss"
    )
    assert refused(path, config=None) == (
        "panel.csv: columns num_experts, dense_parameter_count are missing; needed: hyper_id, step, router_type, "
        "num_experts, dense_parameter_count; name yours by --columns num_experts=YOURS, or use --set or --config"
    )


def test_the_table_of_runs_that_is_joined(here):
    path, header = panel("panel.csv"), ("num_experts", "run", "dense_parameter_count", "val/loss")
    rows = [(e, run, 1e6 * (i + 1), 0) for i, (run, (e, _)) in enumerate(RUNS.items())]
    frame, remarks = converted(path, config=write("c.csv", [header, *rows, (8, "other", 1e6, 0)]))
    assert frame["num_experts"].tolist() == [1, 1, 8, 8, 1, 1]
    assert "not taken from c.csv, because panel.csv has such a column: val/loss" in remarks
    assert "c.csv: these runs are not in panel.csv: other" in remarks
    assert refused(path, config=write("c.csv", [header, *rows[:1]])) == (
        "c.csv: has no row for moe8-256, dense-512; needed: one for each run of panel.csv"
    )
    assert refused(path, config=write("c.csv", [header, *rows, rows[0]])) == (
        "c.csv: run dense-256 is in 2 rows; needed: one row for each run"
    )
    own = write("own.csv", [("name", "step", "loss_c4"), ("dense-256", 5, 3.5), ("moe8-256", 5, 3.25)])
    frame, _ = converted(own, {"hyper_id": "name"})  # a user's table is joined by its names
    assert frame["num_experts"].tolist() == [1, 8]
    assert refused(own, {}).startswith("own.csv: has no column hyper_id, which joins it to the rows of sizes.csv; ")


# Several tables


def table(path, first, router, losses=(3.5, 3.25, 3.0), **more) -> str:
    names = ["hyper_id", "step", "router_type", "num_experts", "dense_parameter_count", "loss_validation", *more]
    rows = [(first + 10 * i, 100, router, 4, 1e6, loss, *more.values()) for i, loss in enumerate(losses)]
    return write(path, [names, *rows])


def test_several_tables_become_what_fit_reads_of_them(here):
    paths = [table("a.csv", 7, "Hash", seed=1), table("b.csv", 7, "Top-K"), table("c.csv", 0, "Hash", losses=[2.0])]
    done = convert_runs(paths, "table.csv")
    joined, expected = read_table("table.csv"), read_tables(paths)
    pandas.testing.assert_frame_equal(joined[list(expected)], expected, check_exact=True)
    assert joined["source"].tolist() == ["a.csv"] * 3 + ["b.csv"] * 3 + ["c.csv"]
    assert (done.rows, done.runs) == (7, 7) and done.remarks == expected.attrs["remarks"]


def test_each_of_several_tables_is_converted_by_itself(here):
    one = write("one.csv", [("name", "val", "note"), ("x", 3.5, "p"), ("y", 3.25, "q")])
    other = table("other.csv", 3, "Hash")
    columns, constants = {"hyper_id": "name", "loss_validation": "val"}, {"num_experts": "4"}
    constants |= {"router_type": "Top-K", "dense_parameter_count": "1e6"}
    done = convert_runs([one, other, panel("panel.csv", "val")], "table.csv", columns, constants, keep=("note",))
    frame = read_table("table.csv")
    assert frame["loss_validation"].tolist() == [3.5, 3.25, 3.5, 3.25, 3.0, 3.5, 3.25, 4.5, 4.25, 5.5, 5.25]
    assert frame["hyper_id"].tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7]
    assert frame["note"].tolist()[:3] == ["p", "q", ""] and set(frame["router_type"][:2]) == {"Top-K"}
    assert "one.csv: hyper_id: 2 runs, numbered by name in the order of the rows" in done.remarks
    assert "panel.csv: its runs have hyper_id 5 to 7 (before: 0 to 2)" in done.remarks
    Path("table.csv").unlink()
    assert refused([one, other], {"hyper_id": "nam", "loss_validation": "val"}, None) == (
        "--columns hyper_id=nam: one.csv, other.csv has no column nam; did you mean name? available: name, val, note, "
        "hyper_id, step, router_type, num_experts, dense_parameter_count, loss_validation"
    )


def test_a_table_of_runs_is_joined_to_the_tables_that_have_them(here):
    paths = [panel("panel.csv"), table("own.csv", 3, "Hash")]
    frame, _ = converted(paths)
    assert frame["num_experts"].tolist() == [1, 1, 8, 8, 1, 1, 4, 4, 4] and set(frame["d_model"][:6]) == {256, 512}
    other = write("other.csv", [("run", "d_model"), ("x", 256)])
    assert refused(paths, config=other) == "other.csv: has no run of panel.csv, own.csv"


def test_what_is_wrong_in_one_of_several_tables_is_named_with_its_own_row(here):
    paths = [table("a.csv", 0, "Hash"), table("b.csv", 0, "Hash", losses=[3.5, -1.0])]
    assert refused(paths, {}, None) == "b.csv: row 2, column loss_validation: '-1.0'; needed: a loss above 1e-12"
    assert (
        refused([], {}, None) == "nothing to convert is given; needed: a table, an export, or a folder of event files"
    )


# Runs that restarted


BACK = [(1000, 3.5), (2000, 3.25), (3000, 3.1), (1500, 3.4), (2500, 3.2)]
"""Steps and losses in logging order: a run that went back to step 1500."""


def history(path, rows, **more) -> str:
    """Write the history of a run as JSON lines."""
    rows = [{"_step": step, "val/loss": loss, "_timestamp": 1.7e9 + i} | more for i, (step, loss) in enumerate(rows)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_column_that_is_named_for_the_runs_of_a_log_goes_before_their_names(here):
    paths = [history(f"{run}.jsonl", BACK[:2], trial=trial) for run, trial in (("a", 7), ("b", 3))]
    constants = SET | {"num_experts": "8", "dense_parameter_count": "1e6"}
    convert_runs(paths, "table.csv", LOSS | {"hyper_id": "trial"}, constants)
    frame = read_table("table.csv")
    assert frame["hyper_id"].tolist() == [7, 7, 3, 3] and frame["run"].tolist() == ["7", "7", "3", "3"]


def twice_in_an_event_file(rows) -> str:
    pytest.importorskip("tensorboard")
    write_events(Path("logs/moe8-256"), [(step, "val/loss", loss) for step, loss in rows])
    return "logs"


TWICE = {
    "a panel": lambda rows: write("panel.csv", [("Step", "moe8-256 - val/loss"), *rows]),
    "a history": lambda rows: history("moe8-256.jsonl", rows),
    "a metric from TensorBoard": lambda rows: scalars("run-moe8-256-tag-val_loss.csv", rows),
    "an event file": twice_in_an_event_file,
}


@pytest.mark.parametrize("kind", TWICE)
def test_of_two_values_at_a_step_the_later_counts_in_every_kind_of_log(here, kind):
    """A step that is logged twice is no restart, so no row is left out."""
    path = TWICE[kind]([(1000, 3.5), (2000, 3.25), (2000, 3.3)])
    frame, remarks = converted(path, {"loss_validation": "val_loss" if kind.startswith("a metric") else "val/loss"})
    assert frame["step"].tolist() == [1000, 2000] and frame["loss_validation"].tolist() == [3.5, 3.3]
    assert not any("restarted" in remark for remark in remarks)


RESTARTS = {
    "in one file": ([BACK], [1000, 1500, 2500], 2),
    "in a new file": ([BACK[:3], BACK[3:]], [1000, 1500, 2500], 2),
    "at a step that was logged": ([BACK[:3], [(2000, 3.3)]], [1000, 2000], 2),
    "twice": ([BACK[:3], BACK[3:], [(1200, 3.45)]], [1000, 1200], 4),
    "further on": ([BACK[:2], [(3000, 3.1)]], [1000, 2000, 3000], 0),
}


@pytest.mark.parametrize("case", RESTARTS)
def test_the_branch_that_event_files_abandoned_is_left_out(here, case):
    pytest.importorskip("tensorboard")
    files, steps, rows = RESTARTS[case]
    for i, own in enumerate(files):
        write_events(Path("logs/moe8-256"), [(step, "val/loss", loss) for step, loss in own], wall_time=1e9 + i)
    frame, remarks = converted("logs")
    assert frame["step"].tolist() == steps
    assert frame["loss_validation"].tolist()[-1] == files[-1][-1][1]
    said = [remark for remark in remarks if "restarted" in remark]
    assert len(said) == bool(rows) and all(f"({rows} row" in remark for remark in said)


@pytest.mark.parametrize("reached", [1700, 2600])
def test_a_loss_that_was_not_reached_again_goes_with_the_branch(here, reached):
    """The run restarted at step 1500 and stopped before its next evaluation, so step 2000 is not its last."""
    pytest.importorskip("tensorboard")
    first = [(step, tag, 4 - step / 1e4) for step in (1000, 1500, 2000, 2500) for tag in ("lr", "val/loss")]
    write_events(
        Path("logs/moe8-256"), [each for each in first if each[1] == "lr" or each[0] % 1000 == 0], wall_time=1e9
    )
    write_events(Path("logs/moe8-256"), [(1500, "lr", 0.1), (reached, "lr", 0.1)], wall_time=2e9)
    frame, _ = converted("logs")
    assert frame["step"].tolist() == [1000]


def test_metrics_that_count_other_steps_keep_their_rows(here):
    pytest.importorskip("tensorboard")
    events = [(0, "batch", 1.0), (900, "batch", 1.0), (0, "val/loss", 3.5), (0, "batch", 1.0), (900, "batch", 1.0)]
    write_events(Path("logs/moe8-256"), [*events, (1, "val/loss", 3.25), (2, "val/loss", 3.1)])
    assert converted("logs")[0]["step"].tolist() == [0, 1, 2]


def test_sessions_that_start_at_a_step_are_those_of_tensorboard(here):
    """TensorBoard's reader keeps the same values of the same files."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    write_events(Path("logs/moe8-256"), [(step, "val/loss", loss) for step, loss in BACK[:3]], wall_time=1e9)
    writer = EventFileWriter("logs/moe8-256", filename_suffix=".later")
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    writer.add_event(event_pb2.Event(wall_time=2e9, step=1500, session_log=start))
    writer.close()
    found = converted("logs")[0]
    theirs = EventAccumulator("logs/moe8-256").Reload()
    kept = [event.step for event in theirs.Tensors("val/loss")] if "val/loss" in theirs.Tags()["tensors"] else []
    kept = kept or [event.step for event in theirs.Scalars("val/loss")]
    assert found["step"].tolist() == kept == [1000]
