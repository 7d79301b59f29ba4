"""Names of files, from tables and in flags. With any name, a command ends. No name can forge a line."""

import csv
import os
import re
import signal
import subprocess
import sys

import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import read_table

from .small_runs import denied

FORGED = "S\nroutelaws: all is well\x1b[2J\u202e"
SHOWN = r"S\nroutelaws: all is well\x1b[2J\u202e"


def run(capsys, *arguments):
    def hangs(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(120)
    try:
        code = cli.main([str(argument) for argument in arguments])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, *capsys.readouterr()


def write(path, router: str = "S-Base", names: tuple[str, ...] = (), cells: tuple[str, ...] = ()):
    head = ["hyper_id", "step", "router_type", "num_experts", "dense_parameter_count", "loss_validation", *names]
    grid = [(size, experts) for size in (10**6, 10**7, 10**8) for experts in (1, 2, 8, 32, 128)]
    rows = [
        [i, 100, "Dense" if experts == 1 else router, experts, size, 6 * (size / 1e5) ** -0.05 * experts**-0.03, *cells]
        for i, (size, experts) in enumerate(grid)
    ]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Return paths of unreadable files, by fault."""
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    closed = tmp_path / "closed"

    for name in ("stat", "mkdir"):  # root may search and write to every folder
        monkeypatch.setattr(os, name, denied(getattr(os, name), lambda path: path.startswith(str(closed))))
    return {
        "closed": closed / "name",
        "long": tmp_path / ("n" * 300),
        "pipe": tmp_path / "pipe",
        "circle": tmp_path / "circle",
        "below a file": tmp_path / "file" / "name",
        "forged": tmp_path / FORGED,
        "device": "/dev/zero",
        "value 0": f"{tmp_path}/a\0b",
    }


READERS = {
    "fit": "fit {}", "predict": "predict {} --n 1e6 --experts 4", "plan": "plan {} --flops 1e18",
    "law": "fit T --law {}:x", "convert": "convert {} --out O.csv", "config": "convert T --config {} --out O.csv",
    "downstream": "downstream {}", "tasks": "downstream A --tasks {}", "reproduce": "reproduce {} --out O",
    "report": "report {}", "corpus": "train --corpus {} --out O", "toml": "train --config {} --out O",
    "sweep": "sweep {}.toml --out O", "evaluate": "evaluate {}", "task": "evaluate O --task {}",
    "generate": "generate {} --prompt x",
}  # fmt: skip
STATED = {"closed": "Permission denied", "long": "File name too long"}
WRITERS = {
    "convert": "convert T --out {}/x.csv", "reproduce": "reproduce T --out {}",
    "plan": "plan T --flops 1e18 --law separable --resamples 0 --no-published --out {}",
    "sweep": "sweep smoke --corpus X --out {}",
    "train": "train --corpus X --vocab-size 300 --d-model 8 --blocks 1 --sequence-length 8 --steps 1 --out {}",
}  # fmt: skip


def filled(command: str, place, folder) -> list[str]:
    words = {
        "T": folder / "table.csv",
        "O": folder / "out",
        "O.csv": folder / "out.csv",
        "A": folder / "accuracies.csv",
    }
    words["X"] = folder / "text.txt"
    return [str(words.get(word, word.replace("{}", str(place)))) for word in command.split()]


@pytest.fixture
def inputs(tmp_path, text_file):
    write(tmp_path / "table.csv")
    rows = (f"{10**k},{20 * 10**k},{0.3 + 0.02 * k},{4 - 0.1 * k}" for k in range(5, 12))
    (tmp_path / "accuracies.csv").write_text("\n".join(["params,tokens,acc_x,loss_c4", *rows]))
    (tmp_path / "text.txt").write_text(text_file.read_text())


@pytest.mark.parametrize("kind", ["closed", "long", "pipe", "circle", "below a file", "forged", "device", "value 0"])
def test_what_cannot_be_read_is_one_line(capsys, tmp_path, places, inputs, kind):
    for name, command in READERS.items():
        code, out, err = run(capsys, *filled(command, places[kind], tmp_path))
        *before, line = err.splitlines()
        assert code == 2 and out == "" and line.startswith("routelaws: "), (name, code, err)
        assert all(map(str.isprintable, [*before, line])) and len(line) < 1000, (name, err)
        assert not [each for each in before if not each.startswith("reading ")], (name, err)
        if kind in STATED:
            assert STATED[kind] in line, (name, err)


def test_a_folder_in_the_place_of_a_figure_is_named(capsys, tmp_path, inputs):
    (tmp_path / "out/frontier.png").mkdir(parents=True)
    command = "plan T --flops 1e18 --resamples 0 --no-published --out {}"
    code, _, err = run(capsys, *filled(command, tmp_path / "out", tmp_path))
    line = f"routelaws: --out {tmp_path}/out/frontier.png: exists already and is not a file; name another folder"
    assert code == 2 and err.splitlines()[-1] == line


@pytest.mark.parametrize("kind", ["closed", "long", "pipe", "circle", "below a file", "device", "value 0"])
def test_what_cannot_be_written_is_one_line(capsys, tmp_path, places, inputs, kind, monkeypatch):
    monkeypatch.setattr(
        "routelaws.accelerated.findings.report.gather", lambda *_: pytest.fail("it works before it asks")
    )
    for name, command in WRITERS.items():
        code, out, err = run(capsys, *filled(command, places[kind], tmp_path))
        line = err.splitlines()[-1]
        assert code == 2 and out == "" and line.startswith("routelaws: ") and line.isprintable(), (name, code, err)
        if kind in STATED:
            assert STATED[kind] in line, (name, err)


def test_names_from_a_table_are_escaped(capsys, tmp_path):
    path = write(tmp_path / f"{FORGED}.csv", FORGED, ("training_set", "loss_\x1b"), ("a\nb", "1.5"))
    frame = read_table(path)
    assert set(frame["router_type"]) == {"Dense", SHOWN} and r"loss_\x1b" in frame
    assert set(frame["training_set"]) == {"a\nb"}  # a user's column is kept unchanged
    for arguments in (("fit", path), ("fit", path, "--json"), ("predict", path, "--n", "1e7", "--experts", "4")):
        code, out, err = run(capsys, *arguments)
        assert code == 0 and not re.search("\x1b|\u202e|^routelaws", out + err, re.MULTILINE)
        assert r"S\n" in out.replace("\\\\", "\\")


def test_a_name_of_20_000_characters_is_refused_and_cut(capsys, tmp_path):
    code, _, err = run(capsys, "fit", write(tmp_path / "table.csv", "S" * 20_000))
    assert code == 2 and "needed: a name of at most 100 characters" in err and len(err) < 3000
    code, _, err = run(capsys, "fit", write(tmp_path / "table.csv"), "--loss", "x" * 20_000)
    assert code == 2 and len(err) < 2000 and len(err.splitlines()) == 1


def test_names_are_no_markup_and_no_formula_of_a_figure(capsys, tmp_path):
    """Rich fails at an unmatched closing tag, and matplotlib at an unfinished formula."""
    path = write(tmp_path / "table.csv", r"[/red]$\frac{$")
    code, out, _ = run(capsys, "fit", path)
    assert code == 0 and r"[/red]$\frac{$" in out
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from routelaws.accelerated.findings.style import STYLE, save_figure

    with rc_context(STYLE):
        figure = Figure()
        figure.text(0, 0, r"$\frac{$")
        save_figure(figure, tmp_path / "figure")


def test_an_error_is_one_line_for_each_of_its_lines():
    error = InputError(f"table: {FORGED}", "  row 2")
    assert str(error).splitlines() == [f"table: {SHOWN}", "  row 2"]
    assert str(InputError(*error.args)) == str(error)  # as after a return from another process


def test_convert_makes_formulas_harmless(capsys, tmp_path):
    cells = ("-0.5", "@SUM(1)", "+1e3", "=2", "a=b")
    path = write(tmp_path / "runs.csv", "=cmd|' /C calc'!A0", ("number", "at", "plus", "=note", "plain"), cells)
    keep = ("--keep", "number,at,plus,=note,plain")
    code, _, err = run(capsys, "convert", path, *keep, "--out", tmp_path / "table.csv")
    assert code == 0
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        head, _, row, *_ = csv.reader(file)
    found = dict(zip(head, row, strict=True))
    assert found["router_type"] == "'=cmd|' /C calc'!A0" and float(found["loss_validation"]) > 0
    assert [found[name] for name in ("number", "at", "plus", "'=note", "plain")] == [
        "-0.5", "'@SUM(1)", "+1e3", "'=2", "a=b",
    ]  # fmt: skip
    assert "router_type: 12 cells would run as a formula in a spreadsheet, so they now begin with an apostrophe" in err
    assert "column =note is now '=note" in err


def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "routelaws.accelerated", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr == "routelaws: No space left on device; free some space\n"
