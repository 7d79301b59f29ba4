"""Bootstrap and jackknife: weights, the same intervals as refits by the reference, and coverage."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference.laws import resampling as reference
from routelaws.reference.laws import routed
from routelaws.reference.laws import uncertainty as reference_uncertainty
from routelaws.reference.tests.strategies_laws import (
    EXPERTS,
    NO_SHRINKING,
    SIZES,
    Runs,
    grid,
    near_linear,
    noisy_tables,
    released_runs,
)

NAMES = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff", "slope", "gain", "prediction", "effective_parameters")
LOGARITHMIC = ("E_start", "E_max", "N_cutoff", "effective_parameters", "prediction")
LAW = routed.RoutedCoefficients(-0.083, -0.118, 0.0099, 1.1136, 2.075, 238.7)
PLACE = (SIZES[4], 64.0)


def asked(names=NAMES, place=PLACE) -> tuple[list, list]:
    modules = fast.uncertainty, reference_uncertainty
    return tuple([module.Quantity(name, *place) for name in names] for module in modules)


def table(noise: float = 3e-3, sizes=SIZES[:4], experts=EXPERTS[::2], law=LAW, seed: int = 8) -> Runs:
    return grid(noise, seed, law, sizes, experts)


def agree(found, wanted, spread: float) -> None:
    """Compare value and ends of two intervals in units of the scatter of the resamples."""
    assert found.quantity[0] == wanted.quantity[0] and found[4:] == wanted[4:], (found, wanted)
    name = wanted.quantity.name
    for ours, theirs in zip(found[1:4], wanted[1:4], strict=True):
        if not (math.isfinite(theirs) and theirs != 0):
            assert ours == theirs or math.isnan(ours) and math.isnan(theirs), (found, wanted)
        elif name in ("E_start", "E_max"):  # the rows depend on the reciprocal
            check("laws.resampling.value", abs(1 / ours - 1 / theirs), spread, message=f"{found} {wanted}")
        elif name in LOGARITHMIC:
            check("laws.resampling.value", abs(math.log10(ours / theirs)), spread, message=f"{found} {wanted}")
        else:
            check("laws.resampling.value", abs(ours - theirs), spread, message=f"{found} {wanted}")


def spread_of(interval) -> float:
    """Return the length of an interval on the scale of `agree`, plus a share of the value, which may be at an edge.

    The share is that of the finite ends if the value is infinite, as slopes are in the linear limit.
    """
    name, value, low, high = interval.quantity.name, *interval[1:4]
    if name in ("E_start", "E_max"):
        value, low, high = 1 / value, 1 / high, 1 / low
    elif name in LOGARITHMIC:
        with np.errstate(divide="ignore"):
            value, low, high = np.log10([value, low, high])
    sizes = [abs(number) for number in ((value,) if math.isfinite(value) else (low, high)) if math.isfinite(number)]
    share = 0.1 * max(sizes) if sizes else 1.0
    return float(high - low + share) if math.isfinite(low) and math.isfinite(high) else max(share, 1.0)


@pytest.mark.value
@pytest.mark.slow
@settings(phases=NO_SHRINKING, max_examples=settings.default.max_examples // 8)
@given(runs=noisy_tables(), seed=st.integers(0, 2**32 - 1), by_size=st.booleans())
def test_bootstrap_agrees_with_the_reference(runs, seed, by_size):
    uniforms = np.random.default_rng(seed).random((4, runs.loss.size))
    weights = reference.bootstrap_weights(uniforms)
    if by_size:
        sizes = np.unique(runs.dense_parameters).size
        weights = reference.group_bootstrap_weights(uniforms[:, :sizes], runs.dense_parameters)
    ours, theirs = asked(place=(1e10, 700.0))
    found = fast.resampling.bootstrap(*runs, weights, ours, 0.9)
    wanted = reference.bootstrap(*runs, weights, theirs, 0.9)
    assert (found.undefined, found.statuses, found.undetermined) == wanted[1:]
    for one, other in zip(found.intervals, wanted.intervals, strict=True):
        agree(one, other, spread_of(other))


@pytest.mark.value
@pytest.mark.slow
@settings(phases=NO_SHRINKING, max_examples=settings.default.max_examples // 8)
@given(runs=noisy_tables(), level=st.sampled_from([0.5, 0.95]))
def test_jackknife_agrees_with_the_reference(runs, level):
    ours, theirs = asked(place=(1e10, 700.0))
    found = fast.resampling.jackknife(*runs, runs.dense_parameters, ours, level)
    wanted = reference.jackknife(*runs, runs.dense_parameters, theirs, level)
    assert found.missing == wanted.missing
    for one, other in zip(found.intervals, wanted.intervals, strict=True):
        agree(one, other, spread_of(other))


@pytest.mark.slow
def test_percentiles_are_those_of_fits_of_repeated_rows(monkeypatch):
    """Check the definition with fast fits.

    The ends are the second values of 41 resamples from each end, and the first values of 40.
    """
    runs, module = table(), fast.resampling
    weights = module.bootstrap_weights(np.random.default_rng(4).random((41, runs.loss.size)))
    both = asked(("prediction",))
    fitting = fast.fitting
    monkeypatch.setattr(reference, "fit_routed", fitting.fit_routed)
    predictions = []
    for line in weights.astype(int):
        fit = fitting.fit_routed(*(np.repeat(column, line) for column in runs))
        predictions.append(float(fitting.predict_curve(fit.curve, *PLACE)))
    cases = itertools.product(((41, 1), (40, 0)), zip((module, reference), both, strict=True))
    for (draws, skipped), (laws, quantities) in cases:
        [interval] = laws.bootstrap(*runs, weights[:draws], quantities).intervals
        ranked = sorted(predictions[:draws])
        for end, wanted in ((interval.low, ranked[skipped]), (interval.high, ranked[-1 - skipped])):
            check("laws.resampling.value", abs(end - wanted), ranked[-1] - ranked[0])


def test_jackknife_is_that_of_pseudo_values():
    """The test computes mean and standard error from m v - (m - 1) v_g of fast fits, with Student's t by
    hand.

    N_cutoff and E_max enter as logarithms. An end of E_max below 1 is set to 1.
    """
    runs, module = table(1e-3), fast.resampling
    ours, _ = asked(("slope", "N_cutoff"), (1e8, 64.0))
    slope, cutoff = module.jackknife(*runs, runs.dense_parameters, ours).intervals
    sizes = np.unique(runs.dense_parameters)

    def values(keep) -> np.ndarray:
        found = fast.fitting.fit_routed(*(column[keep] for column in runs)).coefficients
        return np.array([routed.slope_in_experts(1e8, found), -found.b / found.c])

    whole = values(runs.dense_parameters > 0)
    pseudo = [sizes.size * whole - (sizes.size - 1) * values(runs.dense_parameters != size) for size in sizes]
    reaches = 3.1824463052837 * np.std(pseudo, axis=0, ddof=1) / math.sqrt(sizes.size)  # t, 95 %, 3 degrees of freedom
    for ends, centre, reach in zip((slope[1:4], np.log10(cutoff[1:4])), whole, reaches, strict=True):
        for end, wanted in zip(ends, (centre, centre - reach, centre + reach), strict=True):
            check("laws.resampling.value", abs(end - wanted), 2 * reach)
    runs = table(3e-3, (1e7, 1e8, 1e9), (1.0, 8.0, 64.0, 512.0), seed=3)
    most, gain = module.jackknife(*runs, runs.dense_parameters, asked(("E_max", "gain"), PLACE)[0]).intervals
    assert most.low == 1.0 < 10 < most.value < math.sqrt(most.high), "the interval is open below, and 1 is its end"
    assert gain.low < gain.value < gain.high < 1.0, "what is no number of experts has ends below 1"


def test_values_are_those_of_the_profile():
    """The optimum of the last table is at an edge that a quick inner search approaches but misses."""
    ours, _ = asked()
    laws = [(LAW, 8), (LAW._replace(c=-0.004), 8), (LAW._replace(E_start=1.0), 8), (LAW._replace(E_max=math.inf), 8)]
    for law, seed in (*laws, (LAW._replace(E_start=1.5, E_max=math.inf), 34)):
        runs = table(1e-4, SIZES[:4], EXPERTS, law, seed)
        profile = fast.uncertainty.profile_intervals(*runs, ours)
        found = fast.resampling.jackknife(*runs, runs.dense_parameters, ours).intervals
        for one, other in zip(found, profile, strict=True):
            agree(one._replace(low=0.0, high=0.0), other._replace(low=0.0, high=0.0), spread_of(other))
            assert one.extrapolated == other.extrapolated


def test_a_resample_of_one_size_determines_no_law():
    """Two of three resamples have one size only. The third is the table, so it gives both ends."""
    runs = table()
    weights = np.ones((3, runs.loss.size))
    weights[:2] = 4.0 * (runs.dense_parameters == SIZES[0])
    for drawn, determined in ((weights, 1), (weights[:2], 0)):
        found = fast.resampling.bootstrap(*runs, drawn, asked(("gain", "prediction"))[0])
        assert (found.undefined, found.undetermined) == ([0, 0], 2) and sum(found.statuses.values()) == determined
        for interval in found.intervals:
            assert (interval.low == interval.value == interval.high) == bool(determined)
            assert math.isnan(interval.low) == math.isnan(interval.high) == (not determined)


@pytest.mark.slow
def test_what_has_no_value_is_counted():
    """In the linear limit E_start and E_max are undefined, slopes are infinite, and predictions are finite."""
    runs, names = near_linear(1e-4), ("E_start", "E_max", "slope", "prediction")
    ours, theirs = asked(names)
    weights = np.ones((3, runs.loss.size))
    weights[1, :5], weights[1, 5:10] = 0, 2
    weights[2] = 0
    weights[2, :8] = 5
    for module, quantities in ((fast.resampling, ours), (reference, theirs)):
        found = module.bootstrap(*runs, weights, quantities)
        assert (found.statuses, found.undetermined) == ({"linear limit": 2}, 1)
        assert found.undefined == [2, 2, 0, 0]
        assert np.isnan([item for interval in found.intervals[:2] for item in interval[1:4]]).all()
        assert found.intervals[2][1:4] == (-math.inf, -math.inf, -math.inf)
        assert np.isfinite(found.intervals[3][1:4]).all()
        folds = module.jackknife(*runs, runs.dense_parameters, quantities)
        assert folds.missing == [SIZES[:4], SIZES[:4], SIZES[:4], ()]
        assert np.isnan([item for interval in folds.intervals[:3] for item in interval[2:4]]).all()


def test_infinite_values_are_ranked():
    """E_max is inf in many resamples, so the upper end is inf and the lower end is finite."""
    runs = table(3e-3, SIZES[:4], EXPERTS, LAW._replace(E_max=math.inf))
    weights = fast.resampling.bootstrap_weights(np.random.default_rng(1).random((200, runs.loss.size)))
    ours, _ = asked(("E_max", "E_start"))
    found = fast.resampling.bootstrap(*runs, weights, ours)
    unbounded = sum(count for status, count in found.statuses.items() if status.endswith("E_max unbounded"))
    assert 20 < unbounded < 195 and found.undefined[0] == found.statuses.get("linear limit", 0)
    top, start = found.intervals
    assert math.isfinite(top.low) and top.high == math.inf
    assert fast.uncertainty.verdict(top).startswith("bounded from below only")
    assert math.isfinite(start.high)


def test_a_fold_that_does_not_determine_the_law_is_missing():
    """Without the first size there is only one size."""
    runs = table(sizes=SIZES[:2], experts=EXPERTS)
    ours, theirs = asked(("prediction",))
    for module, quantities in ((fast.resampling, ours), (reference, theirs)):
        found = module.jackknife(*runs, runs.dense_parameters, quantities)
        assert found.missing == [SIZES[:2]] and np.isnan(found.intervals[0][2:4]).all()
        assert math.isfinite(found.intervals[0].value)


@pytest.mark.released
@pytest.mark.parametrize("router", ["S-Base", "RL-R", "Hash"])
def test_released_intervals(router):
    """All methods contain the fit's own slope at the largest size. Their lengths agree within a factor."""
    runs, module = released_runs(router), fast.resampling
    quantity = fast.uncertainty.Quantity("slope", runs.dense_parameters.max())
    random = np.random.default_rng(0)
    weights = module.bootstrap_weights(random.random((500, runs.loss.size)))
    by_size = module.group_bootstrap_weights(random.random((500, 6)), runs.dense_parameters)
    found = [*fast.uncertainty.profile_intervals(*runs, [quantity])]
    found += [module.bootstrap(*runs, each, [quantity]).intervals[0] for each in (weights, by_size)]
    found += module.jackknife(*runs, runs.dense_parameters, [quantity]).intervals
    for interval in found:
        assert interval.low < found[0].value < interval.high < 0 and not interval.extrapolated
    lengths = [interval.high - interval.low for interval in found]
    assert max(lengths) < 3 * min(lengths), lengths
