"""The compiled assignment as plain Python: whole numbers and the proof. The suite tests its exact step."""

import numpy as np
import pytest

from routelaws.accelerated.kernels import assignment
from routelaws.conformance.suite.routers.strategies_base import bound_of, first_optimum
from routelaws.reference.routers import base as reference


def whole_scores(seed: int, shape, most: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape)


@pytest.mark.parametrize("num_experts", [2, 16, 31, 32, 63, 64, 300])
def test_whole_numbers_are_the_reference_s(plain, monkeypatch, num_experts):
    """Whole numbers leave room for a path over all experts, also for the smallest and the largest scores."""
    solved = []

    def solve(whole, *rest):
        solved.append(whole.copy())
        return np.zeros(len(whole), np.int32)

    monkeypatch.setattr(assignment, "solve", solve)
    monkeypatch.setattr(assignment, "auction", lambda *given: None)
    plain_scores = np.random.default_rng(0).standard_normal((3, num_experts))
    for scale in (1.0, 2.0**1000, 2.0**-1000, 5e-324, 2.0**-1010):
        for scores in (plain_scores * scale, -np.abs(plain_scores) * scale):
            assignment.assign(scores)
            whole = solved.pop()
            assert np.array_equal(whole, reference._whole_numbers(scores)[0])
            longest = 2 * int(np.abs(whole).max()) * (num_experts + 1)
            assert longest < assignment.FAR


@pytest.mark.parametrize("shape, k", [((6, 3), 1), ((5, 3), 1), ((4, 4), 2), ((5, 3), 2), ((4, 4), 3), ((3, 4), 1)])
def test_the_first_of_the_best(plain, shape, k):
    for seed in range(10):
        scores = whole_scores(seed, shape, seed % 3) / 1.0
        found = assignment.assign(scores, k)
        assert [tuple(sorted(row)) for row in found.expert.tolist()] == first_optimum(scores, k), seed
        assert found.gap == 0 == bound_of(scores, found.prices, k) - found.objective
        assert found.prices.min() == 0


def test_the_least_difference_that_counts(plain):
    """A difference of 2^-49 of the largest score counts for up to 127 experts."""
    scores = np.zeros((2, 127))
    scores[0, [3, 5]], scores[1, [7, 6]] = (1 - 2.0**-49, 1.0), (-1.0, 2.0**-49)
    assert assignment.assign(scores).expert.ravel().tolist() == [5, 6]
    assert assignment.assign(scores * 3.0).expert.ravel().tolist() == [5, 6]


def test_an_objective_is_summed_in_float64(plain):
    assert assignment.assign(np.array([[1], [2.0**-30]], np.float32)).objective == 1 + 2.0**-30


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_without_finite_scores_experts_are_dealt_out(plain, wrong):
    for scores, dealt in ((np.array([[0.0, 1, 2], [3, wrong, 5]]), [[0, 1], [2, 0]]), (np.zeros((0, 3)), [])):
        found = assignment.assign(scores, 2)
        assert found.expert.tolist() == dealt and found.expert.dtype == np.int32
        assert found.expert.shape == (len(scores), 2)
        assert np.isnan([found.objective, found.gap, *found.prices]).all() and len(found.prices) == 3
