"""The ends of intervals at a shape of the bounded law, by the compiled kernel and by the reference."""

import itertools
import math

import numpy as np
import pytest

from routelaws.accelerated.kernels import law_fit, law_intervals
from routelaws.accelerated.laws import fitting, uncertainty
from routelaws.conformance.bounds import check
from routelaws.reference.laws import _allowed, _projection, routed

KINDS = uncertainty._KINDS
SHAPES = {
    "inside": (0.4, 0.01), "nearly linear": (1e-7, 1e-3), "nearly bounded": (0.7, 0.4), "E_start at 1": (1.0, 0.003),
    "unbounded": (0.3, 0.0), "the corner": (1.0, 0.0), "the linear limit": (0.0, 0.0),
}  # fmt: skip
"""alpha = 1/E_start and E_start/E_max."""


def small_table(sign: float = 1.0):
    """Return (rows, reduced table, its constant, E - 1, work) of a noisy incomplete table of 5 E and 3 sizes."""
    size, experts = (v.ravel()[:-1] for v in np.meshgrid([2e7, 1e8, 6e8], [1.0, 4.0, 16.0, 64.0, 256.0]))
    law = routed.RoutedCoefficients(-0.08, -0.2 * sign, 0.02 * sign, 1.1, 2.0, 300.0)
    noise = np.random.default_rng(5).normal(0, 2e-3, size.size)
    loss = routed.predict_loss(size, experts, law) * 10**noise
    table = fitting.level_table(size, experts, loss)
    problem, constant = law_fit.reduce_rows(table.log_size, table.log_loss, table.level, np.ones(size.size), 5)
    work = np.full((6, 2 * table.extra.size), np.nan)
    return _projection.check_rows(size, experts, loss), problem, constant, table.extra, work


def numbers_near(found, wanted, message: str) -> None:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite], err_msg=message)
    error = np.abs(found[finite] - wanted[finite]) / np.maximum(np.abs(wanted[finite]), 1.0)
    check("laws.uncertainty.loops", float(error.max(initial=0.0)), message=message)


def on_the_scale_of_the_kernel(quantity, value: float, centre: float) -> float:
    """Return a value of the reference on the scale of the kernel: -1/E, an angle, or decades above N."""
    if quantity.name in ("E_start", "E_max"):
        return -1 / value
    if quantity.name == "N_cutoff":
        return math.atan(value - centre)
    return value - (math.log10(quantity.N) if quantity.name == "effective_parameters" else 0.0)


@pytest.mark.parametrize("name", KINDS)
def test_ends_at_a_shape_are_the_reference_s(plain, name):
    for sign in (1.0, -1.0):  # of what experts do; where E_start is at infinity, it says which of both ends is
        rows, problem, constant, extra, work = small_table(sign)
        centre = rows.log_size.mean()
        places = ((1.0, 0.0), (100.0, -0.3), (3000.0, 1.0))  # E, and log10 N minus its mean
        for (alpha, ratio), (E, at), factor in itertools.product(SHAPES.values(), places, (0.5, 1.0, 1.01, 40.0)):
            dense = name in ("a", "d")  # these are defined at any effective number of experts
            quantity = uncertainty.Quantity(name, 10 ** (centre + at), E, effective=E if dense else 1.0)
            curve = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
            limit = factor * _allowed.at_shape(rows, quantity, 0.0, *curve)[0]
            residual, *says = _allowed.at_shape(rows, quantity, limit, *curve)
            wanted = [residual, *(on_the_scale_of_the_kernel(quantity, value, centre) for value in says)]
            beyond = math.log10(E) if dense else E - 1
            asked = (problem, extra, constant, KINDS[name], at if "N" in _allowed.PLACE[name] else -centre, beyond)
            with np.errstate(invalid="ignore"):
                found = np.array(law_intervals.ends_at(*asked, alpha, ratio, 1 - ratio, limit, work))
            if name == "N_cutoff":  # beyond a right angle c is at most 0, and the value of the reference is infinite
                found[1:] = np.minimum(found[1:], math.pi / 2)
            kept = 2 if factor == 1.0 else 4  # then the last bit decides whether there is room
            numbers_near(found[:kept], wanted[:kept], f"{name}, {alpha}, {ratio}, E {E}, limit {factor}")
