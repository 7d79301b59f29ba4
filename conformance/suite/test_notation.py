"""Ties, signed zeros, and the small functions that every file uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routelaws.conformance.bounds import UNIT
from routelaws.conformance.compare import assert_close_bounded, assert_same
from routelaws.conformance.engine.harness import CAPABILITIES, PRECISIONS, precisions_of, run
from routelaws.conformance.suite.strategies import Logits, logits
from routelaws.reference import notation as reference


def check_top_k_indices(backend, drawn: Logits, precision: str, jit: bool = True) -> None:
    for k in range(1, drawn.values.shape[1] + 1):
        found = run(backend, "notation.top_k_indices", precision, drawn.values, k=k, jit=jit)
        wanted = reference.top_k_indices(drawn.values, k)
        assert_same(found, wanted, what=f"top_k_indices, {drawn.family} rows, k {k}, {precision}, jit {jit}")


@pytest.mark.asks("notation.top_k_indices")
@given(drawn=logits(), precision=st.sampled_from(PRECISIONS), jit=st.booleans())
def test_top_k_indices(backend, drawn, precision, jit):
    check_top_k_indices(backend, drawn, precision, jit)


@pytest.mark.asks("notation.top_k_indices")
@given(drawn=logits(families=("tied",)))
def test_ties_go_to_the_lower_index(backend, drawn):
    """Compare with a stable sort of Python's tuples, in which -0.0 equals 0.0."""
    for row in drawn.values:
        wanted = [index for _, index in sorted((-value, index) for index, value in enumerate(row.tolist()))]
        assert reference.top_k_indices(row[None], len(row))[0].tolist() == wanted
        found = run(backend, "notation.top_k_indices", "float32", row[None], k=len(row))
        assert_same(np.asarray(found)[0], wanted, what=f"top_k_indices of the row {row.tolist()}")


@pytest.mark.asks("notation.canonical_zero")
@given(drawn=logits(), precision=st.sampled_from(PRECISIONS), jit=st.booleans())
def test_canonical_zero(backend, drawn, precision, jit):
    found = np.asarray(run(backend, "notation.canonical_zero", precision, drawn.values, jit=jit))
    assert_same(found, drawn.values, what="canonical_zero")
    assert not np.signbit(found[found == 0]).any(), f"canonical_zero left a -0.0, jit {jit}"


ROWS_APART = Logits(np.array([[1000.0 - 300 * row, 999.0 - 300 * row] for row in range(7)]), "extreme", 1)
"""exp overflows for some row with any common shift, so each row needs its own maximum."""


@pytest.mark.asks("notation.softmax", "notation.log_sum_exp")
@given(drawn=logits(), precision=st.sampled_from(PRECISIONS))
@example(drawn=ROWS_APART, precision="float64")
@example(drawn=ROWS_APART, precision="float32")
def test_softmax_and_log_sum_exp(backend, drawn, precision):
    z = drawn.values
    size = 1 + np.abs(z - z.max(axis=1, keepdims=True))  # exp turns an error of u |z| into a relative one
    wanted = reference.softmax(z)
    found = np.asarray(run(backend, "notation.softmax", precision, z))
    # Below the smallest normal number XLA may return 0.
    scale = UNIT[precision] * size * wanted + np.finfo(precision).tiny
    assert_close_bounded("notation.softmax", found, wanted, scale, what=f"softmax {precision}")
    for axis in (0, 1):
        found = run(backend, "notation.log_sum_exp", precision, z, axis=axis)
        scale = UNIT[precision] * (1 + np.abs(z).max(axis=axis))
        wanted = reference.log_sum_exp(z, axis)
        assert_close_bounded("notation.log_sum_exp", found, wanted, scale, what=f"log_sum_exp axis {axis} {precision}")


@pytest.mark.asks("notation.one_hot")
@pytest.mark.parametrize("size", [1, 3, 5])
def test_one_hot(backend, size):
    indices = np.arange(6).reshape(3, 2) % size
    for precision in precisions_of(backend):
        found = run(backend, "notation.one_hot", precision, indices, size=size)
        assert_same(found, reference.one_hot(indices, size), what=f"one_hot {size}")
        if "jit" in getattr(backend, "capabilities", CAPABILITIES):
            assert isinstance(found, jax.Array) and found.dtype == jnp.dtype(precision)


@pytest.mark.asks("notation.check_finite")
@pytest.mark.twin
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_finite_names_the_entry(backend, bad):
    values = np.array([[1.0, 2.0], [bad, bad]])
    for module in (backend.notation, reference):
        assert_same(module.check_finite("logits", values[:1]), values[:1], what="check_finite")
        with pytest.raises(ValueError, match=rf"logits: entry \(1, 0\) is {bad}"):
            module.check_finite("logits", values)
