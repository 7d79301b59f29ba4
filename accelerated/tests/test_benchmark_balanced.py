"""The benchmark of the linear program: its numbers hang together, on scores small enough to solve otherwise."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from routelaws.accelerated.benchmarks import balanced


def test_a_small_run(capsys, tmp_path):
    path = tmp_path / "table.md"
    balanced.main(["--size", "24x4", "--inputs", "skewed", "--repeats", "1", "--markdown", str(path)])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["scores", "method", "objective"]
    table = [[cell.strip() for cell in row.strip("|").split("|")] for row in path.read_text().splitlines()]
    assert len(table) == len(lines) + 2 and table[0] == list(balanced.HEAD)
    rows = {row[1]: [float(cell) for cell in row[2:8]] for row in table[2:]}
    scores = balanced.draw("skewed", 24, 4, 0)
    places = np.repeat(np.arange(4), 6)
    optimum = scores[np.arange(24), places[linear_sum_assignment(scores[:, places], maximize=True)[1]]].sum()
    objective, bound, gap, missing, imbalance, ratio = rows["exact"]
    assert objective == pytest.approx(optimum, abs=1e-3) and abs(gap) < 1e-5 and missing == 0
    assert imbalance == ratio == 1
    for name, (objective, bound, gap, missing, imbalance, _) in rows.items():
        assert bound >= optimum - 1e-3, name
        assert gap >= -1e-5 or imbalance > 1, name
        assert abs(objective + missing * (rows["exact"][0] - cyclic(scores)) - optimum) < 0.05 * abs(optimum), name
    assert rows["quantile, 100 steps"][1] < rows["quantile, 1 steps"][1]
    gaps = [rows[f"entropy {entropy:g}, plan"][2] for entropy in balanced.ENTROPIES]
    assert gaps[0] > 0.1 > gaps[2] and rows["entropy 0.001, plan"][4] < 1.002


def cyclic(scores):
    return scores[np.arange(24), np.arange(24) % 4].sum()


def test_a_bound_below_the_optimum_is_not_passed_over(monkeypatch):
    wrong = balanced.Outcome(np.zeros(4, int), None, np.zeros(2))
    right = balanced.Outcome(np.array([0, 0, 1, 1]), None, np.zeros(2))
    monkeypatch.setattr(balanced, "methods", lambda: {"exact": lambda scores: right, "wrong": lambda scores: wrong})
    monkeypatch.setattr(balanced, "draw", lambda *_: np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]], np.float32))
    monkeypatch.setattr(balanced, "dual_bound", lambda scores, prices: 3.9)
    with pytest.raises(RuntimeError, match="dual bound 3.9 is below the optimum 4.0"):
        balanced.measure("random", 4, 2, 1, 0)


@pytest.mark.parametrize("options", [["--size", "ten"], ["--inputs", "else"], ["--repeats", "0"], ["--seed", "-1"]])
def test_what_is_wrong_is_named(options, capsys):
    with pytest.raises(SystemExit) as caught:
        balanced.main(options)
    assert caught.value.code == 2 and options[0] in capsys.readouterr().err
