"""Intervals and covariances of the laws against textbook formulas.

`plain.laws` makes the rows and gives the intervals of linear laws. Tables have few rows, so a variance with the wrong
degrees of freedom shows.
"""

import math

import numpy as np
import pytest

from routelaws.conformance.bounds import check
from routelaws.conformance.plain import laws as plain_laws
from routelaws.conformance.plain.laws import Bounded, Compute, Student, quiet_interval
from routelaws.reference.laws import dense, fitting, log_linear, uncertainty, utilisation
from routelaws.reference.tests.strategies_laws import linear_design

LEVEL = 0.8
QUIET = 1e-6
"""Scatter of log10 L; second-order terms are then a thousandth of each interval."""

LAW = Bounded(-0.083, -0.118, 0.0099, 1.1136, 2.075, 238.7)
CELLS = [(size, experts) for size in (2e7, 3e8) for experts in (1.0, 4.0, 16.0, 64.0, 256.0)]
PLACE = (1e9, 100.0)

# B_min, the unit of B and F are far from 1, so a value in the wrong unit is far off.
COMPUTE = Compute(-0.08, -0.04, 0.01, 0.4, 28.0, 3600.0, 40.0)
USES = [(flops, used) for flops in (30.0, 700.0) for used in (40.0, 100.0, 400.0, 1600.0, 6000.0)]


def noisy(law, cells, noise: float, seed: int) -> tuple[np.ndarray, ...]:
    log_loss = np.array([law.log_loss(*cell) for cell in cells])
    return *np.array(cells).T, log_loss + np.random.default_rng(seed).normal(0, noise, len(cells))


QUANTITIES = {
    **{name: (lambda t, i=i: t[i], float) for i, name in enumerate(Bounded._fields)},
    "N_cutoff": (lambda t: math.log10(Bounded(*t).cutoff()), math.log10),
    "slope": (lambda t: Bounded(*t).slope(PLACE[0]), float),
    "gain": (lambda t: Bounded(*t).gain(*PLACE), float),
    "prediction": (lambda t: Bounded(*t).log_loss(*PLACE), math.log10),
    "observation": (lambda t: Bounded(*t).log_loss(*PLACE), math.log10),
    "effective_parameters": (lambda t: math.log10(Bounded(*t).worth(*PLACE)), math.log10),
}
"""Quantities of the law in (N, E), by the names of `uncertainty.py`, with the scale on which they are linear."""


def close(found, wanted, what: str) -> None:
    """Compare value, low and high in units of half the interval."""
    half = (wanted[2] - wanted[1]) / 2
    for ours, theirs in zip(found, wanted, strict=True):
        check("laws.coverage.quiet", abs(ours - theirs), half, message=f"{what}: {found} {wanted}")


def check_profile(module, names=tuple(QUANTITIES)) -> None:
    size, experts, log_loss = noisy(LAW, CELLS, QUIET, 3)
    asked = [module.Quantity(name, *PLACE) for name in names]
    for interval in module.profile_intervals(size, experts, 10**log_loss, asked, LEVEL):
        quantity, scale = QUANTITIES[interval.quantity.name]
        wanted = quiet_interval(
            lambda t: [Bounded(*t).log_loss(*cell) for cell in CELLS],
            quantity,
            np.array(LAW),
            log_loss,
            LEVEL,
            interval.quantity.name == "observation",
        )
        close([scale(end) for end in interval[1:4]], wanted, interval.quantity.name)


@pytest.mark.parametrize("names", [["slope"], pytest.param(list(QUANTITIES), marks=pytest.mark.slow)])
def test_profile_intervals_of_quiet_rows_by_the_reference(names):
    """A quantity takes seconds."""
    check_profile(uncertainty, names)


@pytest.mark.parametrize("file", ["fitting", "utilisation"])
def test_covariances_of_quiet_rows(file):
    """Compare each coefficient ± Student's quantile times its standard error, in its own unit."""
    law, cells, fit = (LAW, CELLS, "fit_routed") if file == "fitting" else (COMPUTE, USES, "fit_utilisation")
    first, second, log_loss = noisy(law, cells, QUIET, 4)
    rest, quantile = law[6:], plain_laws.stats.t.ppf((1 + LEVEL) / 2, len(cells) - 6)
    found = getattr({"fitting": fitting, "utilisation": utilisation}[file], fit)(first, second, 10**log_loss)
    assert found.status == "interior" and tuple(found.coefficients[6:]) == rest
    for i, name in enumerate(law._fields[:6]):
        wanted = quiet_interval(
            lambda t: [type(law)(*t, *rest).log_loss(*cell) for cell in cells],
            lambda t, i=i: t[i],
            np.array(law[:6]),
            log_loss,
            LEVEL,
        )
        value, reach = found.coefficients[i], quantile * math.sqrt(found.covariance[i, i])
        close((value, value - reach, value + reach), wanted, name)


LINEAR = {
    # name: size, experts, coefficients; for dense: alpha and alpha log10 N_c
    "dense": (np.array([1e7, 3e7, 1e8, 1e9]), np.ones(4), [0.08, 0.08 * 13]),
    "per-size": (np.repeat([1e7, 1e9], 4), np.tile([1.0, 4.0, 32.0, 256.0], 2), [-0.05, -0.03, 0.5, 0.3]),
    "separable": (np.array([1e7, 1e7, 1e8, 1e8, 1e9, 1e9]), np.array([1.0, 8, 2, 64, 4, 512]), [-0.08, -0.03, 1.1]),
    "bilinear": (np.repeat([1e7, 1e9], 4), np.tile([1.0, 4.0, 32.0, 256.0], 2), [-0.08, -0.1, 0.008, 1.1]),
}
FITS = {
    "dense": dense.fit_dense,
    "per-size": log_linear.fit_per_size,
    "separable": log_linear.fit_separable,
    "bilinear": log_linear.fit_bilinear,
}


@pytest.mark.parametrize("name", LINEAR)
def test_covariances_of_linear_laws_are_the_textbook_s(name):
    """`test_laws_linear_intervals.py` tests their intervals and coverage."""
    size, experts, truth = LINEAR[name]
    design = linear_design(name, size, experts)
    log_loss = design @ truth + np.random.default_rng(7).normal(0, 1e-3, len(design))
    columns = [size] if name == "dense" else [size, experts]
    wanted = np.diag(Student(design, log_loss, LEVEL).covariance)
    covariance = FITS[name](*columns, 10**log_loss).covariance
    found = np.diagonal(covariance, 0, 1, 2).T.ravel() if name == "per-size" else np.diag(covariance)
    kept = slice(0, 1) if name == "dense" else slice(None)  # N_c is not linear; see the next test
    check("laws.coverage.covariance", float(np.abs(found / wanted - 1)[kept].max()), message=name)


def test_the_interval_of_N_c_where_errors_are_small():
    size, _, (alpha, level) = LINEAR["dense"]
    truth = np.array([alpha, 10 ** (level / alpha)])
    log_loss = level - alpha * np.log10(size) + np.random.default_rng(1).normal(0, QUIET, size.size)

    def line(t):
        return t[0] * (math.log10(t[1]) - np.log10(size))

    quantile = plain_laws.stats.t.ppf((1 + LEVEL) / 2, size.size - 2)
    found = dense.fit_dense(size, 10**log_loss)
    for i, value in enumerate(found.coefficients):
        wanted = quiet_interval(line, lambda t, i=i: t[i], truth, log_loss, LEVEL)
        reach = quantile * math.sqrt(found.covariance[i, i])
        close((value, value - reach, value + reach), wanted, f"dense {i}")
