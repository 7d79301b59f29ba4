"""The law itself: its values, its derivatives, and the figures of the paper."""

import doctest
import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.strategies_laws import TABLE_3, laws
from routelaws.reference.laws import routed as reference
from routelaws.reference.laws.routed import RoutedCoefficients

SIZES = st.lists(st.floats(1e5, 1e13), min_size=1, max_size=4).map(np.array)
EXPERTS = st.one_of(st.floats(1.0, 4096.0), st.sampled_from([1.0, 1.0 + 1e-9, 2.0, 512.0]))


def relative(found, wanted) -> float:
    """Return the largest relative difference."""
    return float(np.max(np.abs(np.asarray(found) - wanted) / np.abs(wanted)))


@given(law=laws(), sizes=SIZES, experts=EXPERTS)
def test_values_agree_with_the_reference(backend, law, sizes, experts):
    other = backend.laws.routed.RoutedCoefficients(*law)
    for name, arguments in {
        "effective_experts": (experts, law.E_start, law.E_max),
        "predict_loss": (sizes, experts, other),
        "slope_in_experts": (sizes, other),
        "slope_in_parameters": (experts, other),
    }.items():
        found = getattr(backend.laws.routed, name)(*arguments)
        wanted = getattr(reference, name)(*arguments)
        # A slope is a difference: its rounding is that of the terms.
        scale = np.abs(law.b) + 13 * np.abs(law.c) if name.startswith("slope") else np.abs(wanted)
        assert np.shape(found) == np.shape(wanted) and np.asarray(found).dtype == np.float64
        check("laws.routed.value", float(np.max(np.abs(found - wanted) / scale)), message=name)


@given(law=laws(), sizes=SIZES, experts=EXPERTS)
def test_effective_parameter_count_is_the_dense_size_of_equal_loss(backend, law, sizes, experts):
    law = backend.laws.routed.RoutedCoefficients(*law)
    if law.a + law.c * math.log10(law.E_start) > -0.05:  # the dense size of equal loss is then not determined
        law = law._replace(c=0.0)
    count = backend.laws.routed.effective_parameter_count(sizes, experts, law)
    check("laws.routed.parameter_count", relative(count, reference.effective_parameter_count(sizes, experts, law)))
    if np.all((count > 1e-200) & (count < 1e200)):
        dense = reference.predict_loss(count, 1.0, law)
        check("laws.routed.parameter_count", relative(dense, reference.predict_loss(sizes, experts, law)))


@given(law=laws(), size=st.floats(1e6, 1e12), experts=st.floats(1.5, 600.0))
def test_slopes_are_derivatives(backend, law, size, experts):
    law = backend.laws.routed.RoutedCoefficients(*law)
    step = 1e-4

    def log_loss(log_size, count):
        return math.log10(float(backend.laws.routed.predict_loss(10.0**log_size, count, law)))

    in_size = (log_loss(math.log10(size) + step, experts) - log_loss(math.log10(size) - step, experts)) / (2 * step)
    check("laws.routed.derivative", abs(in_size - float(backend.laws.routed.slope_in_parameters(experts, law))))
    near, far = (backend.laws.routed.effective_experts(count, law.E_start, law.E_max) for count in (1.0, experts))
    change = log_loss(math.log10(size), experts) - log_loss(math.log10(size), 1.0)
    slope = float(backend.laws.routed.slope_in_experts(size, law))
    check("laws.routed.derivative", abs(change - slope * math.log10(far / near)))


@given(law=laws())
def test_effective_experts_start_at_E_start_and_stay_below_E_max(backend, law):
    experts = np.array([1.0, 2.0, 64.0, 1e6, 1e12])
    effective = np.asarray(backend.laws.routed.effective_experts(experts, law.E_start, law.E_max))
    check("laws.routed.value", abs(effective[0] - law.E_start) / law.E_start)
    assert np.all(np.diff(effective) > 0) and effective[-1] <= law.E_max
    if math.isinf(law.E_max):
        check("laws.routed.value", relative(effective, experts - 1 + law.E_start))


def test_effective_parameter_counts_of_the_paper(backend):
    law = backend.laws.routed.RoutedCoefficients(*TABLE_3["S-Base"])
    found = backend.laws.routed.effective_parameter_count(np.array([1.3e9, 370e6]), np.array([512.0, 64.0]), law)
    check("laws.routed.paper", relative(found, np.array([5.95e9, 1.37e9])))


def test_cutoffs_of_the_rounded_table_are_not_those_of_the_paper(backend):
    found = [backend.laws.routed.cutoff(backend.laws.routed.RoutedCoefficients(*law)) for law in TABLE_3.values()]
    check("laws.routed.paper", relative(found, np.array([1e12, 3.162e10, 2.154e11])))
    assert relative(found, np.array([937e9, 85e9, 83e9])) > 0.5


@pytest.mark.parametrize(
    ("b", "c", "wanted"),
    [(-0.12, 0.0, math.inf), (-0.12, -0.01, math.inf), (0.0, 0.01, 1.0), (-1.0, 1e-3, math.inf), (math.nan, 1, None),
     (-0.1, math.nan, None), (0.02, 0.01, 0.01)],
)  # fmt: skip
def test_cutoff_where_there_is_none(backend, b, c, wanted):
    for module in (backend.laws.routed, reference):
        found = module.cutoff(module.RoutedCoefficients(-0.08, b, c, 1.1, 2.0, 300.0))
        assert isinstance(found, float)
        assert math.isnan(found) if wanted is None else found == pytest.approx(wanted)


BAD = {
    "E below 1": ("effective_experts", (0.5, 2.0, 300.0), "num_experts"),
    "E is NaN": ("effective_experts", (math.nan, 2.0, 300.0), "num_experts"),
    "E_start below 1": ("effective_experts", (2.0, 0.9, 300.0), "E_start"),
    "E_max not above E_start": ("effective_experts", (2.0, 3.0, 3.0), "E_max"),
    "coefficients not found": ("slope_in_parameters", (2.0, RoutedCoefficients(*[math.nan] * 6)), "E_start"),
    "N is 0": ("predict_loss", (0.0, 2.0, TABLE_3["Hash"]), "dense_parameters"),
    "N is infinite": ("slope_in_experts", (math.inf, TABLE_3["Hash"]), "dense_parameters"),
    "size does nothing": ("effective_parameter_count", (1e6, 2.0, TABLE_3["Hash"]._replace(a=0.0, c=0.0)), "E_start"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_allowed_is_named(backend, case):
    name, arguments, word = BAD[case]
    for module in (backend.laws.routed, reference):
        with pytest.raises(ValueError, match=word) as caught:
            getattr(module, name)(*arguments)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["routed", "fitting", "uncertainty"])
def test_examples_of_the_reference(name):
    result = doctest.testmod(importlib.import_module(f"routelaws.reference.laws.{name}"))
    assert result.attempted > 0 and result.failed == 0
