"""The balanced assignment around its exact step: whole numbers, the auctions before it, order and proof after it.

All as plain Python: nothing is compiled, and a test can put a function of its own in the place of a step.
"""

import numpy as np
import pytest

from routelaws.accelerated.kernels import assignment
from routelaws.conformance.bounds import check
from routelaws.conformance.suite.strategies_base import bound_of
from routelaws.reference.routers import base as reference


def whole_scores(seed: int, shape, most: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape)


@pytest.mark.parametrize("num_experts", [2, 16, 31, 32, 63, 64, 300])
def test_whole_numbers_are_the_reference_s(plain, recorded, monkeypatch, num_experts):
    """As many digits as leave headroom for a chain of all experts; also of the smallest and the largest scores."""
    solved = recorded(assignment, "solve", lambda whole, *rest: np.zeros(len(whole), np.int32))
    monkeypatch.setattr(assignment, "auction", lambda *given: None)
    plain_scores = np.random.default_rng(0).standard_normal((3, num_experts))
    for scale in (1.0, 2.0**1000, 2.0**-1000, 5e-324, 2.0**-1010):
        for scores in (plain_scores * scale, -np.abs(plain_scores) * scale):
            found = assignment.assign(scores)
            wanted, unit = reference._whole_numbers(scores)
            whole, prices, k, everyone, more = solved.pop()
            assert np.array_equal(whole, wanted) and (k, everyone, more) == (1, *divmod(3, num_experts))
            assert prices.tolist() == [0] * (num_experts + 1) and found.prices.tolist() == [0] * num_experts
            longest = 2 * int(np.abs(whole).max()) * (num_experts + 1)
            assert longest < assignment.FAR


def test_the_least_difference_that_counts(plain):
    """2^-49 of the largest score for up to 127 experts: a token sees it, and does not go to the lower index."""
    scores = np.zeros((2, 127))
    scores[0, [3, 5]], scores[1, [7, 6]] = (1 - 2.0**-49, 1.0), (-1.0, 2.0**-49)
    assert assignment.assign(scores).expert.ravel().tolist() == [5, 6]
    assert assignment.assign(scores * 3.0).expert.ravel().tolist() == [5, 6]


def test_prices_come_from_the_auctions_and_go_back_in_units_of_the_scores(plain, recorded, monkeypatch):
    """One of every eighth token, one of all that begins where it ended; cut where sums could overflow."""
    scores = whole_scores(1, (21, 5), 9) / 4
    scores[3, 2] = 3.5  # the largest: numbers are multiples of 2^(2 - 52)
    dealt = np.arange(42, dtype=np.int32) % 5

    def bid(near, price, *rest):
        price += np.array([3.0, 1.0, 2.0, 1.5, 1000.0], np.float32)

    def solve(whole, price, *rest):
        price[:-1] = np.array([7, 5, 4, 9, 3]) * 2**50
        return dealt

    bids = recorded(assignment, "auction", bid)
    solved = recorded(assignment, "solve", solve)
    found = assignment.assign(scores, 2)
    near, wanted = (scores / 4).astype(np.float32), assignment.COARSE * np.std(scores / 4)
    for call, begin, rows, places in zip(bids, ([0] * 5, [2, 0, 1, 0.5, 999]), (near[::8], near), (2, 9), strict=True):
        assert np.array_equal(call[0], rows) and call[1].tolist() == begin and call[2:4] == (2, places)
        assert call[4].dtype == np.float32 and call[5] == assignment.MOST_BIDS * 42
        check("base.deviation", abs(call[4] / wanted - 1))
    assert (solved[0][1] / 2**52).tolist() == [4, 0, 2, 1, 64, 0] and solved[0][2:] == (2, 8, 2)
    assert found.prices.tolist() == [4, 2, 1, 6, 0]
    assert np.array_equal(found.expert, assignment.in_order(scores, dealt))
    assert found.objective == np.take_along_axis(scores, found.expert, axis=1).sum()
    assert found.gap == bound_of(scores, found.prices, 2) - found.objective


def test_an_objective_is_summed_in_float64(plain):
    """Whatever the scores are."""
    assert assignment.assign(np.array([[1], [2.0**-30]], np.float32)).objective == 1 + 2.0**-30


def test_no_auction_where_prices_decide_nothing(plain, recorded, monkeypatch):
    """Every token has every expert, or scores are all alike."""
    bids = recorded(assignment, "auction", lambda *given: None)
    assert assignment.assign(whole_scores(0, (4, 3)) / 1.0, 3).gap == 0
    assert assignment.assign(np.full((4, 3), 0.75), 2).gap == 0
    assert not bids
    assert assignment.assign(whole_scores(0, (4, 3)) / 1.0, 2).gap == 0
    assert len(bids) == len(assignment.STRIDES)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_without_finite_scores_experts_are_dealt_out(plain, wrong):
    """Numbers are NaN then, as they are where there is no token."""
    for scores, dealt in ((np.array([[0.0, 1, 2], [3, wrong, 5]]), [[0, 1], [2, 0]]), (np.zeros((0, 3)), [])):
        found = assignment.assign(scores, 2)
        assert found.expert.tolist() == dealt and found.expert.dtype == np.int32
        assert found.expert.shape == (len(scores), 2)
        assert np.isnan([found.objective, found.gap, *found.prices]).all() and len(found.prices) == 3


def test_numbers_and_their_deviation(plain):
    """Halves go to even; near is whole in units; the deviation is never the root of something below 0."""
    scores = np.array([[0.25, 0.75, 1.25], [-0.75, 3.0, -2.0]])
    whole, near = np.empty((2, 3), np.int64), np.empty((2, 3), np.float32)
    found = assignment.whole_numbers(scores, 2.0, 0.5, whole, near)
    assert whole.tolist() == [[0, 2, 2], [-2, 6, -4]] and near.tolist() == [[0, 1, 1], [-1, 3, -2]]
    check("base.deviation", abs(found / near.std(dtype=np.float64) - 1))
    below = 0
    for value in np.linspace(0.1, 0.9, 40).reshape(-1, 1, 1):  # all alike, which rounding may make less than nothing
        alike = np.repeat(value, 7, axis=1)
        room = np.empty((1, 7), np.int64), np.empty((1, 7), np.float32)
        found = assignment.whole_numbers(alike, 2.0**30, 2.0**-30, *room)
        assert found >= 0
        check("base.deviation", found**2)
        below += found == 0
    assert below


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_order_within_a_token(plain, k):
    """By falling score, then by index."""
    random = np.random.default_rng(k)
    scores = random.integers(-1, 2, (30, 5)) / 2
    slots = np.array([random.permutation(5)[:k] for _ in range(30)], np.int32)
    found = assignment.in_order(scores, slots.T.ravel())
    assert found.tolist() == [sorted(row, key=lambda e: (-line[e], e)) for row, line in zip(slots, scores, strict=True)]
    assert found.dtype == np.int32


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_gap_is_the_bound_less_the_objective(plain, k):
    """Whatever the experts and the prices; the regret alone is what the tokens could gain."""
    random = np.random.default_rng(k)
    for lean, size in ((0, 24), (8, 24), (0, 1), (8, 2)):  # few tokens leave experts without any
        scores, prices = random.integers(-8, 9, (size, 5)) / 4, random.integers(-9, 9, 5) / 4 + lean
        expert = np.array([random.permutation(5)[:k] for _ in range(size)], np.int32)
        held = np.take_along_axis(scores - prices, expert, axis=1).sum()
        best = np.sort(scores - prices, axis=1)[:, -k:].sum()
        assert assignment._regret(scores, expert, prices) == best - held
        objective = np.take_along_axis(scores, expert, axis=1).sum()
        assert assignment.measure_gap(scores, expert, prices) == bound_of(scores, prices, k) - objective
