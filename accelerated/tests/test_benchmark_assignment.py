"""The benchmark of the assignment: it runs, and what it compares reaches the same optimum."""

import numpy as np
import pytest

from routelaws.accelerated.benchmarks import assignment


def test_a_small_run(capsys):
    assignment.main(["--sizes", "32x4", "--repeats", "1"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["tokens", "x", "experts", "scores"]
    rows = [(line[18:26].strip(), line[26:46].strip(), *map(float, line[46:].split())) for line in lines]
    assert {row[0] for row in rows} == {"skew", "aniso"} and len(rows) >= 8
    for _, method, milliseconds, ratio, missing in rows:
        assert milliseconds >= 0 and ratio >= 0  # a ratio is printed with one digit: 0.0 on a busy machine
        assert abs(missing) < 0.05 and (missing == 0 or "auction" in method or "OR-tools" in method), (method, missing)


@pytest.mark.parametrize("options", [["--sizes", "10x4"], ["--sizes", "ten"], ["--repeats", "0"], ["--seed", "-1"]])
def test_what_is_wrong_is_named(options, capsys):
    with pytest.raises(SystemExit) as caught:
        assignment.main(options)
    assert caught.value.code == 2 and options[0] in capsys.readouterr().err


def test_the_scores_are_those_that_are_named():
    skew, aniso = (assignment.draw(kind, 512, 8, 0) for kind in assignment.INPUTS)
    assert np.all(np.diff(skew.mean(axis=0)[[0, 3, 7]]) > 0.3)
    load = np.bincount(aniso.argmax(axis=1), minlength=8)
    assert load.max() > 3 * 512 / 8 and aniso.dtype == skew.dtype == np.float32
