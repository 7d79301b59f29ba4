"""The benchmark of the assignment: it runs, and what it compares reaches the same optimum. And the list of all."""

import numpy as np
import pytest

from routelaws.accelerated.benchmarks import __main__ as benchmarks
from routelaws.accelerated.benchmarks import assignment


@pytest.mark.parametrize("k", [1, 2])
def test_a_small_run(k, capsys):
    assignment.main(["--sizes", "32x4", "--repeats", "1", "--k", str(k)])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["tokens", "x", "experts", "scores"]
    rows = [
        (line[18:26].strip(), line[26:46].strip(), *map(float, line[46:].split()))
        for line in lines
        if line.startswith("32x4")
    ]
    assert {row[0] for row in rows} == {"skew", "aniso"} and len(rows) >= (8 if k == 1 else 6)
    for _, method, milliseconds, ratio, missing in rows:
        assert milliseconds >= 0 and ratio >= 0  # a ratio is printed with one digit: 0.0 on a busy machine
        assert abs(missing) < 0.05 and (missing == 0 or "auction" in method or "OR-tools" in method), (method, missing)
    named = {row[1] for row in rows} | {line.partition(":")[0] for line in lines[len(rows) :]}
    assert named == {"assign", "assign under jit", "auction under jit", "SciPy, T columns", "OR-tools flow"}


@pytest.mark.parametrize(
    "options",
    [["--sizes", "10x4"], ["--sizes", "ten"], ["--repeats", "0"], ["--seed", "-1"], ["--k", "0"], ["--k", "17"]],
)
def test_what_is_wrong_is_named(options, capsys):
    with pytest.raises(SystemExit) as caught:
        assignment.main(options)
    assert caught.value.code == 2 and options[0] in capsys.readouterr().err


def test_the_scores_are_those_that_are_named():
    skew, aniso = (assignment.draw(kind, 512, 8, 0) for kind in assignment.INPUTS)
    assert np.all(np.diff(skew.mean(axis=0)[[0, 3, 7]]) > 0.3)
    load = np.bincount(aniso.argmax(axis=1), minlength=8)
    assert load.max() > 3 * 512 / 8 and aniso.dtype == skew.dtype == np.float32


def test_all_benchmarks_are_found_and_have_a_line(capsys):
    benchmarks.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert {"assignment", "law_fit"} <= {line.split()[0] for line in lines} and set(benchmarks.SHORT) >= {"assignment"}
    assert all(line[18:].strip().endswith(".") for line in lines), lines


def test_a_benchmark_by_name_in_its_short_form(monkeypatch, capsys):
    monkeypatch.setitem(benchmarks.SHORT, "assignment", ["--sizes", "8x2", "--repeats", "1", "--auction", "1"])
    benchmarks.main(["assignment"])
    first, what, *lines = capsys.readouterr().out.splitlines()
    assert first == "== assignment --sizes 8x2 --repeats 1 --auction 1" and what == benchmarks.discover()["assignment"]
    assert any(line.startswith("8x2") for line in lines) and "auction under jit: left out above 1 tokens" in str(lines)


def test_what_a_benchmark_lacks_is_said(monkeypatch, capsys):
    def lacks(arguments):
        raise ModuleNotFoundError("No module named 'solver'", name="solver")

    monkeypatch.setattr(assignment, "main", lacks)
    benchmarks.main(["assignment", "--full"])
    assert "skipped: solver is not installed; pip install 'routelaws[bench]'" in capsys.readouterr().out


def test_an_unknown_benchmark_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        benchmarks.main(["speed"])
    assert (
        caught.value.code == 2
        and "there is no benchmark 'speed'; allowed: additive_fit, assignment" in capsys.readouterr().err
    )


def test_the_short_forms_are_allowed():
    """Each benchmark knows the options of its short form."""
    for name, options in benchmarks.SHORT.items():
        if name in benchmarks.discover():
            source = (benchmarks.Path(benchmarks.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
            missing = [option for option in options if option.startswith("--") and f'"{option}"' not in source]
            assert not missing, (name, missing)
