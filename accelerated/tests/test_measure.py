"""How the benchmark measures: in turns, with medians, and again where others had the machine. By a clock of our own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from routelaws.accelerated.benchmarks.bench import Bench, Settings
from routelaws.accelerated.benchmarks.figure import Side
from routelaws.accelerated.benchmarks.handover import Handover
from routelaws.accelerated.benchmarks.measure import (
    DISTURBED,
    Load,
    interleave,
    machine_seconds,
    median_and_quartiles,
    process_seconds,
)


class Machine:
    """A machine of two cores with a clock: `run` lets us compute alone, or with others beside us."""

    def __init__(self):
        self.wall = self.own = self.all = 0.0

    def run(self, seconds, others=0.0):
        self.wall += seconds
        self.own += seconds
        self.all += seconds * (1 + others)
        return [seconds]

    def load(self):
        return Load(own=lambda: self.own, machine=lambda: self.all, wall=lambda: self.wall, cores=2)


def test_sides_take_turns_and_the_order_is_turned_round():
    machine, order = Machine(), []

    def side(name):
        return lambda: order.append(name) or machine.run(1.0)

    found = interleave({"a": side("a"), "b": side("b")}, 3, machine.load(), 0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert all([*each.seconds] == ["a", "b"] for each in found.kept)  # as they were given, in whatever order they ran


def test_a_machine_that_slows_down_does_not_move_the_ratio():
    machine = Machine()

    def side(work):
        return lambda: machine.run(work * (1 + machine.wall / 100))

    found = interleave({"ours": side(2.0), "theirs": side(1.0)}, 9, machine.load(), 0)
    assert found.kept[-1].seconds["ours"] > 1.2 * found.kept[0].seconds["ours"]
    middle, (first, third) = found.spread(lambda s: s["ours"] / s["theirs"])
    assert first <= middle <= third and abs(middle - 2) < 0.05


def test_a_block_counts_by_its_median():
    machine = Machine()
    found = interleave({"a": lambda: [1.0, 1.0, 9.0]}, 1, machine.load(), 0)
    assert found.seconds() == {"a": 1.0}


def test_a_disturbed_round_is_taken_again():
    machine, others = Machine(), iter([0.0, 1.0, 0.0, 0.0])
    taken = []

    def block():
        beside = next(others)
        taken.append(beside)
        return machine.run(1.0 + beside, beside)

    found = interleave({"a": block}, 3, machine.load(), 5)
    assert len(taken) == 4 and (found.repeated, found.disturbed) == (1, 0)
    assert [each.seconds["a"] for each in found.kept] == [1.0, 1.0, 1.0]


def test_it_is_not_taken_again_for_ever_and_the_calmest_rounds_are_kept():
    machine, others = Machine(), iter([0.9, 0.5, 0.8, 0.6, 0.7])
    found = interleave({"a": lambda: machine.run(1.0, next(others))}, 2, machine.load(), 3)
    assert (len(found.kept), found.repeated, found.disturbed) == (2, 3, 2)
    assert [round(each.foreign, 3) for each in found.kept] == [0.25, 0.3]  # of two cores


class Cores:
    """Two cores whose host moves them: a handover takes the next of these seconds, the last one from then on."""

    def __init__(self, *seconds):
        self.seconds, self.least = list(seconds), None

    def __call__(self):
        now = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        self.least = min(now, self.least or now)
        return now


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ([30.0], 2),
        ([30.0, 40.0, 200.0, 30.0], 3),  # apart after the second block
        ([200.0, 200.0, 200.0, 30.0], 3),  # the first round was taken apart, which the second one shows
    ],
)
def test_rounds_with_the_cores_apart_are_taken_again(seconds, taken):
    machine = Machine()
    sides = dict.fromkeys("ab", lambda: machine.run(1.0))
    found = interleave(sides, 2, machine.load(), 5, handover=Cores(*seconds))
    assert (len(found.kept) + found.repeated, found.disturbed) == (taken, 0)
    assert max(each.handover for each in found.kept) <= 40.0


def test_rounds_with_the_cores_together_are_kept_first():
    machine, others = Machine(), iter([0.5, 0.0, 0.0])
    found = interleave({"a": lambda: machine.run(1.0, next(others))}, 1, machine.load(), 2, handover=Cores(1, 1, 9))
    assert (found.kept[0].foreign, found.kept[0].handover, found.disturbed) == (0.25, 1, 1)


@pytest.mark.skipif(not Handover()(), reason="there is one core, or threads cannot be kept to one")
def test_a_handover_is_as_long_as_cores_have_it():
    cores = Handover()
    taken = [cores() for _ in range(3)]
    assert cores.least == min(taken) and 5e-9 < min(taken) < 1e-4


def test_where_threads_may_not_be_kept_to_a_core_the_handover_is_not_known(monkeypatch):
    def forbidden(thread, cores):
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden, raising=False)
    assert Handover()() is None


def test_handovers_are_measured_for_two_threads_alone():
    with Bench() as bench:
        bench.handover, bench.settings = Cores(1.0), Settings(rounds=1, more=0, block_seconds=0, pause=0)
        side = {"a": Side("ceilings:product", {"quick": True})}
        bench.compare(side, "a", threads=1)
        assert bench.handover.least is None
        bench.compare(side, "a", threads=2)
        assert bench.handover.least == 1.0


def test_where_the_load_is_not_known_that_is_said():
    load = Load(own=lambda: 0.0, machine=lambda: None, cores=2)
    found = interleave({"a": lambda: [1.0]}, 2, load, 3)
    assert (found.repeated, found.disturbed) == (0, None) and found.kept[0].foreign is None


def test_what_others_have_is_what_the_machine_spends_and_we_do_not():
    machine = Machine()
    load = machine.load()
    machine.run(10.0, others=0.4)
    assert load.foreign() == pytest.approx(0.2)
    load.start()
    machine.run(10.0)
    assert load.foreign() == 0.0 < DISTURBED


def test_the_line_of_the_kernel_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    path = tmp_path / "stat"
    path.write_text("cpu  100 20 30 9999 9999 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n", encoding="ascii")
    assert machine_seconds(path) == pytest.approx(1.65)  # neither idle, nor waiting for a disk
    assert machine_seconds(tmp_path / "nothing") is None
    path.write_text("intr 5\n", encoding="ascii")
    assert machine_seconds(path) is None


def test_our_own_seconds_are_counted():
    before = process_seconds()
    sum(range(3_000_000))
    assert process_seconds() >= before >= 0.0 and process_seconds(-1) == 0.0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="what a process has spent is read from /proc")
def test_what_a_child_has_spent_counts_as_ours_when_it_has_ended():
    before = process_seconds()
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    assert process_seconds() - before >= 0.15


def test_quartiles():
    assert median_and_quartiles([3.0]) == (3.0, [3.0, 3.0])
    assert median_and_quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, [2.0, 4.0])
