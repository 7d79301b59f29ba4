"""The benchmark measures in turns, takes medians, and repeats disturbed rounds. The tests use a fake clock."""

import pytest

from benchmarks.rounds import Load, interleave, machine_seconds, median_and_quartiles, process_seconds


class Machine:
    """A machine of two cores with a clock. `run` computes alone or next to other processes."""

    def __init__(self):
        self.wall = self.own = self.all = 0.0

    def run(self, seconds, others=0.0):
        self.wall += seconds
        self.own += seconds
        self.all += seconds * (1 + others)
        return [seconds]

    def load(self):
        return Load(own=lambda: self.own, machine=lambda: self.all, wall=lambda: self.wall, cores=2)


def test_sides_take_turns_and_the_order_is_reversed():
    machine, order = Machine(), []

    def side(name):
        return lambda: order.append(name) or machine.run(1.0)

    interleave({"a": side("a"), "b": side("b")}, 3, machine.load())
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_machine_that_slows_down_does_not_move_the_ratio():
    machine = Machine()

    def side(work):
        return lambda: machine.run(work * (1 + machine.wall / 100))

    found = interleave({"ours": side(2.0), "theirs": side(1.0)}, 9, machine.load())
    assert found[-1].seconds["ours"] > 1.2 * found[0].seconds["ours"]
    assert abs(median_and_quartiles([each.seconds["ours"] / each.seconds["theirs"] for each in found])[0] - 2) < 0.05


def test_a_disturbed_round_is_repeated():
    machine, others = Machine(), iter([0.0, 1.0, 0.0, 0.0])

    def block():
        beside = next(others)
        return machine.run(1.0 + beside, beside)

    found = interleave({"a": block}, 3, machine.load(), 5)
    assert [each.seconds["a"] for each in found] == [1.0, 1.0, 1.0] and next(others, None) is None


def test_repetition_ends_and_the_calmest_rounds_are_kept():
    machine, others = Machine(), iter([0.9, 0.5, 0.8, 0.6, 0.7])
    found = interleave({"a": lambda: machine.run(1.0, next(others))}, 2, machine.load(), 3)
    assert [round(each.foreign, 3) for each in found] == [0.25, 0.3]  # of two cores
    assert all(each.is_disturbed() for each in found)


def test_an_unknown_load_does_not_count():
    load = Load(own=lambda: 0.0, machine=lambda: None, cores=2)
    assert [each.is_disturbed() for each in interleave({"a": lambda: [1.0, 1.0, 9.0]}, 2, load, 3)] == [False, False]


def test_the_line_of_the_kernel_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    path = tmp_path / "stat"
    path.write_text("cpu  100 20 30 9999 9999 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n", encoding="ascii")
    assert machine_seconds(path) == pytest.approx(1.65)  # without idle time and disk waits
    assert machine_seconds(tmp_path / "nothing") is None and process_seconds(-1) == 0.0
