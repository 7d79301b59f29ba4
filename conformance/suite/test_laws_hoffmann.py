"""Hoffmann's law on the points that Besiroglu et al. read from the authors' figure."""

import csv
import math

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.conformance.engine.data_folder import released_file
from routelaws.conformance.suite.strategies_additive import huber_sum
from routelaws.reference.laws import hoffmann

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


@pytest.mark.asks("laws.hoffmann.fit_hoffmann")
@pytest.mark.long
@pytest.mark.released
def test_the_fit_of_the_released_points(backend):
    """All starts with a floor, three quarters of them, reach the minimum."""
    for module in (backend.laws.hoffmann, hoffmann):
        fit = module.fit_hoffmann(*points())
        assert (fit.rows, fit.status) == (240, "interior") and fit.objective <= 1.0183e-3
        check("laws.additive.objective", abs(fit.objective / LEAST - 1))
        for found, wanted in zip(fit.coefficients, FIT, strict=True):
            check("laws.hoffmann.digits", abs(found / wanted - 1))
        assert (fit.reached, fit.starts) == (36, 48)


@pytest.mark.asks("laws.hoffmann.predict_hoffmann")
@pytest.mark.released
def test_the_printed_fits_are_worse(backend):
    size, tokens, loss = points()
    for name, wanted in PRINTED.items():
        residual = np.log(hoffmann.predict_hoffmann(size, tokens, hoffmann.PUBLISHED[name].coefficients) / loss)
        check("laws.hoffmann.printed", abs(huber_sum(residual, 1e-3) / wanted - 1))


@pytest.mark.asks("laws.hoffmann.fit_hoffmann", "laws.hoffmann.published_starts")
@pytest.mark.slow
@pytest.mark.released
def test_how_many_of_the_published_starts_reach_the_least_sum(backend):
    """Nearly all of 300 starts reach the least sum, and the others lose a term.

    The starts are drawn from the 4,500 of Hoffmann et al.
    """
    starts = hoffmann.published_starts()
    assert starts.shape == (4500, 5) and np.array_equal(starts, backend.laws.hoffmann.published_starts())
    drawn = starts[np.random.default_rng(0).choice(4500, 300, replace=False)]
    fit = backend.laws.hoffmann.fit_hoffmann(*points(), starts=drawn)
    check("laws.additive.objective", abs(fit.objective / LEAST - 1))
    assert fit.starts == 300 and 285 <= fit.reached <= 299


@pytest.mark.asks("laws.hoffmann.hoffmann_intervals")
@pytest.mark.slow
@pytest.mark.released
def test_intervals_of_the_released_points(backend):
    """At 95 %, the printed exponent of Hoffmann et al. is outside for the tokens and inside for the parameters."""
    found = {each.name: each for each in backend.laws.hoffmann.hoffmann_intervals(*points())}
    for name, low, high in (
        ("a", 305.68, 714.48),
        ("alpha", 0.32085, 0.37093),
        ("b", 1341.7, 3495.3),
        ("beta", 0.34377, 0.39123),
        ("c", 1.77797, 1.85295),
    ):
        check("laws.hoffmann.digits", max(abs(found[name].low / low - 1), abs(found[name].high / high - 1)))
    printed = hoffmann.PUBLISHED["hoffmann"].coefficients
    assert found["alpha"].low < printed.alpha < found["alpha"].high and printed.beta < found["beta"].low
    refit = hoffmann.PUBLISHED["besiroglu"].coefficients
    assert all(found[name].low < value < found[name].high for name, value in refit._asdict().items())
    inside, far = backend.laws.hoffmann.hoffmann_intervals(*points(), at=([1e9, 7e10], [2e10, 1.4e12]))
    assert math.log(far.high / far.low) > 5 * math.log(inside.high / inside.low)
