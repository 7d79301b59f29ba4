"""The law itself: its values, its derivatives, and the figures of the paper."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.compare import assert_close_bounded
from routelaws.conformance.suite.strategies_laws import TABLE_3, laws
from routelaws.reference.laws import routed as reference
from routelaws.reference.laws.routed import RoutedCoefficients

SIZES = st.lists(st.floats(1e5, 1e13), min_size=1, max_size=4).map(np.array)
EXPERTS = st.one_of(st.floats(1.0, 4096.0), st.sampled_from([1.0, 1.0 + 1e-9, 2.0, 512.0]))


def relative(found, wanted) -> float:
    """Return the largest relative difference."""
    return float(np.max(np.abs(np.asarray(found) - wanted) / np.abs(wanted)))


@pytest.mark.asks(
    "laws.routed.effective_experts",
    "laws.routed.predict_loss",
    "laws.routed.slope_in_experts",
    "laws.routed.slope_in_parameters",
)
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


@pytest.mark.asks("*.predict_loss", "*.effective_parameter_count")
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


@pytest.mark.asks("*.predict_loss", "*.slope_in_experts", "*.slope_in_parameters", "laws.routed.effective_experts")
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


@pytest.mark.asks("laws.routed.effective_experts")
@given(law=laws())
def test_effective_experts_start_at_E_start_and_stay_below_E_max(backend, law):
    experts = np.array([1.0, 2.0, 64.0, 1e6, 1e12])
    effective = np.asarray(backend.laws.routed.effective_experts(experts, law.E_start, law.E_max))
    check("laws.routed.value", abs(effective[0] - law.E_start) / law.E_start)
    assert np.all(np.diff(effective) > 0) and effective[-1] <= law.E_max
    if math.isinf(law.E_max):
        check("laws.routed.value", relative(effective, experts - 1 + law.E_start))


@pytest.mark.asks("*.effective_parameter_count")
def test_effective_parameter_counts_of_the_paper(backend):
    law = backend.laws.routed.RoutedCoefficients(*TABLE_3["S-Base"])
    found = backend.laws.routed.effective_parameter_count(np.array([1.3e9, 370e6]), np.array([512.0, 64.0]), law)
    check("laws.routed.paper", relative(found, np.array([5.95e9, 1.37e9])))


@pytest.mark.asks("*.cutoff")
def test_cutoffs_of_the_rounded_table_are_not_those_of_the_paper(backend):
    found = [backend.laws.routed.cutoff(backend.laws.routed.RoutedCoefficients(*law)) for law in TABLE_3.values()]
    check("laws.routed.paper", relative(found, np.array([1e12, 3.162e10, 2.154e11])))
    assert relative(found, np.array([937e9, 85e9, 83e9])) > 0.5


@pytest.mark.asks("*.cutoff")
@pytest.mark.parametrize(
    ("b", "c", "wanted"),
    [(-0.12, 0.0, math.inf), (-0.12, -0.01, math.inf), (0.0, 0.01, 1.0), (-1.0, 1e-3, math.inf), (math.nan, 1, None),
     (-0.1, math.nan, None), (0.02, 0.01, 0.01)],
)  # fmt: skip
def test_cutoff_where_there_is_none(backend, b, c, wanted):
    for module in (backend.laws.routed, reference):
        found = module.cutoff(module.RoutedCoefficients(-0.08, b, c, 1.1, 2.0, 300.0))
        assert isinstance(found, float)
        if wanted is None:
            assert math.isnan(found)
        elif math.isinf(wanted):
            assert found == wanted
        else:
            check("laws.routed.value", abs(found / wanted - 1))


@pytest.mark.asks("*.predict_loss", "*.slope_in_experts", "*.experts_for_loss", "laws.routed.effective_experts")
@given(law=laws(), sizes=SIZES, experts=EXPERTS)
def test_the_experts_that_reach_a_loss(backend, law, sizes, experts):
    """Back to E, and the same loss again: where E is ill-determined, near E_max, the loss still has to agree."""
    ours = backend.laws.routed.RoutedCoefficients(*law)
    sizes = sizes[reference.slope_in_experts(sizes, law) < -1e-3]
    loss = reference.predict_loss(sizes, experts, law)
    found = backend.laws.routed.experts_for_loss(sizes, loss, ours)
    wanted = reference.experts_for_loss(sizes, loss, law)
    # d E / d log10 L is Ê/(slope · d Ê/d E); rounding of log10 L is that of terms of about 2.
    effective = reference.effective_experts(experts, law.E_start, law.E_max)
    offset = 1 / (1 / law.E_start - 1 / law.E_max)
    unit = (experts - 1 + offset) ** 2 / effective / -reference.slope_in_experts(sizes, law)
    what = f"experts_for_loss {law} N = {sizes} E = {experts}"
    tame = unit < 1e9 * experts  # where the loss says something about E at all
    assert_close_bounded("laws.routed.experts", found[tame], np.full(tame.sum(), experts), unit[tame], what=what)
    assert_close_bounded("laws.routed.experts", found[tame], wanted[tame], unit[tame], what=what)
    assert np.all(found >= 1)
    again = reference.predict_loss(sizes, np.minimum(found, 1e18), law)
    check("laws.routed.inverse", relative(again, loss) if sizes.size else 0.0, message=what)


@pytest.mark.asks("*.predict_loss", "*.size_for_loss", "*.slope_in_parameters")
@given(law=laws(), sizes=SIZES, experts=EXPERTS)
def test_the_size_that_reaches_a_loss(backend, law, sizes, experts):
    ours = backend.laws.routed.RoutedCoefficients(*law)
    slope = float(reference.slope_in_parameters(experts, law))
    loss = reference.predict_loss(sizes, experts, law)
    found = backend.laws.routed.size_for_loss(experts, loss, ours)
    wanted = reference.size_for_loss(experts, loss, law)
    if slope < -0.01:
        what = f"size_for_loss {law} E = {experts}"
        assert_close_bounded("laws.routed.size", found, sizes, sizes / -slope, what=what)
        assert_close_bounded("laws.routed.size", found, wanted, sizes / -slope, what=what)
    assert np.array_equal(np.isnan(found), np.isnan(wanted)) and np.isnan(found).any() == (slope >= 0)


@pytest.mark.asks("*.predict_loss", "*.slope_in_experts", "*.experts_for_loss")
@given(law=laws(), size=st.floats(1e6, 1e9), share=st.floats(-0.5, 1.5))
def test_which_losses_experts_reach(backend, law, size, share):
    """1 above the dense loss, infinite below the loss of E_max, between them a number that grows as the loss falls."""
    law = law._replace(E_max=min(law.E_max, 1e4), c=min(law.c, 0.005))
    dense = math.log10(float(reference.predict_loss(size, 1.0, law)))
    slope = float(reference.slope_in_experts(size, law))
    most = dense + slope * math.log10(law.E_max / law.E_start)
    if min(abs(share), abs(share - 1)) < 1e-3:
        return
    target = 10 ** (dense + share * (most - dense))
    for module in (backend.laws.routed, reference):
        found = float(module.experts_for_loss(size, target, module.RoutedCoefficients(*law)))
        assert found == 1 if share < 0 else found == math.inf if share > 1 else 1 < found < math.inf, (law, size, share)
        lower = float(module.experts_for_loss(size, target * 0.999, module.RoutedCoefficients(*law)))
        assert lower > found or lower == found in (1.0, math.inf)


@pytest.mark.asks("*.predict_loss", "*.size_for_loss", "*.experts_for_loss")
def test_inverses_by_hand(backend):
    for module in (backend.laws.routed, reference):
        law = module.RoutedCoefficients(0.0, -1.0, 0.0, 0.0, 2.0, 4.0)  # L = 1/Ê; Ê = 2 at E = 1, 3 at 9, below 4
        found = module.experts_for_loss(np.full(4, 1e8), [0.6, 1 / 3, 0.25, 0.2], law)
        assert found[0] == 1.0 and found[2] == found[3] == math.inf
        check("laws.routed.experts", abs(found[1] - 9.0), 100.0)
        assert np.isnan(module.size_for_loss(9, 0.5, law))  # a = c = 0: no size changes the loss
        hurt = module.RoutedCoefficients(-0.1, 0.1, 0.0, 1.0, 2.0, math.inf)
        dense = float(module.predict_loss(1e8, 1.0, hurt))
        assert module.experts_for_loss(1e8, [dense * 1.01, dense * 0.99], hurt).tolist() == [1.0, math.inf]
        law = module.RoutedCoefficients(-0.1, -0.2, 0.01, 1.12, 2.0, math.inf)
        assert module.size_for_loss(9, 1e-300, law) == math.inf  # beyond float64, and said so
        check("laws.routed.size", abs(float(module.size_for_loss(9, 10**0.2, law)) / 1e8 - 1), 10.0)


BAD = {
    "E below 1": ("effective_experts", (0.5, 2.0, 300.0), "num_experts"),
    "E is NaN": ("effective_experts", (math.nan, 2.0, 300.0), "num_experts"),
    "E_start below 1": ("effective_experts", (2.0, 0.9, 300.0), "E_start"),
    "E_max not above E_start": ("effective_experts", (2.0, 3.0, 3.0), "E_max"),
    "coefficients not found": ("slope_in_parameters", (2.0, RoutedCoefficients(*[math.nan] * 6)), "E_start"),
    "N is 0": ("predict_loss", (0.0, 2.0, TABLE_3["Hash"]), "dense_parameters"),
    "N is infinite": ("slope_in_experts", (math.inf, TABLE_3["Hash"]), "dense_parameters"),
    "no such loss": ("experts_for_loss", (1e8, 0.0, TABLE_3["Hash"]), "loss"),
    "loss is NaN": ("size_for_loss", (2.0, math.nan, TABLE_3["Hash"]), "loss"),
    "nothing to invert": ("experts_for_loss", (1e8, 2.0, RoutedCoefficients(*[math.nan] * 6)), "E_start"),
    "no level curve": ("size_for_loss", (2.0, 2.0, RoutedCoefficients(*[math.nan] * 6)), "E_start"),
    "size does nothing": ("effective_parameter_count", (1e6, 2.0, TABLE_3["Hash"]._replace(a=0.0, c=0.0)), "E_start"),
}


@pytest.mark.asks("laws.routed.predict_loss")
@pytest.mark.twin
def test_the_printed_laws_are_those_of_the_paper(backend):
    """Table 3, one number beside the other."""
    printed = {
        "S-Base": (-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
        "RL-R": (-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
        "Hash": (-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
    }
    for module in (backend.laws.routed, reference):
        assert {name: tuple(law) for name, law in module.PRINTED.items()} == printed


@pytest.mark.asks(
    "laws.routed.effective_experts",
    "laws.routed.predict_loss",
    "laws.routed.slope_in_experts",
    "laws.routed.slope_in_parameters",
    "laws.routed.effective_parameter_count",
    "laws.routed.experts_for_loss",
    "laws.routed.size_for_loss",
)
@pytest.mark.twin
@pytest.mark.parametrize("case", BAD)
def test_what_is_not_allowed_is_named(backend, case):
    name, arguments, word = BAD[case]
    for module in (backend.laws.routed, reference):
        with pytest.raises(ValueError, match=word) as caught:
            getattr(module, name)(*arguments)
        assert "\n" not in str(caught.value)
