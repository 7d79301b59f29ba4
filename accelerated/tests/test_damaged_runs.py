"""Damaged, edited or exchanged folders of runs: commands use intact files and print one line for others.

`RUN` is a finished run of a hash router. `MID` is the same run, killed after the checkpoint of step 16. `OTHER`
differs from `RUN` only in its seed.
"""

import contextlib
import csv
import dataclasses
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.findings.sweeps.folder import read_sweep
from routelaws.accelerated.training.configuration import PLACES, from_mapping
from routelaws.accelerated.training.runs import checkpoints, result_rows, run_folder
from routelaws.accelerated.training.runs.record import Record, check_config, read_record, record_in, write_record
from routelaws.accelerated.training.sweeps.sweep_folder import collect_rows
from routelaws.accelerated.training.text.tokenizer import train_tokenizer

from .small_runs import content, make_run, untimed_rows, words_of

PUT_BACK = "; restore it, or delete it and repeat the training command"


class Kill(BaseException):
    """Ends a run like a kill, with the same files."""


@pytest.fixture(scope="module")
def fields(small_fields, tmp_path_factory):
    second = tmp_path_factory.mktemp("text") / "second.txt"
    second.write_text("ba ke lo mi. nu ra so.\n" * 200)
    return {**small_fields, "router": "hash", "experts": 4, "eval": [f"c4={second}"]}


@pytest.fixture(scope="module")
def runs(fields, tmp_path_factory):
    """Return the folders by name. Tests do not change them."""
    below = tmp_path_factory.mktemp("runs")
    made = {name: below / name for name in ("RUN", "MID", "OTHER")}
    make_run(fields, made["RUN"]).train()
    make_run(fields, made["OTHER"], seed=2).train()
    shutil.copytree(made["RUN"], made["MID"])
    shutil.rmtree(made["MID"] / "checkpoints" / "24")
    record = record_in(checkpoints.Checkpoints(made["MID"] / "checkpoints", print).beside())
    write_record(made["MID"], record)
    result_rows.write_rows(made["MID"] / "results.csv", record.rows)
    log = (made["MID"] / "log.jsonl").read_bytes()
    (made["MID"] / "log.jsonl").write_bytes(log[: record.log["bytes"]] + b'{"kind": "train", "st')
    return made


@pytest.fixture
def folder(runs, tmp_path, request):
    return Path(shutil.copytree(runs[request.param], tmp_path / request.param))


@pytest.fixture
def do(fields, capsys, runs):
    def run(command: str, folder: Path) -> tuple[int, str, list[str]]:
        more = {"train": ["--out", folder, *words_of(fields)], "report": [runs["OTHER"], folder]}
        more |= {"generate": [folder, "--tokens", 3]}
        code = cli.main([command, *map(str, more.get(command, [folder]))])
        said = capsys.readouterr()
        return code, said.out, said.err.splitlines()

    return run


# DAMAGE


def edit(name: str, old: str, new: str):
    def change(folder: Path, runs: dict) -> None:
        before, found, after = (folder / name).read_text().rpartition(old)
        assert found
        (folder / name).write_text(before + new + after)

    return change


def fill(name: str, content: str | bytes):
    return lambda folder, runs: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def add(name: str, more: str):
    return lambda folder, runs: (folder / name).write_text((folder / name).read_text() + more)


def cut(name: str, size: int):
    return lambda folder, runs: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def flip(name: str):
    def change(folder: Path, runs: dict) -> None:
        found = bytearray((folder / name).read_bytes())
        found[-4] ^= 1
        (folder / name).write_bytes(found)

    return change


def remove(*names: str):
    def change(folder: Path, runs: dict) -> None:
        for name in names:
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()

    return change


def exchange(name: str, other: str = "OTHER"):
    def change(folder: Path, runs: dict) -> None:
        remove(name)(folder, runs)
        copy = shutil.copytree if (runs[other] / name).is_dir() else shutil.copyfile
        copy(runs[other] / name, folder / name)

    return change


def table(change):
    """Return a change that saves another array instead of the hash table."""
    return lambda folder, runs: np.save(folder / "hash_table.npy", change(np.load(folder / "hash_table.npy")))


def lines(name: str, change):
    def apply(folder: Path, runs: dict) -> None:
        found = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(change(found)))

    return apply


def another_tokenizer(folder: Path, runs: dict) -> None:
    text = "zu ma pe. tola fi gesu\n" * 40
    (folder / "tokenizer.model").write_bytes(train_tokenizer([text + str(i) * 9 for i in range(300, 400)], 300))


def both(*changes):
    return lambda folder, runs: [change(folder, runs) for change in changes]


IN_RECORD, IN_24 = " in record.json" + PUT_BACK, " in the checkpoint of step 24" + PUT_BACK
READS = ("evaluate", "generate", "train", "report")

LAST_LINES = {
    "5\n": "its content is 5; an object is needed; restore it, or move it away to start a new log",
    "5": "its content is 5; an object is needed; restore it",
    "null\n": "its content is null; an object is needed; restore it",
    "[]\n": "its content is []; an object is needed; restore it",
    '{"kind": "train", "st': "is not valid JSON: ",
    "\n": "is not valid JSON: ",
    '{"kind": "train", "step": 24}\n': "is of step 24, but no step is left; restore it, or move it away",
}
"""Lines after the log of a finished run, and their messages."""

ERRORS = {
    # config.json
    "activation": ("RUN", READS, edit("config.json", '"gelu"', '"relu"'),
                   "config.json: activation is 'relu', but 'gelu'" + IN_RECORD),
    "experts": ("RUN", ("evaluate",), edit("config.json", '"experts": 4', '"experts": 8'),
                "config.json: experts is 8, but 4" + IN_RECORD),
    "d_model 1e9": ("RUN", ("evaluate",), edit("config.json", '"d_model": 8', '"d_model": 1000000000'),
                    "config.json: the model has 5e+19 parameters; allowed: at most 9.01e+15"),
    "NaN": ("RUN", ("evaluate",), edit("config.json", '"warmup": 0.05', '"warmup": NaN'),
            "config.json: is not valid JSON: NaN is not a finite number"),
    "no record.json either": ("RUN", ("evaluate", "generate"),
                              both(edit("config.json", '"gelu"', '"relu"'), remove("record.json")), None),
    # hash_table.npy
    "ids below 0": ("RUN", ("evaluate",), table(lambda ids: ids - 1),
                    "hash_table.npy: has experts from -1 to 2; the model has 0 to 3" + PUT_BACK),
    "ids too large": ("RUN", ("evaluate", "train"), table(lambda ids: ids + 1),
                      "hash_table.npy: has experts from 1 to 4; the model has 0 to 3" + PUT_BACK),
    "five rows": ("RUN", ("evaluate",), table(lambda ids: ids[:5]),
                  "hash_table.npy: holds int32 (5, 1); int32 (300, 1) is needed" + PUT_BACK),
    "one bit": ("RUN", ("evaluate", "train"), flip("hash_table.npy"),
                "hash_table.npy: is not the hash table of the checkpoint of step 24" + PUT_BACK),
    "table cut": ("MID", ("train",), cut("hash_table.npy", 200), "hash_table.npy: cannot be read ("),
    # tokenizer.model
    "tokenizer cut": ("RUN", ("evaluate", "generate"), cut("tokenizer.model", 100),
                      "tokenizer.model: is not the tokenizer of the checkpoint of step 24" + PUT_BACK),
    "tokenizer of MID": ("MID", ("train",), another_tokenizer, "tokenizer.model: is not the tokenizer of the run's"),
    "tokenizer gone": ("RUN", ("evaluate", "generate"), remove("tokenizer.model"),
                       "tokenizer.model: no such file" + PUT_BACK),
    # log.jsonl
    "broken first line": ("RUN", ("train",), lines("log.jsonl", lambda rows: [rows[0][1:], *rows[1:]]),
                          "log.jsonl, line 1: is not valid JSON: Extra data: line 1 column 7 (char 6); restore it,"
                          " or move it away to start a new log"),
    "line of no step": ("MID", ("train",), lines("log.jsonl", lambda rows: ['{"kind": "train"}\n', *rows[1:]]),
                        "log.jsonl, line 1: step is missing; restore it"),
    "a loss of the log": ("MID", ("train",), lines("log.jsonl", lambda rows: [rows[0].replace("5.", "4."), *rows[1:]]),
                          "log.jsonl: differs from the lines that the run wrote up to the checkpoint of step 16"),
    "log cut": ("RUN", ("train",), lines("log.jsonl", lambda rows: rows[:-1]), "log.jsonl: has "),
    **{f"last line {line!r}": ("RUN", ("train",), add("log.jsonl", line), f"log.jsonl, line 11: {what}")
       for line, what in LAST_LINES.items()},
    "a later line of MID": ("MID", ("train",), lines("log.jsonl", lambda rows: [*rows[:-1], "5\n"]),
                            "log.jsonl, line 7: its content is 5; an object is needed; restore it, or move it away"),
    "a step of MID again": ("MID", ("train",), lines("log.jsonl", lambda rows: [*rows[:-1], rows[-2]]),
                            "log.jsonl, line 7: is of step 16, but steps 17 to 24 are left; restore it, or move it"),
    # results.csv
    "a cell of MID": ("MID", ("train", "report"), edit("results.csv", ",300,", ",301,"),
                      "results.csv: vocab_size at step 16 is '301', but '300' in "),
    "a loss of MID": ("MID", ("train", "report"), lines("results.csv", lambda rows: [*rows[:-1], _other_loss(rows)]),
                      "results.csv: loss_validation at step 16 is '1.2345', but '"),
    "a row of no step": ("RUN", ("train",), lines("results.csv", lambda rows: [*rows, _row_of(25, rows)]),
                         "results.csv: has 4 rows, but the checkpoint of step 24 has 3; restore it"),
    **{f"last row {line!r}": ("RUN", ("train",), add("results.csv", line), "results.csv, row 4: has ")
       for line in ("5\n", "null\n", "[]\n", "0,3")},
    "the last loss": ("RUN", ("train", "report"), lines("results.csv", lambda rows: [*rows[:-1], _other_loss(rows)]),
                      "results.csv: loss_validation at step 24 is '1.2345', but '"),
    "a blank cell filled": ("RUN", ("report",), lines("results.csv", lambda rows: [*rows[:-1], _filled(rows)]),
                            "results.csv: loss_curation_corpus at step 24 is '7', but '' in "),
    "a row that is lost": ("RUN", ("report",), lines("results.csv", lambda rows: [rows[0], *rows[2:]]),
                           "results.csv: has no row of step 8, but "),
    "a row twice": ("RUN", ("report",), lines("results.csv", lambda rows: [*rows, rows[-1]]),
                    "results.csv: has 4 rows, but "),
    "a cut row": ("RUN", ("report",), lines("results.csv", lambda rows: [*rows[:-1], rows[-1][:30]]),
                  "results.csv, row 3: has 7 cells; "),
    # validation_windows.csv
    "windows": ("RUN", ("train", "report"), flip("validation_windows.csv"),
                "validation_windows.csv: was changed after the run wrote it; restore it, or delete it"),
    # record.json
    "record edited": ("RUN", READS, edit("record.json", '"24"', '"23"'),
                      "record.json: was changed after the run wrote it" + PUT_BACK),
    "record exchanged": ("RUN", ("report",), exchange("record.json"), "config.json: seed is 1, but 2" + IN_RECORD),
    # checkpoints
    "checkpoints exchanged": ("RUN", ("evaluate", "train"), exchange("checkpoints"),
                              "config.json: seed is 1, but 2" + IN_24),
    "all but them exchanged": ("RUN", ("evaluate",), both(exchange("config.json"), exchange("record.json")),
                               "config.json: seed is 2, but 1" + IN_24),
    "checkpoints gone": ("RUN", ("train",), remove("checkpoints"),
                         ": was trained up to step 24 but has no checkpoint; restore its checkpoints, or delete the"),
}  # fmt: skip
"""Damage of folders: the folder, the commands, the change, and the last line of each command."""


def _row_of(step: int, rows: list[str]) -> str:
    names = rows[0].strip().split(",")
    return ",".join(
        str(step) if name == "step" else cell for name, cell in zip(names, rows[-1].split(","), strict=True)
    )


def _filled(rows: list[str]) -> str:
    return rows[-1].replace(",,", ",7,", 1)


def _other_loss(rows: list[str]) -> str:
    loss = next(csv.DictReader([rows[0], rows[-1]]))["loss_validation"]
    return rows[-1].replace(loss, "1.2345")


@pytest.mark.parametrize(
    ("case", "folder", "command"),
    [(case, name, command) for case, (name, commands, *_) in ERRORS.items() for command in commands],
    indirect=["folder"],
)
def test_what_was_changed_is_one_line_and_nothing_is_lost(case, folder, command, do, runs):
    _, _, change, line = ERRORS[case]
    change(folder, runs)
    before = content(folder)
    code, printed, said = do(command, folder)
    assert code == 2 and printed == "" and "Traceback" not in "".join(said)
    [last] = [each for each in said if each.startswith("routelaws: ")]
    wanted = line or "config.json: activation is 'relu', but 'gelu'" + IN_24
    assert str(folder) in last and wanted in last
    assert len(last) < 600 and content(folder) == before


# WHAT IS USED


def turn_a_digit(folder: Path, runs: dict) -> None:
    path = folder / "checkpoints" / "24" / "_CHECKPOINT_METADATA"
    path.write_text(path.read_text().replace('"experts": 4', '"experts": 8'))


USED = {
    "nothing": ("RUN", lambda folder, runs: None, "is finished, at step 24 of 24"),
    "a torn line": ("MID", lambda folder, runs: None, "resumes at step 16 of 24"),
    "keep_last": ("RUN", edit("config.json", '"keep_last": 2', '"keep_last": 5'), ""),
    "record gone": ("RUN", remove("record.json"), ""),
    "config gone": ("RUN", remove("config.json"), ""),
    "tokenizer and table gone": ("RUN", remove("tokenizer.model", "hash_table.npy"), ""),
    "rows gone": ("RUN", remove("results.csv"), "results.csv: has 0 of the 3 rows of the checkpoint of step 24; the"),
    "the last row gone": ("RUN", lines("results.csv", lambda rows: rows[:-1]), "results.csv: has 2 of the 3 rows of "),
    "log gone": ("RUN", remove("log.jsonl"), "log.jsonl: is missing; a new log begins at step 24"),
    "windows gone": ("RUN", remove("validation_windows.csv"), ""),
    "line ends": ("RUN", lines("results.csv", lambda rows: [row.replace("\n", "\r\n") for row in rows]), ""),
    "a turned bit": pytest.param("RUN", turn_a_digit, "checkpoint at step 24 is damaged and skipped (ValueError",
                                 marks=pytest.mark.slow),
}  # fmt: skip
"""Repaired damage of folders: the folder, the change, and a line that `train` prints before it succeeds."""


@pytest.mark.parametrize(("folder", "change", "line"), USED.values(), ids=list(USED), indirect=["folder"])
def test_what_is_whole_is_used_and_what_is_missing_written_again(folder, change, line, do, runs):
    change(folder, runs)
    code, _, said = do("train", folder)
    assert code == 0 and line in "\n".join(said), said
    assert untimed_rows(folder) == untimed_rows(runs["RUN"])
    for name in ("config.json", "tokenizer.model", "hash_table.npy"):
        assert (folder / name).read_bytes() == (runs["RUN"] / name).read_bytes() or name == "config.json"
    assert (folder / "record.json").exists()
    code, printed, _ = do("report", folder)
    assert code == 0


@pytest.mark.parametrize("name", PLACES)
def test_a_run_whose_text_was_moved_is_the_same_run(fields, name):
    config, place = from_mapping(fields, "test"), "elsewhere"
    record = Record(config.plain(), "", None, {}, [], [], {})
    value = {"corpus": (place,), "eval": (f"c4={place}",)}.get(name, place)
    check_config(Path("config.json"), dataclasses.replace(config, **{name: value}), record)


@pytest.mark.parametrize("command", ["evaluate", "train"])
@pytest.mark.parametrize("text", ["corpus", "eval"])
@pytest.mark.parametrize("folder", ["MID"], indirect=True)
def test_a_text_that_changed_is_named_with_both_digests(folder, command, text, do, fields):
    path = Path(fields[text][0].removeprefix("c4="))
    before, known = path.read_bytes(), read_record(folder).texts["corpus" if text == "corpus" else "c4"]
    use = "training" if text == "corpus" else "evaluation"
    try:
        path.write_bytes(before + b"one line more\n")
        code, _, said = do(command, folder)
    finally:
        path.write_bytes(before)
    found = re.fullmatch(
        rf"routelaws: {folder}: the text {path} is not the {use} text of the run: its digest is (\w+), but "
        rf"was {known}; restore the old text, or (name another text with --corpus|choose another --out .*)",
        said[-1],
    )
    assert code == 2 and found and found[1] != known


# SWEEPS

FIRST, SECOND = "runs/000-dense-d8-L2-s42", "runs/001-dense-d16-L2-s42"

PREDICTED = (
    '{"written": "x", "held_out": [1], "predictions": [{"router": "Dense", "N": 1, "E": 1, "law": null, "loss": "1"}]}'
)

SWEEPS = [
    ("sessions.json", fill, "null", "its content is null; a list is needed; restore it, or delete it: only the times"),
    ("sessions.json", fill, '[{"started": "x", "last": 1}]', "[0].started is 'x'; a number is needed; restore it"),
    ("sessions.json", fill, "{", "is not valid JSON"),
    ("sweep.json", fill, '{"name": "x"}', "runs is missing"),
    ("sweep.json", fill, "[1]", "its content is [1]; an object is needed"),
    ("results.csv", fill, "hyper_id\n1\n", "has no column step"),
    (
        "sweep.json",
        edit,
        ("0.05", "0.5"),
        f"warmup of run 1 is 0.5, but 0.05 in SWEEP/{SECOND}/config.json; restore sweep.json",
    ),
    (
        "sweep.json",
        edit,
        ('"d_model": 16', '"d_model": 32'),
        "run 1 is 001-dense-d32-L2-s42, but runs/ has 001-dense-d16",
    ),
    ("results.csv", edit, ("3.125", "2.125"), f"the rows of run 1 differ from SWEEP/{SECOND}/results.csv; delete it"),
    (f"{SECOND}/results.csv", edit, ("3.125", "x"), "row 1: loss_validation is 'x'; a finite number is needed"),
    (f"{FIRST}/log.jsonl", fill, "5\n", "line 1: its content is 5; an object is needed; restore it"),
    (f"{FIRST}/validation_windows.csv", fill, "x", "is not a table of window losses; restore it"),
    ("predictions.json", fill, PREDICTED, "predictions[0].loss is '1'; a number or null is needed"),
]
"""A file of the folder of a sweep, its change, and the message of `report`."""


@pytest.mark.parametrize(("name", "how", "more", "line"), SWEEPS)
def test_a_damaged_sweep_is_one_line_and_nothing_is_lost(sweep, name, how, more, line, capsys):
    how(name, *([more] if isinstance(more, str) else more))(sweep, {})
    before = content(sweep)
    assert cli.main(["report", str(sweep)]) == 2
    said = capsys.readouterr()
    [last] = said.err.splitlines()
    wanted = re.escape(line.replace("SWEEP", str(sweep)))
    assert re.match(f"routelaws: {sweep / name}(: |, ){wanted}", last) and said.out == ""
    assert content(sweep) == before


def test_rows_of_runs_that_a_sweep_does_not_have_are_an_error(sweep):
    fill("sweep.json", '{"name": "x", "runs": []}')(sweep, {})
    with pytest.raises(InputError, match="results.csv: has a hyper_id that is not one of the 0 runs of sweep.json"):
        read_sweep(sweep)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (edit("sweep.json", '"gelu"', '"relu"'), "another sweep: activation of run 1 is 'relu' there, and 'gelu' here"),
        (
            fill("sweep.json", '{"name": "x", "runs": []}'),
            "another sweep, with 0 runs instead of 2; choose another folder",
        ),
        (edit("results.csv", "3.125", "2.125"), "results.csv: the rows of run 1 differ from "),
    ],
)
def test_a_sweep_whose_folder_was_changed_trains_nothing(sweep, grid, change, line, capsys):
    change(sweep, {})
    before = content(sweep)
    assert cli.main(["sweep", str(grid), "--out", str(sweep)]) == 2
    assert line in capsys.readouterr().err.splitlines()[-1] and content(sweep) == before


def test_a_table_of_a_sweep_keeps_the_rows_of_a_run_that_was_damaged_since(sweep):
    edit("runs/001-dense-d16-L2-s42/results.csv", "3.125", "x")(sweep, {})
    before = (sweep / "results.csv").read_bytes()
    collect_rows(sweep)
    assert (sweep / "results.csv").read_bytes() == before


# KILLS


KILLS = [(number, False) for number in range(15)] + [(number, True) for number in range(7)]
"""Writes before which a run is killed, and whether it resumes from an older checkpoint (with six writes)."""

QUICK = ((1, True), (5, True))
"""Kills before two records: of a start with a shortened table, and of the last row."""


def kill_before(number: int, folder: Path, happen, monkeypatch) -> int:
    """Call a function, with a kill before the write with this number in the folder. Return the number of writes."""
    done, replace = [0], os.replace

    def replacing(source, target):
        if Path(target).parent == folder:
            if done[0] == number:
                raise Kill
            done[0] += 1
        replace(source, target)

    with monkeypatch.context() as patch, contextlib.suppress(Kill):
        patch.setattr("os.replace", replacing)
        happen()
    return done[0]


def files_of(folder: Path) -> tuple:
    log = [{**line, "tokens_per_second": 0} for line in run_folder.read_own_log(folder)]
    return untimed_rows(folder), log, (folder / "validation_windows.csv").read_bytes()


@pytest.mark.parametrize(
    ("number", "resumed"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in KILLS]
)
def test_a_kill_between_two_writes_leaves_files_that_agree(number, resumed, fields, runs, tmp_path, monkeypatch):
    """Readers accept the remaining files, and the same command ends with the files of an undisturbed run."""
    folder = tmp_path / "run"
    if resumed:  # a run that resumes from an older checkpoint has fewer writes
        shutil.copytree(runs["RUN"], folder)
        shutil.rmtree(folder / "checkpoints" / "24")
    written = kill_before(number, folder, lambda: make_run(fields, folder).train(), monkeypatch)
    assert written == (min(number, 6) if resumed else number)
    rows, windows = run_folder.read_results(folder)
    recorded = read_record(folder).rows if read_record(folder) else []
    shortened = resumed and number == 1  # a start cuts the table before the record
    assert len(rows) == len(recorded) - shortened
    run_folder.read_own_log(folder)
    if windows is not None and rows:
        assert np.isclose(windows.loss.sum() / windows.tokens.sum(), float(rows[-1]["loss_validation"]), rtol=1e-9)
    make_run(fields, folder).train()
    assert files_of(folder) == files_of(runs["RUN"])


def test_the_last_row_is_written_after_the_last_checkpoint(fields, tmp_path, monkeypatch):
    """A sweep takes a run with this row as finished."""
    save = checkpoints.Checkpoints.save

    def killed(self, step: int, *more) -> None:
        if step == 24:
            raise Kill
        save(self, step, *more)

    monkeypatch.setattr(checkpoints.Checkpoints, "save", killed)
    with pytest.raises(Kill):
        make_run(fields, tmp_path).train()
    assert [row["step"] for row in untimed_rows(tmp_path)] == ["8", "16"]
