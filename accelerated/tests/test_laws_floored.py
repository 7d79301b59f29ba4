"""The laws with a floor: the batched search agrees with the reference, and the profile intervals cover."""

import math

import numpy as np
import pytest
from scipy import optimize

from routelaws.accelerated.laws import _descent
from routelaws.accelerated.laws import floored as accelerated
from routelaws.accelerated.laws.catalogue import LAWS as RECORDS
from routelaws.accelerated.laws.held_out import leave_one_group_out
from routelaws.reference.laws import Quantity, student_quantile
from routelaws.reference.laws import floored as reference
from routelaws.reference.laws.catalogue import LAWS as REFERENCE_RECORDS
from routelaws.reference.laws.floored import (
    BilinearFloorCoefficients,
    BoundedFloorCoefficients,
    SeparableFloorCoefficients,
)
from routelaws.reference.laws.utilisation import UtilisationFloorCoefficients, predict_utilisation_floor

SIZES, EXPERTS = (v.ravel() for v in np.meshgrid([1e7, 5e7, 2e8, 1e9], [1.0, 2.0, 8.0, 32.0, 128.0]))
LAWS = [
    BoundedFloorCoefficients(-0.18, -0.15, 0.008, 1.6, 2.5, 300.0, 1.5),
    BoundedFloorCoefficients(-0.18, -0.15, 0.008, 1.6, 2.5, 1e6, 1e-9),  # the best E_max is infinite, the best floor 0
    BilinearFloorCoefficients(-0.17, -0.12, 0.008, 1.5, 1.4),
    SeparableFloorCoefficients(-0.18, -0.07, 1.53, 1.7),
]


def noisy(law, seed: int, size: np.ndarray = SIZES, experts: np.ndarray = EXPERTS) -> np.ndarray:
    exact = reference.predict_floored(size, experts, law)
    return exact * np.exp(np.random.default_rng(seed).normal(0, 2e-3, size.size))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("huber", [None, 2e-3])
def test_fits_agree_with_the_reference(law, huber):
    table = (type(law), SIZES, EXPERTS, noisy(law, 8))
    found, wanted = accelerated.fit_floored(*table, huber), reference.fit_floored(*table, huber)
    assert found.objective == pytest.approx(wanted.objective, rel=1e-9)
    assert (found.status, found.rows, found.criterion) == (wanted.status, wanted.rows, wanted.criterion)
    np.testing.assert_allclose(found.coefficients, wanted.coefficients, rtol=1e-4)
    np.testing.assert_allclose(found.covariance, wanted.covariance, rtol=1e-3)


def test_in_the_linear_limit_the_search_is_short_and_slopes_have_one_end(monkeypatch):
    """ln(L - L0) is linear in E - 1, so b and the slopes grow without end. L0 does not."""
    steps, rows = [], _descent._rows
    monkeypatch.setattr(_descent, "_rows", lambda *args: steps.append(0) or rows(*args))
    exact = 1.5 + 10 ** (1.6 - 0.18 * np.log10(SIZES) - 5e-4 * (EXPERTS - 1))
    loss = exact * np.exp(np.random.default_rng(8).normal(0, 2e-3, SIZES.size))
    law, columns = RECORDS["routed-bounded-floor"], (SIZES, EXPERTS)
    for table in (exact, loss):
        steps.clear()
        fit = law.fit(*columns, table)
        predicted = law.predict(fit, *columns)
        assert "E_start" in fit.status and len(steps) < 500
        np.testing.assert_allclose(predicted, exact, rtol=1e-6 if table is exact else 5e-3)
        np.testing.assert_allclose(law.design(fit, *columns).T @ np.log10(table / predicted), 0, atol=1e-5)
    slopes = law.slopes(fit, columns, loss)
    assert all(slope.value == slope.low == -math.inf and -1 < slope.high < 0 for slope in slopes)
    found = {item.name: item for item in law.intervals(fit, columns, loss)}
    assert found["b"].low == -math.inf and found["E_start"].high == math.inf and -1 < found["b"].high < 0
    assert 1.3 < found["L0"].low < 1.5 < found["L0"].high < 1.6


def test_where_the_linear_limit_is_allowed_a_slope_has_no_lower_end():
    truth = BoundedFloorCoefficients(-0.18, -0.15, 0.008, 1.6, 8.0, 40.0, 1.5)
    exact = reference.predict_floored(SIZES, EXPERTS, truth)
    loss = exact * np.exp(np.random.default_rng(7).normal(0, 4e-3, SIZES.size))
    law, columns = RECORDS["routed-bounded-floor"], (SIZES, EXPERTS)
    fit = law.fit(*columns, loss)
    start = law.intervals(fit, columns, loss)[4]
    assert (fit.status, start.name, start.low) == ("interior", "E_start", 0.0) and 5 < start.value < start.high < 100
    assert all(slope.low == -math.inf < slope.value < slope.high < 0 for slope in law.slopes(fit, columns, loss))


@pytest.mark.parametrize("law", [*(pytest.param(law, marks=pytest.mark.slow) for law in LAWS[1:-1]), LAWS[-1]])
def test_intervals_agree_with_the_reference(law):
    table = (type(law), SIZES, EXPERTS, noisy(law, 8))
    points = {"at": (np.array([2e10]), np.array([64.0]))}
    derived = [Quantity("slope", N=1e9), Quantity("effective_parameters", N=1e10, E=64.0)]
    derived += [Quantity("N_cutoff")] * hasattr(law, "c")
    for more in ({"quantities": derived}, points) if law is not LAWS[1] else (points,):
        found, wanted = accelerated.floored_intervals(*table, **more), reference.floored_intervals(*table, **more)
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours.name, ours.level) == (theirs.name, theirs.level)
            np.testing.assert_allclose(ours[1:4], theirs[1:4], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", ["N_cutoff", "effective_parameters"])
def test_ends_of_derived_numbers_lie_at_the_limit_of_the_sum(name):
    """SciPy fits the law with the number held at an end. The sum of squares is then RSS (1 + q²/(n - p))."""
    law, loss = LAWS[2], noisy(LAWS[2], 8)
    n, e, y = np.log10(SIZES), np.log10(EXPERTS), np.log(loss)

    def rss(held=None):
        def residual(t):
            a, b, d, floor = t[:4]
            if held is None:
                c = t[4]
            elif name == "N_cutoff":
                c = -b / math.log10(held)
            else:  # a log10(held) = a n + b e + c n e at n = 10, E = 64
                c = (a * (math.log10(held) - 10) / math.log10(64) - b) / 10
            return np.log(np.exp(floor) + 10 ** (a * n + b * e + c * n * e + d)) - y

        start = [law.a, law.b, law.d, math.log(law.L0)] + [law.c] * (held is None)
        return 2 * optimize.least_squares(residual, start, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15).cost

    quantity = Quantity(name, *((math.nan, math.nan) if name == "N_cutoff" else (1e10, 64.0)))
    [*_, row] = accelerated.floored_intervals(type(law), SIZES, EXPERTS, loss, quantities=[quantity])
    freedom = loss.size - len(law)
    limit = rss() * (1 + student_quantile(0.95, freedom) ** 2 / freedom)
    assert row.low < row.value < row.high < math.inf
    assert [rss(row.low), rss(row.high)] == pytest.approx([limit, limit], rel=1e-6)


def test_a_cut_off_is_open_where_experts_may_always_help():
    law = LAWS[2]._replace(c=0.0)
    [*_, row] = accelerated.floored_intervals(
        type(law), SIZES, EXPERTS, noisy(law, 3), quantities=[Quantity("N_cutoff")]
    )
    assert row.name == "N_cutoff" and row.high == math.inf and 1e9 < row.low < math.inf


def test_profile_intervals_cover_the_planted_law():
    """Of 40 tables, at most 6 may miss: with a coverage of 95 % this has a probability of 0.986."""
    law, misses = LAWS[2], {"L0": 0, "c": 0, "prediction": 0}
    truth = law._asdict() | {"prediction": float(reference.predict_floored(2e10, 512, law))}
    for seed in range(40):
        table = (type(law), SIZES, EXPERTS, noisy(law, seed))
        rows = accelerated.floored_intervals(*table)
        rows += accelerated.floored_intervals(*table, at=(np.array([2e10]), np.array([512.0])))
        for row in rows:
            if row.name in misses:
                misses[row.name] += not row.low <= truth[row.name] <= row.high
    assert max(misses.values()) <= 6, misses


def test_the_law_in_compute_has_a_floor_too():
    """The record fits, predicts and covers the planted law, by the same B_min in every fold."""
    law = UtilisationFloorCoefficients(-0.12, -0.1, 0.01, 0.2, 0.14, 18.0, 1.5, 0.2)
    F, B = (v.ravel() for v in np.meshgrid([0.2, 1.0, 5.0, 20.0], [0.2, 0.5, 2.0, 8.0, 30.0]))
    record = RECORDS["utilisation-floor"]
    loss = predict_utilisation_floor(F, B, law) * np.exp(np.random.default_rng(6).normal(0, 1e-3, F.size))
    fit, twin = record.fit(F, B, loss), REFERENCE_RECORDS["utilisation-floor"].fit(F, B, loss)
    assert fit.coefficients == pytest.approx(twin.coefficients, rel=1e-4) and fit.status == "interior"
    ranges = {each.name: each for each in record.intervals(fit, (F, B), loss)}
    assert list(ranges) == [*law._fields[:-1], "F_cutoff"]
    for name in ("a", "b", "c", "d", "B_start", "B_max", "L0"):
        assert ranges[name].low < getattr(law, name) < ranges[name].high, name
    assert ranges["F_cutoff"].value == pytest.approx(10 ** (-fit.coefficients.b / fit.coefficients.c))
    truth = float(predict_utilisation_floor(100.0, 60.0, law))
    value, (low, high), (least, most) = record.predict_interval(fit, (F, B), loss, (100.0, 60.0))
    assert value == pytest.approx(float(record.predict(fit, 100.0, 60.0))) and least < low < truth < high < most
    assert leave_one_group_out(record, (F, B), loss, B).predicted == loss.size
    assert RECORDS["routed-utilisation"].floored == record.name
