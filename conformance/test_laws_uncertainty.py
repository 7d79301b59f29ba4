"""The intervals: the same ends as the reference, ends that are attained, and infinite ones where nothing binds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import BOUNDS, check
from routelaws.conformance.strategies_laws import EXPERTS, SIZES, Runs, noisy_tables, released_runs
from routelaws.reference.laws import routed
from routelaws.reference.laws import uncertainty as reference

KINDS = ("slope_interval", "gain_interval")


def value_of(result):
    """Return the best values of an interval of either kind."""
    return result[1] if len(result) == 5 else result.gain


def compare(found, wanted):
    """Compare two intervals, each end in units of the interval's length."""
    with np.errstate(invalid="ignore"):
        length = wanted.high - wanted.low
    for name in ("low", "high"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert np.array_equal(np.isinf(ours), np.isinf(theirs)), (name, ours, theirs)
        for a, b, unit in zip(ours, theirs, length, strict=True):
            if math.isfinite(b):
                check("laws.uncertainty.end", abs(a - b), scale=unit if math.isfinite(unit) else abs(b), message=name)
            else:
                assert a == b
    assert np.array_equal(found.extrapolated, wanted.extrapolated) and np.array_equal(found.at, wanted.at)


def near_linear(noise: float) -> Runs:
    """Rows that grow linearly in E, so that the data cannot say how long the axis of Ê is."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    log_loss = 1.1 - 0.08 * np.log10(size) - 0.05 * (experts - 1) / 511
    return Runs(size, experts, 10 ** (log_loss + np.random.default_rng(3).normal(0, noise, size.size)))


@given(level=st.floats(0.01, 0.999), degrees=st.integers(1, 400))
def test_student_quantile(backend, level, degrees):
    found, wanted = (m.student_quantile(level, degrees) for m in (backend.laws.uncertainty, reference))
    check("laws.uncertainty.quantile", abs(found / wanted - 1), message=f"{level} {degrees}")


@pytest.mark.parametrize(("degrees", "wanted"), [(1, 12.7062047362), (10, 2.2281388520), (52, 2.0066468051)])
def test_student_quantile_against_printed_tables(backend, degrees, wanted):
    for module in (backend.laws.uncertainty, reference):
        check("laws.uncertainty.quantile", abs(module.student_quantile(0.95, degrees) / wanted - 1))


@given(runs=noisy_tables(), kind=st.sampled_from(KINDS), level=st.sampled_from([0.5, 0.95]))
def test_ends_agree_with_the_reference(backend, runs, kind, level):
    sizes = np.array([runs.dense_parameters.max(), 1e10])
    extra = {} if kind == "slope_interval" else {"experts": 700.0}
    found = getattr(backend.laws.uncertainty, kind)(*runs, sizes, level=level, **extra)
    wanted = getattr(reference, kind)(*runs, sizes, level=level, **extra)
    compare(found, wanted)
    assert np.all(found.low <= value_of(found)) and np.all(value_of(found) <= found.high)
    assert found.extrapolated.tolist() == [False, True]


@given(runs=noisy_tables(), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_no_allowed_law_lies_outside(backend, runs, kind, seed):
    """Straight from equations (1) and (2): random shapes, the parabola of each by least squares."""
    random = np.random.default_rng(seed)
    size = float(runs.dense_parameters.min())
    found = getattr(backend.laws.uncertainty, kind)(*runs, size)
    fit = backend.laws.fitting.fit_routed(*runs)
    count, target = runs.loss.size, np.log10(runs.loss)
    q = reference.student_quantile(0.95, count - 6)
    limit = fit.objective * count * (1 + q**2 / (count - 6))
    for _ in range(200):
        E_start = max(1.0, 10 ** random.uniform(-0.5, 2.5))
        E_max = E_start * (1 + 10 ** random.uniform(-1, 5))
        log_experts = np.log10(routed.effective_experts(runs.num_experts, E_start, E_max) / E_start)
        offset = np.log10(runs.dense_parameters / size)
        unit = 1.0
        if kind == "gain_interval":
            unit = math.log10(routed.effective_experts(found.experts, E_start, E_max) / E_start)
        design = np.stack([np.ones(count), offset, log_experts / unit * offset, log_experts / unit], axis=1)
        inverse = np.linalg.pinv(design)
        solution = inverse @ target
        spare = limit - np.sum((target - design @ solution) ** 2)
        if spare > 0:
            reach = math.sqrt(spare * (inverse @ inverse.T)[3, 3])
            slack = BOUNDS["laws.uncertainty.end"].limit * abs(solution[3] + reach)
            assert found.low[0] - slack <= solution[3] - reach and solution[3] + reach <= found.high[0] + slack


@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_attained(backend, kind):
    """At an end, the least residual sum among all laws that have that value is the limit itself."""
    from routelaws.reference.laws._projection import check_rows, project, shape

    size, experts = (v.ravel() for v in np.meshgrid(SIZES[::2], EXPERTS[::2]))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)
    noise = np.random.default_rng(11).normal(0, 2e-3, size.size)
    runs = Runs(size, experts, routed.predict_loss(size, experts, law) * 10**noise)
    found = getattr(backend.laws.uncertainty, kind)(*runs, 1e8)
    objective = backend.laws.fitting.fit_routed(*runs).objective * size.size
    limit = objective * (1 + reference.student_quantile(0.95, size.size - 6) ** 2 / (size.size - 6))
    rows = check_rows(*runs)
    top = experts.max() - 1
    rise, bend = shape(*np.meshgrid(np.linspace(0.02, 1, 321), np.linspace(0, 0.98, 321)), top)
    residual, gain, variance = project(rows, rise, bend, 8.0)
    span = np.log10(1 + rise * top / (1 + bend * top)) if kind == "slope_interval" else 1.0
    for end in (found.low[0], found.high[0]):
        assert math.isfinite(end)
        least = float(np.min(residual + (end * span - gain) ** 2 / variance))
        check("laws.uncertainty.attained", abs(least / limit - 1), message=f"{kind} {end}")


@pytest.mark.parametrize("noise", [1e-4, 3e-3])
def test_slope_is_unbounded_where_the_linear_limit_is_allowed(backend, noise):
    runs = near_linear(noise)
    for module in (backend.laws.uncertainty, reference):
        slope, gain = module.slope_interval(*runs, SIZES[0]), module.gain_interval(*runs, SIZES[0])
        assert slope.low[0] == -math.inf and slope.high[0] < 0
        assert -0.06 < gain.low[0] < gain.gain[0] < gain.high[0] < -0.04


def test_both_ends_are_infinite_where_nothing_is_gained(backend):
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    runs = Runs(size, experts, 10 ** (0.4 + np.random.default_rng(5).normal(0, 3e-3, size.size)))
    for module in (backend.laws.uncertainty, reference):
        found = module.slope_interval(*runs, SIZES[1])
        assert (found.low[0], found.high[0]) == (-math.inf, math.inf)
        assert np.isfinite(module.gain_interval(*runs, SIZES[1])[3:5]).all()


def test_a_higher_level_is_a_wider_interval(backend):
    runs = near_linear(1e-3)
    ends = [backend.laws.uncertainty.gain_interval(*runs, 1e8, level=level) for level in (0.5, 0.9, 0.99)]
    assert ends[2].low[0] < ends[1].low[0] < ends[0].low[0] < ends[0].high[0] < ends[1].high[0] < ends[2].high[0]


@pytest.mark.released
@pytest.mark.parametrize(("router", "low", "high"), [("S-Base", -0.0366, -0.0225), ("Hash", -0.0339, -0.0181)])
def test_released_slopes(backend, router, low, high):
    runs = released_runs(router)
    largest = runs.dense_parameters.max()
    found = backend.laws.uncertainty.slope_interval(*runs, [largest])
    compare(found, reference.slope_interval(*runs, [largest]))
    assert (round(found.low[0], 4), round(found.high[0], 4)) == (low, high)


@pytest.mark.slow
def test_coverage(backend):
    """Of 300 simulated tables, an 80 % interval holds the true slope in about 80 %."""
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 2.0, 300.0)
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    exact, random, held = routed.predict_loss(size, experts, law), np.random.default_rng(1), 0
    for _ in range(300):
        loss = exact * 10 ** random.normal(0, 3e-3, size.size)
        found = backend.laws.uncertainty.slope_interval(size, experts, loss, 1e8, 0.8)
        held += found.low[0] <= law.b + 8 * law.c <= found.high[0]
    assert 0.72 * 300 <= held <= 0.9 * 300, held  # 0.8 and four standard deviations, a little more above


BAD = {
    "level": (dict(level=1.0), "level is 1.0"),
    "size of 0": (dict(at=0.0), "at is 0.0"),
    "size is NaN": (dict(at=[1e8, math.nan]), r"at: entry \(1,\) is nan"),
    "sizes in two axes": (dict(at=np.ones((2, 2))), "one axis"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", BAD)
def test_what_is_not_allowed_is_named(backend, kind, case):
    arguments, message = BAD[case]
    for module in (backend.laws.uncertainty, reference):
        with pytest.raises(ValueError, match=message):
            getattr(module, kind)(*near_linear(1e-3), **({"at": 1e8} | arguments))


def test_bad_expert_counts_and_degrees_are_named(backend):
    for module in (backend.laws.uncertainty, reference):
        for experts in (1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="experts is .*above 1"):
                module.gain_interval(*near_linear(1e-3), 1e8, experts)
        with pytest.raises(ValueError, match="degrees is 0"):
            module.student_quantile(0.95, 0)
