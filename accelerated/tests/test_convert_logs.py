"""Logs of trainers as their packages write them: rows of one step, runs in several folders, schedules, long tables."""

import csv
import json
from pathlib import Path

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs, parse_pairs

from .test_convert_exports import write_events

SET = {"router_type": "Top-K", "num_experts": "8", "k": "2", "dense_parameter_count": "1e6"}
VALIDATION = {"loss_validation": "val_loss"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(path: str, *rows) -> str:
    """Write CSV, or JSON lines if the rows are dictionaries."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        if isinstance(rows[0], dict):
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            csv.writer(file).writerows(rows)
    return path


def converted(runs, columns=VALIDATION, constants=SET, loss="loss_validation", **more):
    """Return [(run, step, loss)] and the remarks."""
    done = convert_runs(runs, "out.csv", columns, constants, **more)
    frame = read_table("out.csv")
    Path("out.csv").unlink()
    names = frame["run"] if "run" in frame else frame["hyper_id"]
    assert frame["hyper_id"].nunique() == done.runs
    return list(zip(names, frame["step"], frame[loss], strict=True)), "\n".join(done.remarks)


def refused(runs, columns=VALIDATION, constants=SET, **more) -> str:
    with pytest.raises(InputError) as caught:
        convert_runs(runs, "out.csv", columns, constants, **more)
    return str(caught.value)


@pytest.mark.parametrize("name", ["Average", "grand total", "std:", "mean"])
def test_a_row_that_summarises_others_is_no_run(name):
    path = save("table.csv", ("run", "val_loss"), ("a", 3.5), ("max-1", 3.25), (name, 3.375))
    assert (
        refused(path, VALIDATION) == f"table.csv: row 3: {name} seems to summarise rows; delete it, or rename this run"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [("Model,,Results\n,E,loss\na,8,3.2\n", "available: Model, Unnamed: 1, Results; needed: one line of names above"),
     ("3,8,3.2\n4,8,3.1\n", "its first line '3,8,3.2' has no names; needed: a header")],
)  # fmt: skip
def test_a_table_without_a_line_of_names_is_one_line(text, said):
    Path("table.csv").write_text(text)
    assert said in refused("table.csv", {"loss_validation": "loss"})


@pytest.mark.parametrize("blank", ["-", "#N/A", "n/a", "—"])
def test_a_dash_is_a_blank_cell(blank):
    found, remarks = converted(save("table.csv", ("run", "val_loss"), ("a", 3.5), ("b", blank)))
    assert found == [("a", 1, 3.5)] and "no row is left of b" in remarks


# Rows of one step


LIGHTNING = [("epoch", "step", "train_loss", "val_loss"), (0, 49, 3.9, ""), (0, 49, "", 4.0), (0, 99, "nan", ""),
             (0, 99, "", 3.5), (1, 149, 3.3, "")]  # fmt: skip


def test_rows_of_training_and_validation_are_one_evaluation():
    path = save("metrics.csv", *LIGHTNING)
    assert converted(path)[0] == [(0, 49, 4.0), (0, 99, 3.5)]
    rows, remarks = converted(path, VALIDATION | {"loss_train": "train_loss"}, loss="loss_train")
    assert [step for _, step, _ in rows] == [49, 99, 149] and [rows[0][2], rows[2][2]] == [3.9, 3.3]
    timed = [(*row, time) for row, time in zip(LIGHTNING, ("wall_seconds", 1, 2, 3, 4, 5), strict=True)]
    columns = VALIDATION | {"loss_train": "train_loss"}
    assert [seconds for *_, seconds in converted(save("timed.csv", *timed), columns, loss="wall_seconds")[0]] == [
        2,
        4,
        5,
    ]


def test_of_two_evaluations_at_a_step_the_later_counts_in_a_log_of_one_run():
    rows = [{"step": 20, "eval_loss": 3.2}, {"step": 40, "loss": 3.0}, {"step": 40, "eval_loss": 3.1}]
    rows += [{"step": 40, "train_runtime": 1.0}, {"step": 40, "eval_loss": 3.05}]
    columns = {"loss_validation": "eval_loss"}
    found, remarks = converted(save("log.jsonl", *rows), columns)
    assert found == [(0, 20, 3.2), (0, 40, 3.05)] and "at step 40, the later loss counts" in remarks
    every = [{"step": step, "eval_loss": loss} for step, loss in ((20, 3.3), (20, 3.2), (40, 3.1), (40, 3.05))]
    message = refused(save("seeds.jsonl", *every), columns)
    assert "a run without a name has 3.3 and 3.2 in column eval_loss at step 20 (row 1); if two" in message
    texts = [row | {"set": "c4"} for row in rows] + [{"step": 40, "eval_loss": 2.2, "set": "pile"}]
    assert "at step 40 (row 2), in rows that differ in set; if two" in refused(save("sets.jsonl", *texts), columns)
    split = [{"step": 10, "loss": 3.5, "split": "val"}, {"step": 20, "loss": 3.0, "split": "train"}]
    split += [{"step": 20, "loss": 3.4, "split": "val"}]
    found, remarks = converted(save("split.jsonl", *split), {"loss_validation": "loss"})
    assert found == [(0, 10, 3.5), (0, 20, 3.4)] and "loss: left out in rows of train, by the column split" in remarks
    split += [{"step": 30, "loss": 3.3, "split": "test"}]
    said = (
        "split.jsonl: column loss has losses of train and of val, by the column split; delete the rows of all but one"
    )
    assert refused(save("split.jsonl", *split), {"loss_validation": "loss"}) == said
    assert refused(save("split.jsonl", *split[:3]), {"loss_c4": "loss"}) == said
    named = [row | {"run": "a"} for row in rows]
    assert converted(save("named.jsonl", *named), columns | {"hyper_id": "run"})[0] == [("a", 20, 3.2), ("a", 40, 3.05)]


RESTART = [(100, 3.5), (200, 3.4), (300, 3.9), (200, 3.41), (250, 3.39)]
"""Steps and losses in logging order; the run restarted at step 200."""


def restarted(kind: str, rows) -> tuple[str, dict[str, str]]:
    """Write a log as a file of this kind, and return the columns to name."""
    columns = {"loss_validation": "loss"}
    if kind == "unnamed":
        return save("log.jsonl", *({"step": step, "loss": loss} for step, loss in rows)), columns
    if kind == "tokens":
        return save("log.csv", ("run", "tokens", "loss"), *(("a", *row) for row in rows)), columns | {"hyper_id": "run"}
    if kind == "whole numbers":
        return save("log.csv", ("hyper_id", "step", "loss"), *((7, *row) for row in rows)), columns
    long = [("a", step, name, loss - (name == "train")) for step, loss in rows for name in ("loss", "train")]
    long = sorted(long, key=lambda row: row[2]) if kind == "long, by metric" else long
    more = {"hyper_id": "run", "loss_train": "train"}
    return save("log.csv", ("run", "step", "metric", "value"), *long), columns | more


@pytest.mark.parametrize("kind", ["unnamed", "tokens", "whole numbers", "long", "long, by metric"])
def test_a_table_of_a_run_that_restarted_keeps_its_last_branch(kind):
    found, remarks = converted(*restarted(kind, RESTART))
    assert [(step, loss) for _, step, loss in found] == [(100, 3.5), (200, 3.41), (250, 3.39)]
    assert "from step 200 (2 rows)" in remarks
    found, remarks = converted(*restarted(kind, [*RESTART[:2], RESTART[3]]))
    assert [loss for *_, loss in found] == [3.5, 3.41]
    assert kind.startswith("long") or "at step 200, the later loss counts" in remarks


@pytest.mark.parametrize("kind", ["other rows", "the same rows", "both mapped", "long, by metric"])
def test_a_run_that_restarted_and_stopped_before_its_next_evaluation(kind):
    """The loss at step 200 belongs to the abandoned branch."""
    columns = VALIDATION | ({"loss_train": "train"} if kind == "both mapped" else {})
    rows = [(50, "train", 3.9), (100, "val_loss", 3.5), (100, "train", 3.8), (150, "train", 3.7), (200, "train", 3.6),
            (200, "val_loss", 3.4), (110, "train", 3.79), (150, "train", 3.71)]  # fmt: skip
    if kind == "the same rows":
        rows = [{"step": 50, "train": 3.9}, {"step": 100, "train": 3.8, "val_loss": 3.5}, {"step": 150, "train": 3.7},
                {"step": 200, "train": 3.6, "val_loss": 3.4}, {"step": 150, "train": 3.71}]  # fmt: skip
        path = save("log.jsonl", *rows)
    elif kind == "long, by metric":
        path = save("log.csv", ("step", "metric", "value"), *sorted(rows, key=lambda row: row[1]))
    else:
        path = save("log.jsonl", *({"step": step, name: loss} for step, name, loss in rows))
    found, remarks = converted(path, columns)
    if kind == "long, by metric":  # the order of two metrics is not known
        assert [step for _, step, _ in found] == [100, 200]
        return
    assert [(step, loss) for _, step, loss in found if loss == loss] == [(100, 3.5)]
    assert "restarted from an earlier step: a run without a name from step" in remarks


@pytest.mark.parametrize("train", [50, 100])  # at the steps of the evaluations, or at others
@pytest.mark.parametrize(
    "flag, words", [("is_eval", ("False", "True")), ("train", ("1", "0")), ("Val", ("0.0", "1.0"))]
)
def test_a_yes_or_no_that_tells_training_from_validation(train, flag, words):
    rows = ((train, 0), (100, 1), (100 + train, 0), (200, 1))
    rows = [{"step": step, "loss": 3.0 + val, flag: words[val]} for step, val in rows]
    message = refused(save("log.jsonl", *rows), {"loss_validation": "loss"})
    assert f"has losses of rows with {words[0]} and of rows with {words[1]}, by the column {flag}; delete" in message


def test_a_yes_or_no_that_is_a_setting_of_each_run():
    rows = [{"run": run, "step": step, "loss": 3.0, "test": run == "a"} for run in "ab" for step in (100, 200)]
    found, _ = converted(save("log.jsonl", *rows), {"loss_validation": "loss", "hyper_id": "run"})
    assert len(found) == 4


UNCLEAR = {"unsorted": [(100, 3.5), (300, 3.2), (200, 3.4)], "two seeds": [*RESTART[:3], (100, 3.6), (200, 3.41)]}


@pytest.mark.parametrize("case", UNCLEAR)
def test_steps_that_go_back_without_a_repeated_step_or_from_the_first_are_refused(case):
    message = refused(*restarted("tokens", UNCLEAR[case]))
    assert "if it restarted, delete the rows that it abandoned; if the rows are unsorted, sort them" in message


def test_a_metric_that_is_logged_at_other_steps_is_no_restart():
    rows = [("a", step, "train", 3.0) for step in (50, 100, 150, 200)] + [("a", step, *loss) for step, *loss in (
        (100, "loss", 3.5), (200, "loss", 3.4), (200, "loss", 3.3))]  # fmt: skip
    path = save("long.csv", ("run", "step", "metric", "value"), *rows)
    columns = {"hyper_id": "run", "loss_validation": "loss", "loss_train": "train"}
    found, remarks = converted(path, columns)
    assert [found[1][2], found[3][2]] == [3.5, 3.3] and len(found) == 4 and "restarted" not in remarks


@pytest.mark.parametrize(("train", "other", "mixed"), [
    ("Training set", "valid", True), ("train_loss", "held-out", True), ("train", "c4", False),
    ("train-a", "test-b", False),
])  # fmt: skip
def test_losses_of_training_and_validation_in_one_column_are_told_apart_by_a_text(train, other, mixed):
    rows = [{"step": 10 + i, "loss": 3.5 - i / 10, "phase": (train, other)[i % 2]} for i in range(4)]
    path, columns = save("log.jsonl", *rows), {"loss_validation": "loss"}
    if mixed:
        assert [step for _, step, _ in converted(path, columns)[0]] == [11, 13]
        assert len(converted(path, columns | {"hyper_id": "phase"})[0]) == 4
    else:
        assert len(converted(path, columns)[0]) == 4


def test_a_folder_of_logs_asks_for_its_files():
    save("logs/a/metrics.csv", *LIGHTNING)
    assert refused("logs").endswith(
        "; to convert logs, name each file, such as logs/a/metrics.csv (--columns hyper_id=folder joins the files of a"
        " run)"
    )


def test_a_step_that_another_column_replaces_is_no_dropped_column():
    path = save("moe8.csv", ("steps", "val/loss", "_runtime", "_step"), (1000, 3.5, 1, 100), (2000, 3.25, 2, 200))
    found, remarks = converted(path, {"loss_validation": "val/loss", "step": "steps"})
    assert [step for _, step, _ in found] == [1000, 2000] and "dropped" not in remarks


@pytest.mark.parametrize("cell", ["", "NA", "null", "<NA>"])
def test_an_empty_loss_is_no_evaluation(cell):
    rows = [("run", "step", "val_loss"), ("a", 1, 3.5), ("a", 2, cell), ("b", 1, "nan"), ("c", 1, cell)]
    found, remarks = converted(save("log.csv", *rows), VALIDATION | {"hyper_id": "run"})
    assert found[0] == ("a", 1, 3.5) and [run for run, *_ in found] == ["a", "b"]
    assert "left out: 2 of 4 rows, which have no loss; no row is left of c" in remarks
    assert refused(save("none.csv", *rows[:1], rows[4]), VALIDATION) == (
        "none.csv: no row has a loss; blank in every row: val_loss"
    )


def test_a_log_by_epochs_asks_for_its_step():
    path = save("keras.csv", ("epoch", "loss", "val_loss"), (0, 1.0, 3.5), (1, 0.9, "NA"), (2, 0.8, 3.25))
    assert refused(path).endswith("row 1, column step: is blank; needed: step, or tokens, in every row, as by --columns"
                                  " step=epoch")  # fmt: skip
    assert converted(path, VALIDATION | {"step": "epoch"})[0] == [(0, 0, 3.5), (0, 2, 3.25)]


# Schedules


def log_of(rates, steps=(10, 20, 30)):
    return [
        {"step": step, "learning_rate": rate, "val_loss": 4 - step / 100}
        for step, rate in zip(steps, rates, strict=True)
    ]


def test_a_learning_rate_that_changes_within_a_run_is_dropped():
    found, remarks = converted(save("log.jsonl", *log_of([0.3, 0.2, 0.1])))
    assert [run for run, *_ in found] == [0, 0, 0]
    assert "learning_rate: dropped, because it changes within a run" in remarks
    constant = [*log_of([0.3, 0.3], (10, 20)), {"step": 30, "val_loss": 3.5}]
    rates = [rate for *_, rate in converted(save("same.jsonl", *constant), loss="learning_rate")[0]]
    assert rates[:2] == [0.3, 0.3] and rates[2] != rates[2]
    alone = [{"step": 10, "val_loss": 4.0}, {"step": 20, "val_loss": 3.5, "learning_rate": 1e-6}]
    assert "learning_rate: dropped" in converted(save("alone.jsonl", *alone))[1]
    assert "learning_rate" not in converted(save("one.jsonl", *alone[1:]))[1]
    found, _ = converted(save("log.jsonl", *log_of([3, 2, 1])), VALIDATION | {"hyper_id": "learning_rate"})
    assert [run for run, *_ in found] == [3, 2, 1]


def test_rows_without_names_are_one_run_unless_a_flag_says_otherwise():
    last = [{"step": 10 * rate, "num_experts": rate, "val_loss": 3 + rate} for rate in (1, 2, 4)]
    path, constants = save("last.jsonl", *last), {name: SET[name] for name in SET if name not in ("num_experts", "k")}
    message = refused(path, constants=constants)
    assert message.startswith(
        "last.jsonl: no column names the runs, but rows are several runs by num_experts; add --columns hyper"
    )
    assert message.endswith("; --columns hyper_id=row makes each row a run")
    found, _ = converted(path, VALIDATION | {"hyper_id": "row"}, constants)
    assert [(run, step) for run, step, _ in found] == [(0, 10), (1, 20), (2, 40)]
    ids = [row | {"num_experts": 8, "run_id": "ab"[i % 2]} for i, row in enumerate(last)]
    long = [("run_id", "key", "step", "value"), ("a", "val_loss", 1, 3.5), ("b", "val_loss", 1, 3.25)]
    for path in (save("ids.jsonl", *ids), save("long.csv", *long)):
        assert "several runs by run_id; add --columns hyper_id=run_id, with a column" in refused(path)
        assert len({run for run, *_ in converted(path, VALIDATION | {"hyper_id": "run_id"})[0]}) == 2
    ended = [row | {"num_experts": 8, "State": "finished"} for row in last]
    assert "several runs by State; add --columns hyper_id=NAME" in refused(save("ended.jsonl", *ended))
    sweep = [row | {"val_loss": row["val_loss"] + rate} for rate in (0.1, 0.2) for row in log_of([rate] * 3)]
    assert "a run without a name goes back from step 30 (row 3) to 10 (row 4)" in refused(save("sweep.jsonl", *sweep))


# Event files


def folders(**more):
    pytest.importorskip("tensorboard")
    return converted("logs", {"loss_validation": "val/loss"}, **more)


CURVE = [(step, "val/loss", 4 - step / 100) for step in (0, 50, 100)]
HPARAMS = {"num_experts": 8, "lr": 0.1}


@pytest.mark.parametrize("folder", ["1795888620.85", "", "hp"])
@pytest.mark.parametrize("step", [0, 100])
def test_the_metric_of_add_hparams_is_no_evaluation(folder, step):
    pytest.importorskip("tensorboard")
    write_events(Path("logs/moe8"), CURVE, wall_time=1e9)
    write_events(Path("logs/moe8", folder), [(step, "val/loss", 9.0), (step, "hparam/x", 1.0)], HPARAMS, wall_time=2e9)
    constants = {name: value for name, value in SET.items() if name != "num_experts"}
    found, remarks = folders(constants=constants)
    assert found == [("moe8", 0, 4.0), ("moe8", 50, 3.5), ("moe8", 100, 3.0)]
    assert "logs: left out: metrics that add_hparams logged with the hyperparameters, of moe8" in remarks


def test_a_metric_of_add_hparams_that_is_the_only_loss_is_kept():
    pytest.importorskip("tensorboard")
    for run, loss in (("a", 3.5), ("b", 3.25)):
        write_events(Path("logs", run), [])
        write_events(Path("logs", run, "1795888620.85"), [(0, "val/loss", loss)], HPARAMS)
    assert folders()[0] == [("a", 0, 3.5), ("b", 0, 3.25)]


def test_runs_with_hyperparameters_and_one_evaluation_each_are_runs():
    """A run in the given folder itself does not make them parts of it."""
    pytest.importorskip("tensorboard")
    write_events(Path("logs"), [(0, "lr", 0.1), (9, "lr", 0.1)])
    for run, loss in (("a", 3.5), ("b", 3.25)):
        write_events(Path("logs", run), [(1, "val/loss", loss)], HPARAMS)
    assert folders()[0] == [("a", 1, 3.5), ("b", 1, 3.25)]


@pytest.mark.parametrize("form", ["{}_{}", "{}/{}"], ids=["PyTorch", "tensorboardX"])
@pytest.mark.parametrize("tag", ["loss", "eval/loss"])
def test_curves_of_add_scalars_are_metrics_of_one_run(form, tag):
    pytest.importorskip("tensorboard")
    write_events(Path("logs/moe8"), [])
    for curve, loss in (("train", 3.0), ("val", 4.0), ("test_2", 5.0)):
        folder = form.format(tag.replace("/", "_") if "_" in form else tag, curve)
        write_events(Path("logs/moe8", folder), [(10, tag, loss), (20, tag, loss - 0.5)])
    columns = {"loss_validation": f"{tag}/val", "loss_train": f"{tag}/train"}
    assert converted("logs", columns)[0] == [("moe8", 10, 4.0), ("moe8", 20, 3.5)]
    assert converted("logs", columns, loss="loss_train")[0] == [("moe8", 10, 3.0), ("moe8", 20, 2.5)]
    assert f"did you mean {tag}/" in refused("logs", {"loss_validation": tag})


@pytest.mark.parametrize("training", ["train", ".", "test"], ids=["Keras", "Estimator", "no training"])
def test_a_folder_that_may_be_a_part_of_a_run_is_asked_for(training):
    pytest.importorskip("tensorboard")
    for run in ("a", "b"):
        for part, loss in ((training, 3.0), ("validation", 4.0)):
            write_events(Path("logs", run, part), [(10, "epoch_loss", loss)])
    columns = {"loss_validation": "epoch_loss"}
    message = refused("logs", columns)
    assert "--columns loss_validation=validation/epoch_loss, or rename the runs" in message
    for name in ["run"] + ["folder"] * (training != "."):
        assert refused("logs", columns | {"hyper_id": name}) == message
    columns = {"loss_validation": "validation/epoch_loss"}
    if training == "train":  # the hyperparameters of Keras are in the folder above
        for folder in ("a", "b/validation"):
            write_events(Path("logs", folder), [], {"k": 4})
        constants = {name: SET[name] for name in SET if name != "k"}
        assert converted("logs", columns, constants, loss="k")[0] == [("a", 10, 4), ("b", 10, 4)]
    assert converted("logs", columns)[0] == [("a", 10, 4.0), ("b", 10, 4.0)]
    if training != ".":
        assert converted("logs/a", columns)[0] == [("a", 10, 4.0)]
        columns["loss_train"] = f"{training}/epoch_loss"
    rows = [
        (f"{run}/{part}", "epoch_loss", 10, loss)
        for run in "ab"
        for part, loss in ((training, 3.0), ("validation", 4.0))
    ]
    frame = save(
        "scalars.csv", ("run", "tag", "step", "value"), *((run.removesuffix("/."), *row) for run, *row in rows)
    )
    assert refused(frame, {"loss_validation": "epoch_loss"}) == message.replace("logs:", "scalars.csv:")
    assert converted(frame, columns)[0] == [("a", 10, 4.0), ("b", 10, 4.0)]


def test_files_that_may_be_parts_of_a_run_are_asked_for():
    for run in ("moe8", "moe16"):
        paths = [save(f"{run}/{part}.csv", ("step", "loss"), (1, 3.5), (2, 3.25)) for part in ("train", "val")]
    columns = {"loss_validation": "loss"}
    said = "loss is in the runs moe16/train, moe16/val, which seem to be parts of one run; give one of these files"
    for more in ({}, {"hyper_id": "folder"}):
        assert refused(paths, columns | more).startswith(said)
    assert len(converted(["moe8/val.csv", "moe16/val.csv"], columns)[0]) == 4


def versions(*starts, settings=(HPARAMS, HPARAMS, HPARAMS)):
    pytest.importorskip("tensorboard")
    for i, start in enumerate(starts):
        events = [(step, "val/loss", 4 - step / 1000 - i / 100) for step in range(start, start + 200, 100)]
        write_events(Path(f"logs/moe8/version_{i}"), events, settings[i], wall_time=1e9 + 1e3 * i)
    return {name: SET[name] for name in SET if name != "num_experts"}


def test_a_resumed_run_is_joined_by_its_folder():
    constants = versions(100, 150, 350)
    found, remarks = folders(constants=constants)
    assert len({run for run, *_ in found}) == 3
    assert "moe8/version_2 starts at a later step than moe8/version_1; if a resumed run is" in remarks
    found, remarks = converted("logs", {"loss_validation": "val/loss", "hyper_id": "folder"}, constants)
    losses = {step: loss for _, step, loss in found}
    assert {run for run, *_ in found} == {"moe8"} and list(losses) == [100, 150, 250, 350, 450]
    assert losses[250] == pytest.approx(3.74) and "restarted from an earlier step: moe8 from step 150" in remarks


@pytest.mark.parametrize(
    ("names", "said"),
    [(["a", "a-resumed", "ab"], "a, a-resumed seem to be one run, by their names; if so, give all one name"),
     (["a/checkpoint-100", "a/checkpoint-200", "b"], "a/checkpoint-100, a/checkpoint-200 seem to be one run"),
     (["step100", "step200"], "step100, step200 seem to be"), (["a_cont2", "a"], "a_cont2, a seem to be"),
     (["step1000-tokens4B", "step2000-tokens8B"], "step1000-tokens4B, step2000-tokens8B seem to be"),
     (["a-step100", "b-step200", "ab", "a-8", "a-16"], ""), (["a", "a-context"], "")],
)  # fmt: skip
def test_names_that_may_be_of_one_run_have_a_remark(names, said):
    rows = [(name, 4 - i / 10) for i, name in enumerate(names)]
    found, remarks = converted(save("log.csv", ("run", "val_loss"), *rows))
    assert len(found) == len(names) and (said in remarks if said else "seem to be one run" not in remarks)


def test_two_given_folders_of_a_run_are_joined_by_their_folder():
    constants = versions(100, 300)
    given = ["logs/moe8/version_0", "logs/moe8/version_1"]
    found, _ = converted(given, {"loss_validation": "val/loss", "hyper_id": "folder"}, constants)
    assert [(run, step) for run, step, _ in found] == [("moe8", step) for step in (100, 200, 300, 400)]


@pytest.mark.parametrize("case", ["other hyperparameters", "two seeds"])
def test_folders_that_are_other_runs_have_no_remark_and_stay_apart(case):
    if case == "two seeds":
        constants = versions(100, 100)
    else:
        constants = versions(100, 300, settings=(HPARAMS, HPARAMS | {"lr": 0.2}))
    found, remarks = folders(constants=constants)
    assert [run for run, *_ in found] == ["moe8/version_0"] * 2 + ["moe8/version_1"] * 2
    assert "folder" not in remarks


def test_tables_of_a_resumed_run_are_joined_by_their_folder():
    header = ("step", "val_loss")
    paths = [save(f"moe8/version_{i}/metrics.csv", header, *((step, 4 - step / 1000 - i / 100) for step in steps))
             for i, steps in ((2, (300, 400)), (10, (400, 500)), (9, (350, 450)))]  # fmt: skip
    _, remarks = converted(paths)
    assert "version_9/metrics.csv starts at a later step than moe8/version_2/metrics.csv, moe8/version_10" in remarks
    found, remarks = converted(paths, VALIDATION | {"hyper_id": "folder"})
    assert [step for _, step, _ in found] == [300, 350, 400, 500] and found[2][2] == pytest.approx(3.5)
    assert "moe8 from step 400 (2 rows)" in remarks


def test_a_table_of_one_run_is_joined_to_its_facts_by_its_file_or_folder():
    facts = save("sizes.csv", ("run", "num_experts"), ("moe8", 8), ("moe16", 16), ("dense", 1))
    paths = [save(f"{path}.csv", *LIGHTNING) for path in ("moe8/version_0/metrics", "moe16/metrics", "dense")]
    constants = {name: SET[name] for name in ("router_type", "dense_parameter_count")}
    found, _ = converted(paths, config=facts, constants=constants, loss="num_experts")
    assert [(run, experts) for run, _, experts in found[::2]] == [("moe8", 8), ("moe16", 16), ("dense", 1)]


# Other forms


def test_a_long_table_becomes_one_with_a_column_for_each_metric():
    rows = [("a", "val", 1, 3.5), ("a", "train", 1, 3.4), ("b", "val", 1, 3.25)]
    for names in (
        ("tag", "Value"),
        ("variable", "value"),
        ("_field", "_value"),
        ("metric.name", "value"),
        ("metricName", "metricValue"),
    ):
        other = save("other.csv", ("run", names[0], "step", names[1]), *rows)
        assert converted(other, {"hyper_id": "run", "loss_validation": "val"})[0] == [("a", 1, 3.5), ("b", 1, 3.25)]
    path = save("long.csv", ("run", "key", "step", "value"), *rows)
    found, remarks = converted(path, {"hyper_id": "run", "loss_validation": "val", "loss_train": "train"})
    assert found == [("a", 1, 3.5), ("b", 1, 3.25)] and "each key is a column now" in remarks
    assert refused(path, {"hyper_id": "run", "loss_validation": "value"}) == (
        "long.csv: --columns loss_validation=value names no metric: each key is a column now, with the cells of value;"
        " name one of val, train"
    )
    once = save("once.csv", ("run", "metric", "value"), ("a", "val", 3.5), ("a", "lr", 0.1), ("b", "val", 3.25))
    assert converted(once, {"hyper_id": "run", "loss_validation": "val"})[0] == [("a", 1, 3.5), ("b", 1, 3.25)]
    twice = save("twice.csv", ("run", "metric", "value"), ("a", "val", 3.5), ("a", "val", 3.25))
    assert refused(twice, {"hyper_id": "run", "loss_validation": "val"}) == (
        "twice.csv: no column has the step of each metric; name one with --columns step=NAME"
    )
    wide = save("wide.csv", ("key", "step", "value"), ("a", 1, 3.5), ("b", 1, 3.25))
    assert converted(wide, {"hyper_id": "key", "loss_validation": "value"})[0] == [("a", 1, 3.5), ("b", 1, 3.25)]


@pytest.mark.parametrize("first", ["train", "val"])
def test_two_losses_of_one_metric_and_step_in_a_long_table(first):
    parts, columns = ["train", "val"] if first == "train" else ["val", "train"], {"loss_validation": "loss"}
    rows = [(part, "loss", step, 3.5 if part == "train" else 3.75) for step in (100, 200) for part in parts]
    aim = save("aim.csv", ("metric.context.subset", "metric.name", "step", "value"), *rows)
    assert "in rows that differ in metric.context.subset; keep the rows of one of them" in refused(aim, columns)
    times = [("2026-01-02 03:04:05", "loss", 100, 3.5), ("2026-01-02 03:05:06", "loss", 100, 3.75)]
    found, remarks = converted(save("times.csv", ("time", "key", "step", "value"), *times), columns)
    assert found == [("times", 100, 3.75)] and "times.csv: at step 100, the later loss counts" in remarks


def test_json_documents_are_read_or_named():
    log = [{"step": 10, "loss": 3.9}, {"step": 10, "eval_loss": 3.5, "note": None}]
    columns = {"loss_validation": "eval_loss"}
    for document in (log, {"global_step": 10, "log_history": log}):
        for name, indent in (("state.json", 2), ("one.json", None), ("state.jsonl", 2)):
            Path(name).write_text(json.dumps(document, indent=indent))
            assert converted(name, columns)[0] == [(0, 10, 3.5)]
    Path("results.json").write_text(json.dumps({"results": {"arc_easy": {"acc,none": 0.5}}, "config": {}}))
    assert refused("results.json") == (
        "results.json: is one JSON document with the keys results, config, not JSON lines; write one object per row"
        " and line"
    )


def test_keys_with_commas_can_be_named():
    word = {"loss_validation": "word_perplexity,none"}
    assert parse_pairs(["hyper_id=run,loss_validation=word_perplexity,none"], "--columns") == {"hyper_id": "run"} | word
    assert parse_pairs(["loss_validation=a,none,k=K", "step=S"], "--columns") == {
        "loss_validation": "a,none", "k": "K", "step": "S"
    }  # fmt: skip
    with pytest.raises(InputError, match="--columns none is not of the form NAME=VALUE"):
        parse_pairs(["none"], "--columns")
    path = save("table.csv", ("run", "step", "word_perplexity,none", "acc,none", "acc"), ("a", 1, 20.5, 0.25, 0.5))
    convert_runs(path, "kept.csv", word | {"hyper_id": "run"}, SET, "perplexity", ("acc,none", "acc"))
    assert read_table("kept.csv")[["acc,none", "acc"]].to_numpy().tolist() == [[0.25, 0.5]]
    found, remarks = converted(path, word | {"hyper_id": "run"}, loss_unit="perplexity")
    assert found[0][2] == pytest.approx(3.0204248861443626) and "a loss per byte or word, cannot be compared" in remarks


def test_a_history_in_csv_is_one_run_with_the_name_of_its_file():
    rows = [("", "val/loss", "_runtime", "_step"), (0, 3.5, 1, 100), (1, "", 2, 200), (2, 3.25, 3, 300)]
    columns = {"loss_validation": "val/loss"}
    assert converted(save("moe8.csv", *rows), columns)[0] == [("moe8", 100, 3.5), ("moe8", 300, 3.25)]
