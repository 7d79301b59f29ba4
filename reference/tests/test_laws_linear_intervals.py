"""Intervals of the linear laws against Student's t and against the definition of Fieller's interval.

Fieller's interval contains the numbers that a test at the level does not reject.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routelaws.conformance.bounds import check
from routelaws.conformance.plain.laws import Student
from routelaws.reference.laws import catalogue, linear_intervals
from routelaws.reference.laws.routed import predict_loss
from routelaws.reference.tests.strategies_laws import TABLE_3, grids, linear_design
from routelaws.reference.tests.test_laws_coverage import LINEAR

NAMES = ("dense", "per-size", "separable", "bilinear")
LEVELS = st.sampled_from([0.5, 0.8, 0.95, 0.999])
LAW = TABLE_3["S-Base"]
CROSSINGS = {"dense": ("N_c", [0, 1], [1, 0], 1.0), "bilinear": ("N_cutoff", [0, 1, 0, 0], [0, 0, 1, 0], -1.0)}
"""By law: the name of its ratio, then y, x and the sign in log10 ratio = sign y·β / x·β, for the columns of
`linear_design`.
"""


@st.composite
def tables(draw) -> tuple:
    """Draw columns and losses, with scatter from far below the law's slope to far above it."""
    size, experts = draw(grids())
    noise = draw(st.sampled_from([1e-4, 3e-3, 3e-2, 0.3]))
    scatter = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(0, noise, size.size)
    return size, experts, predict_loss(size, experts, LAW) * 10**scatter


def numbers(ranges) -> np.ndarray:
    """Return value, low and high of each range, [m, 3]; log10 of them for N_c and N_cutoff."""
    found = np.array([item[2:5] for item in ranges], dtype=np.float64)
    logs = np.array([item.name.startswith("N_") for item in ranges])
    with np.errstate(divide="ignore"):
        found[logs] = np.log10(found[logs])
    return found


def near(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    """Compare value, low and high, [m, 3], in units of half the interval, or of the number if an end is open."""
    assert np.array_equal(np.isfinite(found), np.isfinite(wanted)), what
    for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        known = np.isfinite(theirs)
        assert np.array_equal(ours[~known], theirs[~known], equal_nan=True), what
        if known.any():
            scale = (theirs[2] - theirs[1]) / 2 if known.all() else 1 + float(np.abs(theirs[known]).max())
            check("laws.intervals.end", float(np.abs(ours[known] - theirs[known]).max()), scale, message=f"{what} {i}")


@pytest.mark.parametrize("name", NAMES)
@given(table=tables(), level=LEVELS, place=st.integers(0, 100))
def test_intervals_are_students(name, table, level, place):
    size, experts, loss = table
    at = [float(size[place % size.size]) if name == "per-size" else 3e9, 1.0 + place][: 1 if name == "dense" else 2]
    sizes = np.unique(size)
    student = Student(linear_design(name, size, experts, sizes), np.log10(loss), level)
    weights = linear_design(name, np.array([at[0]]), np.array([at[-1]]), sizes)[0]
    wanted = np.array([student.interval(weights), student.interval(weights, more=1.0)])
    coefficients = np.array([student.interval(line) for line in np.eye(weights.size)])
    law = catalogue.LAWS[name]
    columns = [size, experts][: len(at)]
    fit = law.fit(*columns, loss)
    ranges = [item for item in law.intervals(fit, columns, loss, level) if not item.name.startswith("N_")]
    kept = len(ranges)  # for the dense law: alpha alone
    if name == "dense" and fit.status != "interior":
        coefficients[:] = math.nan
    near(numbers(ranges), coefficients[:kept], f"{name} coefficients")
    assert all(item.words == "" for item in ranges)
    assert [item.at for item in ranges] == ([*sizes, *sizes] if name == "per-size" else [None] * kept)
    found = law.predict_interval(fit, columns, loss, at, level)
    near(np.log10([[found.value, *found.law], [found.value, *found.run]]), wanted, f"{name} at {at}")


@pytest.mark.parametrize("name", CROSSINGS)
@given(table=tables(), level=LEVELS)
def test_a_ratio_has_the_interval_of_what_is_not_rejected(name, table, level):
    """At every finite end Student's t of y - r x is the quantile."""
    size, experts, loss = table
    what, y, x, sign = CROSSINGS[name]
    student = Student(linear_design(name, size, experts, np.unique(size)), np.log10(loss), level)
    y, x = np.array(y), np.array(x)

    def share(weights) -> float:
        """Return Student's t of weights·β, as a share of the quantile."""
        value, low, _ = student.interval(weights)
        return abs(value) / (value - low)

    law = catalogue.LAWS[name]
    columns = [size, experts][: len(law.columns)]
    fit = law.fit(*columns, loss)
    [item] = [item for item in law.intervals(fit, columns, loss, level) if item.name == what]
    if name == "dense" and fit.status != "interior":
        assert np.isnan(item[2:5]).all()
        return
    assert item.low <= item.value <= item.high
    assert item.value == (fit.coefficients.N_c if name == "dense" else law.cutoff(fit)[1])
    slope = float(x @ student.solution)
    for end in (item.low, item.high):
        if 0 < end < math.inf:
            check("laws.intervals.rejected", abs(share(y - sign * math.log10(end) * x) - 1), message=f"{item}")
    if share(x) < 1:
        assert item.high == math.inf and (name == "bilinear" or item.low == 0), f"{item}"
    elif slope < 0 and name == "bilinear":
        assert item.low == math.inf


def test_lines_leave_out_sizes_without_one():
    """A size with one E has no line: its rows do not change other intervals, and it has no prediction."""
    size, experts = np.repeat([1e7, 1e8, 1e9], 4), np.tile([1.0, 4.0, 16.0, 64.0], 3)
    loss = predict_loss(size, experts, LAW) * 10 ** np.random.default_rng(3).normal(0, 3e-3, size.size)
    experts[4:8] = 1.0
    loss[4:8] *= [1.0, 1.5, 2.0, 2.5]
    kept = size != 1e8
    law = catalogue.LAWS["per-size"]
    found = []
    for rows in (slice(None), kept):
        columns, own = [size[rows], experts[rows]], loss[rows]
        fit = law.fit(*columns, own)
        found.append((law.intervals(fit, columns, own), law.predict_interval(fit, columns, own, [1e9, 8.0])))
    near(numbers(found[0][0]), numbers(found[1][0]), "lines")
    assert [item.at for item in found[0][0]] == [1e7, 1e9, 1e7, 1e9]
    near(*(np.log10([[p.value, *p.law], [p.value, *p.run]]) for _, p in found), "prediction")


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_the_law_itself_leave_no_doubt(name):
    size, experts, truth = LINEAR[name]
    loss = 10 ** (linear_design(name, size, experts) @ truth)
    law = catalogue.LAWS[name]
    columns = [size, experts][: len(law.columns)]
    fit = law.fit(*columns, loss)
    for item in law.intervals(fit, columns, loss):
        # The value and the ends are computed differently and may be equal, so rounding may change their order.
        ends = item.low, item.value, item.high
        apart = math.log10(max(ends) / min(ends)) if item.value > 1 else max(ends) - min(ends)
        check("laws.intervals.exact", apart)
    found = law.predict_interval(fit, columns, loss, [1e7, 5.0][: len(columns)])
    check("laws.intervals.exact", found.run[1] - found.run[0])


def test_designs_are_those_that_the_laws_are_linear_in():
    """The prediction of a fit is a linear function of its columns, with the coefficients as weights."""
    size, experts = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1.0, 4.0, 16.0]))
    loss = predict_loss(size, experts, LAW)
    for name in NAMES:
        columns = [size, experts][: len(catalogue.LAWS[name].columns)]
        fit = catalogue.LAWS[name].fit(*columns, loss)
        wanted = linear_design(name, size, experts, np.unique(size))
        if name == "per-size":
            wanted = wanted.reshape(-1, 2, 3).swapaxes(1, 2).reshape(-1, 6)  # for each size, b and then d
        found = getattr(linear_intervals, f"{name.replace('-', '_')}_design")(fit, *columns)
        assert found.shape == wanted.shape
        check("laws.intervals.design", float(np.abs(found - wanted).max()))
