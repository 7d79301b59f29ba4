"""The weights of a bootstrap. `accelerated/tests/test_laws_resampling.py` tests intervals, which take many fits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_same
from routelaws.reference.laws import resampling as reference
from routelaws.reference.tests.strategies_laws import (
    SIZES,
)


@given(data=st.data(), rows=st.integers(1, 9), lines=st.integers(1, 4))
def test_bootstrap_weights(data, rows, lines):
    drawn = np.array(
        data.draw(
            st.lists(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows), min_size=lines, max_size=lines)
        )
    )
    share = data.draw(st.sampled_from([0.01, 0.5, 0.99]))
    counts = [[int((line == row).sum()) for row in range(rows)] for line in drawn]
    assert_same(reference.bootstrap_weights((drawn + share) / rows), counts, what="bootstrap_weights")


@given(data=st.data(), groups=st.lists(st.sampled_from(SIZES), min_size=1, max_size=9))
def test_group_bootstrap_weights(data, groups):
    groups = np.array(groups)
    names = np.unique(groups)
    drawn = np.array(data.draw(st.lists(st.integers(0, names.size - 1), min_size=names.size, max_size=names.size)))
    counts = [[int((names[drawn] == group).sum()) for group in groups]]
    found = reference.group_bootstrap_weights(((drawn + 0.5) / names.size)[None], groups)
    assert_same(found, counts, what="group_bootstrap_weights")


def test_the_largest_number_below_1_draws_the_last_row():
    for rows in (3, 7, 49):
        found = reference.bootstrap_weights(np.full((1, rows), np.nextafter(1.0, 0.0)))
        assert found[0, -1] == rows == found.sum()


def test_a_number_of_experts_is_at_least_1():
    """The ends of E_max are 10^(2 ± 4.3027 √(4/3)): the lower one is below 1."""
    low, high = reference._student_ends("E_max", 100.0, 10.0 ** np.array([1.0, 2.0, 3.0]), 0.95)
    check("laws.intervals.hand", abs(np.log10(high) - 2 - 4.302652729911275 * np.sqrt(4 / 3)))
    assert low == 1.0
