"""Logs of trainers as their packages write them: rows of one step, runs in several folders, schedules, long tables."""

import csv
import json
import shlex
from pathlib import Path

import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table
from routelaws.accelerated.tables.trackers.convert import convert_runs, parse_pairs

from .test_convert_exports import write_events

SET = {"router_type": "Top-K", "num_experts": "8", "k": "2", "dense_parameter_count": "1e6"}
VALIDATION = {"loss_validation": "val_loss"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = [("dense-256", 1, 256), ("moe8-256", 8, 256), ("dense-512", 1, 512)]
    save("sizes.csv", ("run", "num_experts", "d_model", "num_blocks", "num_heads"), *((*size, 8, 8) for size in sizes))


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


def test_each_log_of_one_file_has_its_approved_table(approved, capsys):
    """A case has a name, the file and flags of `convert`, and the content with ↵ for the end of a line. Its answer has
    the remarks or the error, and the table. Without --set, the case has the settings of `SET`, which are left out.
    """

    def answer(case: str) -> str:
        _, command, content = case.split(" | ")
        file, *flags = shlex.split(command)
        Path(file).write_text(content.replace("↵", "\n"), encoding="utf-8")
        settings = {} if "--set" in flags else SET
        more = ["--set", *map("=".join, settings.items())] * bool(settings)
        code = main(["convert", file, "--out", "out.csv", *flags, *more])
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(", by --set")]
        if code == 0:
            table = pandas.read_csv("out.csv", dtype=str, keep_default_na=False)
            lines += table.drop(columns=[*settings], errors="ignore").to_csv(index=False).splitlines()
            Path("out.csv").unlink()
        assert not Path("out.csv").exists()
        return "\n".join(lines)

    approved.cases("logs.txt", answer)


def refused(runs, columns=VALIDATION, constants=SET, **more) -> str:
    with pytest.raises(InputError) as caught:
        convert_runs(runs, "out.csv", columns, constants, **more)
    return str(caught.value)


# Rows of one step


LIGHTNING = [("epoch", "step", "train_loss", "val_loss"), (0, 49, 3.9, ""), (0, 49, "", 4.0), (0, 99, "nan", ""),
             (0, 99, "", 3.5), (1, 149, 3.3, "")]  # fmt: skip


def test_a_folder_of_logs_asks_for_its_files():
    save("logs/a/metrics.csv", *LIGHTNING)
    assert refused("logs").endswith(
        "; to convert logs, name each file, such as logs/a/metrics.csv (--columns hyper_id=folder joins the files of a"
        " run)"
    )


# Schedules


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
