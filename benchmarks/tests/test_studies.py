import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from benchmarks import balanced, hash_loads


def test_a_small_linear_program():
    lines = {line.method: line for line in balanced.measure("skewed", 24, 4, 1, 0)}
    scores, places = balanced.draw("skewed", 24, 4, 0), np.repeat(np.arange(4), 6)
    optimum = scores[np.arange(24), places[linear_sum_assignment(scores[:, places], maximize=True)[1]]].sum()
    exact = lines["exact"]
    assert exact.objective == pytest.approx(optimum, abs=1e-3) and abs(exact.gap) < 1e-5
    assert exact.missing == 0 and exact.imbalance == 1
    for name, line in lines.items():
        assert line.bound >= optimum - 1e-3, name
        assert line.gap >= -1e-5 or line.imbalance > 1, name
    gaps = [lines[f"entropy {entropy:g}, plan"].gap for entropy in balanced.ENTROPIES]
    assert gaps[0] > 0.1 > gaps[2] and lines["quantile, 100 steps"].bound < lines["quantile, 1 steps"].bound
    assert balanced.table([exact]).count("\n") == 3


def test_a_bound_below_the_optimum_is_an_error(monkeypatch):
    monkeypatch.setattr(balanced, "dual_bound", lambda scores, prices: -1e3)
    monkeypatch.setattr(balanced, "STEPS", (1,))
    with pytest.raises(RuntimeError, match="dual bound -1000.0 is below the optimum"):
        balanced.measure("random", 8, 2, 1, 0)


def test_hash_loads_by_hand():
    """Five tokens have shares 60, 30, 20, 15 and 12 of 137. Expert 0 of three has the first and the fourth token."""
    rows = {line.hash: line for line in hash_loads.lines_of("5x3x1x1")}
    assert rows["modulo"].largest == pytest.approx(3 * 75 / 137) and rows["modulo"].sets == 3
    assert rows["modulo"].least == pytest.approx(3 * 60 / 137) and rows["position"].largest == pytest.approx(
        1, abs=5e-3
    )
    assert "multi" not in rows and all(line.largest >= line.least for line in rows.values())
    assert "bigram" not in {line.hash for line in hash_loads.lines_of("20x2x2x1")}


def test_pairs_are_counted(monkeypatch):
    """Two tokens have the shares 2/3 and 1/3, and the first is at expert 0 of both tables.

    The pairs are then 5/9 and 4/9.
    """
    monkeypatch.setattr(hash_loads, "build", lambda *_: np.array([[0, 1], [0, 1]]))
    rows = {line.hash: line for line in hash_loads.lines_of("2x2x1x1")}
    assert rows["bigram"].largest == pytest.approx(10 / 9)
