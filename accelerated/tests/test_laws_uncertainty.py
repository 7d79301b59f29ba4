"""The intervals: the same ends as the reference, ends that are attained, and infinite ends if no row binds.

Values of a law come from the law and the equation of Ê in `routed.py`, not from the form of the search.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import BOUNDS, check
from routelaws.reference.laws import routed
from routelaws.reference.laws import uncertainty as reference
from routelaws.reference.tests.strategies_laws import (
    EXPERTS,
    LAW,
    NO_SHRINKING,
    SIZES,
    Runs,
    grid,
    near_linear,
    noisy_tables,
    released_runs,
)

KINDS = ("slope_interval", "gain_interval")

COEFFICIENTS = ("a", "b", "c", "d", "E_start", "E_max", "N_cutoff")
PLACED = ("slope", "gain", "prediction", "observation", "effective_parameters")
LOGARITHMIC = ("E_start", "E_max", "N_cutoff", "effective_parameters", "prediction", "observation")


def value_of(result):
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


def asked(module, size: float, experts: float) -> list:
    """Return every quantity, at (size, experts) if it needs a place."""
    placed = [module.Quantity(name, size, experts) for name in PLACED]
    return [module.Quantity(name) for name in COEFFICIENTS] + placed


def compare_intervals(found, wanted):
    name = wanted.quantity.name
    assert tuple(found.quantity[:1]) == (name,) and found.extrapolated == wanted.extrapolated, (found, wanted)
    if name in ("E_start", "E_max"):  # the rows depend on the reciprocal
        found, wanted = (
            item._replace(value=1 / item.value, low=1 / item.high, high=1 / item.low) for item in (found, wanted)
        )
    length = wanted.high - wanted.low
    for ours, theirs, kind in zip(found[1:4], wanted[1:4], ("value", "end", "end"), strict=True):
        if not (math.isfinite(theirs) and theirs != 0):
            assert ours == theirs or math.isnan(ours) and math.isnan(theirs), (found, wanted)
        elif name in ("E_start", "E_max"):  # their ends have the accuracy of the search, not of a parabola
            place = "edge" if kind == "end" else kind
            unit = length + theirs if kind == "end" else length
            check(f"laws.uncertainty.{place}", abs(ours - theirs), scale=unit, message=f"{found} {wanted}")
        elif name in LOGARITHMIC:  # an end of N_cutoff is the tangent of an angle
            unit = 1 + math.log10(theirs) ** 2 if name == "N_cutoff" else 1.0
            check(f"laws.uncertainty.{kind}", abs(math.log10(ours / theirs)), unit, message=f"{found} {wanted}")
        else:
            unit = length if math.isfinite(length) else abs(theirs)
            check(f"laws.uncertainty.{kind}", abs(ours - theirs), scale=unit, message=f"{found} {wanted}")


def law_says(name: str, place: tuple[float, float], law: np.ndarray) -> np.ndarray:
    """Return log10 of a quantity (or the quantity, if it has a sign) of laws [6, ...], from equations (1) and (2)."""
    a, b, c, d, E_start, E_max = law
    size, experts = math.log10(place[0]), place[1]

    def log_experts(count):
        return -np.log10(1 / (count - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max)

    loss = a * size + b * log_experts(experts) + c * size * log_experts(experts) + d
    start = np.log10(E_start)
    return {
        "a": a,
        "b": b,
        "c": c,
        "d": d,
        "E_start": start,
        "E_max": np.log10(E_max),
        "slope": b + c * size,
        "N_cutoff": np.where(c > 0, -b / np.where(c > 0, c, 1.0), np.inf),
        "prediction": loss,
        "gain": (b + c * size) * (log_experts(experts) - start),
        "effective_parameters": (loss - b * start - d) / (a + c * start),
    }[name]


class Allowed:
    """The laws that a table allows at given E_start and E_max: centre, covariance and limit, by least squares."""

    def __init__(self, runs: Runs, level: float = 0.95):
        self.runs, self.target = runs, np.log10(runs.loss)
        self.offset = np.log10(runs.dense_parameters) - 8.0
        count = runs.loss.size
        q = reference.student_quantile(level, count - 6)
        self.limit = fast.fitting.fit_routed(*runs).objective * count * (1 + q**2 / (count - 6))

    def at(self, E_start: float, E_max: float):
        """Return (d + 8a, a, b + 8c, c), a root of their covariance [4, 4], and the room for the residual sum."""
        experts = np.log10(routed.effective_experts(self.runs.num_experts, E_start, E_max))
        design = np.stack([np.ones(experts.size), self.offset, experts, experts * self.offset], axis=1)
        unit, triangle = np.linalg.qr(design)
        root = np.linalg.inv(triangle)
        solution = root @ (unit.T @ self.target)
        return solution, root, self.limit - float(np.sum((self.target - design @ solution) ** 2))

    def laws(self, solution: np.ndarray, E_start: float, E_max: float) -> np.ndarray:
        """Return [6, ...] from solutions [4, ...]."""
        level, a, slope, c = solution
        return np.stack([a, slope - 8 * c, c, level - 8 * a, np.full(a.shape, E_start), np.full(a.shape, E_max)])


# Use fewer examples, because the reference takes seconds for each.
@pytest.mark.slow
@settings(phases=NO_SHRINKING, max_examples=settings.default.max_examples // 8)
@given(runs=noisy_tables(), names=st.permutations(COEFFICIENTS + PLACED), level=st.sampled_from([0.5, 0.95]))
def test_intervals_agree_with_the_reference(runs, names, level):
    place = (1e10, 700.0) if level == 0.5 else (float(runs.dense_parameters.max()), 16.0)
    ours, theirs = ([module.Quantity(name, *place) for name in names[:2]] for module in (fast.uncertainty, reference))
    found = fast.uncertainty.profile_intervals(*runs, ours, level)
    wanted = reference.profile_intervals(*runs, theirs, level)
    for one, other in zip(found, wanted, strict=True):
        compare_intervals(one, other)
        assert one.low <= one.value <= one.high or math.isnan(one.value), one
        assert fast.uncertainty.verdict(one) == reference.verdict(other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_intervals_of_slope_and_gain_agree(kind):
    runs, extra = near_linear(1e-3), {} if kind == "slope_interval" else {"experts": 700.0}
    sizes = np.array([runs.dense_parameters.max(), 1e10])
    found = getattr(fast.uncertainty, kind)(*runs, sizes, level=0.5, **extra)
    compare(found, getattr(reference, kind)(*runs, sizes, level=0.5, **extra))
    assert np.all(found.low <= value_of(found)) and np.all(value_of(found) <= found.high)
    assert found.extrapolated.tolist() == [False, True]


@settings(phases=NO_SHRINKING)
@given(runs=noisy_tables(), seed=st.integers(0, 2**32 - 1))
def test_no_allowed_law_lies_outside(runs, seed):
    """At random shapes, the interval contains every random and every extreme law of the allowed set."""
    random = np.random.default_rng(seed)
    place = (float(runs.dense_parameters.min()), 24.0)
    module, allowed = fast.uncertainty, Allowed(runs)
    found = {item.quantity.name: item for item in module.profile_intervals(*runs, asked(module, *place))}
    for _ in range(40):
        E_start = max(1.0, 10 ** random.uniform(-0.5, 2.5))
        E_max = E_start * (1 + 10 ** random.uniform(-1, 5))
        solution, root, room = allowed.at(E_start, E_max)
        if room <= 0:
            continue
        directions = random.normal(size=(100, 4))
        for name in found:
            # This is the extreme of a linear quantity; a ratio is slightly beyond its tangent.
            value = name if name != "observation" else "prediction"
            near = law_says(value, place, allowed.laws(solution[:, None] + 1e-6 * root, E_start, E_max))
            here = law_says(value, place, allowed.laws(solution, E_start, E_max))
            # N_cutoff may be infinite at or near this point; then any direction works.
            ends = near - here if np.all(np.isfinite(near)) and np.isfinite(here) else np.ones(4)
            ends = ends if np.any(ends) else np.ones(4)
            units = np.concatenate([directions, [ends, -ends]])
            units /= np.linalg.norm(units, axis=1, keepdims=True)
            points = solution[:, None] + math.sqrt(room) * root @ units.T
            says = law_says(value, place, allowed.laws(points, E_start, E_max))
            if name == "observation":
                lean = np.linalg.norm(ends) / 1e-6
                says = here + np.array([-1, 1]) * math.sqrt(room * (1 + lean**2))
            low, high = found[name].low, found[name].high
            if name in LOGARITHMIC:
                with np.errstate(divide="ignore"):
                    low, high = np.log10(low), np.log10(high)
            slack = BOUNDS["laws.uncertainty.outside"].limit * np.maximum(np.abs(says), 1.0)
            slack = np.where(np.isfinite(slack), slack, 0.0)
            inside = (low - slack <= says) & (says <= high + slack)
            assert np.all(inside), (name, low, high, says[~inside], E_start, E_max)


def attained_table(noise: float) -> Runs:
    return grid(noise, 11, sizes=SIZES[::2], experts=EXPERTS[::2])


@pytest.mark.parametrize("noise", [2e-4, 2e-3])
def test_ends_are_attained(noise):
    """At an end, the least residual sum of all laws with that value equals the limit, by brute force.

    A value v of a quantity (or ratio) is one linear condition g·β = t on the four linear unknowns. At a shape the least
    residual sum with this value is the unconstrained sum plus (g·β - t)² / (g'Cg).
    """
    runs, place, module = attained_table(noise), (1e8, 24.0), fast.uncertainty
    allowed = Allowed(runs)
    start, top = module.profile_intervals(*runs, [module.Quantity("E_start"), module.Quantity("E_max")])
    E_start, unmaximal = (
        v.ravel()
        for v in np.meshgrid(np.geomspace(start.low, start.high, 161), np.linspace(1 / top.high, 1 / top.low, 161))
    )
    E_start, unmaximal = E_start[E_start * unmaximal < 0.99], unmaximal[E_start * unmaximal < 0.99]
    bend = (1 - E_start * unmaximal) * unmaximal
    rise = (1 - E_start * unmaximal) ** 2 / E_start

    def log_growth(count):  # log10 of Ê/E_start
        return np.log10(1 + rise * (count - 1) / (1 + bend * (count - 1)))

    columns = np.stack([log_growth(count) for count in runs.num_experts], axis=1)
    ones = np.ones_like(columns)
    design = np.stack([ones, ones * allowed.offset, columns, columns * allowed.offset], axis=2)
    unit, triangle = np.linalg.qr(design)
    scores = np.einsum("snk,n->sk", unit, allowed.target)
    residual = np.sum((allowed.target - np.einsum("snk,sk->sn", unit, scores)) ** 2, axis=1)
    start, growth, one = np.log10(rise / (rise + bend) ** 2), log_growth(place[1]), np.ones_like(rise)
    size = math.log10(place[0]) - 8.0
    sought = [item for item in asked(module, *place) if item.name not in ("E_start", "E_max")]
    for item in module.profile_intervals(*runs, sought):
        for end in (item.low, item.high):
            name = item.quantity.name
            if not math.isfinite(end):
                assert name == "N_cutoff" and noise > 1e-3, item
                continue
            v = math.log10(end) if name in LOGARITHMIC else end
            g, t = {
                "a": ((0, one, 0, -start), v),
                "c": ((0, 0, 0, one), v),
                "b": ((0, 0, one, -8 * one), v),
                "d": ((one, -8 * one, -start, 8 * start), v),
                "slope": ((0, 0, one, size * one), v),
                "gain": ((0, 0, growth, size * growth), v),
                "prediction": ((one, size * one, growth, size * growth), v),
                "observation": ((one, size * one, growth, size * growth), v),
                "effective_parameters": ((0, (size + 8 - v) * one, growth, size * growth), 0.0),
                "N_cutoff": ((0, 0, one, (v - 8) * one), 0.0),
            }[name]
            g = np.stack([np.broadcast_to(part, one.shape) for part in g], axis=1)
            across = np.linalg.solve(np.swapaxes(triangle, 1, 2), g[:, :, None])[:, :, 0]
            miss = np.sum(across * scores, axis=1) - t
            least = np.min(residual + miss**2 / (np.sum(across**2, axis=1) + (name == "observation")))
            check("laws.uncertainty.attained", abs(float(least) / allowed.limit - 1), message=f"{name} {end}")


@pytest.mark.parametrize("noise", [2e-4, 2e-3])
def test_ends_of_the_shape_are_attained(noise):
    """For E_start and E_max, the least residual sum over the other one equals the limit."""
    runs, module = attained_table(noise), fast.uncertainty
    allowed = Allowed(runs)
    start, top = module.profile_intervals(*runs, [module.Quantity("E_start"), module.Quantity("E_max")])

    def least(pairs) -> float:
        return min(allowed.limit - allowed.at(E_start, E_max)[2] for E_start, E_max in pairs)

    def shares(ends, pairs_of) -> None:
        for end in ends:
            check("laws.uncertainty.attained", abs(least(pairs_of(end)) / allowed.limit - 1), message=f"{end}")

    ratios, starts = 1 + np.logspace(-3, 6, 2000), np.logspace(0, 3, 2000)
    shares([end for end in (start.low, start.high) if end > 1], lambda end: [(end, end * ratio) for ratio in ratios])
    shares(
        [end for end in (top.low, top.high) if math.isfinite(end)],
        lambda end: [(E_start, end) for E_start in starts if E_start < end],
    )
    # The end is at the edge of the domain, which is allowed.
    if start.low == 1:
        assert least([(1.0, ratio) for ratio in ratios]) <= allowed.limit
    if math.isinf(top.high):
        assert least([(E_start, math.inf) for E_start in starts]) <= allowed.limit
    else:
        assert least([(E_start, math.inf) for E_start in starts]) > allowed.limit


def test_a_higher_level_is_a_wider_interval():
    runs = near_linear(1e-3)
    ends = [fast.uncertainty.gain_interval(*runs, 1e8, level=level) for level in (0.5, 0.9, 0.99)]
    assert ends[2].low[0] < ends[1].low[0] < ends[0].low[0] < ends[0].high[0] < ends[1].high[0] < ends[2].high[0]


OPEN = {
    # losses linear in E: the linear limit is allowed
    "linear": {"a": "not identified", "b": "bounded from above only, extrapolated", "E_start": "not identified",
               "E_max": "not identified", "slope": "bounded from above only", "gain": "pinned down",
               "prediction": "pinned down", "observation": "pinned down", "effective_parameters": "pinned down"},
    # no gain: only measured quantities have ends
    "flat": {"a": "not identified", "c": "not identified", "E_start": "not identified", "E_max": "not identified",
             "N_cutoff": "not identified", "slope": "not identified", "gain": "soft, sign open",
             "prediction": "pinned down", "effective_parameters": "not identified"},
    # no effect of size: no dense model equals a routed model
    "sizeless": {"gain": "pinned down", "prediction": "pinned down", "effective_parameters": "not identified"},
    # the law with unbounded E_max and little noise
    "unbounded": {"a": "pinned down", "E_start": "pinned down", "E_max": "bounded from below only, extrapolated",
                  "c": "pinned down", "slope": "pinned down", "N_cutoff": "pinned down, extrapolated"},
    # routing helps more as N grows: no cut-off
    "rising": {"c": "pinned down", "N_cutoff": "infinite, extrapolated"},
}  # fmt: skip


def open_table(kind: str) -> Runs:
    size, experts = (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    noise = np.random.default_rng(5).normal(0, 1.0, size.size)
    if kind == "linear":
        return near_linear(1e-4)
    if kind == "flat":
        return Runs(size, experts, 10 ** (0.4 + 3e-3 * noise))
    made = {"unbounded": (-0.08, 0.009, math.inf), "rising": (-0.08, -0.004, 300.0), "sizeless": (0.0, 0.0, 300.0)}
    a, c, E_max = made[kind]
    law = routed.RoutedCoefficients(a, -0.11, c, 1.1, 2.0, E_max)
    return Runs(size, experts, routed.predict_loss(size, experts, law) * 10 ** (2e-5 * noise))


@pytest.mark.parametrize("kind", OPEN)
def test_what_cannot_be_known_is_said(kind):
    runs, module = open_table(kind), fast.uncertainty
    quantities = asked(module, SIZES[0], 64.0)
    found = {item.quantity.name: item for item in module.profile_intervals(*runs, quantities)}
    said = {name: module.verdict(item).replace(", extrapolated", "") for name, item in found.items()}
    assert said | {name: words.replace(", extrapolated", "") for name, words in OPEN[kind].items()} == said
    full = {name: module.verdict(found[name]) for name, words in OPEN[kind].items() if "extrapolated" in words}
    assert full == {name: OPEN[kind][name] for name in full}
    if kind == "rising":
        assert found["N_cutoff"][1:4] == (math.inf, math.inf, math.inf)
    if kind == "linear":
        assert math.isnan(found["E_start"].value) and found["E_start"][2:4] == (1.0, math.inf)
        assert found["slope"].value == -math.inf == found["slope"].low
    if kind == "flat":
        assert found["N_cutoff"][2:4] == found["effective_parameters"][2:4] == (0.0, math.inf)
    if kind == "sizeless":
        assert found["effective_parameters"][2:4] == (0.0, math.inf)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("linear", "E_max"), ("flat", "N_cutoff")])
def test_the_reference_says_it_too(kind, name):
    found, item = (
        module.profile_intervals(*open_table(kind), [module.Quantity(name, SIZES[0], 64.0)])[0]
        for module in (fast.uncertainty, reference)
    )
    compare_intervals(found, item)


@pytest.mark.slow
def test_where_only_the_linear_limit_fits():
    """For noise-free rows the search finds no other allowed shape."""
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1.0, 2.0, 4.0, 16.0, 64.0, 256.0]))
    runs = Runs(size, experts, 10 ** (0.78 - 0.06 * np.log10(size) - 5e-4 * (experts - 1)))
    for module in (fast.uncertainty, reference):
        names = [module.Quantity(name, 1e8, 64.0) for name in ("slope", "b", "gain", "E_max")]
        slope, b, gain, E_max = module.profile_intervals(*runs, names)
        assert slope[1:4] == b[1:4] == (-math.inf,) * 3
        check("laws.uncertainty.value", abs(gain.value + 5e-4 * 63), message=str(gain))
        assert E_max[2:4] == (1.0, math.inf)


OUTSIDE = [
    (("slope", SIZES[0]), False), (("slope", SIZES[3]), False), (("slope", SIZES[3] * 1.01), True),
    (("prediction", SIZES[1], 512.0), False), (("prediction", SIZES[3], 513.0), True),
    (("prediction", SIZES[0], 1.0), False), (("observation", SIZES[3], 1.0), False),
    (("gain", SIZES[0], 512.0), False), (("gain", SIZES[0] / 2, 2.0), True),
    (("effective_parameters", SIZES[0], 8.0), False), (("effective_parameters", SIZES[3], 512.0), True),
    (("a",), False), (("b",), True), (("c",), False), (("d",), True), (("E_start",), False), (("N_cutoff",), True),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "outside"), OUTSIDE)
def test_what_lies_outside_the_table_says_so(wanted, outside):
    module, runs = fast.uncertainty, open_table("unbounded")
    [found] = module.profile_intervals(*runs, [module.Quantity(*wanted)])
    assert found.extrapolated == outside and module.verdict(found).endswith("extrapolated") == outside


@pytest.mark.parametrize(("E_max", "outside"), [(EXPERTS[-1] - 0.5, False), (EXPERTS[-1] + 0.5, True)])
def test_a_limit_just_below_or_above_the_last_count(E_max, outside):
    module, (size, experts) = fast.uncertainty, (v.ravel() for v in np.meshgrid(SIZES[:4], EXPERTS))
    law = LAW._replace(E_max=E_max)
    [found] = module.profile_intervals(
        size, experts, routed.predict_loss(size, experts, law), [module.Quantity("E_max")]
    )
    assert found.extrapolated == outside, f"E_max is {found.value}; the largest E of the table is {EXPERTS[-1]}"


def test_without_dense_rows_a_gain_is_extrapolated():
    module, runs = fast.uncertainty, open_table("unbounded")
    routed_only = Runs(*(column[runs.num_experts > 1] for column in runs))
    names = ("gain", "E_start", "effective_parameters", "slope")
    quantities = [module.Quantity(name, SIZES[1], 8.0) for name in names]
    found = module.profile_intervals(*routed_only, quantities)
    assert [item.extrapolated for item in found] == [True, True, True, False]


@pytest.mark.released
@pytest.mark.parametrize("with_reference", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("router", "low", "high"), [("S-Base", -0.0366, -0.0225), ("Hash", -0.0339, -0.0181)])
def test_released_slopes(router, low, high, with_reference):
    runs = released_runs(router)
    largest = runs.dense_parameters.max()
    found = fast.uncertainty.slope_interval(*runs, [largest])
    if with_reference:
        compare(found, reference.slope_interval(*runs, [largest]))
    assert (round(found.low[0], 4), round(found.high[0], 4)) == (low, high)
