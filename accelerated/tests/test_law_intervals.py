"""The ends at one shape behind the intervals, piece by piece, each by a plain formula; and where their search begins.

All but the last test run as plain Python.
"""

import itertools
import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_intervals
from routelaws.accelerated.laws import fitting, uncertainty
from routelaws.conformance.bounds import check
from routelaws.conformance.suite.strategies_laws import EXPERTS, SIZES
from routelaws.reference.laws import _allowed, _projection, routed

KINDS = {
    "a": law_intervals.SIZE_SLOPE, "b": law_intervals.SLOPE, "c": law_intervals.INTERACTION,
    "d": law_intervals.LEVEL_AT_1, "E_start": law_intervals.START, "E_max": law_intervals.LIMIT,
    "N_cutoff": law_intervals.CUTOFF, "slope": law_intervals.SLOPE, "gain": law_intervals.GAIN,
    "prediction": law_intervals.PREDICTION, "observation": law_intervals.OBSERVATION,
    "effective_parameters": law_intervals.EFFECTIVE,
}  # fmt: skip
SHAPES = {
    "inside": (0.4, 0.01), "nearly linear": (1e-7, 1e-3), "nearly bounded": (0.7, 0.4), "E_start at 1": (1.0, 0.003),
    "unbounded": (0.3, 0.0), "the corner": (1.0, 0.0), "the linear limit": (0.0, 0.0),
}  # fmt: skip
"""alpha = 1/E_start and E_start/E_max."""


def small_table(sign: float = 1.0):
    """Return (rows, reduced table, its constant, E - 1, work) of a noisy table of 5 E and 3 sizes, not all of them."""
    size, experts = (v.ravel()[:-1] for v in np.meshgrid([2e7, 1e8, 6e8], [1.0, 4.0, 16.0, 64.0, 256.0]))
    law = routed.RoutedCoefficients(-0.08, -0.2 * sign, 0.02 * sign, 1.1, 2.0, 300.0)
    noise = np.random.default_rng(5).normal(0, 2e-3, size.size)
    loss = routed.predict_loss(size, experts, law) * 10**noise
    table = fitting.level_table(size, experts, loss)
    problem, constant = law_fit.reduce_rows(table.log_size, table.log_loss, table.level, np.ones(size.size), 5)
    work = np.full((6, 2 * table.extra.size), np.nan)
    return _projection.check_rows(size, experts, loss), problem, constant, table.extra, work


def numbers_near(found, wanted, message: str) -> None:
    """Compare numbers of which some are NaN or infinite: those exactly, the others relatively."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite], err_msg=message)
    error = np.abs(found[finite] - wanted[finite]) / np.maximum(np.abs(wanted[finite]), 1.0)
    check("laws.uncertainty.loops", float(error.max(initial=0.0)), message=message)


# The ends at one shape


def on_the_scale_of_the_kernel(quantity, value: float, centre: float) -> float:
    """Return what the reference says of a quantity as the kernel has it: -1/E, an angle, or decades above N."""
    if quantity.name in ("E_start", "E_max"):
        return -1 / value
    if quantity.name == "N_cutoff":
        return math.atan(value - centre)
    return value - (math.log10(quantity.N) if quantity.name == "effective_parameters" else 0.0)


@pytest.mark.parametrize("name", KINDS)
def test_ends_at_a_shape_are_the_reference_s(plain, name):
    """At every kind of shape; with no room, less than none, and some; within the table and beyond it."""
    for sign in (1.0, -1.0):  # of what experts do; where E_start is at infinity, it says which of both ends is
        rows, problem, constant, extra, work = small_table(sign)
        centre = rows.log_size.mean()
        places = ((1.0, 0.0), (100.0, -0.3), (3000.0, 1.0))  # E, and log10 N less its mean
        for (alpha, ratio), (E, at), factor in itertools.product(SHAPES.values(), places, (0.5, 1.0, 1.01, 40.0)):
            dense = name in ("a", "d")  # which may be taken at any effective expert count
            quantity = uncertainty.Quantity(name, 10 ** (centre + at), E, effective=E if dense else 1.0)
            curve = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
            limit = factor * _allowed.at_shape(rows, quantity, 0.0, *curve)[0]
            residual, *says = _allowed.at_shape(rows, quantity, limit, *curve)
            wanted = [residual, *(on_the_scale_of_the_kernel(quantity, value, centre) for value in says)]
            beyond = math.log10(E) if dense else E - 1
            asked = (problem, extra, constant, KINDS[name], at if "N" in _allowed.PLACE[name] else -centre, beyond)
            with np.errstate(invalid="ignore"):
                found = np.array(law_intervals.ends_at(*asked, alpha, ratio, 1 - ratio, limit, work))
            if name == "N_cutoff":  # beyond a right angle c is not above 0, and the reference's is infinite
                found[1:] = np.minimum(found[1:], math.pi / 2)
            kept = 2 if factor == 1.0 else 4  # whether there is room is a matter of the last bit then
            numbers_near(found[:kept], wanted[:kept], f"{name}, {alpha}, {ratio}, E {E}, limit {factor}")


# The searches for the ends over all shapes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [law_intervals.SLOPE, law_intervals.PREDICTION, law_intervals.START])
def test_an_end_between_no_limit_and_the_first_point_of_a_scan(kind):
    """E_start = 6000 and little noise: all shapes of the scan are rejected, the first, t = 0, by the least."""
    size, experts = (v.ravel() for v in np.meshgrid(SIZES, EXPERTS))
    law = routed.RoutedCoefficients(-0.08, -0.11, 0.009, 1.1, 6000.0, np.inf)
    noise = np.random.default_rng(3).normal(0, 1e-6, size.size)
    table = fitting.level_table(size, experts, routed.predict_loss(size, experts, law) * 10**noise)
    problem, constant = law_fit.reduce_rows(
        table.log_size, table.log_loss, table.level, np.ones(size.size), table.extra.size
    )
    work, top = np.empty((6, 2 * table.extra.size)), math.log1p(table.extra[-1])
    asked = (problem, table.extra, constant, kind, 0.3, float(table.extra[-1]) / 3)

    def sums_and_ends(sign):
        """Along t between the scan's first two points, E_max without limit: [residual sum, end]."""
        for t in np.linspace(0, 1 / (law_intervals.FIRST - 1), 401):
            alpha, ratio, rest = law_fit._shape(t, 0.0, top)
            found = law_intervals.ends_at(*asked, alpha, ratio, rest, limit, work)
            yield found[0], found[2] if sign > 0 else -found[3]

    limit = np.inf
    first, *sums = (residual for residual, _ in sums_and_ends(1.0))
    limit = 1.2 * min(sums)
    assert limit < first < sums[-1], "the scan's first point is rejected, and its second even more"
    for sign in (1.0, -1.0):
        ends = [end for residual, end in sums_and_ends(sign) if residual <= limit]
        found = law_intervals._least_over_t(*asked, True, limit, sign, work)
        assert len(ends) > 10 and found < max(ends)
        check("laws.uncertainty.end", max(found - min(ends), 0.0) / (max(ends) - min(ends)), message=f"sign {sign}")
