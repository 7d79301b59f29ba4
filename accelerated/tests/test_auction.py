"""The auction on the device: its stated guarantee, and what the callback to the host must not do."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.kernels import assignment
from routelaws.accelerated.routers import base
from routelaws.conformance.bounds import check
from routelaws.conformance.harness import UNIT
from routelaws.conformance.test_base import bound_of, draw_scores, scipy_optimum

SHAPES = ((5, 1), (6, 8), (13, 3), (16, 4))
FAMILIES = ("random", "integer", "tied", "anisotropic", "all alike", "one token decides")


SOLVE = jax.jit(base.balanced_assignment, static_argnames="method")


def auction(values, epsilon=None):
    if epsilon is None:  # which is EPSILON times this
        epsilon = base.EPSILON * float(np.ptp(np.asarray(values, np.float32), axis=1).max())
    return SOLVE(jnp.asarray(values, jnp.float32), method="auction", epsilon=epsilon)


def missing(values: np.ndarray, found) -> float:
    """Return optimum - objective of a balanced assignment."""
    expert = np.asarray(found.expert)
    load = np.bincount(expert, minlength=values.shape[1])
    assert load.max() - load.min() <= 1 and len(load) == values.shape[1], load
    return scipy_optimum(values) - values[np.arange(len(values)), expert].sum()


def check_guarantee(values: np.ndarray, epsilon: float | None) -> None:
    """Balanced, within (T + E) epsilon of the optimum, and the gap and the prices admit what is missing."""
    num_tokens, num_experts = values.shape
    found = auction(values, epsilon)
    spread = np.ptp(values, axis=1).max()
    step = max(base.EPSILON * spread if epsilon is None else epsilon, 4 * num_experts * spread * 2.0**-23)
    lost = missing(values, found)
    rounding = UNIT["float32"] * num_tokens * (np.abs(values).max() + float(found.prices.max()))
    allowed = (num_tokens + num_experts * (num_tokens % num_experts > 0)) * step
    check("base.auction", max(lost - allowed, 0.0), rounding, message=f"{values.shape}: {lost} is missing")
    check("base.auction", max(lost - float(found.gap), 0.0), rounding, message=f"{values.shape}: gap {found.gap}")
    bound = bound_of(values, np.asarray(found.prices, np.float64))
    check("base.auction", abs(float(found.gap) + float(found.objective) - bound), rounding, message="gap and prices")
    check("base.auction", max(float(found.gap) - allowed, 0.0), rounding, message=f"gap {found.gap} above {allowed}")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_guarantee(shape):
    for seed, family in enumerate(FAMILIES):
        check_guarantee(draw_scores(family, shape, (0.1, 100.0)[seed % 2], seed).values, None)


def test_a_stated_increment():
    for epsilon in (0.5, 0.01):
        for seed in range(3):
            check_guarantee(draw_scores("random", (13, 3), 1.0, seed).values, epsilon)


def test_whole_scores_are_exact_below_one_share_of_an_increment():
    for shape in ((13, 3), (16, 4)):
        for seed in range(8):
            values = np.random.default_rng(seed).integers(-4, 5, shape).astype(float)
            assert missing(values, auction(values, 1 / (sum(shape) + 1))) == 0, (shape, seed)


def test_an_offset_of_a_token_costs_no_digits():
    values = draw_scores("random", (16, 4), 1.0, 0).values
    moved = np.float32(values * 64).round() / 64 + 4096 * np.arange(16)[:, None]
    assert missing(moved, auction(moved)) <= 20 * base.EPSILON * np.ptp(moved, axis=1).max()


def test_a_score_that_is_not_finite_ends_the_auction():
    for wrong in (np.nan, np.inf, -np.inf):
        values = draw_scores("random", (13, 3), 1.0, 4).values
        values[5, 1] = wrong
        found = auction(values, 0.1)
        assert np.isnan([found.objective, found.gap, *found.prices]).all()
        assert sorted(np.bincount(np.asarray(found.expert), minlength=3)) == [4, 4, 5]


def test_the_default_increment():
    values = jnp.asarray(draw_scores("random", (13, 3), 1.0, 5).values, jnp.float32)
    assert SOLVE(values, method="auction").prices.tolist() == auction(values).prices.tolist()


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
    """The exact step starts from any prices and ends at the same assignment."""
    values = draw_scores("tied", (61, 8), 1.0, 2).values
    wanted = assignment.assign(values)
    for change in ({"COARSE": 1e-3}, {"COARSE": 10.0}, {"MOST_BIDS": 0}, {"HIGHEST": 1e-3}, {"STRIDES": ()}):
        for name, value in change.items():
            monkeypatch.setattr(assignment, name, value)
        found = assignment.assign(values)
        assert found.expert.tolist() == wanted.expert.tolist() and found.gap == 0, change
        monkeypatch.undo()


def test_scores_of_any_size():
    """Numbers near the ends of the range of floats are scaled, not lost."""
    values = draw_scores("random", (13, 3), 1.0, 3).values
    wanted = assignment.assign(values).expert.tolist()
    for scale in (2.0**-1000, 2.0**-100, 2.0**1000):
        assert assignment.assign(values * scale).expert.tolist() == wanted, scale


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
    """Large arguments of a callback are copied by the threads that wait for the callback; see `base._SLICE`."""
    done = subprocess.run([sys.executable, "-c", ONE_CORE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and float(done.stdout) > 0, done.stderr
