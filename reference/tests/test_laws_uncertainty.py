"""Student's quantile, and the words of an interval.

`accelerated/tests/test_laws_uncertainty.py` compares intervals, which take the reference seconds.
"""

import math

import pytest

from routelaws.conformance.bounds import check
from routelaws.reference.laws import uncertainty as reference


@pytest.mark.parametrize(("degrees", "wanted"), [(1, 12.7062047362), (10, 2.2281388520), (52, 2.0066468051)])
def test_student_quantile_against_printed_tables(degrees, wanted):
    check("laws.uncertainty.quantile", abs(reference.student_quantile(0.95, degrees) / wanted - 1))


VERDICTS = [
    (("slope", -0.030, -0.037, -0.023), "pinned down"), (("slope", -0.030, -0.038, -0.022), "soft"),
    (("slope", -0.030, -0.1, 0.01), "soft, sign open"), (("slope", -0.03, -math.inf, -0.01), "bounded from above only"),
    (("c", 0.01, 0.005, math.inf), "bounded from below only"), (("c", 0.01, -math.inf, math.inf), "not identified"),
    (("E_max", 300, 200, 400), "pinned down"), (("E_max", 300, 200, 401), "soft"),
    (("E_max", 300, 1, 400), "bounded from above only"), (("E_max", math.nan, 1, math.inf), "not identified"),
    (("E_start", 1.5, 1, 2), "bounded from above only"), (("N_cutoff", 1e12, 0, 1e14), "bounded from above only"),
    (("N_cutoff", 1e12, 1e11, math.inf), "bounded from below only"), (("prediction", 2.0, 1.99, 2.08), "pinned down"),
    (("prediction", 2.0, 1.90, 2.08), "soft"), (("E_max", 300, math.nan, math.nan), "not identified"),
    (("effective_parameters", 1e9, 6e8, 1.2e9), "pinned down"), (("slope", -0.03, -0.31, -0.03), "loose"),
    (("slope", -0.03, -0.30, -0.031), "soft"), (("c", 0.01, 0.001, 0.011), "loose"), (("E_max", 300, 50, 501), "loose"),
    (("slope", -0.03, -0.1, 0.0), "soft, sign open"), (("prediction", 2.0, 0.1, 3.0), "loose"),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "words"), VERDICTS)
@pytest.mark.parametrize("extrapolated", [False, True])
def test_verdict(numbers, words, extrapolated):
    interval = reference.Interval(reference.Quantity(numbers[0], 1e9, 8.0), *numbers[1:], 0.95, extrapolated)
    assert reference.verdict(interval) == words + ", extrapolated" * extrapolated


def test_a_quantity_that_is_in_range_stays():
    for name, place in reference.PLACE.items():
        quantity = reference.Quantity(name, 8e7 if "N" in place else math.nan, 16.0 if "E" in place else math.nan)
        assert reference.check_quantity(quantity) == quantity
