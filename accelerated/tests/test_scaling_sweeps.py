"""Sweeps of S-BASE in the scaling form: the switch to logarithms, blocks of rows, and the choice in long rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.notation import top_k_indices
from routelaws.accelerated.routers import sinkhorn
from routelaws.conformance.compare import assert_close_bounded
from routelaws.reference.notation import top_k_indices as reference_indices
from routelaws.reference.routers.sinkhorn import sinkhorn_plan


def uneven(num_tokens: int, scale: float) -> np.ndarray:
    """Return logits of 8 experts: noise, and an offset for each expert."""
    random = np.random.default_rng(0)
    values = scale * (random.standard_normal((num_tokens, 8)) + random.standard_normal(8))
    return values.astype(np.float32).astype(np.float64)


def check(values: np.ndarray, num_sweeps: int, mask: np.ndarray | None = None) -> None:
    plan = jax.jit(lambda values: sinkhorn.sinkhorn_plan(values, num_sweeps=num_sweeps, mask=mask))
    found = plan(np.float32(values))
    wanted = sinkhorn_plan(values, num_sweeps=num_sweeps, mask=mask)
    unit = np.finfo(np.float32).eps / 2 * (4 + 2 * np.abs(values).max() + np.log(values.size))
    scale = unit * (1 + num_sweeps) * wanted.plan + np.finfo(np.float32).tiny
    assert_close_bounded("sinkhorn.plan", found.plan, wanted.plan, scale, what=f"plan after {num_sweeps} sweeps")
    assert int(found.sweeps) == num_sweeps


def scaled(values: np.ndarray, num_sweeps: int) -> tuple[int, bool]:
    """Return the number of sweeps in the scaling form, and whether all its entries are precise."""

    def sweep(values):
        group = sinkhorn._group(*sinkhorn._prepared(values), None, None)
        return sinkhorn._scaling_sweeps(group, lambda _, sweeps: sweeps < num_sweeps)[3:]

    sweeps, precise = jax.jit(sweep)(np.float32(values))
    return int(sweeps), bool(precise)


def test_sweeps_go_on_with_logarithms_where_scales_leave_the_range():
    values = uneven(64, 12.0)
    assert 0 < scaled(values, 60)[0] < 60
    check(values, 60)


def test_an_entry_that_underflows_in_the_kernel_alone_is_not_lost():
    """exp(-95) is 0 in float32, but with the scale exp(20) of the second expert the plan has an entry exp(-77)."""
    values = np.array([[0.0, -20.0]] * 7 + [[0.0, -95.0]])
    assert scaled(values, 2) == (2, False) and 0 < sinkhorn_plan(values, num_sweeps=2).plan[7, 1] < 1e-30
    check(values, 2)


@pytest.mark.parametrize("masked", [False, True])
def test_blocks_change_nothing(masked, monkeypatch):
    """A kernel that is larger than the cache has blocks of rows.

    There are three blocks of 64, two of 1,024, and none for a prime number.
    """
    monkeypatch.setattr(sinkhorn, "_CACHED", 0)
    for num_tokens in (192, 2048, 191):
        mask = np.random.default_rng(0).random(num_tokens) < 0.7 if masked else None
        check(uneven(num_tokens, 1.0), 3, mask)


@pytest.mark.parametrize("cached", [sinkhorn._CACHED, 0])
def test_the_residual_of_a_large_group_is_that_of_its_plan(cached, monkeypatch):
    """All 8,192 rows have the same preference. The rounding of their sum must not count as balance."""
    monkeypatch.setattr(sinkhorn, "_CACHED", cached)
    found = jax.jit(lambda values: sinkhorn.sinkhorn_plan(values, num_sweeps=1))(np.float32(uneven(8192, 1.0)))
    mass = np.asarray(found.plan, np.float64).sum(axis=0)
    actual = np.abs(8 * mass - 1).max()
    scale = np.finfo(np.float32).eps / 2 * (4 + 2 * np.abs(uneven(8192, 1.0)).max() + np.log(8192 * 8))
    assert_close_bounded("sinkhorn.marginals", float(found.residual), actual, scale, what="residual of 8,192 rows")


def test_the_largest_of_a_long_row():
    """Ties go to the lower index, and both zeros are equal, as in short rows."""
    rows = np.random.default_rng(0).integers(-3, 3, (50, 40)).astype(np.float32)
    rows[0] = -0.0
    rows[0, 7] = 0.0
    np.testing.assert_array_equal(top_k_indices(jnp.asarray(rows), 1), reference_indices(rows, 1))
