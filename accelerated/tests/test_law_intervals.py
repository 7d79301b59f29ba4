"""The ends of intervals at a shape of the bounded law, and their derivatives."""

import itertools
import math

import numpy as np
import pytest

from routelaws.accelerated.laws import _ends, _shapes, fitting, uncertainty
from routelaws.conformance.bounds import check
from routelaws.conformance.compare import central_difference
from routelaws.reference.laws import routed
from routelaws.reference.laws.numerics import _allowed, _projection

KINDS = [name for name in _allowed.PLACE if name not in ("E_start", "E_max")]
SHAPES = {
    "inside": (0.4, 0.01), "nearly linear": (1e-7, 1e-3), "nearly bounded": (0.7, 0.4), "E_start at 1": (1.0, 0.003),
    "unbounded": (0.3, 0.0), "the corner": (1.0, 0.0), "the linear limit": (0.0, 0.0),
}  # fmt: skip
"""alpha = 1/E_start and E_start/E_max."""


def small_table(sign: float = 1.0):
    """Return the rows of a noisy incomplete table of 5 E and 3 sizes, and the reduced table."""
    size, experts = (v.ravel()[:-1] for v in np.meshgrid([2e7, 1e8, 6e8], [1.0, 4.0, 16.0, 64.0, 256.0]))
    law = routed.RoutedCoefficients(-0.08, -0.2 * sign, 0.02 * sign, 1.1, 2.0, 300.0)
    noise = np.random.default_rng(5).normal(0, 2e-3, size.size)
    loss = routed.predict_loss(size, experts, law) * 10**noise
    problem = _shapes.reduced(fitting.level_table(size, experts, loss), np.ones((1, size.size)))
    return _projection.check_rows(size, experts, loss), problem


def numbers_near(found, wanted, message: str) -> None:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite], err_msg=message)
    error = np.abs(found[finite] - wanted[finite]) / np.maximum(np.abs(wanted[finite]), 1.0)
    check("laws.uncertainty.loops", float(error.max(initial=0.0)), message=message)


def on_the_scale_of_the_search(quantity, value: float, centre: float) -> float:
    """Return a value of the reference on the scale of the search: ratios are angles."""
    if quantity.name == "N_cutoff":
        return math.atan(value - centre)
    return math.atan(value - math.log10(quantity.N)) if quantity.name == "effective_parameters" else value


def found_at(problem, quantity, centre: float, limit: float, alpha: float, ratio: float) -> list[float]:
    """Return best value, low end and high end at a shape."""
    wide = _ends.LinearQuantities(*(field[..., None] for field in _ends.asked_of([quantity], centre)))
    if alpha == 0:
        best, ends = _ends._linear_ends(problem, wide, limit)
    else:
        with np.errstate(divide="ignore"):
            shape = np.array([[math.log(alpha)], [np.log(ratio) - math.log1p(-ratio)]])
        best, ends = _ends._ends_of(problem, wide, limit, shape)
    return [best[0, 0], ends[0, 0], -ends[1, 0]]


@pytest.mark.parametrize("name", KINDS)
def test_ends_at_a_shape_are_the_reference_s(name):
    for sign in (1.0, -1.0):  # of what experts do; where E_start is at infinity, it says which of both ends is
        rows, problem = small_table(sign)
        centre = rows.log_size.mean()
        places = ((1.0, 0.0), (100.0, -0.3), (3000.0, 1.0))  # E, and log10 N minus its mean
        for (alpha, ratio), (E, at), factor in itertools.product(SHAPES.values(), places, (0.5, 1.0, 1.01, 40.0)):
            dense = name in ("a", "d")  # these are defined at any effective number of experts
            quantity = uncertainty.Quantity(name, 10 ** (centre + at), E, effective=E if dense else 1.0)
            curve = alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio
            limit = factor * _allowed.at_shape(rows, quantity, 0.0, *curve)[0]
            _, *says = _allowed.at_shape(rows, quantity, limit, *curve)
            wanted = [on_the_scale_of_the_search(quantity, value, centre) for value in says]
            found = np.array(found_at(problem, quantity, centre, limit, alpha, ratio))
            if name == "N_cutoff":  # beyond a right angle c is at most 0, and the value of the reference is infinite
                found = np.minimum(found, math.pi / 2)
            kept = 3 if factor > 1 else 1  # the shape is rejected, or the last bit decides
            numbers_near(found[:kept], wanted[:kept], f"{name}, {alpha}, {ratio}, E {E}, limit {factor}")


@pytest.mark.parametrize("name", KINDS)
def test_derivatives_are_differences(name):
    rows, problem = small_table()
    quantity = uncertainty.Quantity(name, 3e8, 50.0, effective=3.0)
    asked = _ends.asked_of([quantity], rows.log_size.mean())
    limit = 1.5 * _allowed.at_shape(rows, quantity, 0.0, 0.4 * 0.99**2, 0.4 * 0.99 * 0.01)[0]
    slopes = _ends._signed_ends(problem, asked, limit)
    for side, at in itertools.product((0, 1), np.array([(-0.9, -4.6), (-0.7, -5.5)])):

        def value(place, side=side) -> float:
            return float(slopes(place[:, None, None], np.array([side]))[0][0, 0])

        _, fall, _ = slopes(at[:, None, None], np.array([side]))
        wanted = np.array([central_difference(value, at, direction) for direction in np.eye(2)])
        share = np.abs(fall[:, 0, 0] - wanted).max() / np.abs(wanted).max()
        check("laws.uncertainty.turn", float(share), message=f"{name}, {side}, {at}")


def test_ends_of_the_extremes_reach_the_limit():
    rows, problem = small_table()
    found = _shapes.Searched(problem, *_shapes.best_shapes(problem, 16, 4))
    limit = 1.02 * found.least.min()
    (start, *starts), (_, *tops) = -1 / _ends.extreme_ends(found, ["E_start", "E_max"], limit, _shapes.INTERIOR)

    def least(shape_of) -> float:
        """Return the least residual sum over the other extreme, as a share of the limit."""

        def residual(v: float) -> float:
            alpha, ratio = shape_of(v)
            return _projection.residual_sum(rows, alpha * (1 - ratio) ** 2, alpha * (1 - ratio) * ratio)

        return _projection.least_on_line(residual, 0.0, 1.0)[0] / limit

    shares = [least(lambda v, end=end: (1 / end, 0.9 * v**4)) for end in starts]
    shares += [least(lambda v, end=end: (end**-v, end ** (v - 1))) for end in tops]
    assert starts[0] < start < starts[1] and start > 1
    check("laws.uncertainty.reached", float(np.abs(np.array(shares) - 1).max()), message=f"{starts} {tops} {shares}")
