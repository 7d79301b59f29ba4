"""Sweeps of S-BASE in the scaling form: where they hand over to logarithms, and a kernel that goes through in tiles."""

import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.routers import sinkhorn
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference.routers.sinkhorn import sinkhorn_plan


def uneven(num_tokens: int, scale: float) -> np.ndarray:
    """Return logits of 8 experts: noise, and an offset for each expert."""
    random = np.random.default_rng(0)
    values = scale * (random.standard_normal((num_tokens, 8)) + random.standard_normal(8))
    return values.astype(np.float32).astype(np.float64)


def check(values: np.ndarray, num_sweeps: int, mask: np.ndarray | None = None) -> None:
    """The plan after so many sweeps is that of the reference."""
    found = sinkhorn.sinkhorn_plan(jnp.asarray(values, jnp.float32), num_sweeps=num_sweeps, mask=mask)
    wanted = sinkhorn_plan(values, num_sweeps=num_sweeps, mask=mask)
    unit = np.finfo(np.float32).eps / 2 * (4 + 2 * np.abs(values).max() + np.log(values.size))
    scale = unit * (1 + num_sweeps) * wanted.plan + np.finfo(np.float32).tiny
    assert_close_bounded("sinkhorn.plan", found.plan, wanted.plan, scale, what=f"plan after {num_sweeps} sweeps")
    assert int(found.sweeps) == num_sweeps


def scaled(values: np.ndarray, num_sweeps: int) -> tuple[int, bool]:
    """Return how many of the sweeps were taken in the scaling form, and whether all its entries are precise."""
    group = sinkhorn._group(jnp.asarray(values, jnp.float32), None, None)
    _, _, _, sweeps, precise = sinkhorn._scaling_sweeps(group, lambda _, sweeps: sweeps < num_sweeps)
    return int(sweeps), bool(precise)


def test_sweeps_go_on_with_logarithms_where_scales_leave_the_range():
    values = uneven(64, 12.0)
    assert 0 < scaled(values, 60)[0] < 60
    check(values, 60)


def test_an_entry_that_underflows_in_the_kernel_alone_is_not_lost():
    """exp(-95) is 0 in float32; times the scale exp(20) of the second expert it is an entry of the plan, exp(-77)."""
    values = np.array([[0.0, -20.0]] * 7 + [[0.0, -95.0]])
    assert scaled(values, 2) == (2, False) and 0 < sinkhorn_plan(values, num_sweeps=2).plan[7, 1] < 1e-30
    check(values, 2)


@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tiles_change_nothing(monkeypatch, masked):
    """Tiles of 32 rows, and 2 rows before them."""
    values = uneven(130, 1.0)
    mask = np.random.default_rng(0).random(130) < 0.7 if masked else None
    monkeypatch.setattr(sinkhorn, "_CACHED", 0)
    monkeypatch.setattr(sinkhorn, "_TILE", 32 * 8 * 4)
    check(values, 3, mask)
