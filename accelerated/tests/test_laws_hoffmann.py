"""Hoffmann's law on the points that Besiroglu et al. read from the authors' figure."""

import math

import numpy as np
import pytest

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.reference.laws import hoffmann
from routelaws.reference.tests.test_laws_hoffmann import LEAST, points


@pytest.mark.slow
@pytest.mark.released
def test_how_many_of_the_published_starts_reach_the_least_sum():
    """Nearly all of 300 starts reach the least sum, and the others lose a term.

    The starts are drawn from the 4,500 of Hoffmann et al.
    """
    starts = hoffmann.published_starts()
    assert starts.shape == (4500, 5) and np.array_equal(starts, fast.hoffmann.published_starts())
    drawn = starts[np.random.default_rng(0).choice(4500, 300, replace=False)]
    fit = fast.hoffmann.fit_hoffmann(*points(), starts=drawn)
    check("laws.additive.objective", abs(fit.objective / LEAST - 1))
    assert fit.starts == 300 and 285 <= fit.reached <= 299


@pytest.mark.slow
@pytest.mark.released
def test_intervals_of_the_released_points():
    """At 95 %, the printed exponent of Hoffmann et al. is outside for the tokens and inside for the parameters."""
    found = {each.name: each for each in fast.hoffmann.hoffmann_intervals(*points())}
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
    inside, far = fast.hoffmann.hoffmann_intervals(*points(), at=([1e9, 7e10], [2e10, 1.4e12]))
    assert math.log(far.high / far.low) > 5 * math.log(inside.high / inside.low)
