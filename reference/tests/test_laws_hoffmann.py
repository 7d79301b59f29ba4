"""Hoffmann's law on the points that Besiroglu et al. read from the authors' figure."""

import csv

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.conformance.suite.strategies import released_file
from routelaws.reference.laws import hoffmann
from routelaws.reference.tests.strategies_additive import huber_sum

LEAST = 1.0182740178006e-3
"""The least sum of Huber terms, delta = 1e-3 in ln L, of 240 points. Both twins reach it from their own starts, and
L-BFGS-B from the published starts."""

FIT = hoffmann.HoffmannCoefficients(477.826, 0.34731, 2143.42, 0.36717, 1.81722)

PRINTED = {"hoffmann": 1.2353e-3, "besiroglu": 1.0228e-3}
"""The same sum for the printed coefficients."""


def points() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return N, D = FLOPs / 6N and loss of 240 points: all except the five largest losses.

    The standard library reads the file, so this does not depend on the reader under test.
    """
    with open(released_file("chinchilla_points.csv"), newline="") as lines:
        rows = [[float(row[name]) for name in ("params", "training_flops", "loss")] for row in csv.DictReader(lines)]
    size, flops, loss = np.array(sorted(rows, key=lambda row: row[2])[:240]).T
    return size, flops / (6 * size), loss


@pytest.mark.released
def test_the_fit_of_the_released_points():
    """All starts with a floor, three quarters of them, reach the minimum."""
    fit = hoffmann.fit_hoffmann(*points())
    assert (fit.rows, fit.status) == (240, "interior") and fit.objective <= 1.0183e-3
    check("laws.additive.objective", abs(fit.objective / LEAST - 1))
    for found, wanted in zip(fit.coefficients, FIT, strict=True):
        check("laws.hoffmann.digits", abs(found / wanted - 1))
    assert (fit.reached, fit.starts) == (36, 48)


@pytest.mark.released
def test_the_printed_fits_are_worse():
    size, tokens, loss = points()
    for name, wanted in PRINTED.items():
        residual = np.log(hoffmann.predict_hoffmann(size, tokens, hoffmann.PUBLISHED[name].coefficients) / loss)
        check("laws.hoffmann.printed", abs(huber_sum(residual, 1e-3) / wanted - 1))
