"""Where the searches of the bounded law begin, how they step, what they spend and which end is taken.

The loops run as plain Python here, with recorders and functions known by formula in the place of their helpers.
"""

import math
from itertools import pairwise

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_huber
from routelaws.conformance.bounds import check

pytestmark = pytest.mark.usefixtures("plain_loops")

INFINITE = math.inf
TABLE, EXTRA, DERIVATIVES = "table", "extra", ("slope", "matrix", "scales")
"""What is only handed on."""

BOTH = pytest.mark.parametrize("module", [law_fit, law_huber])


class Hill:
    """A search of either kind on a function of (log alpha, logit), with what it asked for.

    Args:
        module: `law_fit` or `law_huber`.
        value: function of a point.
        step: function of (free_alpha, free_logit, damping), of a point in `at`: d0, d1 and the decrease it promises.
    """

    def __init__(self, monkeypatch, module, value, step):
        self.module, self.value, self.step, self.at = module, value, step, None
        self.values, self.steps, self.linear = [], [], np.zeros(4)
        if module is law_fit:
            own = {
                "_value": lambda *given: self.valued(*given[2:4], given[:2] == (TABLE, EXTRA)),
                "_gradient": lambda *given: self.sloped(*given[2:4], given[:2] == (TABLE, EXTRA)),
                "_step": lambda work, *free: self.stepped(*free),
            }
        else:
            own = {
                "_at": lambda *given: self.solved(*given[2:5], given[:2] == (TABLE, 0.1)),
                "_slopes": lambda *given: self.sloped(*given[2:4], given[:2] == (TABLE, 0.1)),
                "_step": lambda *given: self.stepped(*given[3:], given[:3] == DERIVATIVES),
            }
        for name, function in own.items():
            monkeypatch.setattr(module, name, function)

    def valued(self, log_alpha, logit, right=True):
        assert right, "the table first"
        assert len(self.values) < 100, "without end"
        self.values.append((log_alpha, logit))
        return self.value(log_alpha, logit)

    def solved(self, log_alpha, logit, linear, right):
        """The unknowns follow the point, and a trial starts at those of the point that it leaves."""
        assert linear.tolist() == ([*self.at, 0.0, 0.0] if self.values else [0.0] * 4)
        linear[:2] = log_alpha, logit
        return self.valued(log_alpha, logit, right)

    def sloped(self, alpha, logit, right):
        assert right, "the table first"
        self.at = next(point for point in self.values if math.exp(point[0]) == alpha and point[1] == logit)
        return DERIVATIVES

    def stepped(self, free_alpha, free_logit, damping, right=True):
        """Least squares takes the residuals from where the sum was looked at last, so that has to be the point left."""
        assert right and (self.module is law_huber or self.values[-1] == self.at)
        self.steps.append((free_alpha, free_logit, damping))
        return self.step(*self.at, *self.steps[-1])

    def search(self, log_alpha, logit, free=(True, True), settled=1e-10, constant=0.0):
        if self.module is law_fit:
            return law_fit.search(TABLE, EXTRA, constant, log_alpha, logit, *free, settled, None)
        found = law_huber.search(TABLE, 0.1, log_alpha, logit, *free, self.linear, None)
        assert self.linear[:2].tolist() == [*found[:2]], "the unknowns are those of the point that is returned"
        return found


def bowl(log_alpha, logit):
    """Least, 1, at (-2, 3)."""
    return 1.0 + (log_alpha + 2.0) ** 2 + (logit - 3.0) ** 2


def to_the_least(log_alpha, logit, free_alpha, free_logit, damping):
    """The step of a bowl's own matrix with a damped diagonal."""
    d0 = (-2.0 - log_alpha) / (1.0 + damping) if free_alpha else 0.0
    d1 = (3.0 - logit) / (1.0 + damping) if free_logit else 0.0
    return d0, d1, (d0 * d0 + d1 * d1) * (1.0 + damping)


@BOTH
def test_a_search_ends_where_the_sum_is_least(monkeypatch, module):
    """In three steps: each leaves a thousandth of the way, then a ten-thousandth, and so on."""
    hill = Hill(monkeypatch, module, bowl, to_the_least)
    log_alpha, logit, value = hill.search(-1.0, 2.0)
    assert (log_alpha, logit) == hill.values[-1] and value == bowl(log_alpha, logit)
    check("laws.kernels.least", max(abs(log_alpha + 2), abs(logit - 3)))
    dampings = [asked[2] for asked in hill.steps]
    assert len(hill.values) == len(dampings) <= 5
    for before, after in pairwise(dampings):
        check("laws.kernels.sum", abs(after / before - 0.1))
    check("laws.kernels.sum", abs(dampings[0] / 1e-3 - 1))
    assert all(asked[:2] == (True, True) for asked in hill.steps)


@BOTH
@pytest.mark.parametrize("free", [(True, False), (False, True)])
def test_what_is_not_free_stays(monkeypatch, module, free):
    """Also where it is infinite."""
    start = (-1.0, 2.0) if free[1] else (-1.0, -INFINITE)
    hill = Hill(monkeypatch, module, lambda a, b: bowl(a, b if free[1] else 0.0), to_the_least)
    found = hill.search(*start, free)
    assert found[1 - free.index(True)] == start[1 - free.index(True)]
    check("laws.kernels.least", abs(found[0] + 2) if free[0] else abs(found[1] - 3))
    assert len(hill.values) <= 5 and all(asked[:2] == free for asked in hill.steps)


@BOTH
def test_damping_falls_with_each_success_to_a_floor(monkeypatch, module):
    """One step a round, on a slope without end; `STEPS` rounds are the most."""
    monkeypatch.setattr(module, "STEPS", 14)
    hill = Hill(monkeypatch, module, lambda a, b: 1e6 + a, lambda *_: (-0.5, 0.0, 0.5))
    assert hill.search(-1.0, 2.0)[:2] == (-8.0, 2.0)
    floor = 1e-9 if module is law_fit else 1e-12
    assert len(hill.values) == 15 and len(hill.steps) == 14
    for k, asked in enumerate(hill.steps):
        check("laws.kernels.sum", abs(asked[2] / max(1e-3 * 0.1**k, floor) - 1), message=f"step {k}")


@BOTH
def test_damping_rises_tenfold_until_the_search_gives_up(monkeypatch, module):
    """Nothing is better: 16 trials from 1e-3 on; rounding leaves the last just below 1e12."""
    hill = Hill(monkeypatch, module, lambda a, b: 1.0, lambda *_: (0.5, 0.5, 1.0))
    assert hill.search(-1.0, 2.0) == (-1.0, 2.0, 1.0)
    trials = [point for point in hill.values if point != (-1.0, 2.0)]
    assert trials == [(-0.5, 2.5)] * len(hill.steps)
    for k, asked in enumerate(hill.steps):
        check("laws.kernels.sum", abs(asked[2] / 10.0 ** (k - 3) - 1), message=f"trial {k}")
    assert len(trials) in (15, 16), "the last damping is 1e12, or just below it by rounding"
    assert len(hill.values) == 1 + len(trials) * (2 if module is law_fit else 1)


@BOTH
def test_a_search_goes_on_after_a_failure(monkeypatch, module):
    """From the damping that worked: a tenth of it comes next."""

    def step(log_alpha, logit, free_alpha, free_logit, damping):
        return (-1.0, 0.0, 1.0) if damping < 0.5 else (0.5, 0.0, 1.0 if log_alpha < -0.75 else 0.0)

    hill = Hill(monkeypatch, module, lambda a, b: 2.0 - a, step)
    assert hill.search(-1.0, 2.0) == (-0.5, 2.0, 2.5)
    dampings = [asked[2] for asked in hill.steps]
    wanted = [1e-3, 1e-2, 1e-1, 1.0, 1e-1, 1.0]
    assert len(dampings) == len(wanted)
    for found, expected in zip(dampings, wanted, strict=True):
        check("laws.kernels.sum", abs(found / expected - 1))


@BOTH
def test_steps_are_cut_and_limits_kept(monkeypatch, module):
    """At most 4 at once; log alpha up to 0, the logit within 40 of 0."""
    monkeypatch.setattr(module, "STEPS", 1)
    for start, step, end in (
        ((-10.0, 0.0), (100.0, -100.0), (-6.0, -4.0)),
        ((-10.0, 0.0), (-100.0, 100.0), (-14.0, 4.0)),
        ((-10.0, 0.0), (3.5, -3.5), (-6.5, -3.5)),
        ((-0.5, 38.0), (0.75, 3.5), (0.0, 40.0)),
        ((-0.5, -38.0), (0.25, -3.5), (-0.25, -40.0)),
        ((-0.5, 39.5), (0.25, 0.25), (-0.25, 39.75)),
    ):
        value = lambda a, b, start=start: 1.0 + ((a, b) == start)  # noqa: E731
        hill = Hill(monkeypatch, module, value, lambda *_, step=step: (*step, 1.0))
        assert hill.search(*start) == (*end, 1.0)


@BOTH
def test_a_search_ends_where_too_little_is_promised(monkeypatch, module):
    """A share of the sum with what no shape can change; no trial is made then."""
    monkeypatch.setattr(module, "SETTLED", 0.25)
    constant = 3.0 if module is law_fit else 0.0
    for promised, trials in ((0.25 * (2 + constant), 0), (0.25 * (2 + constant) + 0.01, 1), (math.nan, 0)):
        hill = Hill(monkeypatch, module, lambda a, b: 2.0 - (a != -1.0) * 1e-3, lambda *_, p=promised: (-0.5, 0.0, p))
        monkeypatch.setattr(module, "STEPS", 1)
        hill.search(-1.0, 2.0, settled=0.25, constant=constant)
        assert len(hill.values) == 1 + trials


@BOTH
@pytest.mark.parametrize(
    "start, d0, held", [(0.0, 0.5, True), (0.0, 0.0, False), (0.0, -0.5, False), (-0.25, 0.5, False)]
)
def test_the_edge_in_the_way_of_a_step(monkeypatch, module, start, d0, held):
    """At log alpha = 0 a step outwards becomes one along the edge."""

    def step(log_alpha, logit, free_alpha, free_logit, damping):
        return d0 if free_alpha else 0.0, 0.5 if free_logit else 0.0, 1.0

    monkeypatch.setattr(module, "STEPS", 1)
    hill = Hill(monkeypatch, module, lambda a, b: 10.0 - b, step)
    assert hill.search(start, 2.0)[:2] == (min(start + d0, 0.0), 2.5)
    asked = [free[:2] for free in hill.steps]
    assert asked == ([(True, True)] if start == 0.0 else []) + [(not held, True)]
    hill = Hill(monkeypatch, module, lambda a, b: 10.0 - b, step)
    assert hill.search(start, 2.0, (False, True))[:2] == (start, 2.5)
    assert [free[:2] for free in hill.steps] == [(False, True)]


class Fall:
    """`polish` on a function known by formula, with what it asked for.

    Args:
        value: function of a point.
        step: what Newton's method says everywhere.
        fall: the slope along log alpha.
    """

    def __init__(self, monkeypatch, value, step, fall=0.5):
        self.slopes, self.newtons, self.values = [], [], []

        def slopes(problem, extra, log_alpha, logit, work):
            self.slopes.append((log_alpha, logit))
            assert (problem, extra) == (TABLE, EXTRA)
            return value(log_alpha, logit), fall, 0.25

        def newton(problem, extra, log_alpha, logit, free_alpha, free_logit, fall_0, fall_1, work):
            assert (problem, extra) == (TABLE, EXTRA)
            assert (log_alpha, logit) == self.slopes[-1] and (fall_0, fall_1) == (fall, 0.25)
            self.newtons.append((free_alpha, free_logit))
            return step

        def valued(problem, extra, log_alpha, logit, work):
            assert (problem, extra) == (TABLE, EXTRA) and len(self.values) < 100
            self.values.append((log_alpha, logit))
            return value(log_alpha, logit)

        for name, function in (("_slopes", slopes), ("_newton", newton), ("_value", valued)):
            monkeypatch.setattr(law_fit, name, function)

    def polish(self, log_alpha, logit, free=(True, True)):
        found = law_fit.polish(TABLE, EXTRA, log_alpha, logit, *free, None)
        assert self.values[-1] == found[:2], "the last look is at the end"
        return found


@pytest.mark.parametrize("step", [(-0.5, 0.0), (0.0, 0.5), (-0.5, 0.5)])
def test_a_polish_shortens_a_step_five_times(monkeypatch, step):
    """1, 1/4, 1/16, 1/64 and 1/256 of it; where none is better it ends where it began."""
    fall = Fall(monkeypatch, lambda a, b: 1.0, step)
    assert fall.polish(-1.0, 2.0) == (-1.0, 2.0, 1.0)
    trials = [(-1.0 + step[0] / 4**k, 2.0 + step[1] / 4**k) for k in range(5)]
    assert fall.values == [*trials, (-1.0, 2.0)] and fall.slopes == [(-1.0, 2.0)]


def test_a_polish_without_a_step_looks_once(monkeypatch):
    fall = Fall(monkeypatch, lambda a, b: 1.0, (0.0, 0.0))
    assert fall.polish(-1.0, 2.0) == (-1.0, 2.0, 1.0)
    assert fall.values == [(-1.0, 2.0)]


def test_a_polish_takes_the_longest_step_that_is_better(monkeypatch):
    """A quarter, then the whole again; equal is not better, and `NEWTON_STEPS` are the most."""
    fall = Fall(monkeypatch, lambda a, b: max(2.0 - b, 0.0) if b < 5 else 9.0, (0.0, 4.0))
    assert fall.polish(-1.0, 1.5) == (-1.0, 2.5, 0.0)
    assert [b for _, b in fall.values] == [5.5, 2.5, 6.5, 3.5, 2.75, 2.5625, 2.515625, 2.5]
    monkeypatch.setattr(law_fit, "NEWTON_STEPS", 3)
    fall = Fall(monkeypatch, lambda a, b: -b, (0.0, 0.5))
    assert fall.polish(-1.0, 2.0) == (-1.0, 3.5, -3.5)
    assert len(fall.slopes) == 3 and len(fall.values) == 4


@pytest.mark.parametrize("start, fall, free, asked", [
    (0.0, 0.5, True, False), (0.0, 0.0, True, True), (0.0, -0.5, True, True), (-0.25, 0.5, True, True),
    (-0.25, -0.5, False, False),
])  # fmt: skip
def test_the_edge_in_the_way_of_a_polish(monkeypatch, start, fall, free, asked):
    """At log alpha = 0 it is held where the sum falls outwards."""
    found = Fall(monkeypatch, lambda a, b: 1.0, (0.0, 0.0), fall)
    found.polish(start, 2.0, (free, True))
    assert found.newtons == [(asked, True)]
    found = Fall(monkeypatch, lambda a, b: 1.0, (0.0, 0.0), fall)
    found.polish(start, -INFINITE, (free, False))
    assert found.newtons == [(asked, False)]


def test_a_polish_keeps_the_limits(monkeypatch):
    """log alpha up to 0, the logit within 40 of 0, or infinite where it is not free."""
    monkeypatch.setattr(law_fit, "NEWTON_STEPS", 1)
    for start, step, end in (
        ((-0.5, 38.0), (0.75, 9.0), (0.0, 40.0)),
        ((-0.5, -38.0), (0.25, -9.0), (-0.25, -40.0)),
        ((-0.5, 39.25), (0.25, 0.5), (-0.25, 39.75)),
        ((-0.5, -39.25), (-9.0, -0.5), (-9.5, -39.75)),
    ):
        fall = Fall(monkeypatch, lambda a, b, start=start: 1.0 + ((a, b) == start), step)
        assert fall.polish(*start) == (*end, 1.0)
    fall = Fall(monkeypatch, lambda a, b: 1.0 + a, (-0.25, 0.0))
    assert fall.polish(-0.5, -INFINITE, (True, False))[:2] == (-0.75, -INFINITE)


@pytest.mark.parametrize("free", [(True, True), (True, False), (False, True), (False, False)])
def test_newton_takes_differences_of_the_slopes(monkeypatch, free):
    """A little to both sides, along what is free; of slopes that are straight the step is exact."""
    matrix, at, asked = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([-1.0, 0.5]), []

    def slopes(problem, extra, log_alpha, logit, work):
        assert (problem, extra) == (TABLE, EXTRA)
        asked.append((log_alpha - at[0], logit - at[1]))
        return 0.0, *(np.array([4.0, 5.0]) - matrix @ [log_alpha, logit])

    monkeypatch.setattr(law_fit, "_slopes", slopes)
    found = law_fit._newton(TABLE, EXTRA, *at, *free, 4.0, 5.0, None)
    kept, wanted = list(free), np.zeros(2)
    wanted[kept] = np.linalg.solve(matrix[kept][:, kept], np.array([4.0, 5.0])[kept])
    check("laws.fitting.newton", float(np.abs(np.array(found) - wanted).max()))
    axes = [axis for axis, one in zip(np.eye(2), free, strict=True) if one]
    looked = [sign * law_fit.NUDGE * axis for axis in axes for sign in (-1, 1)]
    assert len(asked) == len(looked) and np.allclose(asked, looked, rtol=law_fit.NUDGE, atol=0) if looked else not asked
    assert 0 < law_fit.NUDGE < 0.01


EDGES = {
    "below": ([3.0, 2.0, 1.0, 2.0, 3.0], True),
    "above": ([1.3, 1.2, 1.2, 1.2, 1.3], False),
    "between the points": ([3.0, 2.0, 1.125, 1.25, 3.0], True),  # the parabola's least is 1.0625
    "not far enough between them": ([3.0, 2.0, 1.2, 1.25, 3.0], False),  # 1.1178
    "first point": ([1.125, 3.0, 3.0, 3.0, 1.25], False),  # no parabola: the last point is not its neighbour
    "last point": ([1.25, 3.0, 3.0, 3.0, 1.125], False),
    "no neighbour": ([3.0, INFINITE, 1.125, 1.2, 3.0], False),
    "nothing": ([INFINITE] * 5, False),
}
"""Residual sums of an edge, and whether one of at least 1 can be beaten, less 0.1 for what a scan misses."""


@pytest.mark.parametrize("name", EDGES)
def test_which_edges_a_quick_fit_searches(name):
    """By hand; what no shape can change counts on both sides."""
    line, wanted = EDGES[name]
    assert law_fit._may_win(np.array(line), 1.0, 0.0) == wanted
    if np.isfinite(line).all():
        assert law_fit._may_win(np.array(line) - 0.5, 0.5, 0.5) == wanted


@pytest.mark.parametrize("line, least", [
    ([7.0, 4.0, 3.0, 4.0, 7.0], 3.0), ([9.25, 5.25, 3.25, 3.25, 5.25], 3.0), ([5.25, 3.25, 3.25, 5.25], 3.0),
    ([2.0 * (k - 1.75) ** 2 + 5 for k in range(5)], 5.0), ([2.0 * (k - 3.25) ** 2 + 5 for k in range(5)], 5.0),
    ([3.0, 4.0, 5.0], 3.0), ([5.0, 4.0, 3.0], 3.0), ([5.0, 3.0, INFINITE], 3.0), ([INFINITE, 3.0, 4.0], 3.0),
    ([3.0, 3.0, 3.0], 3.0),
])  # fmt: skip
def test_what_an_edge_may_hold(monkeypatch, line, least):
    """The least of a parabola; without a neighbour on each side that of the scan. Twice what is inside is the limit."""
    monkeypatch.setattr(law_fit, "MARGIN", 2.0)
    for constant in (0.0, 5.0):
        inside = (least + constant) / 2 - constant
        assert not law_fit._may_win(np.array(line), inside, constant), "equal is not lower"
        assert law_fit._may_win(np.array(line), inside + 2.0**-20, constant)
        assert not law_fit._may_win(np.array(line), inside - 2.0**-20, constant)
