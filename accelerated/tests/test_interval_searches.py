"""The searches behind the intervals: where they begin and go on, what they ask and how often, and what they find.

All run as plain Python, with analytic functions in the place of the ends at a shape.
"""

import itertools
import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_intervals
from routelaws.conformance.bounds import check

ASKED = ("problem", "extra", "constant", "kind", "at", "beyond")
REST = ("limit", "sign", "work")


def test_the_end_that_is_searched(plain, monkeypatch):
    """The low end, or minus the high one; shapes that are rejected come behind all others, the worse the further."""
    extra, given = np.array([0.0, 3.0, 15.0]), []
    monkeypatch.setattr(law_intervals, "_shape", lambda t, w, top: (t, w, top))

    outside = law_intervals.OUTSIDE
    for answer, low, high in (
        ((2.0, 9.0, -3.0, 5.0), -3.0, -5.0),
        ((2.5, 9.0, -3.0, 5.0), -3.0, -5.0),
        ((2.6, 9.0, -3.0, 5.0), 3.6 * outside, 3.6 * outside),
        ((1.0, 9.0, math.nan, 5.0), 2.0 * outside, -5.0),
        ((1.0, 9.0, -math.inf, math.inf), -math.inf, -math.inf),
    ):
        monkeypatch.setattr(law_intervals, "ends_at", lambda *asked, answer=answer: given.append(asked) or answer)
        for sign, wanted in ((1.0, low), (-1.0, high)):
            asked = ("problem", extra, "constant", "kind", "at", "beyond")
            assert law_intervals._signed_end(*asked, 0.25, 0.75, 2.5, sign, "work") == wanted
            assert given.pop() == (*asked, 0.25, 0.75, math.log1p(15.0), 2.5, "work")


def test_the_line_of_a_place(plain, monkeypatch):
    """The least over w, or, with E_max unbounded, the point w = 0."""
    monkeypatch.setattr(law_intervals, "_signed_end", lambda *given: ("point", given))
    monkeypatch.setattr(law_intervals, "_least_over_w", lambda *given: ("line", given))
    assert law_intervals._at_t(*ASKED, 0.3, True, *REST) == ("point", (*ASKED, 0.3, 0.0, *REST))
    assert law_intervals._at_t(*ASKED, 0.3, False, *REST) == ("line", (*ASKED, 0.3, *REST))


def test_an_end_is_the_least_of_the_inside_and_both_edges(plain, monkeypatch):
    """Over all shapes, over those without E_max, and over those with E_start = 1."""
    for least in itertools.permutations((1.0, 2.0, 3.0)):
        given = []

        def over(*arguments, given=given, least=least):
            given.append(arguments)
            return least[len(given) - 1]

        monkeypatch.setattr(law_intervals, "_least_over_t", over)
        monkeypatch.setattr(law_intervals, "_least_over_w", over)
        asked = ("problem", np.zeros(3), "constant", "kind", "at", "beyond")
        assert law_intervals.interval_end(*asked, "limit", "sign") == 1.0
        assert [one[6:-1] for one in given] == [
            (False, "limit", "sign"),
            (True, "limit", "sign"),
            (1.0, "limit", "sign"),
        ]
        assert all(one[:6] == asked and one[-1].shape == (6, 6) for one in given)


def test_low_points_of_all_short_lines(plain):
    """Places that no neighbour is below, the lowest first, each once; -1 where there are no more."""
    for size in range(1, 7):
        for line in itertools.product((0.0, 1.0, 2.0), repeat=size):
            low = [i for i in range(size) if line[i] == min(line[max(i - 1, 0) : i + 2])]
            for room in (1, 2, 3):
                found = np.full(room, 7)
                law_intervals._low_points(np.array(line), found)
                places, count = found.tolist(), min(room, len(low))
                assert set(places[:count]) <= set(low) and places[count:] == [-1] * (room - count), line
                assert len(set(places[:count])) == count, line
                assert [line[i] for i in places[:count]] == sorted(line[i] for i in low)[:count], line


def test_the_golden_ratio():
    """A step leaves the same share of the whole and of what is left."""
    check("laws.uncertainty.loops", abs(law_intervals.GOLDEN**2 + law_intervals.GOLDEN - 1))


VALLEYS = {
    "inside": lambda x: (x - 0.37) ** 2, "at the left end": lambda x: x, "at the right end": lambda x: -x,
    "a kink": lambda x: abs(x - 0.61), "flat": lambda x: 1.0,
    "rejected beyond 0.3": lambda x: -x if x <= 0.3 else 1e200 * (1 + x),
    "rejected before 0.7": lambda x: x if x >= 0.7 else 1e200 * (2 - x),
}  # fmt: skip
LEAST = {
    "inside": 0.37,
    "at the left end": 0.2,
    "at the right end": 0.9,
    "a kink": 0.61,
    "flat": 0.2,
    "rejected beyond 0.3": 0.3,
    "rejected before 0.7": 0.7,
}
"""Where each is least between 0.2 and 0.9."""


def along(monkeypatch, axis: str, function):
    """Put a function of one coordinate in place of the end at a shape, or on a line; return where it is asked."""
    places = []

    def signed_end(*given):
        assert given[:6] == ASKED and given[-3:] == REST
        assert axis == "t" or given[6] == "t"
        assert axis == "w" or given[7] == "unbounded"
        places.append(given[7] if axis == "w" else given[6])
        return function(places[-1])

    monkeypatch.setattr(law_intervals, "_signed_end" if axis == "w" else "_at_t", signed_end)
    return places


def golden(axis: str, low: float, high: float, times: int):
    if axis == "w":
        return law_intervals._golden_w(*ASKED, "t", *REST, low, high, times)
    return law_intervals._golden_t(*ASKED, "unbounded", *REST, low, high, times)


def least_over(axis: str):
    if axis == "w":
        return law_intervals._least_over_w(*ASKED, "t", *REST)
    return law_intervals._least_over_t(*ASKED, "unbounded", *REST)


@pytest.mark.parametrize("axis", "wt")
@pytest.mark.parametrize("name", VALLEYS)
def test_a_golden_section_closes_in(plain, monkeypatch, name, axis):
    """Each step asks once, leaves 0.618 of the bracket, and keeps the least in it; the least value seen comes back."""
    for times in (0, 1, 2, 12):
        places = along(monkeypatch, axis, VALLEYS[name])
        low, high, best = golden(axis, 0.2, 0.9, times)
        assert len(places) == times + 2 and best == min(map(VALLEYS[name], places))
        share = (math.sqrt(5) - 1) / 2
        wanted = (0.9 - 0.7 * share, 0.2 + 0.7 * share, 0.7 * share**times)
        for found, number in zip((*places[:2], high - low), wanted, strict=True):
            check("laws.uncertainty.loops", abs(found - number), message=f"points and bracket after {times}")
        assert 0.2 <= low <= LEAST[name] <= high <= 0.9


SCANS = {
    "one valley": (lambda x: (x - 0.37) ** 2, [12]),
    "two valleys": (lambda x: min((x - 0.2) ** 2 + 0.01, (x - 0.8) ** 2), [26, 6]),
    "five valleys": (lambda x: -math.cos(8 * math.pi * x) - x / 9, [32, 24, 16]),
    "both ends": (lambda x: x * (1 - x) - x / 9, [32, 0]),
    "at 0": (lambda x: x, [0]),
    "at 1": (lambda x: -x, [32]),
    "flat": (lambda x: 1.0, [0, 1, 2]),
}
"""Functions of one coordinate, and the lowest points of 33 at equal steps."""


@pytest.mark.parametrize("axis", "wt")
@pytest.mark.parametrize("name", SCANS)
def test_a_search_begins_around_the_low_points_of_its_scan(plain, monkeypatch, name, axis):
    """Some steps around each, and the others around that in whose bracket the least was found."""
    function, wanted = SCANS[name]
    step, brackets = 1 / (law_intervals.FIRST - 1), []

    def narrow(*given):
        brackets.append(given[-3:])
        middle = (given[-3] + given[-2]) / 2
        return middle - 0.01, middle + 0.01, function(middle) + offset

    monkeypatch.setattr(law_intervals, f"_golden_{axis}", narrow)
    for offset in (0.0, 5.0, -5.0):  # what the search adds to a scan's own values
        places = along(monkeypatch, axis, function)
        found = least_over(axis)
        assert places == [i * step for i in range(law_intervals.FIRST)]
        around = [(max(i - 1, 0) * step, min(i + 1, 32) * step, law_intervals.CHOOSE) for i in wanted]
        *begun, last = brackets
        assert begun == around
        ends = [function((low + high) / 2) for low, high, _ in around]
        middle = sum(around[ends.index(min(ends))][:2]) / 2
        assert last == (middle - 0.01, middle + 0.01, law_intervals.TIMES - law_intervals.CHOOSE)
        assert found == min(*map(function, places), min(ends) + offset, function(sum(last[:2]) / 2) + offset)
        brackets.clear()


def test_the_least_value_is_that_of_the_scan_the_choice_or_the_end(plain, monkeypatch):
    """Whichever of the three is lowest."""
    for axis in "wt":
        for answers in itertools.permutations((0.5, 1.5)):
            for scan in (0.25, 1.0, 2.0):
                values = iter(answers)
                along(monkeypatch, axis, lambda x, scan=scan: x + scan)
                narrow = lambda *given, values=values: (0.1, 0.2, next(values))  # noqa: E731
                monkeypatch.setattr(law_intervals, f"_golden_{axis}", narrow)
                assert least_over(axis) == min(scan, 0.5)


@pytest.mark.parametrize("axis", "wt")
@pytest.mark.parametrize("name", [name for name in SCANS if name != "flat"])
def test_a_search_ends_at_the_least(plain, monkeypatch, name, axis):
    """In as many steps as it says; the least is that of a fine scan, or below it."""
    function, low = SCANS[name]
    places = along(monkeypatch, axis, function)
    found = least_over(axis)
    assert len(places) == 33 + len(low) * (law_intervals.CHOOSE + 2) + law_intervals.TIMES - law_intervals.CHOOSE + 2
    assert found == min(map(function, places))
    fine = min(map(function, np.linspace(0, 1, 4001)))
    check("laws.uncertainty.loops", max(found - fine, 0.0), message=name)
