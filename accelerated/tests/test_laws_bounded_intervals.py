"""Intervals of the bounded laws. Errors are so small that every law is linear."""

import math

import numpy as np
import pytest

from routelaws.accelerated import laws as fast
from routelaws.conformance.bounds import check
from routelaws.conformance.plain.laws import Bounded, quiet_interval
from routelaws.reference.laws import catalogue
from routelaws.reference.tests.test_laws_coverage import (
    CELLS,
    COMPUTE,
    LAW,
    LEVEL,
    PLACE,
    QUIET,
    USES,
    check_profile,
    close,
    noisy,
)

PLACES = {"routed-bounded": PLACE, "routed-utilisation": (200.0, 900.0)}
TRUTHS = {"routed-bounded": (LAW, CELLS), "routed-utilisation": (COMPUTE, USES)}
CUTOFFS = {"routed-bounded": "N_cutoff", "routed-utilisation": "F_cutoff"}
NAMED = {
    "routed-bounded": [*Bounded._fields, "N_cutoff"],
    "routed-utilisation": ["a", "b", "c", "d", "B_start", "B_max", "F_cutoff"],
}


def quiet(name: str, quantity, log_loss: np.ndarray, more: float = 0.0) -> tuple:
    truth, cells = TRUTHS[name]
    rest = truth[6:]  # B_min is not fitted
    return quiet_interval(
        lambda t: [type(truth)(*t, *rest).log_loss(*cell) for cell in cells],
        lambda t: quantity(type(truth)(*t, *rest)),
        np.array(truth[:6]),
        log_loss,
        LEVEL,
        more,
    )


def check_law(law, name: str) -> None:
    truth, cells = TRUTHS[name]
    first, second, log_loss = noisy(truth, cells, QUIET, 3)
    columns, loss = (first, second), 10**log_loss
    fit = law.fit(*columns, loss)
    ranges = law.intervals(fit, columns, loss, LEVEL)
    assert [item.name for item in ranges] == NAMED[name] and all(item.at is None and item.words for item in ranges)
    for item in ranges:
        value = getattr(fit.coefficients, item.name, None)
        if item.name == CUTOFFS[name]:
            wanted = quiet(name, lambda t: -t.b / t.c, log_loss)
            close(np.log10(item[2:5]), wanted, item.name)
            assert law.cutoff(fit)[0] == item.name
            value = law.cutoff(fit)[1]
        else:
            close(item[2:5], quiet(name, lambda t, field=item.name: getattr(t, field), log_loss), item.name)
        check("laws.intervals.value", abs(value / item.value - 1), message=item.name)
    for item in law.slopes(fit, columns, loss, LEVEL):
        wanted = quiet(name, lambda t, at=item.at: t.b + t.c * math.log10(at), log_loss)
        close(item[2:5], wanted, f"slope at {item.at}")
    found = law.predict_interval(fit, columns, loss, PLACES[name], LEVEL)
    for ends, more in ((found.law, 0.0), (found.run, 1.0)):
        wanted = quiet(name, lambda t: t.log_loss(*PLACES[name]), log_loss, more)
        close(np.log10([found.value, *ends]), wanted, f"loss, {more:g}")


def test_profile_intervals_of_quiet_rows():
    check_profile(fast.uncertainty)


@pytest.mark.parametrize("name", TRUTHS)
def test_intervals_of_quiet_rows(name):
    """Student's t has n - 6 degrees of freedom."""
    check_law(fast.catalogue.LAWS[name], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTHS)
def test_intervals_of_quiet_rows_by_the_reference(name):
    check_law(catalogue.LAWS[name], name)


def test_what_a_size_is_worth():
    """Only the law in (N, E) has this number."""
    first, second, log_loss = noisy(LAW, CELLS, QUIET, 3)
    law, loss = fast.catalogue.LAWS["routed-bounded"], 10**log_loss
    fit = law.fit(first, second, loss)
    [found] = law.dense_equivalents(fit, (first, second), loss, [PLACE], LEVEL)
    wanted = quiet("routed-bounded", lambda t: math.log10(t.worth(*PLACE)), log_loss)
    close(np.log10(found[2:5]), wanted, "worth")


@pytest.mark.parametrize("name", [*TRUTHS, "bilinear-floor", "separable"])
def test_several_points_have_the_intervals_of_each(name):
    grid = [(size, experts) for size in (1e7, 1e8, 1e9, 1e10) for experts in (1.0, 4.0, 16.0, 64.0)]
    *columns, log_loss = noisy(*((COMPUTE, USES) if name == "routed-utilisation" else (LAW, grid)), 1e-3, 3)
    law = fast.catalogue.LAWS[name]
    loss = 10**log_loss + law.has_floor
    fit, points = law.fit(*columns, loss), np.transpose(columns)[[1, -2]]
    several = law.predict_intervals(fit, columns, loss, points, LEVEL)
    each = [law.predict_interval(fit, columns, loss, at, LEVEL) for at in points]
    if law.dense_equivalents is not None:
        several += [item[2:5] for item in law.dense_equivalents(fit, columns, loss, points, LEVEL)]
        each += [law.dense_equivalents(fit, columns, loss, [at], LEVEL)[0][2:5] for at in points]
    for found, wanted in zip(several, each, strict=True):
        assert np.hstack(found) == pytest.approx(np.hstack(wanted), rel=1e-7)


def test_designs_are_those_that_the_laws_are_linear_in():
    """At the fitted shape the log10 predictions lie in the span of the columns."""
    for name, (truth, cells) in TRUTHS.items():
        first, second, log_loss = noisy(truth, cells, 1e-3, 3)
        for law in (fast.catalogue.LAWS[name], catalogue.LAWS[name]):
            fit = law.fit(first, second, 10**log_loss)
            design, said = law.design(fit, first, second), np.log10(law.predict(fit, first, second))
            assert design.shape == (len(cells), 4)
            left = said - design @ np.linalg.lstsq(design, said, rcond=None)[0]
            check("laws.intervals.span", float(np.abs(left).max()))
