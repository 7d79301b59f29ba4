"""The auction on the device: its guarantee, and limits of the callback to the host."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.kernels import assignment
from routelaws.accelerated.kernels import auction as auction_of_all
from routelaws.accelerated.routers import base
from routelaws.conformance.bounds import UNIT, check
from routelaws.conformance.suite.routers.strategies_base import bound_of, draw_scores, scipy_optimum

SHAPES = ((5, 1), (6, 8), (13, 3), (16, 4))
FAMILIES = ("random", "integer", "tied", "anisotropic", "all alike", "one token decides")


SOLVE = jax.jit(base.balanced_assignment, static_argnames=("method", "k"))


def auction(values, epsilon=None, k=1, mask=None):
    if epsilon is None:  # the default is EPSILON times this
        epsilon = base.EPSILON * float(np.ptp(np.asarray(values, np.float32), axis=1).max())
    return SOLVE(jnp.asarray(values, jnp.float32), k, method="auction", epsilon=epsilon, mask=mask)


def missing(values: np.ndarray, found) -> float:
    """Return the optimum minus the objective of a balanced assignment."""
    expert = np.asarray(found.expert)
    k = expert.shape[1]
    assert all(len(set(row)) == k for row in expert.tolist()), expert
    load = np.bincount(expert.ravel(), minlength=values.shape[1])
    assert load.max() - load.min() <= 1 and len(load) == values.shape[1], load
    return scipy_optimum(values, k) - np.take_along_axis(values, expert, axis=1).sum()


def check_guarantee(values: np.ndarray, epsilon: float | None, k: int = 1) -> None:
    num_tokens, num_experts = values.shape
    k = min(k, num_experts)
    found = auction(values, epsilon, k)
    spread = np.ptp(values, axis=1).max()
    step = max(base.EPSILON * spread if epsilon is None else epsilon, 4 * num_experts * spread * 2.0**-23)
    lost = missing(values, found)
    rounding = UNIT["float32"] * num_tokens * k * (np.abs(values).max() + float(found.prices.max()))
    allowed = factor(num_tokens, num_experts, k) * step
    check("base.auction", max(lost - allowed, 0.0), rounding, message=f"{values.shape}: {lost} is missing")
    check("base.auction", max(lost - float(found.gap), 0.0), rounding, message=f"{values.shape}: gap {found.gap}")
    bound = bound_of(values, np.asarray(found.prices, np.float64), k)
    check("base.auction", abs(float(found.gap) + float(found.objective) - bound), rounding, message="gap and prices")
    check("base.auction", max(float(found.gap) - allowed, 0.0), rounding, message=f"gap {found.gap} above {allowed}")


def factor(num_tokens: int, num_experts: int, k: int) -> int:
    """Return the allowed distance from the optimum, in increments."""
    return num_tokens * min(k, num_experts - k) + -num_tokens * k % num_experts


CASES = [*((shape, 1) for shape in SHAPES), ((13, 3), 2)]
CASES += [pytest.param(*more, marks=pytest.mark.slow) for more in (((6, 8), 3), ((16, 4), 2), ((16, 4), 3))]


@pytest.mark.parametrize("shape, k", CASES)
def test_the_guarantee(shape, k):
    for seed, family in enumerate(FAMILIES):
        check_guarantee(draw_scores(family, shape, (0.1, 100.0)[seed % 2], seed).values, None, k)


def test_padding_takes_no_part_in_the_auction():
    values = draw_scores("random", (16, 3), 1.0, 7).values
    for num_real in (13, 12):
        mask = np.arange(16) * 5 % 16 < num_real
        wanted = auction(values[mask], 0.01, 2)
        found = auction(np.where(mask[:, None], values, np.nan), 0.01, 2, mask)
        assert np.asarray(found.expert)[mask].tolist() == wanted.expert.tolist(), num_real
        assert np.asarray(found.expert)[~mask].tolist() == [[0, 1]] * (16 - num_real)
        assert found.prices.tolist() == wanted.prices.tolist()
        for name in ("objective", "gap"):
            error = abs(float(getattr(found, name)) - float(getattr(wanted, name)))
            check("base.auction", error, UNIT["float32"] * 26 * (np.abs(values).max() + float(found.prices.max())))
    nobody = auction(values, 0.01, 2, np.zeros(16, bool))
    assert np.isnan(nobody.gap) and nobody.expert.tolist() == [[0, 1]] * 16


def test_a_stated_increment():
    for epsilon in (0.5, 0.01):
        for seed in range(3):
            check_guarantee(draw_scores("random", (13, 3), 1.0, seed).values, epsilon)


def test_whole_scores_are_exact_below_one_share_of_an_increment():
    for shape, k in (((13, 3), 1), ((16, 4), 1), ((13, 3), 2)):
        for seed in range(8):
            values = np.random.default_rng(seed).integers(-4, 5, shape).astype(float)
            assert missing(values, auction(values, 1 / (factor(*shape, k) + 1), k)) == 0, (shape, k, seed)


def test_an_offset_of_a_token_costs_no_digits():
    values = draw_scores("random", (16, 4), 1.0, 0).values
    moved = np.float32(values * 64).round() / 64 + 4096 * np.arange(16)[:, None]
    assert missing(moved, auction(moved)) <= 20 * base.EPSILON * np.ptp(moved, axis=1).max()


def test_a_score_that_is_not_finite_ends_the_auction():
    for wrong in (np.nan, np.inf):
        values = draw_scores("random", (13, 3), 1.0, 4).values
        values[5, 1] = wrong
        found = auction(values, 0.1)
        assert np.isnan([found.objective, found.gap, *found.prices]).all()
        assert sorted(np.bincount(np.asarray(found.expert).ravel(), minlength=3)) == [4, 4, 5]


def test_the_default_increment():
    values = jnp.asarray(draw_scores("random", (13, 3), 1.0, 5).values, jnp.float32)
    assert SOLVE(values, method="auction").prices.tolist() == auction(values).prices.tolist()


def test_the_least_increment_is_the_one_that_is_stated():
    """The smallest increment is 4 E times the spread times the precision."""
    values = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    unit = 2 * float(np.ptp(values, axis=1).max()) * float(np.finfo(np.float32).eps)
    nothing, less, least, more = (auction(values, times * unit).prices.tolist() for times in (1e-9, 3.0, 4.0, 4.5))
    assert nothing == less == least != more


def test_an_unknown_method_is_named():
    with pytest.raises(InputError, match="method is 'magic'; allowed: host, auction"):
        base.balanced_assignment(jnp.zeros((4, 2)), method="magic")


def test_the_router_takes_the_method():
    values = draw_scores("integer", (13, 3), 1.0, 1).values
    route = jax.jit(base.base_router, static_argnames="method")
    found = route(jnp.asarray(values, jnp.float32), method="auction", epsilon=1 / 17)
    assert np.take_along_axis(values, np.asarray(found.expert), axis=1).sum() == scipy_optimum(values)
    assert sorted(np.round(np.asarray(found.load) * 13)) == [4, 4, 5] and found.gate.shape == (13, 1)


def test_the_prices_of_the_first_step_matter_for_speed_alone(monkeypatch):
    values = draw_scores("tied", (61, 8), 1.0, 2).values
    for k in (1, 3, 7):
        wanted = assignment.assign(values, k)
        for change in (
            {"COARSE": 1e-3},
            {"COARSE": 10.0},
            {"MOST_BIDS": 0},
            {"HIGHEST": 1e-3},
            {"STRIDES": ()},
            {"STRIDES_OF_FEW": ()},
        ):
            for name, value in change.items():
                monkeypatch.setattr(assignment, name, value)
            found = assignment.assign(values, k)
            assert found.expert.tolist() == wanted.expert.tolist() and found.gap == 0, (k, change)
            monkeypatch.undo()


def test_the_prices_of_the_first_step_are_nearly_right():
    plain = np.random.default_rng(3).standard_normal((64, 8)).astype(np.float32)
    for k, lean in ((1, 0), (2, 0), (3, 0), (1, 2), (2, 2)):  # with a lean, all tokens prefer the last expert
        values, prices = plain + np.float32(lean) * np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
        auction_of_all.auction(values.copy(), prices, k, 64 * k // 8, np.float32(0.01), 10**6)
        best = bound_of(values.astype(float), prices.astype(float), k)
        lost = best - scipy_optimum(values.astype(float), k)
        check("base.auction", max(lost - 64 * k * 0.01, 0.0), UNIT["float32"] * 64 * k * np.abs(values).max())


def test_a_gap_counts_what_every_token_could_gain():
    random = np.random.default_rng(0)
    values, prices = random.integers(-8, 9, (12, 5)) / 4, random.integers(0, 9, 5) / 4
    for k in (1, 2, 4):
        expert = np.array([random.permutation(5)[:k] for _ in range(12)], np.int32)
        wanted = bound_of(values, prices, k) - np.take_along_axis(values, expert, axis=1).sum()
        assert assignment.measure_gap(values, expert, prices) == wanted
    arrays = (jnp.asarray(v) for v in (values, expert, prices))
    assert float(jax.jit(base._gap)(*arrays, None, jnp.ones(5, bool))) == wanted


def test_scores_of_any_size():
    values = draw_scores("random", (13, 3), 1.0, 3).values
    for k in (1, 2):
        wanted = assignment.assign(values, k).expert.tolist()
        for scale in (2.0**-1000, 2.0**-100, 2.0**1000):
            assert assignment.assign(values * scale, k).expert.tolist() == wanted, (k, scale)


def test_scores_go_to_the_host_in_pieces(monkeypatch):
    scores = jnp.asarray(draw_scores("random", (13, 3), 1.0, 3).values, jnp.float32)
    whole = base.balanced_assignment(scores, 2)
    for rows in (1, 4, 12):
        monkeypatch.setattr(base, "_SLICE", rows * 3 * 4)
        for found, wanted in zip(base.balanced_assignment(scores, 2), whole, strict=True):
            np.testing.assert_array_equal(found, wanted)


def plain_auction(near, price, k: int, places: int, increment: float, most: int):
    """Return the prices and the holders of the same auction, with sorted lists. It has no equal bids."""
    held, waiting, missing, bids = [[] for _ in price], list(range(len(near))), [k] * len(near), 0
    while waiting and bids < most:
        t = waiting.pop()
        free = [e for e in range(len(price)) if all(one != t for _, one in held[e])]
        free.sort(key=lambda e: price[e] - near[t, e])
        wanted, rest = free[: missing[t]], free[missing[t]]
        rest = near[t, rest] - price[rest]
        for e, level in [(e, near[t, e] - rest + increment) for e in wanted]:
            if len(held[e]) == places:
                (lowest, other), *_ = held[e]
                assert places == 1 or lowest < held[e][1][0]
                held[e].pop(0)
                waiting += [other] * (missing[other] == 0)
                missing[other] += 1
            held[e] = sorted([*held[e], (level, t)])
            if len(held[e]) == places:
                price[e] = held[e][0][0]
        bids, missing[t] = bids + missing[t], 0
    return price, {(t, e) for e, those in enumerate(held) for _, t in those}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_an_auction_bid_by_bid(plain, k):
    for seed, places in ((0, 4 * k), (2, 4 * k), (3, 4 * k + 1)):
        values = np.random.default_rng(seed).integers(-(2**14), 2**14, (20, 5)).astype(np.float32) / 2**12
        for most in (0, 1, 2, 15, 25, 60, 10**6):
            near, prices = values.copy(), np.array([0, 0.5, 0, 0.25, 0], np.float32)
            wanted, pairs = plain_auction(values.astype(float), prices.astype(float), k, places, 2.0**-6, most)
            auction_of_all.auction(near, prices, k, places, np.float32(2.0**-6), most)
            assert prices.tolist() == wanted.tolist(), (seed, most)
            taken = {(int(t), int(e)) for t, e in np.argwhere(near == auction_of_all.NOTHING)}
            assert taken == pairs and np.array_equal(near[near > auction_of_all.NOTHING], values[near > -1e9])
        assert len(pairs) == 20 * k


ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, numpy
from routelaws.accelerated.routers.base import base_router
scores = numpy.random.default_rng(0).standard_normal((16384, 64)).astype("float32")
both = jax.jit(lambda z: base_router(z @ numpy.eye(64, dtype="float32")).gate.sum() + base_router(-z).gate.sum())
print(float(both(scores)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to one core")
def test_the_callback_ends_on_one_core():
    """JAX copies large arguments in a thread of the pool that runs the callback; see `base._SLICE`."""
    done = subprocess.run([sys.executable, "-c", ONE_CORE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and float(done.stdout) > 0, done.stderr
