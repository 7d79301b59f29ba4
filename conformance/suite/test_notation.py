"""Ties, signed zeros, and the small functions that every file uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import jitted, precisions_of, run
from routelaws.conformance.suite.strategies import Logits, logits, precisions
from routelaws.reference import notation as reference


def check_top_k_indices(backend, drawn: Logits, precision: str, jit: bool = True) -> None:
    """Compare with a stable sort of Python's tuples, in which -0.0 equals 0.0."""
    ordered = [[index for _, index in sorted((-x, i) for i, x in enumerate(row))] for row in drawn.values.tolist()]
    for k in range(1, drawn.values.shape[1] + 1):
        wanted, what = np.array(ordered)[:, :k], f"top_k_indices, {drawn.family} rows, k {k}"
        assert_same(reference.top_k_indices(drawn.values, k), wanted, what=f"reference, {what}")
        found = run(backend, "notation.top_k_indices", precision, drawn.values, k=k, jit=jit)
        assert_same(found, wanted, what=f"{what}, {precision}, jit {jit}")


@pytest.mark.asks("notation.top_k_indices")
@given(drawn=logits() | logits(("tied",)), precision=precisions, jit=st.booleans())
@example(drawn=Logits(2.0**-30 * np.array([[0, 3, 1, 2], [1, 0, 2, 3]]), "tiny", 2), precision="float32", jit=False)
def test_top_k_indices(backend, drawn, precision, jit):
    check_top_k_indices(backend, drawn, precision, jit)


@pytest.mark.asks("notation.canonical_zero")
@given(drawn=logits(), precision=precisions, jit=st.booleans())
def test_canonical_zero(backend, drawn, precision, jit):
    found = np.asarray(run(backend, "notation.canonical_zero", precision, drawn.values, jit=jit))
    assert_same(found, drawn.values, what="canonical_zero")
    assert not np.signbit(found[found == 0]).any(), f"canonical_zero left a -0.0, jit {jit}"


ROWS_APART = Logits(np.array([[1000.0 - 300 * row, 999.0 - 300 * row] for row in range(7)]), "extreme", 1)
"""exp overflows for some row with any common shift, so each row needs its own maximum."""


@pytest.mark.asks("notation.softmax")
@given(drawn=logits(), precision=precisions)
@example(drawn=ROWS_APART, precision="float64")
@example(drawn=ROWS_APART, precision="float32")
def test_softmax(backend, drawn, precision):
    z = drawn.values
    size = 1 + np.abs(z - z.max(axis=1, keepdims=True))  # exp turns an error of u |z| into a relative one
    wanted = reference.softmax(z)
    found = np.asarray(run(backend, "notation.softmax", precision, z))
    # Below the smallest normal number XLA may return 0.
    scale = UNIT[precision] * size * wanted + np.finfo(precision).tiny
    assert_close_bounded("notation.softmax", found, wanted, scale, what=f"softmax {precision}")


@pytest.mark.asks("notation.log_sum_exp")
@given(drawn=logits(), precision=precisions)
@example(drawn=ROWS_APART, precision="float64")
@example(drawn=ROWS_APART, precision="float32")
def test_log_sum_exp(backend, drawn, precision):
    for axis in (0, 1):
        found = run(backend, "notation.log_sum_exp", precision, drawn.values, axis=axis)
        scale = UNIT[precision] * (1 + np.abs(drawn.values).max(axis=axis))
        wanted = reference.log_sum_exp(drawn.values, axis)
        assert_close_bounded("notation.log_sum_exp", found, wanted, scale, what=f"log_sum_exp axis {axis} {precision}")


@pytest.mark.asks("notation.one_hot")
@pytest.mark.parametrize("size", [1, 3, 5])
def test_one_hot(backend, size):
    indices = np.arange(6).reshape(3, 2) % size
    for precision in precisions_of(backend):
        found = run(backend, "notation.one_hot", precision, indices, size=size)
        assert_same(found, reference.one_hot(indices, size), what=f"one_hot {size}")
        if jitted(backend):
            assert isinstance(found, jax.Array) and found.dtype == jnp.dtype(precision)
