"""The command line: exit codes, one line for each error, and no files after an error."""

import errno
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import routelaws
from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError, WorkerDiedError
from routelaws.accelerated.training.stopping import Resumable

from .small_runs import ran


def test_evaluate_prints_each_text_and_task_with_its_own_numbers(capsys, monkeypatch, approved):
    from routelaws.accelerated.commands.models import evaluate

    found = {"router": "dense", "group_size": 1, "one_hot": False}
    for name, values in {"validation": (2.5, 0.05, 131072, 146), "c4": (3.25, 0.125, 4096, 7)}.items():
        names = (f"{field}_{name}" for field in ("loss", "standard_error", "tokens", "documents"))
        found |= dict(zip(names, values, strict=True))
    monkeypatch.setattr(evaluate, "evaluate_run", lambda *_, **__: found)  # no ± for the 7 documents of c4
    for flags in ((), ("--corpus", "c4", "--group-size", "8"), ("--json",)):
        cli.main(["evaluate", "run", *flags])
    *words, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == found
    choice = {"task": "quiz", "kind": "choice", "questions": 40, "guess_rate": 0.25, "cut": 3}
    for name, share, error in (("", 0.5, 0.08), ("_per_token", 0.4, 0.07), ("_per_character", 0.3, 0.06)):
        choice |= {f"accuracy{name}": share, f"standard_error{name}": error}
    word = {"task": "end", "kind": "last word", "questions": 1, "guess_rate": 0.0, "cut": 0}
    for task in (choice, word | {"accuracy": 1.0, "standard_error": None}):
        monkeypatch.setattr(evaluate, "evaluate_task", lambda *_, task=task, **__: task)
        cli.main(["evaluate", "run", "--task", "questions.jsonl"])
    words += capsys.readouterr().out.splitlines()
    approved("evaluate.txt", "\n".join(words) + "\n")


def test_a_flag_that_is_misspelt_is_named_with_those_that_are_close():
    said = {flag: ran("fit", "runs.csv", flag, "k == 1") for flag in ("--row", "--zebra")}
    assert said["--row"] == (2, "", "routelaws: Unknown option: --row. Did you mean --rows?\n")
    assert said["--zebra"] == (2, "", "routelaws: Unknown option: --zebra\n")


def test_a_pattern_that_the_shell_expanded_is_named_in_short(tmp_path):
    names = [str(tmp_path / f"file{i}.txt") for i in range(151)]
    code, _, stderr = ran("evaluate", "run", *names)
    assert code == 2 and f"{names[0]}, {names[1]}, {names[2]} and 148 more; " in stderr
    assert "put the pattern in quotes" in stderr and names[3] not in stderr
    for name in names:
        Path(name).write_text(
            "hyper_id,step,router_type,num_experts,dense_parameter_count,loss_validation\n0,1,Dense,1,9,3\n"
        )
    code, _, stderr = ran("fit", *names, "--law", "dense")
    assert code == 2 and f"{names[0]}, {names[1]}, {names[2]} and 148 more: router Dense: " in stderr
    code, _, stderr = ran("evaluate", "run", "--sed", "3", "--x")
    assert code == 2 and "--sed" in stderr and "quotes" not in stderr


def test_a_field_of_a_file_that_is_wrong_is_named(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("steps = 'many'")
    code, _, stderr = ran("train", f"--config={file}", "--out", tmp_path / "other")
    assert code == 2 and "steps is 'many'; a whole number is needed" in stderr


def test_help_and_version():
    code, stdout, _ = ran("--help")
    assert code == 0 and all(name in stdout for name in cli.COMMANDS)
    code, stdout, _ = ran("--version")
    assert code == 0 and stdout.strip() == routelaws.__version__
    code, _, stderr = ran("nothing")
    assert code == 2 and stderr == f"routelaws: unknown command 'nothing'; allowed: {', '.join(cli.COMMANDS)}\n"


def test_an_output_that_has_not_every_letter(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    monkeypatch.setitem(cli.COMMANDS, "fit", "Fit Ê.")
    assert cli.main(["--help"]) == 0
    narrow.flush()
    assert b"Fit \\xca." in narrow.buffer.getvalue()


EXTRAS_OF = {
    "train": "train", "evaluate": "train", "generate": "train", "sweep": "train,laws", "report": "laws",
    "fit": "laws", "predict": "laws", "plan": "laws", "convert": "laws", "reproduce": "laws", "downstream": "laws",
    "recipe": "laws", "court": "laws",
    "export": "train", "plan-mesh": "train", "inspect": "train", "compile": "train", "convert-weights": "train,laws",
    "probe": "train,laws",
}  # fmt: skip


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_missing_extra_is_named(monkeypatch, command):
    for name in [name for name in sys.modules if name.startswith("routelaws.accelerated.commands")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    code, stdout, stderr = ran(command, "anywhere")
    extra = EXTRAS_OF[command]
    assert (code, stdout) == (2, "")
    assert stderr == f"routelaws: cyclopts is missing; install it with: pip install 'routelaws[{extra}]'\n"


@pytest.mark.parametrize(
    ("command", "package", "extras"),
    [("report", "optax", "train,laws"), ("report", "cyclopts", "laws"), ("inspect", "matplotlib.pyplot", "train,laws"),
     ("sweep", "rich", "train,laws"), ("train", "orbax.checkpoint", "train"), ("plan", "pandas", "laws")],
)  # fmt: skip
def test_the_extra_of_an_option_is_named(monkeypatch, command, package, extras):
    def absent(*_):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(cli, "_run", absent)
    code, _, stderr = ran(command, "anywhere")
    line = f"{package.partition('.')[0]} is missing; install it with: pip install 'routelaws[{extras}]'"
    assert (code, stderr) == (2, f"routelaws: {line}\n")


def test_a_package_that_no_extra_brings_is_a_fault_of_ours(monkeypatch):
    monkeypatch.setitem(sys.modules, "routelaws.accelerated.commands.laws.fit", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["fit", "anywhere"])


ONE_EXTRA = """
import contextlib, io, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
from routelaws.accelerated.cli import main

for arguments in {commands}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(list(arguments)) == 0, (arguments, said.getvalue())
assert not set({refused}) & set(sys.modules)
for arguments in {others}:
    assert main(list(arguments)) == 2
"""


def check_one_extra(cwd, extra: str, other: str, commands: list, others: list) -> None:
    """Run commands without the packages of the other extra: some succeed, and others name this extra."""
    refused = sorted(set(cli.EXTRAS[other]) - set(cli.EXTRAS[extra]))
    helps = [[command, "--help"] for command, extras in EXTRAS_OF.items() if extras == extra]
    script = ONE_EXTRA.format(refused=refused, commands=[*helps, *commands], others=others)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stderr
    for (command, *_), line in zip(others, done.stderr.splitlines()[-len(others) :], strict=True):
        said = re.fullmatch(r"routelaws: (\w+) is missing; install it with: pip install 'routelaws\[(.*)\]'", line)
        assert said and said[1] in refused and said[2] == EXTRAS_OF[command], line


def write_runs(folder, many: int, gain: float) -> None:
    """Write runs.csv, with four sizes and some numbers of experts; each fourfold E lowers the loss by `gain`."""
    rows = [
        f"{many * i + j},100,{'Hash' if j else 'Dense'},1,{4**j},{10**i},{4 - 0.3 * i - gain * j + 0.01 * (i * j % 3)}"
        for i in range(6, 10)
        for j in range(many)
    ]
    header = "hyper_id,step,router_type,k,num_experts,dense_parameter_count,loss_validation"
    (folder / "runs.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.slow
def test_laws_are_fitted_without_what_trains(tmp_path):
    write_runs(tmp_path, 3, 0.2)
    choice = ["table.csv", "--law", "bilinear", "--rows", "k == 1 and num_experts in (1, 4, 16)"]
    commands = [
        ["convert", "runs.csv", "--out", "table.csv"],
        ["fit", *choice],
        ["fit", *choice, "--json"],
        ["predict", *choice, "--n", "1e8", "--experts", "8"],
    ]
    light = "inspect", "export", "plan-mesh", "compile"  # their help needs no package that trains
    others = [
        [command, "--help"] for command, extras in EXTRAS_OF.items() if "train" in extras and command not in light
    ]
    others += [["inspect", "nothing"], ["export", "--out", "out"]]
    check_one_extra(tmp_path, "laws", "train", commands, others)


def test_fits_and_predictions_compile_nothing(tmp_path):
    write_runs(tmp_path, 6, 0.1)
    commands = [["fit", "runs.csv", "--law", "routed-bounded"], ["predict", "runs.csv", "--n", "1e8", "--experts", "8"]]
    script = ONE_EXTRA.format(refused=["numba", "llvmlite", "jax"], commands=commands, others=[])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
ENDS = [
    ("fit", InputError("the table is empty"), 2, "the table is empty"),
    ("sweep", WorkerDiedError("a worker was killed"), 1, "a worker was killed"),
    ("train", Resumable("stopped; repeat the command to resume"), 0, "stopped; repeat the command to resume"),
    ("fit", KeyboardInterrupt(), 130, "interrupted"),
    ("sweep", KeyboardInterrupt(), 130, "interrupted; repeat the command to resume from the last checkpoint"),
    ("fit", MemoryError("Unable to allocate\nmore"), 2, "not enough memory: Unable to allocate; choose smaller sizes"),
    ("train", RuntimeError("RESOURCE_EXHAUSTED: 9 GB"), 2,
     "not enough memory: RESOURCE_EXHAUSTED: 9 GB; choose smaller sizes"),
    ("fit", FileNotFoundError(errno.ENOENT, "No such file", "a.csv"), 2, "a.csv: No such file"),
    ("fit", FULL, 2, f"{FULL.strerror}; free some space"),
    ("fit", BrokenPipeError(), 0, None),
]  # fmt: skip


@pytest.mark.parametrize(("command", "error", "code", "line"), ENDS)
def test_each_end_of_a_command_has_its_code_and_line(capsys, monkeypatch, command, error, code, line):
    def run(*_):
        raise error

    monkeypatch.setattr(cli, "_run", run)
    monkeypatch.setattr(cli, "keep_programs", lambda: None)
    assert cli.main([command]) == code
    assert capsys.readouterr().err == ("" if line is None else f"routelaws: {line}\n")


def test_a_fault_of_ours_is_no_lack_of_memory(monkeypatch):
    monkeypatch.setattr(cli, "_run", lambda *_: (_ for _ in ()).throw(RuntimeError("ours")))
    with pytest.raises(RuntimeError, match="ours"):
        cli.main(["fit"])


def test_no_warning_of_numpy_reaches_the_terminal(monkeypatch):
    def run(command, arguments):
        np.log(np.array([-1.0, 0.0])), np.float64(1e300) * 1e300, np.mean([])

    monkeypatch.setattr(cli, "_run", run)
    for options, shown in (([], False), (["always"], True)):
        monkeypatch.setattr(sys, "warnoptions", options)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            assert cli.main(["fit"]) == 0
        assert bool(raised) == shown
