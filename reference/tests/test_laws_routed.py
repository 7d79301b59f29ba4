import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.reference.laws import routed as reference
from routelaws.reference.tests.strategies_laws import TABLE_3, laws


def relative(found, wanted) -> float:
    return float(np.max(np.abs(np.asarray(found) - wanted) / np.abs(wanted)))


def test_effective_parameter_counts_of_the_paper():
    law = reference.RoutedCoefficients(*TABLE_3["S-Base"])
    found = reference.effective_parameter_count(np.array([1.3e9, 370e6]), np.array([512.0, 64.0]), law)
    check("laws.routed.paper", relative(found, np.array([5.95e9, 1.37e9])))


def test_cutoffs_of_the_rounded_table_are_not_those_of_the_paper():
    found = [reference.cutoff(reference.RoutedCoefficients(*law)) for law in TABLE_3.values()]
    check("laws.routed.paper", relative(found, np.array([1e12, 3.162e10, 2.154e11])))
    assert relative(found, np.array([937e9, 85e9, 83e9])) > 0.5


@pytest.mark.parametrize(
    ("b", "c", "wanted"),
    [(-0.12, 0.0, math.inf), (-0.12, -0.01, math.inf), (0.0, 0.01, 1.0), (-1.0, 1e-3, math.inf), (math.nan, 1, None),
     (-0.1, math.nan, None), (0.02, 0.01, 0.01)],
)  # fmt: skip
def test_cutoff_where_there_is_none(b, c, wanted):
    found = reference.cutoff(reference.RoutedCoefficients(-0.08, b, c, 1.1, 2.0, 300.0))
    assert isinstance(found, float)
    if wanted is None:
        assert math.isnan(found)
    elif math.isinf(wanted):
        assert found == wanted
    else:
        check("laws.routed.value", abs(found / wanted - 1))


@given(law=laws(), size=st.floats(1e6, 1e9), share=st.floats(-0.5, 1.5))
def test_which_losses_experts_reach(law, size, share):
    """E is 1 above the dense loss and infinite below the loss of E_max. It rises as the loss falls between them."""
    law = law._replace(E_max=min(law.E_max, 1e4), c=min(law.c, 0.005))
    dense = math.log10(float(reference.predict_loss(size, 1.0, law)))
    slope = float(reference.slope_in_experts(size, law))
    most = dense + slope * math.log10(law.E_max / law.E_start)
    if min(abs(share), abs(share - 1)) < 1e-3:
        return
    target = 10 ** (dense + share * (most - dense))
    found = float(reference.experts_for_loss(size, target, reference.RoutedCoefficients(*law)))
    assert found == 1 if share < 0 else found == math.inf if share > 1 else 1 < found < math.inf, (law, size, share)
    lower = float(reference.experts_for_loss(size, target * 0.999, reference.RoutedCoefficients(*law)))
    assert lower > found or lower == found in (1.0, math.inf)


def test_inverses_by_hand():
    law = reference.RoutedCoefficients(0.0, -1.0, 0.0, 0.0, 2.0, 4.0)  # L = 1/Ê; Ê = 2 at E = 1, 3 at 9, below 4
    found = reference.experts_for_loss(np.full(4, 1e8), [0.6, 1 / 3, 0.25, 0.2], law)
    assert found[0] == 1.0 and found[2] == found[3] == math.inf
    check("laws.routed.experts", abs(found[1] - 9.0), 100.0)
    assert np.isnan(reference.size_for_loss(9, 0.5, law))  # a = c = 0: no size changes the loss
    hurt = reference.RoutedCoefficients(-0.1, 0.1, 0.0, 1.0, 2.0, math.inf)
    dense = float(reference.predict_loss(1e8, 1.0, hurt))
    assert reference.experts_for_loss(1e8, [dense * 1.01, dense * 0.99], hurt).tolist() == [1.0, math.inf]
    law = reference.RoutedCoefficients(-0.1, -0.2, 0.01, 1.12, 2.0, math.inf)
    assert reference.size_for_loss(9, 1e-300, law) == math.inf  # beyond float64
    check("laws.routed.size", abs(float(reference.size_for_loss(9, 10**0.2, law)) / 1e8 - 1), 10.0)


def test_the_printed_laws_are_those_of_the_paper():
    """Compare with every number of Table 3."""
    assert {name: tuple(law) for name, law in reference.PRINTED.items()} == TABLE_3
